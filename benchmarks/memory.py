"""State in the process: the cost of a decision without any communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import cycle, repeat

from benchmarks import ours, peers
from benchmarks.measure import Effort, Loop, Timings, calls, check, in_turns
from benchmarks.report import Goal, Section, Table

_KEYS = [f"user:{number}" for number in range(10_000)]
_OURS = f"{ours.COMPORTA} token bucket"
_FEW, _PLENTY = 10, 1_000_000

Keys = Callable[[], Iterator[str]]


def _one() -> Iterator[str]:
    return repeat("user:1")


def _many() -> Iterator[str]:
    return cycle(_KEYS)


def blocking(effort: Effort) -> Section:
    """Compare on one hot key that is refused, and on 10,000 keys that are admitted."""
    hot = _blocking(effort, _FEW, _one)
    many = _blocking(effort, _PLENTY, _many)
    section = Section(
        "Memory, blocking",
        "One process, one thread. The hot key has 10/s and is refused nearly always; the 10,000 keys, "
        "used in turn, are always admitted.",
        [
            Table.of_speeds("One hot key, refused", hot, _OURS),
            Table.of_speeds("10,000 keys, admitted", many, _OURS),
        ],
    )
    for what, timings in (("one hot key", hot), ("10,000 keys", many)):
        rivals = [n for n in timings.rates if n.startswith((peers.LIMITS, peers.THROTTLED))]
        promise = f"memory, blocking, {what}: the best of limits and throttled-py"
        section.goals.append(Goal.at_least(4, promise, timings, _OURS, rivals))
    return section


def awaiting(effort: Effort) -> Section:
    """Compare on 10,000 keys that are admitted."""
    contenders = [*ours.awaiting(_PLENTY), *peers.in_memory_async(_PLENTY)]
    with ExitStack() as stack:
        loops = {c.name: stack.enter_context(closing(Loop(c))) for c in contenders}
        for loop in loops.values():
            loop.awaits(iter(_KEYS))(len(_KEYS))  # so that no key is new during the measurement
            loop.check(_many(), admits=True)
        timings = in_turns({name: loop.awaits(_many()) for name, loop in loops.items()}, effort)
    rivals = [name for name in timings.rates if name.startswith(peers.AIOLIMITER)]
    promise = "memory, awaiting, 10,000 keys: aiolimiter"
    return Section(
        "Memory, awaiting",
        "One event loop, one coroutine that uses 10,000 keys in turn; all are admitted. aiolimiter has "
        "no keys: it is used with a dictionary of limiters, created beforehand.",
        [Table.of_speeds("10,000 keys, admitted", timings, _OURS)],
        [Goal.at_least(1.2, promise, timings, _OURS, rivals)],
    )


def _blocking(effort: Effort, per_second: int, keys: Keys) -> Timings:
    contenders = [*ours.blocking(per_second), *peers.in_memory(per_second)]
    for contender in contenders:
        for key in _KEYS if keys is _many else ():
            contender.decide(key)
        check(contender, keys(), admits=per_second == _PLENTY)
    return in_turns({c.name: calls(c, keys()) for c in contenders}, effort)
