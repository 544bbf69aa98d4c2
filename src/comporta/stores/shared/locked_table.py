"""The table of ``shared://`` under its locks: atomic operations on states, with bounded waits.

Each shard of the table is guarded by one of 16 file locks, which the kernel releases when their holder dies,
and within this process by a mutex; one more lock guards growth. A caller waits for a lock for at most
``lock_timeout``: if its holder is suspended (SIGSTOP, a debugger), the others get ``StateTimeoutError``. On
an event loop the wait does not block the loop.

When the table is full of states that must be kept, the keys of a limit without a state share one state, their
limit's overflow state. Keys of other types get ``StateFullError``. All operations on a key agree: once a
write found no room, a read of the absent key also reports it.

This module does not know limits and URLs.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final, TypeVar

from comporta import events
from comporta.clock import MONOTONIC, Clock, to_us
from comporta.errors import StateFullError, StateTimeoutError, StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.base import GONE, PINNED_US, Operation, State, StateKey, key_text
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.bounded_cache import drop_oldest
from comporta.stores.effects import Sleep
from comporta.stores.shared.directory import StateDirectory
from comporta.stores.shared.index import KeyPosition, locate
from comporta.stores.shared.table import (
    OVERFLOW_KEY,
    NoRoomError,
    SlotPosition,
    SlotRequest,
    Table,
)

R = TypeVar("R")

Guard = tuple[int, Lock]
"""A lock file's descriptor, and the mutex for the threads of this process."""

Change = tuple[SlotPosition | None, KeyPosition, StateKey, State | None]
"""A key's slot, its position, the key, and its new state."""

LOCK: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
UNLOCK: Final = fcntl.LOCK_UN

_SPINS = 40
_RETRY_DELAY_SECONDS_MIN = 20e-6
_RETRY_DELAY_SECONDS_MAX = 1e-3
_WITHOUT_ROOM_MAX = 65_536


def take_lock(fd: int) -> None:
    """Take a file lock or raise ``WouldBlock``.

    It tries several times, because another process needs a lock only for a few microseconds.
    """
    for _ in range(_SPINS):
        try:
            fcntl.flock(fd, LOCK)
        except BlockingIOError:
            continue
        return
    raise WouldBlock


def run_locked(guards: list[Guard], action: Callable[[], R]) -> R:
    """Run ``action`` while holding all the locks, or raise ``WouldBlock`` if one of them is taken.

    A signal handler may raise between any two steps. A mutex is therefore only taken with ``with``, and a
    file lock is released even if it may not have been taken. That does no harm, because no other thread of
    this process can hold it at the same time.
    """
    if not guards:
        return action()
    fd, mutex = guards[0]
    with mutex:
        try:
            take_lock(fd)
            return run_locked(guards[1:], action)
        finally:
            fcntl.flock(fd, UNLOCK)


