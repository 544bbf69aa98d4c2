"""Dying at every step of an operation: a forked child kills itself at the n-th line (or opcode), for each n.

An act is done by a child on a state that the parent knows; the parent then says whether what it finds is the
state before or the state after. Every act has keys of its own for each death, so no death hides another.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

from tests.processes.books import is_whole, sealed

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitStrategy
from comporta.stores.records import RECORD, Delete, Read, Write
from comporta.stores.shared import SharedStore
from comporta.stores.table import SLOTS_PER_BUCKET
from comporta.testing import ManualClock

DEATHS_MAX = 3000
# They only look, and some do so 128 times in a row: dying there is like dying before.
LOOKING = {
    "_free_slot",
    "_slot",
    "_class_at",
    "_valid_at",
    "ends_us",
    "find",
    "_lock_of",
    "place",
    "<genexpr>",
}
LOOKING |= {"copy_bytes", "slot_bytes", "bucket_bytes", "end", "read", "digest_of", "key_text"}


class Scene(NamedTuple):
    """What acts play in."""

    store: SharedStore
    other: SharedStore
    clock: ManualClock
    tokens: BaseLimiter
    log: BaseLimiter


class Act(NamedTuple):
    """What is there before, what the child does, and what the parent may find."""

    before: Callable[[Scene, str], Any]
    act: Callable[[Scene, str], Any]
    found: Callable[[Scene, str], bool]
    warm_up: Callable[[Scene, str], Any] = lambda scene, key: None


OLD, NEW = sealed(b"o", 1500), sealed(b"n", 4000)


def _nothing(scene: Scene, key: str) -> None:
    pass


def _take(scene: Scene, key: str) -> None:
    """From then on the way to the slot is known: the next one goes by the direct path."""
    scene.tokens.sync.acquire(key)


def _log(scene: Scene, key: str) -> None:
    scene.log.sync.acquire(key)


def _one_of(scene: Scene, limiter: BaseLimiter, key: str, *remaining: int) -> bool:
    """Whether the limit stands as before or after, and goes on from there."""
    found = limiter.sync.peek(key).remaining
    again = limiter.sync.acquire(key)
    return (
        found in remaining and again == (found > 0) and limiter.sync.peek(key).remaining == max(0, found - 1)
    )


def _took(scene: Scene, key: str) -> bool:
    return _one_of(scene, scene.tokens, key, 10, 9)


def _took_again(scene: Scene, key: str) -> bool:
    return _one_of(scene, scene.tokens, key, 9, 8)


def _logged(scene: Scene, key: str) -> bool:
    return _one_of(scene, scene.log, key, 10, 9)


def _logged_again(scene: Scene, key: str) -> bool:
    return _one_of(scene, scene.log, key, 9, 8)


def _gave(scene: Scene, key: str) -> bool:
    return _one_of(scene, scene.tokens, key, 9, 10)


def _read(scene: Scene, key: str) -> bytes | None:
    return scene.store.apply(Read("records", key))


def _wrote_over(scene: Scene, key: str) -> bool:
    listed = scene.store.entries("records")
    return _read(scene, key) in (OLD, NEW) and all(map(is_whole, listed.values()))


def _wrote_first(scene: Scene, key: str) -> bool:
    listed = scene.store.entries("records")
    return _read(scene, key) in (None, NEW) and listed.get(key) == _read(scene, key)


def _deleted(scene: Scene, key: str) -> bool:
    return _read(scene, key) in (None, OLD)


def _ended(scene: Scene, key: str) -> None:
    """Leave no slot free, and all but one to states that have ended: the next key takes one of those."""
    scene.store.apply(Write("alive", "k", OLD, None))
    slots, filler = _slots_taken(scene), count()
    while slots < SLOTS_PER_BUCKET:
        scene.store.apply(Write("ended", f"{key}-{next(filler)}", OLD, 1))
        slots = _slots_taken(scene)
    scene.clock.advance(2000)


def _slots_taken(scene: Scene) -> int:
    [bucket] = scene.store.table.buckets(RECORD.codec)
    return len(scene.store.table.listed(bucket, RECORD.codec))


def _took_over(scene: Scene, key: str) -> bool:
    return scene.store.apply(Read("alive", "k")) == OLD and _wrote_first(scene, key)


def _cleaned(scene: Scene, key: str) -> None:
    """Make room again, so that every death finds the table as the first one did."""
    scene.tokens.sync.reset(key)
    scene.log.sync.reset(key)
    scene.store.apply(Delete("records", key, NEW))
    scene.store.apply(Delete("records", key, OLD))


def _group(scene: Scene) -> LimitGroup:
    return LimitGroup(scene.tokens, scene.log)


def _took_both(scene: Scene, key: str) -> bool:
    return _one_of(scene, scene.tokens, key, 10, 9) and _one_of(scene, scene.log, key, 10, 9)


def _change(scene: Scene, key: str) -> None:
    scene.tokens.sync.change("20/hour")


def _unchanged(scene: Scene, key: str) -> None:
    scene.tokens.sync.change(None)
    scene.tokens.sync.acquire(key)  # from then on the way to the slot is known


def _followed(scene: Scene, key: str) -> bool:
    """Those who were there before and those who come later must go by the same limit."""
    running = sum(scene.tokens.sync.acquire(key) for _ in range(30)) + 1
    newcomer = _limiter(scene.other, LimitStrategy.TOKEN_BUCKET)
    limit = newcomer.sync.peek(key).limit
    # a change adds no tokens to a bucket in use: a key that is new shows the limit in force
    fresh = sum(scene.tokens.sync.acquire(f"fresh-{key}") for _ in range(30))
    scene.tokens.sync.reset(f"fresh-{key}")
    return running == 10 and limit == fresh and limit in (10, 20)


ACTS: dict[str, Act] = {
    "first take": Act(_nothing, lambda s, k: s.tokens.sync.acquire(k), _took),
    "take": Act(_nothing, lambda s, k: s.tokens.sync.acquire(k), _took_again, _take),
    "first log entry": Act(_nothing, lambda s, k: s.log.sync.acquire(k), _logged),
    "log entry": Act(_nothing, lambda s, k: s.log.sync.acquire(k), _logged_again, _log),
    "give back": Act(_take, lambda s, k: s.tokens.sync.release(k), _gave),
    "reset": Act(_take, lambda s, k: s.tokens.sync.reset(k), _gave),
    "first write": Act(_nothing, lambda s, k: s.store.apply(Write("records", k, NEW, None)), _wrote_first),
    "write": Act(
        lambda s, k: s.store.apply(Write("records", k, OLD, None)),
        lambda s, k: s.store.apply(Write("records", k, NEW, None, OLD)),
        _wrote_over,
    ),
    "write over what has ended": Act(
        _ended, lambda s, k: s.store.apply(Write("records", k, NEW, 1000)), _took_over
    ),
    "delete": Act(
        lambda s, k: s.store.apply(Write("records", k, OLD, None)),
        lambda s, k: s.store.apply(Delete("records", k)),
        _deleted,
    ),
    "take from both": Act(_nothing, lambda s, k: _group(s).sync.acquire([k, k]), _took_both),
    "change": Act(_unchanged, _change, _followed),
}


def _limiter(store: SharedStore, strategy: LimitStrategy) -> BaseLimiter:
    return BaseLimiter(LimitConfig(0.0001, 10, 100_000, strategy), store, strategy.value)


def play(name: str, act: str, *, opcodes: bool) -> dict[str, Any]:
    """Let children die at each step of an act in turn, until one gets through it alive."""
    clock = ManualClock()
    store, other = (SharedStore(name, clock, 1024, lock_timeout=1) for _ in range(2))
    tokens, log = _limiter(store, LimitStrategy.TOKEN_BUCKET), _limiter(store, LimitStrategy.SLIDING_WINDOW)
    scene = Scene(store, other, clock, tokens, log)
    before, action, found, warm_up = ACTS[act]
    problems: list[str] = []
    for step in count(1):
        key = f"k{step}"
        before(scene, key)
        died_at = _died(partial(warm_up, scene, key), partial(action, scene, key), step, opcodes=opcodes)
        if not found(scene, key):
            problems.append(f"{act}, killed at {died_at}")
        if died_at is None or step > DEATHS_MAX:
            break
        _cleaned(scene, key)
    store.close()
    other.close()
    return {"deaths": step - 1, "problems": problems}


def _died(
    warm_up: Callable[[], object], action: Callable[[], object], step: int, *, opcodes: bool
) -> str | None:
    """Fork a child that dies at a step of an action; return where, or nothing if it got through."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        warm_up()
        _die_at(step, write_end, opcodes=opcodes)
        action()
        sys.settrace(None)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        where = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if where else 0)
    return where or None


def _die_at(step: int, tell: int, *, opcodes: bool) -> None:
    left = [step]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "/comporta/" not in frame.f_code.co_filename or frame.f_code.co_name in LOOKING:
            return None
        frame.f_trace_opcodes = opcodes
        if event == ("opcode" if opcodes else "line"):
            left[0] -= 1
            if not left[0]:
                os.write(tell, f"{frame.f_code.co_qualname}:{frame.f_lineno}".encode())
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    _forget_tracers()
    sys.settrace(trace)


def _forget_tracers() -> None:
    """Take the frames under way from whoever traces them: coverage would put itself back there."""
    sys.settrace(None)
    frame = inspect.currentframe()
    while frame is not None:
        frame.f_trace = None
        frame = frame.f_back
