"""Circuit breakers: what one adds to a successful call, in the process and shared through a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import repeat

from benchmarks import breaker_peers, ours, server
from benchmarks.breaker_peers import COOLDOWN_SECONDS, THRESHOLD, nothing, nothing_async
from benchmarks.measure import Contender, Effort, Loop, Timings, calls, check, in_turns
from benchmarks.report import Goal, Section, Table
from comporta import CircuitBreaker

_OURS = f"{ours.COMPORTA} memory://"
_SHARED = f"{ours.COMPORTA} redis://"
_DESCRIPTION = (
    "One process; the circuit is closed and the called function does nothing. Decorated functions, unless a "
    "block is named. circuitbreaker's block only counts and never refuses, so the goal uses its decorator."
)
_SHARED_DESCRIPTION = (
    "One process and a server, pinned to one core; the circuit is closed and the called function does "
    "nothing. comporta and interlock use a local view of the shared circuit, at most 250 ms old with "
    "comporta and 1 s with interlock; pybreaker reads from the server in every call."
)
_KEY = "call"


def blocking(effort: Effort) -> Section:
    """Compare breakers of one process, blocking."""
    contenders = [*_blocking("memory://", "memory://"), *breaker_peers.blocking()]
    return _section(
        _in_process("blocking", time_contenders(contenders, effort)), "Breaker, blocking", _DESCRIPTION
    )


def awaiting(effort: Effort) -> Section:
    """Compare breakers of one process, asynchronous."""
    contenders = [*_awaiting("memory://", "memory://"), *breaker_peers.awaiting()]
    return _section(
        _in_process("awaiting", time_contenders_async(contenders, effort)), "Breaker, awaiting", _DESCRIPTION
    )


def shared_blocking(effort: Effort) -> Section:
    """Compare breakers that share a circuit, blocking."""
    with _shared_state() as (url, state):
        contenders = [*_blocking(state, "redis://"), *breaker_peers.on_redis(url)]
        timings = time_contenders(contenders, effort)
        assert _breaker("decorated", state).fallback is None  # a fallback would not use the shared circuit
    return _section(_on_server("blocking", timings), "Shared breaker, blocking", _SHARED_DESCRIPTION)


def shared_awaiting(effort: Effort) -> Section:
    """Compare breakers that share a circuit, asynchronous."""
    with _shared_state() as (url, state):
        contenders = [*_awaiting(state, "redis://"), *breaker_peers.on_redis_async(url)]
        timings = time_contenders_async(contenders, effort)
        assert _breaker("decorated", state).fallback is None  # a fallback would not use the shared circuit
    return _section(_on_server("awaiting", timings), "Shared breaker, awaiting", _SHARED_DESCRIPTION)


@contextmanager
def _shared_state() -> Iterator[tuple[str, str]]:
    """Yield the URL of a server for peers and for comporta, and close comporta's store afterwards."""
    with server.pinned() as url:
        state = ours.with_long_timeout(url)
        with closing(_breaker("closing", state).store):
            yield url, state


def time_contenders(contenders: Sequence[Contender], effort: Effort) -> Timings:
    """Time blocking contenders in turns."""
    for contender in contenders:
        check(contender, repeat(_KEY), admits=True)
    return in_turns({c.name: calls(c, repeat(_KEY)) for c in contenders}, effort)


def time_contenders_async(
    contenders: Sequence[Contender | Callable[[], Contender]], effort: Effort
) -> Timings:
    """Time asynchronous contenders in turns, each on its own event loop."""
    with ExitStack() as stack:
        loops = [stack.enter_context(closing(Loop(contender))) for contender in contenders]
        for loop in loops:
            loop.check(repeat(_KEY), admits=True)
        return in_turns({loop.name: loop.awaits(repeat(_KEY)) for loop in loops}, effort)


def _blocking(state: str, variant: str) -> list[Contender]:
    decorated, block = _breaker("decorated", state), _breaker("block", state)

    def call(key: str) -> bool:
        with block.sync.admit():
            return nothing(key)

    return [
        Contender(ours.COMPORTA, variant, decorated(nothing)),
        Contender(ours.COMPORTA, f"{variant}, with", call),
    ]


def _awaiting(state: str, variant: str) -> list[Contender]:
    decorated, block = _breaker("decorated", state), _breaker("block", state)
    aclose = decorated.store.aclose
    return [
        Contender(ours.COMPORTA, variant, decorated(nothing_async), aclose=aclose),
        Contender(ours.COMPORTA, f"{variant}, async with", _block_async(block), aclose=aclose),
    ]


def _block_async(breaker: CircuitBreaker) -> Callable[[str], Awaitable[bool]]:
    async def call(key: str) -> bool:
        async with breaker.admit():
            return await nothing_async(key)

    return call


def _breaker(name: str, state: str) -> CircuitBreaker:
    return CircuitBreaker(name, THRESHOLD, COOLDOWN_SECONDS, state=state)


TableAndGoals = tuple[Table, list[Goal]]


def _section(result: TableAndGoals, title: str, description: str) -> Section:
    table, goals = result
    return Section(title, description, [table], goals)


def _in_process(how: str, timings: Timings) -> TableAndGoals:
    """Return the results, with a goal for the decorator only, because circuitbreaker's block only counts."""
    promise = f"breaker, {how}, decorated: circuitbreaker (never above 1)"
    goals = [Goal.at_most(0.5, promise, timings, _OURS, [breaker_peers.CIRCUITBREAKER])]
    return Table.of_costs("A call that succeeds", timings, _OURS), goals


def _on_server(how: str, timings: Timings) -> TableAndGoals:
    rivals = [n for n in timings.rates if n.startswith(breaker_peers.INTERLOCK)]
    promise = f"breaker on a server, {how}: interlock's local view"
    goals = [Goal.at_most(1, promise, timings, _SHARED, rivals)]
    return Table.of_costs("A call that succeeds", timings, _SHARED), goals