class LockedTable:
    """A mapped table together with this process's descriptors of its file and its locks."""

    def __init__(self, directory: StateDirectory, clock: Clock, lock_timeout: float, address: str) -> None:
        self.clock = clock
        self.lock_timeout = lock_timeout
        self._address = address
        self._directory = directory
        self._without_room: dict[bytes, bool] = {}
        self._reported: set[str] = set()
        self._fd = directory.open_table()
        self._fds: list[int] = []
        try:
            self.table = Table(self._fd, directory.memory_mb, self._run_growth)
        except (OSError, ValueError) as error:  # ValueError: it was truncated just now
            os.close(self._fd)
            directory.close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise StateUnavailableError(f"cannot map {directory.path}: {reason}") from error
        self._open_locks()

    def close(self) -> None:
        """Close this process's descriptors and mapping. The state stays in the file."""
        if self._fds:
            os.close(self._fd)
        self._close_locks()
        self._directory.close()
        self.table.close()

    def reopen_locks(self) -> bool:
        """Open the lock files again after a fork; false if they were closed.

        A file lock belongs to the descriptor it was taken by: a child that used its parent's descriptors
        would hold, and release, its parent's locks.
        """
        if not self._fds:
            return False
        self._close_locks()
        self._open_locks()
        return True

    def guards(self, locks: set[int]) -> list[Guard]:
        """Return the descriptors and mutexes of some locks, in the order in which every caller takes them."""
        self._check_usable()
        return [(self._fds[lock], self._mutexes[lock]) for lock in sorted(locks)]

    def all_guards(self) -> list[Guard]:
        """Return the descriptors and mutexes of all locks; none if they are not open."""
        return list(zip(self._fds, self._mutexes, strict=False))

    @property
    def change_count(self) -> bytes:
        """The table's change count."""
        self._check_usable()
        return self.table.change_count

    def _check_usable(self) -> None:
        """Raise if the table is closed or was truncated: reading a missing part causes a SIGBUS.

        Decisions on keys whose slots are cached skip this check; the heartbeat makes it every second.
        """
        path = self._directory.path
        if not self._fds:
            raise StateUnavailableError(f"the locks of {path} are not open: closed, or lost in a fork")
        size = os.lseek(self._fd, 0, os.SEEK_END)
        if size < self.table.geometry.size:
            raise StateUnavailableError(f"the table of {path} was truncated to {size} bytes: remove {path}")

    def retry_until_unlocked(self, attempt: Callable[[], R]) -> R:
        """Call ``attempt`` until it finds its locks free. Holds no lock between two attempts."""
        return run(self._retry_flow(attempt))

    async def retry_until_unlocked_async(self, attempt: Callable[[], R]) -> R:
        """Call ``attempt`` until it finds its locks free, without blocking the event loop."""
        return await run_async(self._retry_flow(attempt))

    def try_apply(self, operation: Operation[R]) -> R:
        """Carry out an operation, or raise ``WouldBlock`` if a lock is taken."""
        return self.with_overflow(list(operation.state_keys), lambda keys: self._try_apply(operation, keys))

    def with_overflow(self, keys: list[StateKey], attempt: Callable[[list[StateKey]], R]) -> R:
        """Call ``attempt`` with the keys, then with the overflow state for each key without room."""
        try:
            result = self._retry_with_overflow(keys, attempt)
        except NoRoomError as error:
            self._publish_fullness()
            raise self._full_error(error.key) from None
        self._publish_fullness()
        return result

    def _retry_with_overflow(self, keys: list[StateKey], attempt: Callable[[list[StateKey]], R]) -> R:
        for _ in keys:
            try:
                return attempt(keys)
            except NoRoomError as error:
                self._remember_no_room(error.key)
                keys = self._replace_by_overflow(keys, error.key)
        return attempt(keys)

    def write_state(self, slot: SlotPosition | None, request: SlotRequest, state: State) -> SlotPosition:
        """Write a state, into a new slot if the key has none or its slot is too small.

        The caller holds the lock of the key's shard. Raises ``NoRoomError`` and changes nothing.
        """
        table, key = self.table, request.key
        data, retention_us = key.type.codec.pack(*state), key.type.retention_us(state)
        if key.key == OVERFLOW_KEY:
            retention_us |= PINNED_US
        if slot is None:
            target = table.create(request, len(data))
            self._without_room.pop(request.position.digest, None)
        else:
            target = self._with_room(slot, request, len(data))
        table.write_state(target, retention_us, data)
        if slot is None:
            table.publish(target)
        return target

    def _with_room(self, slot: SlotPosition, request: SlotRequest, size: int) -> SlotPosition:
        """Return a key's slot, after moving its state if ``size`` bytes do not fit."""
        if self.table.fits(slot, request.key, size):
            return slot
        reserved = request.reserved | {slot.slot_offset}
        return self.table.grow(request._replace(reserved=reserved), slot, size)

    def lacks_room(self, position: KeyPosition) -> bool:
        """Whether the last write of an absent key found no room."""
        return position.digest in self._without_room

    def _try_apply(self, operation: Operation[R], keys: list[StateKey]) -> R:
        positions = [locate(key) for key in keys]

        def apply_locked() -> R:
            if operation.changes_override:  # first: a reader of the new count must wait for the record
                self.table.increment_change_count()
            now_us = self.clock.now_ns() // 1000
            slots = [self.table.find(position) for position in positions]
            states = [self._live_state(slot, key, now_us) for slot, key in zip(slots, keys, strict=True)]
            new_states, reply = operation.step(states, now_us)
            self._write_all(list(zip(slots, positions, keys, new_states, strict=True)), now_us)
            for index, key in enumerate(keys):
                if key.type.attached:
                    self._block(positions[index - 1], key, states[index], new_states[index])
            return reply

        locks = {position.lock for position in positions}
        return run_locked(self.guards(locks | {0} if operation.changes_override else locks), apply_locked)

    def _write_all(self, changes: list[Change], now_us: int) -> None:
        """Write all new states or, if there is no room for one of them, none."""
        for slot, position, key, new in changes:
            if slot is None and new is None and self.lacks_room(position):
                raise NoRoomError(key)
        # a slot of this operation is not free for another key of it, even if its state has expired
        reserved = frozenset(slot.slot_offset for slot, *_ in changes if slot is not None)
        created: list[SlotPosition] = []
        grown: list[tuple[SlotPosition, SlotRequest, State]] = []
        try:
            for slot, position, key, new in changes:
                if new is None or (new is GONE and slot is None):
                    continue
                taken = reserved | {each.slot_offset for each in created} | {s.slot_offset for s, *_ in grown}
                request = SlotRequest(key, position, now_us, taken)
                if slot is None:
                    created.append(self.write_state(None, request, new))
                else:
                    size = 0 if new is GONE else len(key.type.codec.pack(*new))
                    grown.append((self._with_room(slot, request, size), request, new))
        except NoRoomError:
            for new_slot in created:
                self.table.free(new_slot)
            raise
        for slot, request, new in grown:
            if new is GONE:
                self.table.free(slot)
            else:
                self.write_state(slot, request, new)

    def _block(self, position: KeyPosition, key: StateKey, old: State | None, new: State | None) -> None:
        """Block fast paths on a state while the state attached to it, of this key, requires it."""
        slot, state = self.table.find(position), old if new is None else new
        if slot is not None:
            blocked = state is not None and state is not GONE and key.type.blocks_fast_path(state)
            self.table.set_blocked(slot, blocked=blocked)

    def _live_state(self, slot: SlotPosition | None, key: StateKey, now_us: int) -> State | None:
        if slot is None or self.table.expires_us(slot) <= now_us:
            return None
        return self.table.read_state(slot, key.type.codec)

    def _remember_no_room(self, key: StateKey) -> None:
        if not key.type.listed:  # reading an absent record needs no room
            drop_oldest(self._without_room, _WITHOUT_ROOM_MAX)
            self._without_room[locate(key).digest] = True

    def _replace_by_overflow(self, keys: list[StateKey], full: StateKey) -> list[StateKey]:
        if not full.type.evictable or full.key == OVERFLOW_KEY:
            raise NoRoomError(full)
        overflow = full._replace(key=OVERFLOW_KEY)
        return [overflow if key is full else key for key in keys]

    def _full_error(self, key: StateKey) -> StateFullError:
        return StateFullError(
            f"{self._address} has no room for {key_text(key.space, key.key)[:80]!r}: {self._fullness()}"
        )

    def _fullness(self) -> str:
        if self.table.is_disk_full:
            return f"the disk of {self._directory.path} is full"
        return f"its {self.table.memory_mb} MB are full; open another name with a larger ?memory="

    def _publish_fullness(self) -> None:
        """Report once that the table evicts states, or that its disk is full. Holds no lock."""
        if self.table.has_evicted or self.table.is_disk_full:
            text = self._fullness()
            if text not in self._reported:
                self._reported.add(text)
                consequence = "the keys used least are evicted to make room for new ones"
                events.publish("state_full", self._address, f"{text}; {consequence}", "warning")

    def _run_growth(self, grow: Callable[[], int | None]) -> int | None:
        return run_locked([(self._fds[-1], self._mutexes[-1])], grow)

    def _retry_flow(self, attempt: Callable[[], R]) -> Flow[R]:
        delays = self._retry_delays()
        while True:
            try:
                return attempt()
            except WouldBlock:
                delay = next(delays)
            yield Sleep(MONOTONIC, delay)

    def _retry_delays(self) -> Iterator[float]:
        """Yield the wait before each new attempt, each longer than the last; raise at the deadline."""
        deadline_ns = MONOTONIC.now_ns() + to_us(self.lock_timeout) * 1000
        delay = _RETRY_DELAY_SECONDS_MIN
        while MONOTONIC.now_ns() < deadline_ns:
            yield delay
            delay = min(2 * delay, _RETRY_DELAY_SECONDS_MAX)
        raise StateTimeoutError(
            f"a lock of {self._directory.path} was not free for {self.lock_timeout} s: its holder is stopped "
            "or the machine is overloaded; nothing was changed"
        )

    def _open_locks(self) -> None:
        self._fds = self._directory.open_locks()
        self._mutexes = [Lock() for _ in self._fds]

    def _close_locks(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)
