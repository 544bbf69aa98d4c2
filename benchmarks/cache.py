"""Caches: the cost of a hit, and the calls that reach the origin after concurrent misses and in an outage."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks import cache_peers, server
from benchmarks.cache_peers import CASHEWS, Fetch
from benchmarks.measure import Contender, Effort, Loop, Run, calls, in_turns
from benchmarks.ours import COMPORTA
from benchmarks.report import Goal, Section, Table
from comporta import HealthCache

PARAMS = {
    "ufs": ["SP", "RJ", "MG", "MA"],
    "start": "2026-01-01",
    "end": "2026-02-01",
    "q": "uniforms",
    "page": 1,
}
VALUE = [{"id": n, "title": f"notice {n}", "uf": "SP", "amount": 1000.5 * n} for n in range(100)]
CALLERS = 200
CLIENTS = 20
OUTAGE_SECONDS = 4.0
OLD_SECONDS = 2.0

_BY_KEY, _FETCH = f"{COMPORTA} get by key", f"{COMPORTA} fetch"
_BARE, _ROW = "SELECT and msgspec", f"{COMPORTA} from SQLite"
_START_SECONDS_MAX = 60


def hits(effort: Effort) -> Section:
    """Compare hits in memory, asynchronous."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        cache = _cache(folder, local_ttl=3600)
        stack.callback(cache.sync.close)
        found = cache.sync.fetch("ana", PARAMS, lambda: VALUE)
        makers: list[Contender | Callable[[], Contender]] = [
            *_hits(cache, found.params_hash),
            *cache_peers.hits(PARAMS, VALUE),
        ]
        loops = [stack.enter_context(closing(Loop(maker))) for maker in makers]
        for loop in loops:
            loop.check(repeat("key"), admits=True)
        timings = in_turns({loop.name: loop.awaits(repeat("key")) for loop in loops}, effort)
    goals = [
        Goal.at_least(5, f"cache, a hit by key: {CASHEWS}' bare get", timings, _BY_KEY, [f"{CASHEWS} get"]),
        Goal.at_least(
            3, f"cache, a hit by parameters: {CASHEWS}' decorator", timings, _FETCH, [f"{CASHEWS} decorator"]
        ),
    ]
    description = "One process; the value, a list of 100 small objects, is in memory. Asynchronous."
    return Section("Cache, hits in memory", description, [Table.of_costs("A hit", timings, _BY_KEY)], goals)


def _hits(cache: HealthCache, params_hash: str) -> list[Contender]:
    async def load() -> Any:
        raise AssertionError("the benchmark measures hits")

    return [
        Contender(COMPORTA, "get by key", lambda _: cache.get_from_cache("ana", params_hash)),
        Contender(COMPORTA, "fetch", lambda _: cache.fetch("ana", PARAMS, load)),
    ]


def rows(effort: Effort) -> Section:
    """Compare a hit from the table with the minimum that it could cost."""
    with TemporaryDirectory() as folder:
        cache = _cache(folder, local_entries=1)
        name = cache.sync.fetch("ana", PARAMS, lambda: VALUE).params_hash
        with closing(cache.sync), closing(sqlite3.connect(Path(folder) / "cache.db")) as bare:
            timings = in_turns(_rows(cache, bare, name), effort)
    promise = "cache, a hit from SQLite: the bare SELECT and decoding"
    goals = [Goal.at_most(1.2, promise, timings, _ROW, [_BARE])]
    description = (
        "One process, blocking; the same value, from the table. The bare SELECT reads the same columns. "
        "comporta clears its local cache before each hit, and the measurement includes that."
    )
    return Section("Cache, hits from SQLite", description, [Table.of_costs("A hit", timings, _ROW)], goals)


def _rows(cache: HealthCache, bare: sqlite3.Connection, name: str) -> dict[str, Run]:
    columns = ", ".join(row[1] for row in bare.execute("PRAGMA table_info(search_results_cache)"))
    text = (
        f"SELECT {columns} FROM search_results_cache WHERE params_hash = ? ORDER BY fetched_at DESC LIMIT 1"  # noqa: S608 - ours
    )
    at = columns.split(", ").index("results")

    def select(_: str) -> Any:
        return msgspec.json.decode(bare.execute(text, (name,)).fetchone()[at])

    def hit(_: str) -> Any:
        cache.clear_local_cache()
        return cache.sync.get_from_cache("ana", name)

    assert select("") == hit("").value
    contenders = {_ROW: hit, _BARE: select}
    return {key: calls(Contender("", key, decide), repeat("key")) for key, decide in contenders.items()}


def stampede(effort: Effort) -> Section:
    """Count calls of the origin when 200 callers in each of two processes miss the same key at once."""
    with TemporaryDirectory() as folder, server.start() as running:
        names = [COMPORTA, *cache_peers.single_flight(_unused_origin, running.url)]
        counts = {name: _in_two_processes(name, folder, running.url) for name in names}
    table = Table("Fetches", ["", "fetches"], [[name, str(count)] for name, count in counts.items()])
    goal = Goal(
        f"cache: {CALLERS} misses in each of two processes, 1 fetch",
        str(counts[COMPORTA]),
        counts[COMPORTA] == 1,
    )
    description = (
        f"{CALLERS} coroutines in each of two processes fetch one absent key; the origin takes 0.2 s."
    )
    return Section("Cache, concurrent misses", description, [table], [goal])


