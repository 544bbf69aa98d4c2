"""Circuit breakers: what one adds to a call that succeeds, in the process and shared through a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import repeat

from benchmarks import breaker_peers, ours, server
from benchmarks.breaker_peers import COOLDOWN_SECONDS, THRESHOLD, block_async, nothing, nothing_async
from benchmarks.measure import Contender, Effort, Loop, Timings, calls, check, in_turns
from benchmarks.report import Goal, Section, Table
from comporta import CircuitBreaker
from comporta.stores.urls import open_store

_OURS = f"{ours.COMPORTA} memory://"
_SHARED = f"{ours.COMPORTA} redis://"
_WORDS = (
    "One process; the circuit is closed and what is called does nothing. Decorated functions, but where a "
    "block is named. circuitbreaker's own block only counts and never refuses, so its decorator is the mark."
)
_SHARED_WORDS = (
    "One process and a server, pinned to one core; the circuit is closed and what is called does nothing. "
    "comporta and interlock decide by what they know of the shared circuit, at most 250 ms old and, as "
    "interlock has it, 1 s; pybreaker asks the server for every call."
)
_KEY = "call"


def blocking(effort: Effort) -> Section:
    """Compare breakers of one process, blocking."""
    found = [*_blocking("memory://", "memory://"), *breaker_peers.blocking()]
    return _told(_in_process("blocking", timed(found, effort)), "Breaker, blocking", _WORDS)


def awaiting(effort: Effort) -> Section:
    """Compare breakers of one process, awaiting."""
    found = [*_awaiting("memory://", "memory://"), *breaker_peers.awaiting()]
    return _told(_in_process("awaiting", timed_async(found, effort)), "Breaker, awaiting", _WORDS)


def shared_blocking(effort: Effort) -> Section:
    """Compare breakers that share a circuit, blocking."""
    with _shared_state() as (url, state):
        found = [*_blocking(state, "redis://"), *breaker_peers.on_redis(url)]
        timings = timed(found, effort)
        assert _breaker("decorated", state).fallback is None  # a worker on its own would be no shared circuit
    return _told(_on_server("blocking", timings), "Shared breaker, blocking", _SHARED_WORDS)


def shared_awaiting(effort: Effort) -> Section:
    """Compare breakers that share a circuit, awaiting."""
    with _shared_state() as (url, state):
        found = [*_awaiting(state, "redis://"), *breaker_peers.on_redis_async(url)]
        timings = timed_async(found, effort)
        assert _breaker("decorated", state).fallback is None  # a worker on its own would be no shared circuit
    return _told(_on_server("awaiting", timings), "Shared breaker, awaiting", _SHARED_WORDS)


@contextmanager
def _shared_state() -> Iterator[tuple[str, str]]:
    """Give a server's URL and ours, and close what ours opened: else it would miss the server later."""
    with server.pinned() as url, closing(open_store(ours.patient(url))):
        yield url, ours.patient(url)


def timed(found: Sequence[Contender], effort: Effort) -> Timings:
    """Let blocking contenders call in turns."""
    for contender in found:
        check(contender, repeat(_KEY), admits=True)
    return in_turns({c.name: calls(c, repeat(_KEY)) for c in found}, effort)


def timed_async(found: Sequence[Contender | Callable[[], Contender]], effort: Effort) -> Timings:
    """Let awaiting contenders call in turns, each on a loop of its own."""
    with ExitStack() as stack:
        loops = [stack.enter_context(closing(Loop(contender))) for contender in found]
        for loop in loops:
            loop.check(repeat(_KEY), admits=True)
        return in_turns({loop.name: loop.awaits(repeat(_KEY)) for loop in loops}, effort)


def _blocking(state: str, variant: str) -> list[Contender]:
    decorated, block = _breaker("decorated", state), _breaker("block", state)

    def call(key: str) -> bool:
        with block.sync:
            return nothing(key)

    return [
        Contender(ours.COMPORTA, variant, decorated(nothing)),
        Contender(ours.COMPORTA, f"{variant}, with", call),
    ]


def _awaiting(state: str, variant: str) -> list[Contender]:
    decorated, block = _breaker("decorated", state), _breaker("block", state)
    aclose = getattr(decorated.store, "aclose", None)  # the memory has nothing to close
    return [
        Contender(ours.COMPORTA, variant, decorated(nothing_async), aclose=aclose),
        Contender(ours.COMPORTA, f"{variant}, async with", block_async(block), aclose=aclose),
    ]


def _breaker(name: str, state: str) -> CircuitBreaker:
    return CircuitBreaker(name, THRESHOLD, COOLDOWN_SECONDS, state=state)


Found = tuple[Table, list[Goal]]


def _told(found: Found, title: str, words: str) -> Section:
    table, goals = found
    return Section(title, words, [table], goals)


def _in_process(how: str, timings: Timings) -> Found:
    """Hold the decorator to half of the cheapest peer's; its block only counts, so ours is shown without."""
    promise = f"breaker, {how}, decorated: circuitbreaker (never above 1)"
    goals = [Goal.at_most(0.5, promise, timings, _OURS, [breaker_peers.CIRCUITBREAKER])]
    return Table.of_costs("A call that succeeds", timings, _OURS), goals


def _on_server(how: str, timings: Timings) -> Found:
    rivals = [n for n in timings.rates if n.startswith(breaker_peers.INTERLOCK)]
    promise = f"breaker on a server, {how}: interlock's local view"
    goals = [Goal.at_most(1, promise, timings, _SHARED, rivals)]
    return Table.of_costs("A call that succeeds", timings, _SHARED), goals
