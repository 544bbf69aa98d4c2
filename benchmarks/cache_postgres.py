"""Cache hits from PostgreSQL, compared with the same row read by asyncpg."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from itertools import repeat
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec

from benchmarks.cache import PARAMS, VALUE
from benchmarks.measure import Contender, Effort, Loop, Timings, in_turns
from benchmarks.ours import COMPORTA
from benchmarks.report import Goal, Section, Table
from comporta import HealthCache
from comporta.testing import PostgresServer

CALLERS = 20
CONNECTIONS = 4

_HIT = f"{COMPORTA} from PostgreSQL"
_CONNECTION, _POOL = "asyncpg connection and msgspec", "asyncpg pool and msgspec"
_COLUMNS = (
    "SELECT string_agg(column_name, ', ' ORDER BY ordinal_position) FROM information_schema.columns "
    "WHERE table_name = 'search_results_cache'"
)


def rows(effort: Effort) -> Section:
    """Compare a hit from the table with the same row read by asyncpg, in CPU time and in elapsed time."""
    with PostgresServer() as server, ExitStack() as stack:
        setup = HealthCache(server.url, migrate=True, state="memory://").sync
        name = setup.fetch("ana", PARAMS, lambda: VALUE).params_hash
        setup.close()
        columns = str(server.command(_COLUMNS)[0][0])
        loops = [
            stack.enter_context(closing(Loop(maker)))
            for maker in (
                _ours(server.url, name),
                _asyncpg(server.url, name, columns, _CONNECTION),
                _asyncpg(server.url, name, columns, _POOL),
            )
        ]
        for loop in loops:
            loop.check(repeat("key"), admits=True)
        elapsed = _measure(loops, effort, 1, time.perf_counter_ns)
        cpu = _measure(loops, effort, 1, time.process_time_ns)
        pools = [loop for loop in loops if loop.name != _CONNECTION]
        crowded = _measure(pools, effort, CALLERS, time.perf_counter_ns)
    promise = "cache, a hit from PostgreSQL: a connection of asyncpg and decoding"
    return Section(
        "Cache, hits from PostgreSQL",
        "One process, asynchronous; the same value, from the table. asyncpg reads the same columns, on one "
        f"connection and through its pool of {CONNECTIONS}; comporta has such a pool, too. It clears its "
        "local cache before each hit, and the measurement includes that.",
        [
            Table.of_costs("A hit, elapsed", elapsed, _HIT),
            Table.of_costs("A hit, CPU time of the process", cpu, _HIT),
            Table.of_costs(f"A hit, {CALLERS} callers at once, elapsed", crowded, _HIT),
        ],
        [
            Goal.at_most(2, promise, elapsed, _HIT, [_CONNECTION]),
            Goal.at_most(2, promise.replace(":", ", CPU time:"), cpu, _HIT, [_CONNECTION]),
        ],
    )


def _measure(loops: list[Loop], effort: Effort, callers: int, clock_ns: Callable[[], int]) -> Timings:
    runs = {loop.name: loop.awaits(repeat("key"), callers) for loop in loops}
    return in_turns(runs, effort, clock_ns=clock_ns)


def _ours(url: str, name: str) -> Callable[[], Contender]:
    def make() -> Contender:
        cache = HealthCache(url, local_entries=1, state="memory://")

        def hit(_: str) -> Awaitable[Any]:
            cache.clear_local_cache()
            return cache.get_from_cache("ana", name)

        return Contender(_HIT, "", hit, aclose=cache.aclose)

    return make


def _asyncpg(url: str, name: str, columns: str, variant: str) -> Callable[[], Contender]:
    text = (
        f"SELECT {columns} FROM search_results_cache WHERE params_hash = $1 ORDER BY fetched_at DESC LIMIT 1"  # noqa: S608 - ours
    )
    decode = msgspec.json.Decoder().decode
    connect = {
        _CONNECTION: lambda: asyncpg.connect(url),
        _POOL: lambda: asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS),
    }[variant]

    def make() -> Contender:
        opened: list[Any] = []

        async def select(_: str) -> Any:
            if not opened:
                opened.append(await connect())
            row = await opened[0].fetchrow(text, name)
            return decode(row["results"])

        async def close() -> None:
            await opened[0].close()

        return Contender(variant, "", select, aclose=close)

    return make
