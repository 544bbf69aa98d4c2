"""The table of ``shared://`` under its locks: atomic operations on states, with bounded waits.

Each bucket of the table is guarded by one of 16 file locks, which the kernel releases when their holder dies,
and within this process by a mutex. A caller waits for a lock for at most ``lock_timeout``: if its holder is
stopped (SIGSTOP, a debugger), the others get ``StateTimeoutError``. On an event loop the wait is awaited.

This module knows no limits and no URLs.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final, TypeVar

from comporta.clock import MONOTONIC, Clock, to_us
from comporta.errors import StateFullError, StateTimeoutError, StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.base import GONE, Operation, State, StateKey
from comporta.stores.binding import WouldBlock
from comporta.stores.effects import Sleep
from comporta.stores.shared.directory import LOCK_COUNT, StateDirectory
from comporta.stores.shared.table import SlotPosition, Table

R = TypeVar("R")

Guard = tuple[int, Lock]
"""A lock file's descriptor, and the mutex for the threads of this process."""

LOCK: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
UNLOCK: Final = fcntl.LOCK_UN

_SPINS = 40
_RETRY_DELAY_SECONDS_MIN = 20e-6
_RETRY_DELAY_SECONDS_MAX = 1e-3


def run_locked(guards: list[Guard], action: Callable[[], R]) -> R:
    """Run ``action`` while holding all the locks, or raise ``WouldBlock`` if one of them is taken.

    A signal handler may raise between any two steps. So a mutex is only ever taken by ``with``, and a file
    lock is released even where it may not have been taken: that does no harm, because no other thread of
    this process can hold it at the same time.
    """
    if not guards:
        return action()
    fd, mutex = guards[0]
    with mutex:
        try:
            fcntl.flock(fd, LOCK)
            return run_locked(guards[1:], action)
        except BlockingIOError:
            raise WouldBlock from None
        finally:
            fcntl.flock(fd, UNLOCK)


class LockedTable:
    """A mapped table together with this process's descriptors of its locks."""

    def __init__(self, directory: StateDirectory, clock: Clock, lock_timeout: float) -> None:
        self.clock = clock
        self._directory = directory
        self.lock_timeout = lock_timeout
        fd = directory.open_table()
        try:
            self.table = Table(fd, directory.keys, LOCK_COUNT)
        except OSError as error:
            directory.close()
            raise StateUnavailableError(f"cannot map {directory.path}: {error.strerror}") from error
        finally:
            os.close(fd)
        self._open_locks()

    def close(self) -> None:
        """Close this process's descriptors and mapping. The state stays in the file."""
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
        if not self._fds:
            path = self._directory.path
            raise StateUnavailableError(f"the locks of {path} are not open: closed, or lost in a fork")
        return [(self._fds[lock], self._mutexes[lock]) for lock in sorted(locks)]

    def retry_until_unlocked(self, attempt: Callable[[], R]) -> R:
        """Call ``attempt`` until it finds its locks free. Holds no lock between two attempts."""
        return run(self._retry_flow(attempt))

    async def retry_until_unlocked_async(self, attempt: Callable[[], R]) -> R:
        """Call ``attempt`` until it finds its locks free, without blocking the event loop."""
        return await run_async(self._retry_flow(attempt))

    def try_apply(self, operation: Operation[R]) -> R:
        """Carry out an operation, or raise ``WouldBlock`` if a lock is taken."""
        keys = operation.state_keys
        buckets = [self.table.bucket_position(key.space, key.key, key.type.codec) for key in keys]

        def apply_locked() -> R:
            if operation.changes_override:  # first: a reader of the new count must wait for the record
                self.table.increment_change_count()
            now_us = self.clock.now_ns() // 1000
            slots = [self.table.find_slot(bucket) for bucket in buckets]
            states = [self._live_state(slot, key, now_us) for slot, key in zip(slots, keys, strict=True)]
            new_states, reply = operation.step(states, now_us)
            self._write_all(list(zip(slots, buckets, keys, new_states, strict=True)), now_us)
            return reply

        locks = {bucket.lock for bucket in buckets}
        return run_locked(self.guards(locks | {0} if operation.changes_override else locks), apply_locked)

    def write_state(
        self,
        slot: SlotPosition | None,
        bucket: SlotPosition,
        key: StateKey,
        state: State,
        now_us: int,
        *,
        reserved: frozenset[int] = frozenset(),
    ) -> SlotPosition:
        """Write a state, into a new slot if the key has none. The caller holds the bucket's lock."""
        target = slot or self.table.allocate_slot(bucket, key.space, key.key, now_us, reserved)
        self.table.write_state(target, key.type.codec, state, key.type.expires_us(state))
        if slot is None:
            self.table.publish_slot(target)
        return target

    def _write_all(
        self, changes: list[tuple[SlotPosition | None, SlotPosition, StateKey, State | None]], now_us: int
    ) -> None:
        """Write all new states or, if there is no room for a new key among them, none."""
        created: list[SlotPosition] = []
        # a slot of this operation is not free for another key of it, even if its state has expired
        reserved = frozenset(slot.slot_offset for slot, *_ in changes if slot is not None)
        try:
            for slot, bucket, key, new in changes:
                if slot is None and new is not None and new is not GONE:
                    created.append(self.write_state(None, bucket, key, new, now_us, reserved=reserved))
        except StateFullError:
            for new_slot in created:
                self.table.free_slot(new_slot)
            raise
        for slot, bucket, key, new in changes:
            if slot is not None and new is GONE:
                self.table.free_slot(slot)
            elif slot is not None and new is not None:
                self.write_state(slot, bucket, key, new, now_us)

    def _live_state(self, slot: SlotPosition | None, key: StateKey, now_us: int) -> State | None:
        if slot is None or self.table.expires_us(slot) <= now_us:
            return None
        return self.table.read_state(slot, key.type.codec)

    def _retry_flow(self, attempt: Callable[[], R]) -> Flow[R]:
        delays = self._retry_delays()
        while True:
            try:
                return attempt()
            except WouldBlock:
                delay = next(delays)
            if delay:
                yield Sleep(MONOTONIC, delay)

    def _retry_delays(self) -> Iterator[float]:
        """Yield the wait before each new attempt: none at first, then longer ones; raise at the deadline."""
        yield from (0.0 for _ in range(_SPINS))
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
