"""Checks whether a history of concurrent calls is linearizable: explained by the calls one after the other.

A history is a set of calls, each with the moments at which its process began and ended it. It is linearizable
if each call can be given one moment between the two, so that a sequential specification, which carries out
the calls at these moments, in their order, gives every call the reply that it got. Herlihy and Wing define it
so; the search is that of Wing and Gong, with the moment of a call as one more thing to find.

Knows nothing about limits. Moments are integers in microseconds of one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

STATES_MAX = 500_000
"""How many states the search visits before it gives up with an error."""


class Call(NamedTuple):
    """A call of a process: when it began and ended, what it asked for, and the reply that it got.

    ``moments_us`` are the moments at which the store read its clock for it; ``None`` if they are unknown. The
    call takes effect after the reading that counts: a refusal that takes no lock may read the clock later
    than a call that holds the lock, and still see the state before it.
    """

    process: int
    began_us: int
    ended_us: int
    request: Any
    reply: Any
    moments_us: tuple[int, ...] | None = None

    def moments(self, earliest_us: int, latest_us: int, step_us: int = 1) -> Sequence[int]:
        """Return the times, in order, by which a call that takes effect between two moments can decide."""
        if self.moments_us is None:
            return range(max(earliest_us, self.began_us), latest_us + 1, step_us)
        return sorted(at_us for at_us in self.moments_us if at_us <= latest_us)


class Specification(Protocol):
    """What the calls do, one after the other."""

    initial: Any

    def apply(self, state: Any, now_us: int, request: Any) -> tuple[Any, Any]:
        """Return the state after a request at a moment, and its reply."""

    def moments_of(self, state: Any, call: Call, moments: Sequence[int]) -> Iterable[int]:
        """Return those of the moments, in order, that are worth trying; of equivalent ones the first."""

    def essence(self, state: Any, now_us: int) -> Hashable:
        """Return what later replies depend on: equal for states that no later call can distinguish."""


def is_linearizable(history: Sequence[Call], specification: Specification, step_us: int = 1) -> bool:
    """Return whether moments for all calls explain all replies.

    With a ``step_us`` above 1 it does not try every moment: true is then as certain as ever, false is not.

    Of all ways to carry out the same calls that leave equivalent states only the earliest matters: what is
    possible after a later one is possible after it.
    """
    everything = frozenset(range(len(history)))
    pending: list[tuple[frozenset[int], Any, int]] = [(frozenset(), specification.initial, 0)]
    earliest: dict[tuple[frozenset[int], Hashable], int] = {}
    while pending:
        done, state, now_us = pending.pop()
        if done == everything:
            return True
        if earliest.get((done, specification.essence(state, now_us)), now_us) < now_us:
            continue  # an earlier way was found meanwhile
        open_calls = everything - done
        latest_us = min(history[number].ended_us for number in open_calls)
        for number in open_calls:
            call, after = history[number], done | {number}
            for at_us in specification.moments_of(state, call, call.moments(now_us, latest_us, step_us)):
                new, reply = specification.apply(state, at_us, call.request)
                effect_us = max(now_us, at_us)
                key = (after, specification.essence(new, effect_us))
                if reply == call.reply and effect_us < earliest.get(key, latest_us + 1):
                    earliest[key] = effect_us
                    pending.append((after, new, effect_us))
        if len(earliest) > STATES_MAX:
            raise RuntimeError(f"the history has too many explanations: {len(history)} calls")
    return False


Seen = TypeVar("Seen")


def intervals(
    moments: Sequence[int], look: Callable[[int], Seen], is_like: Callable[[Seen, Seen], bool]
) -> Iterator[tuple[Seen, Seen]]:
    """Divide moments into intervals whose ends look alike, and yield what both ends look like.

    Correct if two moments that look alike have none between them that looks different.
    """

    def divide(first: int, start: Seen, last: int, end: Seen) -> Iterator[tuple[Seen, Seen]]:
        if is_like(start, end):
            yield start, end
            return
        middle = (first + last) // 2
        yield from divide(first, start, middle, look(moments[middle]))
        yield from divide(middle + 1, look(moments[middle + 1]), last, end)

    if moments:
        yield from divide(0, look(moments[0]), len(moments) - 1, look(moments[-1]))
