"""Kill a process at every step of an operation: a forked child kills itself at the n-th line (or opcode).

A child runs an operation on a state that the parent prepared. The parent then checks that it finds the state
either before or after the operation. Each death uses its own keys, so that no death hides another.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import count, islice
from types import FrameType
from typing import Any, NamedTuple

from tests.processes.counter_file import is_intact, with_checksum
from tests.processes.table_integrity import table_problems

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitStrategy
from comporta.stores.base import StateKey
from comporta.stores.records import RECORD, DeleteRecord, ReadRecord, WriteRecord
from comporta.stores.shared.index import locate
from comporta.stores.shared.layout import INDEX
from comporta.stores.shared.store import SharedStore
from comporta.testing import ManualClock

DEATHS_MAX = 3000
# These functions only read, some of them many times in a row: a death there is equivalent to one before the
# operation.
READ_ONLY_FUNCTIONS = {
    *("_candidate", "_slot_at", "_valid_offset", "expires_us", "retention_us", "find", "path", "read_u32"),
    *("locate", "<genexpr>", "copy_bytes", "text_offset", "shard_offset", "directory_offset", "slot_class"),
    *("_listed_text", "_digest_offsets", "read_state", "key_text", "_class_offset", "_is_entry_of"),
}


class Stage(NamedTuple):
    """The stores and limiters that the operations use."""

    store: SharedStore
    other: SharedStore
    clock: ManualClock
    tokens: BaseLimiter
    log: BaseLimiter


class KillCase(NamedTuple):
    """How to prepare the state, the operation of the child, and the parent's check of the result."""

    before: Callable[[Stage, str], Any]
    operation: Callable[[Stage, str], Any]
    is_valid: Callable[[Stage, str], bool]
    warm_up: Callable[[Stage, str], Any] = lambda stage, key: None


OLD, NEW = with_checksum(b"o", 1500), with_checksum(b"n", 4000)


def _nothing(stage: Stage, key: str) -> None:
    pass


def _acquire(stage: Stage, key: str) -> None:
    """Afterwards the location of the slot is cached: the next call uses the fast path."""
    stage.tokens.sync.acquire(key)


def _acquire_from_log(stage: Stage, key: str) -> None:
    stage.log.sync.acquire(key)


def _has_remaining(stage: Stage, limiter: BaseLimiter, key: str, *remaining: int) -> bool:
    """Return whether the limit has one of these remaining counts, and works correctly from there."""
    actual = limiter.sync.peek(key).remaining
    granted = limiter.sync.acquire(key)
    after = limiter.sync.peek(key).remaining
    return actual in remaining and granted == (actual > 0) and after == max(0, actual - 1)


# Each check below returns whether the parent finds the state before or after an operation.


def _is_first_acquire(stage: Stage, key: str) -> bool:
    return _has_remaining(stage, stage.tokens, key, 10, 9)


def _is_second_acquire(stage: Stage, key: str) -> bool:
    return _has_remaining(stage, stage.tokens, key, 9, 8)


def _is_first_log_entry(stage: Stage, key: str) -> bool:
    return _has_remaining(stage, stage.log, key, 10, 9)


def _is_second_log_entry(stage: Stage, key: str) -> bool:
    return _has_remaining(stage, stage.log, key, 9, 8)


def _is_release(stage: Stage, key: str) -> bool:
    return _has_remaining(stage, stage.tokens, key, 9, 10)


def _read_record(stage: Stage, key: str) -> bytes | None:
    return stage.store.apply(ReadRecord("records", key))


def _is_overwrite(stage: Stage, key: str) -> bool:
    listed = stage.store.entries("records")
    return _read_record(stage, key) in (OLD, NEW) and all(map(is_intact, listed.values()))


def _is_first_write(stage: Stage, key: str) -> bool:
    listed = stage.store.entries("records")
    return _read_record(stage, key) in (None, NEW) and listed.get(key) == _read_record(stage, key)


def _is_delete(stage: Stage, key: str) -> bool:
    return _read_record(stage, key) in (None, OLD)


def _add_expired(stage: Stage, key: str) -> None:
    """Add expired records to the key's shard: the next new key frees one or more of them."""
    stage.store.apply(WriteRecord("alive", "k", OLD, None))
    for name in _names_in_shard_of(key, 4):
        stage.store.apply(WriteRecord("records", name, OLD, 1))
    stage.clock.advance(2000)