def outage(effort: Effort) -> Section:
    """Count calls of a failing origin: with a stale value in the cache, and without a value."""
    with TemporaryDirectory() as folder:
        stale = asyncio.run(_count_with_stale_value(folder))
        empty = asyncio.run(_count_without_value(folder))
    rows = [[name, str(stale.get(name, "")), str(empty.get(name, ""))] for name in stale | empty]
    ours, best = stale[COMPORTA], min(count for name, count in stale.items() if name != COMPORTA)
    return Section(
        "Cache, outages",
        f"The origin fails for {OUTAGE_SECONDS:g} s; {CLIENTS} clients fetch one key continuously, with a "
        f"cached value {OLD_SECONDS:g} s old. Then 50 calls for a key without a value.",
        [Table("Calls that reach the origin", ["", "stale value", "no value"], rows)],
        [
            Goal(
                "cache: 1 origin call in an outage with a stale value", f"{ours}, best peer {best}", ours == 1
            ),
            Goal("cache: 1 origin call of 50 with no value", str(empty[COMPORTA]), empty[COMPORTA] == 1),
        ],
    )


class _Origin:
    """An origin that counts its calls and fails while ``down`` is set."""

    def __init__(self) -> None:
        self.calls = 0
        self.down = False

    async def __call__(self) -> Any:
        self.calls += 1
        await asyncio.sleep(0.01)
        if self.down:
            raise OSError("down")
        return VALUE


async def _count_with_stale_value(folder: str) -> dict[str, int]:
    counts = {}
    for name in (COMPORTA, *cache_peers.in_outage(_unused_origin, OLD_SECONDS)):
        origin = _Origin()
        cache = _cache(folder, fresh=OLD_SECONDS, refresh_every=0)
        ours: Fetch = partial(cache.fetch, "ana", PARAMS, origin)
        fetches: dict[str, Fetch] = {COMPORTA: ours, **cache_peers.in_outage(origin, OLD_SECONDS)}
        await fetches[name]()
        await asyncio.sleep(OLD_SECONDS)
        origin.calls, origin.down = 0, True
        await asyncio.gather(*(_fetch_continuously(fetches[name]) for _ in range(CLIENTS)))
        counts[name] = origin.calls
        await cache.aclose()
    return counts


async def _count_without_value(folder: str) -> dict[str, int]:
    counts = {}
    for name in (COMPORTA, f"{CASHEWS} failover", f"{CASHEWS} soft"):
        origin = _Origin()
        origin.down = True
        cache = _cache(folder)
        ours: Fetch = partial(cache.fetch, "ana", {"q": "none"}, origin)
        fetches: dict[str, Fetch] = {COMPORTA: ours, **cache_peers.in_outage(origin, OLD_SECONDS)}
        for _ in range(50):
            with suppress(Exception):
                await fetches[name]()
        counts[name] = origin.calls
        await cache.aclose()
    return counts


async def _fetch_continuously(fetch: Callable[[], Awaitable[Any]]) -> None:
    end = time.monotonic() + OUTAGE_SECONDS
    while time.monotonic() < end:
        with suppress(Exception):
            await fetch()
        await asyncio.sleep(random.uniform(0.2, 0.6))


async def _unused_origin() -> Any:
    raise AssertionError("never called: only the names are needed")


def _in_two_processes(name: str, folder: str, url: str) -> int:
    context = get_context("spawn")
    backend = Path(folder) / name.replace(" ", "-")
    start = context.Event()
    ready = context.Semaphore(0)
    workers = [
        context.Process(
            target=_fetch_concurrently, args=(name, folder, url, str(backend), ready, start), daemon=True
        )
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        assert ready.acquire(timeout=_START_SECONDS_MAX)
    start.set()
    for worker in workers:
        worker.join(_START_SECONDS_MAX)
        worker.kill()
    return backend.stat().st_size


def _fetch_concurrently(name: str, folder: str, url: str, backend: str, ready: Any, start: Any) -> None:  # noqa: PLR0917 - the arguments of a process
    async def main() -> None:
        cache = _cache(folder)

        async def origin() -> Any:
            fd = os.open(backend, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, b"x")
            os.close(fd)
            await asyncio.sleep(0.2)
            return VALUE

        fetches = {
            COMPORTA: lambda: cache.fetch("ana", {"q": "all"}, origin),
            **cache_peers.single_flight(origin, url),
        }
        ready.release()
        start.wait()
        await asyncio.gather(*(fetches[name]() for _ in range(CALLERS)))
        await cache.aclose()

    asyncio.run(main())


def _cache(folder: str, **config: Any) -> HealthCache:
    return HealthCache(f"sqlite:///{folder}/cache.db?timeout=30", state="memory://", **config)
