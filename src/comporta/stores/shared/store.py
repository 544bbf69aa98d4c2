"""State shared by all processes of one machine, with no server: ``shared://name``.

The processes need not be related: all processes of one user that open the same name share the state.
``locked_table.py`` bounds how long a caller waits for another process; ``failover/`` defines what happens
when this engine fails.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TypeVar

from comporta import events, fork_safety
from comporta.clock import MONOTONIC, Clock
from comporta.errors import StateUnavailableError
from comporta.stores.base import Operation, Store
from comporta.stores.bound_limit import Binding, WouldBlock
from comporta.stores.history import series_capacity
from comporta.stores.records import RECORD
from comporta.stores.shared.directory import StateDirectory, boot_id, directory_path
from comporta.stores.shared.fast_path import SharedBoundLimit
from comporta.stores.shared.layout import MEMORY_MB_DEFAULT, SLOT_BYTES, STATE_BYTES_MAX
from comporta.stores.shared.locked_table import LockedTable, run_locked
from comporta.stores.shared.table import Table
from comporta.validators import require_number
from comporta.weak_registry import WeakRegistry

R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_supported() -> bool:
    """Whether this platform has the file locks and the shared memory that the engine needs."""
    return sys.platform.startswith(("linux", "darwin"))


def check_name(name: str) -> None:
    """Raise ``ValueError`` for a name that cannot be part of a directory's name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name must be 1 to 64 of A-Z a-z 0-9 _ . -, got {name!r}")


class SharedStore(Store):
    """A store for the processes of one user on one machine."""

    decides_in_process = True
    state_bytes_max = STATE_BYTES_MAX

    def __init__(
        self,
        name: str,
        clock: Clock = MONOTONIC,
        memory: int = MEMORY_MB_DEFAULT,
        lock_timeout: float = 0.5,
    ) -> None:
        check_name(name)
        require_number("lock_timeout", lock_timeout, 0.001, 60, unit="seconds")
        if not is_supported():
            raise StateUnavailableError(
                f"shared:// needs Linux or macOS, this is {sys.platform}: use memory:// or redis://"
            )
        self.clock = clock
        self.address = f"shared://{name}"
        self._bound_limits: WeakRegistry[SharedBoundLimit] = WeakRegistry()
        self._directory = StateDirectory(directory_path(name), memory, boot_id())
        self.path = self._directory.path
        self._locked = LockedTable(self._directory, clock, lock_timeout, self.address)
        self._retired: LockedTable | None = None
        fork_safety.register(self)

    @property
    def table(self) -> Table:
        """The table in use."""
        return self._locked.table

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation, waiting for locks for at most ``lock_timeout``."""
        return self._locked.retry_until_unlocked(lambda: self._locked.try_apply(operation))

    async def apply_async(self, operation: Operation[R]) -> R:
        """Carry out an operation; waits for a taken lock without blocking the event loop."""
        try:
            return self._locked.try_apply(operation)
        except WouldBlock:
            return await self._locked.retry_until_unlocked_async(lambda: self._locked.try_apply(operation))

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space."""
        records: dict[str, bytes] = {}
        for lock in range(self.table.locks):
            records.update(self._locked.retry_until_unlocked(partial(self._shard_records, lock, space)))
        return records

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns, without blocking the event loop."""
        records: dict[str, bytes] = {}
        for lock in range(self.table.locks):
            read = partial(self._shard_records, lock, space)
            records.update(await self._locked.retry_until_unlocked_async(read))
        return records

    @property
    def large_states_max(self) -> int:
        """How many histories the table should keep, in at most an eighth of its memory."""
        return series_capacity(self.table.memory_mb * 2**20 // 4 // SLOT_BYTES[-1])

    def bind(self, binding: Binding) -> SharedBoundLimit:
        """Tie a limit's algorithm to a space of this store."""
        bound = SharedBoundLimit(self._locked, binding)
        self._bound_limits.add(bound)
        return bound

    def verify(self) -> None:
        """Use a new directory if an operator removed this one or truncated its table."""
        problem = self._directory.problem()
        if problem is None:
            return
        self._directory.remove_damaged()
        self._reopen()
        text = f"{problem} while it was in use; its states are lost, a new directory is in use"
        events.publish("state_replaced", self.address, text, "error")

    def probe(self) -> None:
        """Check the directory, as ``verify`` does."""
        self.verify()

    def close(self) -> None:
        """Close this process's descriptors and mapping. The state stays in the file."""
        self._close_retired()
        self._locked.close()

    def _reopen(self) -> None:
        """Open the directory again and switch all bound limits to it.

        Other threads may still be deciding on the old table, so it is closed only when the next one retires.
        """
        directory = StateDirectory(self.path, self._directory.memory_mb, boot_id())
        locked = LockedTable(directory, self.clock, self.lock_timeout, self.address)
        self._close_retired()
        self._directory, self._retired, self._locked = directory, self._locked, locked
        for bound in self._bound_limits.live():
            bound.use_table(locked)

    def _close_retired(self) -> None:
        retired, self._retired = self._retired, None
        if retired is not None:
            retired.close()

    @property
    def lock_timeout(self) -> float:
        """The longest time in seconds that a caller waits for a lock."""
        return self._locked.lock_timeout

    @lock_timeout.setter
    def lock_timeout(self, seconds: float) -> None:
        self._locked.lock_timeout = seconds

    def after_fork(self) -> None:
        """Open this process's own locks."""
        if self._locked.reopen_locks():
            for bound in self._bound_limits.live():
                bound.forget_locations()

    def _shard_records(self, lock: int, space: str) -> dict[str, bytes]:
        guards = self._locked.guards({lock})
        states = run_locked(guards, lambda: self.table.listed_states(lock, RECORD.codec))
        now_us, prefix = self.clock.now_ns() // 1000, f"{space}:"
        return {
            text.removeprefix(prefix): value
            for text, (expires_us, value) in states
            if text.startswith(prefix) and expires_us > now_us
        }