def _names_in_shard_of(key: str, wanted: int) -> list[str]:
    """Return names of records whose shard, and so whose slots, are those of a record."""
    lock = locate(StateKey("records", key, RECORD)).lock
    names = (f"{key}-{number}" for number in count())
    return list(islice((n for n in names if locate(StateKey("records", n, RECORD)).lock == lock), wanted))


def _is_replacement(stage: Stage, key: str) -> bool:
    return stage.store.apply(ReadRecord("alive", "k")) == OLD and _is_first_write(stage, key)


def _use_up_chunk(number: int, value: bytes, stage: Stage, key: str) -> None:
    """Use all slots of a class in the key's shard: the next new key needs another chunk."""
    slots, lock = stage.store.table._slots, locate(StateKey("records", key, RECORD)).lock
    names, at = iter(_names_in_shard_of(key, 300)), slots._class_offset(lock, number)
    while slots.read_u32(at) or slots.read_u32(at + 4) < slots.read_u32(at + 8):
        stage.store.apply(WriteRecord("records", next(names), value, None))


def _is_first_write_in_chunk(stage: Stage, key: str) -> bool:
    """Return whether the record is there or not, the others are intact, and the next one finds room."""
    intact = _is_first_write(stage, key) and all(map(is_intact, stage.store.entries("records").values()))
    [neighbour] = _names_in_shard_of(f"next-{key}", 1)
    stage.other.apply(WriteRecord("records", neighbour, NEW, None))
    return intact and stage.store.apply(ReadRecord("records", neighbour)) == NEW


def _remove_listed(stage: Stage) -> None:
    for name in stage.store.entries("records"):
        stage.store.apply(DeleteRecord("records", name))


def _remove_keys(stage: Stage, key: str) -> None:
    """Remove the keys, so that every death finds the table in the same state."""
    stage.tokens.sync.reset(key)
    stage.log.sync.reset(key)
    stage.store.apply(DeleteRecord("records", key, NEW))
    stage.store.apply(DeleteRecord("records", key, OLD))


def _group(stage: Stage) -> LimitGroup:
    return LimitGroup(stage.tokens, stage.log)


def _is_group_acquire(stage: Stage, key: str) -> bool:
    return _has_remaining(stage, stage.tokens, key, 10, 9) and _has_remaining(stage, stage.log, key, 10, 9)


def _set_override(stage: Stage, key: str) -> None:
    stage.tokens.sync.set_limit("20/hour")


def _remove_override(stage: Stage, key: str) -> None:
    stage.tokens.sync.set_limit(None)
    stage.tokens.sync.acquire(key)  # afterwards the location of the slot is cached


def _is_override(stage: Stage, key: str) -> bool:
    """Return whether running and new limiters use the same limit."""
    running = sum(stage.tokens.sync.acquire(key) for _ in range(30)) + 1
    newcomer = _limiter(stage.other, LimitStrategy.TOKEN_BUCKET)
    limit = newcomer.sync.peek(key).limit
    # An override adds no tokens to a bucket in use; a new key shows the limit in force.
    fresh = sum(stage.tokens.sync.acquire(f"fresh-{key}") for _ in range(30))
    stage.tokens.sync.reset(f"fresh-{key}")
    return running == 10 and limit == fresh and limit in (10, 20)


