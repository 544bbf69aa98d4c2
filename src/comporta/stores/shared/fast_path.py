"""The hot path of ``shared://``: from a key to a decision with one lock and one look at the table.

It decides under the same lock as every other operation on the table (``locked_table.py``) and writes states
the same way. It does not know what a step means.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from operator import attrgetter
from struct import Struct
from threading import Lock
from typing import Any, Final, TypeVar

from comporta.stores.base import Codec, StateKey
from comporta.stores.binding import Algorithm, Binding, LocalBoundLimit, StepOf, WouldBlock
from comporta.stores.records import ReadRecord
from comporta.stores.shared.locked_table import LOCK, UNLOCK, LockedTable, run_locked
from comporta.stores.shared.table import CHANGE_COUNT_OFFSET, DIGEST_BYTES, SlotPosition

R = TypeVar("R")

_LOCATIONS_MAX = 65_536
_CHANGE_COUNT: Final = slice(CHANGE_COUNT_OFFSET, CHANGE_COUNT_OFFSET + 8)
_EXPIRY = Struct("<q")


_SlotLocation = tuple[bytes, slice, int, int, int, int, Lock]
"""Where a key's slot is, in the form the hot path needs.

The digest, where it is, the slot, its two copies, and the lock as descriptor and mutex. A plain tuple, which
is unpacked in half the time of a named one.
"""


class SharedBoundLimit(LocalBoundLimit):
    """An algorithm tied to one space; ``try_acquire`` is the shortest path from a key to a decision.

    It caches where the slots of its keys are (the digest in the slot proves it each time), and compares the
    table's change count under the same lock under which it decides.
    """

    try_acquire: Callable[[Any, int], int]

    cached_algorithm: Algorithm = None  # type: ignore[assignment]  # each object has one
    """The algorithm in force when this process last read the override; not a property, for speed."""

    def __init__(self, locked: LockedTable, binding: Binding) -> None:
        self._locked = locked
        self._table = locked.table
        self._space = binding.space
        self._override_key = binding.override
        self._key_text = binding.key_text
        self._locations: dict[Any, _SlotLocation] = {}
        self.cached_algorithm = self._configured = binding.algorithm
        self._seen_change_count = b""
        self._switch_callbacks: list[Callable[[Algorithm, bytes], None]] = []
        self.try_acquire = self.fast_path(attrgetter("step"))

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm in force now."""
        if self._table.change_count != self._seen_change_count:
            self._locked.retry_until_unlocked(self._read_override)
        return self.cached_algorithm

    async def algorithm_async(self) -> Algorithm:
        """Return the algorithm in force; waits for a taken lock without blocking the event loop."""
        if self._table.change_count != self._seen_change_count:
            await self._locked.retry_until_unlocked_async(self._read_override)
        return self.cached_algorithm

    def acquire(self, key: Any, cost: int) -> int:
        """Decide, waiting for the lock for at most the store's ``lock_timeout``."""
        try:
            return self.try_acquire(key, cost)
        except WouldBlock:
            return self._locked.retry_until_unlocked(lambda: self.try_acquire(key, cost))

    async def acquire_async(self, key: Any, cost: int) -> int:
        """Decide; waits for a taken lock without blocking the event loop."""
        try:
            return self.try_acquire(key, cost)
        except WouldBlock:
            return await self._locked.retry_until_unlocked_async(lambda: self.try_acquire(key, cost))

    def forget_locations(self) -> None:
        """Look up every slot again: after a fork the locks are different ones."""
        self._locations.clear()

    def _read_override(self) -> None:
        """Read the operator's override and decide by it from now on."""
        change_count = self._table.change_count
        override = self._locked.try_apply(ReadRecord(self._override_key.space, self._override_key.key))
        self.cached_algorithm = self._configured.with_override(override)
        self._seen_change_count = change_count
        for switch in self._switch_callbacks:
            switch(self.cached_algorithm, change_count)

    def fast_path(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return a function from a key and a cost to a step's reply. All its names are local, for speed.

        It reads the override when first called. A new override switches all fast paths of this limit.
        """
        memory, locations, now_ns = self._table.memory, self._locations, self._locked.clock.now_ns
        seen = self._seen_change_count  # read before the algorithm: another thread may be switching it
        cached = self.cached_algorithm
        codec, step, expires_us = cached.codec, step_of(cached), cached.expires_us
        unpack, pack, flock = codec.unpack_from, _copy_packer(codec), fcntl.flock

        def switch(algorithm: Algorithm, change_count: bytes) -> None:
            nonlocal step, expires_us, seen
            step, expires_us, seen = step_of(algorithm), algorithm.expires_us, change_count

        def decide(key: Any, cost: int) -> R:
            location = locations.get(key)
            if location is None:
                return self._decide_by_lookup(key, cost, step_of)
            digest, digest_at, slot_offset, copy_0, copy_1, fd, mutex = location
            with mutex:  # see `run_locked` for why in this order
                try:
                    flock(fd, LOCK)
                    if memory[_CHANGE_COUNT] == seen and memory[digest_at] == digest:
                        now_us = now_ns() // 1000
                        if memory[slot_offset]:
                            valid, other, flip = copy_1, copy_0, 0
                        else:
                            valid, other, flip = copy_0, copy_1, 1
                        new, reply = step(unpack(memory, valid + 8), now_us, cost)
                        if new is not None:
                            pack(memory, other, expires_us(new), *new)
                            memory[slot_offset] = flip
                        return reply
                except BlockingIOError:
                    raise WouldBlock from None
                finally:
                    flock(fd, UNLOCK)
            # an operator changed a limit, or another key has the slot now
            return self._decide_by_lookup(key, cost, step_of)

        self._switch_callbacks.append(switch)
        return decide

    def _decide_by_lookup(self, caller_key: Any, cost: int, step_of: StepOf[R]) -> R:
        """Decide for a key whose slot is not cached, or after an override changed."""
        if self._table.change_count != self._seen_change_count:
            self._read_override()
        key, algorithm = self._key_text(caller_key), self.cached_algorithm
        step, table, codec = step_of(algorithm), self._table, algorithm.codec
        bucket = table.bucket_position(self._space, key, codec)

        def decide_locked() -> tuple[SlotPosition | None, R]:
            now_us = self._locked.clock.now_ns() // 1000
            slot = table.find_slot(bucket)
            state = None if slot is None else table.read_state(slot, codec)
            new, reply = step(state, now_us, cost)
            if new is not None:
                state_key = StateKey(self._space, key, algorithm)
                slot = self._locked.write_state(slot, bucket, state_key, new, now_us)
            return slot, reply

        slot, reply = run_locked(self._locked.guards({bucket.lock}), decide_locked)
        is_digest = isinstance(caller_key, str) and key is not caller_key
        if slot is not None and not is_digest:
            self._cache_location(caller_key, slot)
        return reply

    def _cache_location(self, key: Any, slot: SlotPosition) -> None:
        if len(self._locations) >= _LOCATIONS_MAX:
            self._locations.clear()
        [(fd, mutex)] = self._locked.guards({slot.lock})
        copy_0 = slot.slot_offset + 8
        copy_1 = copy_0 + slot.copy_bytes
        digest_at = slice(slot.digest_offset, slot.digest_offset + DIGEST_BYTES)
        self._locations[key] = (slot.digest, digest_at, slot.slot_offset, copy_0, copy_1, fd, mutex)


def _copy_packer(codec: Codec) -> Callable[..., None]:
    """Return what writes a copy of a slot: the expiry time and the state, in one step if both are structs."""
    if isinstance(codec, Struct) and codec.format.startswith("<"):
        return Struct(f"<q{codec.format[1:]}").pack_into

    def pack_copy(memory: Any, offset: int, expires_us: int, *state: Any) -> None:
        _EXPIRY.pack_into(memory, offset, expires_us)
        codec.pack_into(memory, offset + _EXPIRY.size, *state)

    return pack_copy
