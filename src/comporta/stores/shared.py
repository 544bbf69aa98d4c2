"""State shared by all processes of one machine, with no server: ``shared://name``.

Processes need not be related: who opens the same name as the same user shares the state. Each bucket of
the table is guarded by one of a few file locks, which the kernel frees when their holder dies, and within
the process by a mutex. Nobody waits longer than ``lock_timeout``: if a holder is stopped (SIGSTOP, a
debugger) the others get ``StateTimeoutError``. On an event loop that wait is awaited.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

from comporta import forks
from comporta.clock import MONOTONIC, Clock, to_us
from comporta.errors import StateFullError, StateTimeoutError, StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.base import GONE, Busy, Operation, Part, State, Stepper
from comporta.stores.effects import Sleep
from comporta.stores.folder import LOCKS, Folder, boot_id, path_of
from comporta.stores.records import RECORD
from comporta.stores.shared_bound import SharedBound, held
from comporta.stores.table import KEYS_DEFAULT, Place, Table

R = TypeVar("R")

_SPINS = 40
_FIRST_NAP_SECONDS = 20e-6
_LONGEST_NAP_SECONDS = 1e-3
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def supported() -> bool:
    """Whether this platform has what it takes."""
    return sys.platform.startswith(("linux", "darwin"))


def check_name(name: str) -> None:
    """Refuse what cannot be part of a folder's name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name must be 1 to 64 of A-Z a-z 0-9 _ . -, got {name!r}")