KILL_CASES: dict[str, KillCase] = {
    "first acquire": KillCase(_nothing, lambda s, k: s.tokens.sync.acquire(k), _is_first_acquire),
    "acquire": KillCase(_nothing, lambda s, k: s.tokens.sync.acquire(k), _is_second_acquire, _acquire),
    "first log entry": KillCase(_nothing, lambda s, k: s.log.sync.acquire(k), _is_first_log_entry),
    "log entry": KillCase(
        _nothing, lambda s, k: s.log.sync.acquire(k), _is_second_log_entry, _acquire_from_log
    ),
    "release": KillCase(_acquire, lambda s, k: s.tokens.sync.release(k), _is_release),
    "reset": KillCase(_acquire, lambda s, k: s.tokens.sync.reset(k), _is_release),
    "first write": KillCase(
        _nothing, lambda s, k: s.store.apply(WriteRecord("records", k, NEW, None)), _is_first_write
    ),
    "write": KillCase(
        lambda s, k: s.store.apply(WriteRecord("records", k, OLD, None)),
        lambda s, k: s.store.apply(WriteRecord("records", k, NEW, None, OLD)),
        _is_overwrite,
    ),
    "write after an expired state": KillCase(
        _add_expired, lambda s, k: s.store.apply(WriteRecord("records", k, NEW, 1000)), _is_replacement
    ),
    "write into a new chunk": KillCase(
        partial(_use_up_chunk, INDEX - 1, NEW),
        lambda s, k: s.store.apply(WriteRecord("records", k, NEW, None)),
        _is_first_write_in_chunk,
    ),
    "write that moves to a larger slot": KillCase(
        lambda s, k: s.store.apply(WriteRecord("records", k, with_checksum(b"o", 8), None)),
        lambda s, k: s.store.apply(WriteRecord("records", k, NEW, None)),
        lambda s, k: _read_record(s, k) in (with_checksum(b"o", 8), NEW),
    ),
    "delete": KillCase(
        lambda s, k: s.store.apply(WriteRecord("records", k, OLD, None)),
        lambda s, k: s.store.apply(DeleteRecord("records", k)),
        _is_delete,
    ),
    "group acquire": KillCase(_nothing, lambda s, k: _group(s).sync.acquire([k, k]), _is_group_acquire),
    "override": KillCase(_remove_override, _set_override, _is_override),
}


def _limiter(store: SharedStore, strategy: LimitStrategy) -> BaseLimiter:
    return BaseLimiter(LimitConfig(0.0001, 10, 100_000, strategy), store, strategy.value)


def run_case(name: str, case: str, *, opcodes: bool) -> dict[str, Any]:
    """Let a child die at each step of an operation in turn, until one completes it."""
    clock = ManualClock()
    store, other = (SharedStore(name, clock, 64, lock_timeout=1) for _ in range(2))
    tokens, log = _limiter(store, LimitStrategy.TOKEN_BUCKET), _limiter(store, LimitStrategy.SLIDING_WINDOW)
    stage = Stage(store, other, clock, tokens, log)
    before, operation, is_valid, warm_up = KILL_CASES[case]
    problems: list[str] = []
    for step in count(1):
        key = f"k{step}"
        before(stage, key)
        died_at = _run_and_die(
            partial(warm_up, stage, key), partial(operation, stage, key), step, opcodes=opcodes
        )
        if not is_valid(stage, key):
            problems.append(f"{case}, killed at {died_at}")
        if died_at is None or step % 10 == 0:
            problems += [
                f"{problem}, killed at {died_at} or before" for problem in table_problems(store.table)
            ]
        if died_at is None or step > DEATHS_MAX:
            break
        _remove_keys(stage, key)
        _remove_listed(stage)
    store.close()
    other.close()
    return {"deaths": step - 1, "problems": problems}


def _run_and_die(
    warm_up: Callable[[], object], operation: Callable[[], object], step: int, *, opcodes: bool
) -> str | None:
    """Fork a child that dies at a step of an operation; return where, or ``None`` if it completed."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        warm_up()
        _die_at(step, write_end, opcodes=opcodes)
        operation()
        sys.settrace(None)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        where = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if where else 0)
    return where or None


def _die_at(step: int, report_fd: int, *, opcodes: bool) -> None:
    left = [step]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if (
            "/comporta/stores/shared/" not in frame.f_code.co_filename
            or frame.f_code.co_name in READ_ONLY_FUNCTIONS
        ):
            return None
        frame.f_trace_opcodes = opcodes
        if event == ("opcode" if opcodes else "line"):
            left[0] -= 1
            if not left[0]:
                os.write(report_fd, f"{frame.f_code.co_qualname}:{frame.f_lineno}".encode())
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    _forget_tracers()
    sys.settrace(trace)


def _forget_tracers() -> None:
    """Remove the trace functions of all active frames: coverage would reinstall itself there."""
    sys.settrace(None)
    frame = inspect.currentframe()
    while frame is not None:
        frame.f_trace = None
        frame = frame.f_back
