"""The hot path of ``shared://``: from a key to a decision in one look at the table."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from operator import attrgetter
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from comporta.stores.base import Busy, Part, StepOf, Stepper
from comporta.stores.records import Read
from comporta.stores.table import CHANGES_AT, DIGEST_BYTES, Place

if TYPE_CHECKING:
    from comporta.stores.shared import SharedStore

R = TypeVar("R")

_SPOTS_MAX = 65_536
_CHANGES_END = CHANGES_AT + 8
_TAKE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_GIVE: Final = fcntl.LOCK_UN
_ENDS = Struct("<q")


def held(guards: list[tuple[int, Lock]], action: Callable[[], R]) -> R:
    """Do something while some locks are held, all of them, or raise ``Busy`` at once.

    An exception may come from a signal handler between any two steps. So a mutex is only ever taken by
    ``with``, and a file lock is given back even where it may not have been taken: that does no harm, since
    nobody else in this process can hold it meanwhile.
    """
    if not guards:
        return action()
    fd, mutex = guards[0]
    with mutex:
        try:
            fcntl.flock(fd, _TAKE)
            return held(guards[1:], action)
        except BlockingIOError:
            raise Busy from None
        finally:
            fcntl.flock(fd, _GIVE)


class _Spot(NamedTuple):
    """Where a key's slot is, in the form the hot path wants it."""

    digest: bytes
    digest_at: int
    slot_at: int
    copy_0: int
    copy_1: int
    fd: int
    mutex: Lock


class SharedBound:
    """A stepper tied to one space; ``attempt`` is the shortest way from a key to a decision.

    It remembers where the slots of its keys are (the digest in the slot proves it each time), and looks
    at the table's count of changes under the same lock under which it decides.
    """

    attempt: Callable[[Any, int], int]
    known: Stepper
    """The stepper in force when this process last looked."""

    def __init__(
        self,
        store: SharedStore,
        stepper: Stepper,
        space: str,
        change: Part,
        written: Callable[[Any], str],
    ) -> None:
        self._store = store
        self._space = space
        self._change = change
        self._written = written
        self._spots: dict[Any, _Spot] = {}
        self.known = self._original = stepper
        self._seen = b""
        self._uses: list[Callable[[Stepper, bytes], None]] = []
        self.attempt = self.short_way(attrgetter("step"))

    @property
    def stepper(self) -> Stepper:
        """The stepper in force, as of now."""
        if self._store.table.changes != self._seen:
            self._store.patiently(self._follow)
        return self.known

    async def stepper_async(self) -> Stepper:
        """Return the stepper in force; a lock that is taken is waited for without holding the loop."""
        if self._store.table.changes != self._seen:
            await self._store.patiently_async(self._follow)
        return self.known

    def take(self, key: Any, cost: int) -> int:
        """Decide, waiting for the lock up to the store's ``lock_timeout``."""
        try:
            return self.attempt(key, cost)
        except Busy:
            return self._store.patiently(lambda: self.attempt(key, cost))

    async def take_async(self, key: Any, cost: int) -> int:
        """Decide; a lock that is taken is waited for without holding the loop."""
        try:
            return self.attempt(key, cost)
        except Busy:
            return await self._store.patiently_async(lambda: self.attempt(key, cost))

    def forget_spots(self) -> None:
        """Look everything up again: after a fork the locks are others."""
        self._spots.clear()

    def _follow(self) -> None:
        """Read what an operator may have changed, and decide by that from now on."""
        changes = self._store.table.changes
        change = self._store.attempt(Read(self._change.space, self._change.key))
        self.known, self._seen = self._original.revised(change), changes
        for use in self._uses:
            use(self.known, changes)

    def short_way(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return a way from a key to what a step replies, all of whose names are local.

        It follows changes when first used, and so do all others of this bound.
        """
        memory, spots, now_ns = self._store.table.memory, self._spots, self._store.clock.now_ns
        seen = self._seen  # read before the stepper: another thread may be following a change
        codec, step, expires_us = self.known.codec, step_of(self.known), self.known.expires_us
        unpack, pack, pack_ends, flock = codec.unpack_from, codec.pack_into, _ENDS.pack_into, fcntl.flock

        def use(stepper: Stepper, changes: bytes) -> None:
            nonlocal step, expires_us, seen
            step, expires_us, seen = step_of(stepper), stepper.expires_us, changes

        def attempt(key: Any, cost: int) -> R:
            spot = spots.get(key)
            if spot is None:
                return self._first(key, cost, step_of)
            digest, digest_at, slot_at, copy_0, copy_1, fd, mutex = spot
            with mutex:  # see `held` about the order of things
                try:
                    flock(fd, _TAKE)
                    if (
                        memory[CHANGES_AT:_CHANGES_END] == seen
                        and memory[digest_at : digest_at + DIGEST_BYTES] == digest
                    ):
                        now_us = now_ns() // 1000
                        if memory[slot_at]:
                            valid, other, flip = copy_1, copy_0, 0
                        else:
                            valid, other, flip = copy_0, copy_1, 1
                        new, reply = step(unpack(memory, valid + 8), now_us, cost)
                        if new is not None:
                            pack_ends(memory, other, expires_us(new))
                            pack(memory, other + 8, *new)
                            memory[slot_at] = flip
                        return reply
                except BlockingIOError:
                    raise Busy from None
                finally:
                    flock(fd, _GIVE)
            return self._first(key, cost, step_of)  # the limit was changed, or the slot is another key's

        self._uses.append(use)
        return attempt

    def _first(self, known_as: Any, cost: int, step_of: StepOf[R]) -> R:
        """Decide for a key whose slot is not known here, or under a limit that was changed."""
        if self._store.table.changes != self._seen:
            self._follow()
        key, stepper = self._written(known_as), self.known
        step = step_of(stepper)
        table, codec = self._store.table, stepper.codec
        bucket = table.place(self._space, key, codec)

        def decided() -> tuple[Place | None, R]:
            now_us = self._store.clock.now_ns() // 1000
            slot = table.find(bucket)
            state = None if slot is None else table.read(slot, codec)
            new, reply = step(state, now_us, cost)
            if new is not None:
                part = Part(self._space, key, stepper)
                slot = self._store.keep(slot, bucket, part, new, now_us)
            return slot, reply

        slot, reply = held(self._store.guards({bucket.lock}), decided)
        digested = isinstance(known_as, str) and key is not known_as
        if slot is not None and not digested:
            self._remember(known_as, slot)
        return reply

    def _remember(self, key: Any, slot: Place) -> None:
        if len(self._spots) >= _SPOTS_MAX:
            self._spots.clear()
        [(fd, mutex)] = self._store.guards({slot.lock})
        copy_0 = slot.slot_at + 8
        copy_1 = copy_0 + slot.copy_bytes
        self._spots[key] = _Spot(slot.digest, slot.digest_at, slot.slot_at, copy_0, copy_1, fd, mutex)