class SharedStore:
    """A store for the processes of one user on one machine."""

    def __init__(
        self,
        name: str,
        clock: Clock = MONOTONIC,
        keys: int = KEYS_DEFAULT,
        lock_timeout: float = 0.5,
    ) -> None:
        check_name(name)
        if not 0.001 <= lock_timeout <= 60:
            raise ValueError(f"lock_timeout must be 0.001 to 60 seconds, got {lock_timeout}")
        if not supported():
            raise StateUnavailableError(
                f"shared:// needs Linux or macOS, this is {sys.platform}: use memory:// or redis://"
            )
        self.clock = clock
        self.lock_timeout = lock_timeout
        self._bounds: WeakSet[SharedBound] = WeakSet()
        self._folder = Folder(path_of(name), keys, boot_id())
        self.path = self._folder.path
        fd = self._folder.table()
        try:
            self.table = Table(fd, self._folder.keys, LOCKS)
        except OSError as error:
            self._folder.close()
            raise StateUnavailableError(f"cannot map {self.path}: {error.strerror}") from error
        finally:
            os.close(fd)
        self._open_locks()
        forks.register(self)

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation, waiting for locks up to ``lock_timeout``."""
        return self.patiently(lambda: self.attempt(operation))

    async def apply_async(self, operation: Operation[R]) -> R:
        """Carry out an operation; a lock that is taken is waited for without holding the loop."""
        try:
            return self.attempt(operation)
        except Busy:
            return await self.patiently_async(lambda: self.attempt(operation))

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space."""
        found: dict[str, bytes] = {}
        for bucket in self.table.buckets(RECORD.codec):
            found.update(self.patiently(partial(self._listed, bucket, space)))
        return found

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns."""
        found: dict[str, bytes] = {}
        for bucket in self.table.buckets(RECORD.codec):
            found.update(await self.patiently_async(partial(self._listed, bucket, space)))
        return found

    def bind(self, stepper: Stepper, space: str, change: Part, written: Callable[[Any], str]) -> SharedBound:
        """Tie a stepper to a space of this store."""
        bound = SharedBound(self, stepper, space, change, written)
        self._bounds.add(bound)
        return bound

    def close(self) -> None:
        """Close this process's descriptors and mapping; the state stays in the file."""
        self._close_locks()
        self._folder.close()
        self.table.close()

    def guards(self, locks: set[int]) -> list[tuple[int, Lock]]:
        """Return the file and the mutex of some locks, in the order in which everybody takes them."""
        if not self._fds:
            raise StateUnavailableError(f"the locks of {self.path} are not open: closed, or lost in a fork")
        return [(self._fds[lock], self._locks[lock]) for lock in sorted(locks)]

    def after_fork(self) -> None:
        """Take locks of one's own: inherited ones would be the parent's."""
        if not self._fds:
            return
        self._close_locks()
        self._open_locks()
        for bound in self._bounds:
            bound.forget_spots()

    def _open_locks(self) -> None:
        self._fds = self._folder.locks()
        self._locks = [Lock() for _ in self._fds]

    def _close_locks(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def patiently(self, attempt: Callable[[], R]) -> R:
        """Try until no lock is in the way; nothing is held between two tries."""
        return run(self._trying(attempt))

    async def patiently_async(self, attempt: Callable[[], R]) -> R:
        """Try until no lock is in the way, giving the loop back in between."""
        return await run_async(self._trying(attempt))

    def _trying(self, attempt: Callable[[], R]) -> Flow[R]:
        naps = self._naps()
        while True:
            try:
                return attempt()
            except Busy:
                nap = next(naps)
            if nap:
                yield Sleep(MONOTONIC, nap)

    def _naps(self) -> Iterator[float]:
        """Yield how long to wait before each new try: not at all, then longer; raise at the deadline."""
        yield from (0.0 for _ in range(_SPINS))
        deadline_ns = MONOTONIC.now_ns() + to_us(self.lock_timeout) * 1000
        nap = _FIRST_NAP_SECONDS
        while MONOTONIC.now_ns() < deadline_ns:
            yield nap
            nap = min(2 * nap, _LONGEST_NAP_SECONDS)
        raise StateTimeoutError(
            f"a lock of {self.path} was not free for {self.lock_timeout} s: its holder is stopped, or "
            "the machine is overloaded; nothing was changed"
        )

    def attempt(self, operation: Operation[R]) -> R:
        """Carry out an operation, or raise ``Busy`` at once if a lock is taken."""
        parts = operation.parts
        places = [self.table.place(part.space, part.key, part.kind.codec) for part in parts]

        def applied() -> R:
            if operation.followed:  # first: whoever sees the count has to wait for the record's lock
                self.table.count_change()
            now_us = self.clock.now_ns() // 1000
            slots = [self.table.find(place) for place in places]
            states = [self._state(slot, part, now_us) for slot, part in zip(slots, parts, strict=True)]
            new_states, reply = operation.step(states, now_us)
            self._keep_all(list(zip(slots, places, parts, new_states, strict=True)), now_us)
            return reply

        locks = {place.lock for place in places}
        return held(self.guards(locks | {0} if operation.followed else locks), applied)

    def _keep_all(self, changes: list[tuple[Place | None, Place, Part, State | None]], now_us: int) -> None:
        """Write all new states or, if there is no room for a new key among them, none."""
        made: list[Place] = []
        # a slot of this very operation is not free for another key of it, even if its state has ended
        own = frozenset(slot.slot_at for slot, *_ in changes if slot is not None)
        try:
            for slot, place, part, new in changes:
                if slot is None and new is not None and new is not GONE:
                    made.append(self.keep(None, place, part, new, now_us, spared=own))
        except StateFullError:
            for new_slot in made:
                self.table.free(new_slot)
            raise
        for slot, place, part, new in changes:
            if slot is not None and new is GONE:
                self.table.free(slot)
            elif slot is not None and new is not None:
                self.keep(slot, place, part, new, now_us)

    def _state(self, slot: Place | None, part: Part, now_us: int) -> State | None:
        if slot is None or self.table.ends_us(slot) <= now_us:
            return None
        return self.table.read(slot, part.kind.codec)

    def keep(
        self,
        slot: Place | None,
        bucket: Place,
        part: Part,
        state: State,
        now_us: int,
        *,
        spared: frozenset[int] = frozenset(),
    ) -> Place:
        """Write a state, into a new slot if it has none. Only with the bucket's lock held."""
        kind = part.kind
        made = slot or self.table.make(bucket, part.space, part.key, now_us, spared)
        self.table.write(made, kind.codec, state, kind.expires_us(state))
        if slot is None:
            self.table.claim(made)
        return made

    def _listed(self, bucket: Place, space: str) -> dict[str, bytes]:
        listed = held(self.guards({bucket.lock}), lambda: self.table.listed(bucket, RECORD.codec))
        now_us, prefix = self.clock.now_ns() // 1000, f"{space}:"
        return {
            text.removeprefix(prefix): value
            for text, (ends_us, value) in listed
            if text.startswith(prefix) and ends_us > now_us
        }
