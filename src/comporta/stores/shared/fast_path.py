"""The hot path of ``shared://``: from a key to a decision with one lock and one look at the table.

It decides under the same lock as every other operation on the table (``locked_table.py``) and writes states
the same way. It does not know what a step means.

A refusal of one unit is remembered together with the bytes of the slot it was made on. As long as the slot
has these bytes, the answer stays the same until the time it named, and is given without a lock: a reader that
races with a writer can only refuse what a moment later would be granted, never grant.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from operator import attrgetter
from struct import Struct
from threading import Lock
from typing import Any, Final, TypeVar

from comporta.stores.base import Codec, StateKey
from comporta.stores.bound_limit import Algorithm, Binding, LocalBoundLimit, StepOf, WouldBlock
from comporta.stores.records import ReadRecord
from comporta.stores.shared.layout import CHANGE_COUNT_OFFSET, ENTRY_BYTES, SLOT_BYTES, SLOT_HEAD_BYTES
from comporta.stores.shared.locked_table import LOCK, UNLOCK, LockedTable, run_locked
from comporta.stores.shared.table import (
    OVERFLOW_KEY,
    USE_COUNT_NEXT,
    SlotPosition,
    SlotRequest,
    locate,
)

R = TypeVar("R")

_LOCATIONS_MAX = 65_536
_REFUSALS_MAX = 10_000
_CHANGE_COUNT: Final = slice(CHANGE_COUNT_OFFSET, CHANGE_COUNT_OFFSET + 8)
_EXPIRY = Struct("<q")


_SlotLocation = tuple[Any, bytes, slice, int, int, int, int, Lock]
"""Where a key's slot is, in the form the hot path needs.

The mapped memory, the key's index entry, where that is, the slot, its two copies, and the lock as descriptor
and mutex. A plain tuple, which is unpacked in half the time of a named one.
"""

_Refusal = tuple[Any, bytes, bytes, slice, slice, bytes, int, int]
"""The memory, the change count, the entry, where it and the slot are, the slot's bytes, from and until."""


class SharedBoundLimit(LocalBoundLimit):
    """An algorithm tied to one space; ``try_acquire`` is the shortest path from a key to a decision.

    It caches where the slots of its keys are (the index entry proves it each time), and compares the
    table's change count under the same lock under which it decides.
    """

    try_acquire: Callable[[Any, int], int]

    cached_algorithm: Algorithm = None  # type: ignore[assignment]  # each object has one
    """The algorithm in force when this process last read the override; not a property, for speed."""

    def __init__(self, locked: LockedTable, binding: Binding) -> None:
        self._locked = locked
        self._space = binding.space
        self._override_key = binding.override
        self._key_text = binding.key_text
        self._locations: dict[Any, _SlotLocation] = {}
        self.cached_algorithm = self._configured = binding.algorithm
        self._seen_change_count = b""
        self._switch_callbacks: list[Callable[[Algorithm, bytes], None]] = []
        self._refusals: dict[Any, _Refusal] = {}
        self.try_acquire = self._build_fast_path(attrgetter("step"), self._refusals)

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm in force now."""
        if self._locked.table.change_count != self._seen_change_count:
            self._locked.retry_until_unlocked(self._read_override)
        return self.cached_algorithm

    async def algorithm_async(self) -> Algorithm:
        """Return the algorithm in force; waits for a taken lock without blocking the event loop."""
        if self._locked.table.change_count != self._seen_change_count:
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
        self._refusals.clear()

    def use_table(self, locked: LockedTable) -> None:
        """Decide on another table from now on: the directory was replaced."""
        self._locked = locked
        self._seen_change_count = b""
        for switch in self._switch_callbacks:
            switch(self.cached_algorithm, b"")  # so that the next decision reads the override
        self.forget_locations()

    def _read_override(self) -> None:
        """Read the operator's override and decide by it from now on."""
        change_count = self._locked.table.change_count
        override = self._locked.try_apply(ReadRecord(self._override_key.space, self._override_key.key))
        self.cached_algorithm = self._configured.with_override(override)
        self._seen_change_count = change_count
        for switch in self._switch_callbacks:
            switch(self.cached_algorithm, change_count)

    def fast_path(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return a function from a key and a cost to a step's reply.

        It reads the override when first called. A new override switches all fast paths of this limit.
        """
        return self._build_fast_path(step_of, {})

    def _build_fast_path(  # noqa: C901 - see below
        self, step_of: StepOf[R], refusals: dict[Any, _Refusal]
    ) -> Callable[[Any, int], R]:
        """Return a fast path; it remembers refusals if given the limit's own. Names are local, for speed."""
        locations, now_ns = self._locations, self._locked.clock.now_ns
        seen = self._seen_change_count  # read before the algorithm: another thread may be switching it
        cached = self.cached_algorithm
        codec, step, retention_us = cached.codec, step_of(cached), cached.retention_us
        unpack, pack, flock, remembers = codec.unpack_from, _copy_packer(codec), fcntl.flock, False
        write = _copy_writer(codec)
        is_own = refusals is self._refusals

        def switch(algorithm: Algorithm, change_count: bytes) -> None:
            nonlocal step, retention_us, seen, remembers
            step, retention_us, seen = step_of(algorithm), algorithm.retention_us, change_count
            remembers = is_own and algorithm.lasting

        def decide(key: Any, cost: int) -> Any:  # noqa: C901, PLR0912 - the hot path is one function on purpose
            if refusals and cost == 1:
                refusal = refusals.get(key)
                if refusal is not None:
                    memory, count, entry, entry_at, slot_at, raw, from_us, until_us = refusal
                    now_us = now_ns() // 1000
                    if (
                        from_us <= now_us < until_us
                        and memory[slot_at] == raw
                        and memory[entry_at] == entry
                        and memory[_CHANGE_COUNT] == count
                    ):
                        return until_us - now_us
            location = locations.get(key)
            if location is None:
                return self._decide_by_lookup(key, cost, step_of)
            memory, entry, entry_at, slot_offset, copy_0, copy_1, fd, mutex = location
            with mutex:  # see `run_locked` for why in this order
                try:
                    flock(fd, LOCK)
                    if memory[_CHANGE_COUNT] == seen and memory[entry_at] == entry:
                        now_us = now_ns() // 1000
                        use_count = memory[slot_offset]
                        if use_count & 1:
                            valid, other = copy_1, copy_0
                        else:
                            valid, other = copy_0, copy_1
                        new, reply = step(unpack(memory, valid + 8), now_us, cost)
                        if new is None:
                            if remembers and cost == 1:
                                self._remember_refusal(key, location, seen, now_us, reply)
                            return reply
                        if pack is not None:
                            pack(memory, other, retention_us(new), *new)
                            memory[slot_offset] = USE_COUNT_NEXT[use_count]
                            return reply
                        if write(memory, other, copy_1 - copy_0, retention_us(new), new):
                            memory[slot_offset] = USE_COUNT_NEXT[use_count]
                            return reply
                except BlockingIOError:
                    raise WouldBlock from None
                finally:
                    flock(fd, UNLOCK)
            # an operator changed a limit, another key has the slot now, or the state outgrew it
            return self._decide_by_lookup(key, cost, step_of)

        self._switch_callbacks.append(switch)
        return decide

    def _remember_refusal(
        self, key: Any, location: _SlotLocation, change_count: bytes, now_us: int, wait_us: Any
    ) -> None:
        """Remember a refusal of one unit. The caller holds the slot's lock."""
        memory, entry, entry_at, slot_offset, *_ = location
        if len(self._refusals) >= _REFUSALS_MAX:
            self._refusals.clear()
        slot_at = slice(slot_offset, slot_offset + SLOT_BYTES[memory[slot_offset + 1]])
        self._refusals[key] = (
            *(memory, change_count, entry, entry_at, slot_at, memory[slot_at], now_us, now_us + wait_us),
        )
        if self._locations.get(key) is not location:  # the table was replaced meanwhile
            self._refusals.pop(key, None)

    def _decide_by_lookup(self, caller_key: Any, cost: int, step_of: StepOf[R]) -> R:
        """Decide for a key whose slot is not cached, or after an override changed."""
        if self._locked.table.change_count != self._seen_change_count:
            self._read_override()
        text, algorithm = self._key_text(caller_key), self.cached_algorithm
        locked, step, codec = self._locked, step_of(algorithm), algorithm.codec
        table = locked.table

        def decide_locked(key: StateKey) -> tuple[SlotPosition | None, R]:
            now_us = locked.clock.now_ns() // 1000
            slot = table.find(position := locate(key))
            state = None if slot is None else table.read_state(slot, codec)
            new, reply = step(state, now_us, cost)
            if new is not None:
                slot = locked.write_state(slot, SlotRequest(key, position, now_us), new)
            return slot, reply

        def attempt(keys: list[StateKey]) -> tuple[StateKey, SlotPosition | None, R]:
            [key] = keys
            guards = locked.guards({locate(key).lock})
            return key, *run_locked(guards, lambda: decide_locked(key))

        key, slot, reply = locked.with_overflow([StateKey(self._space, text, algorithm)], attempt)
        is_digest = isinstance(caller_key, str) and text is not caller_key
        if slot is not None and not is_digest and key.key != OVERFLOW_KEY:
            self._cache_location(caller_key, locked, slot, codec)
        return reply

    def _cache_location(self, key: Any, locked: LockedTable, slot: SlotPosition, codec: Codec) -> None:
        if slot.copy_bytes - _EXPIRY.size < codec.size and isinstance(codec, Struct):
            return  # written by a program with a shorter state; the next grant moves it to a larger slot
        if len(self._locations) >= _LOCATIONS_MAX:
            self._locations.clear()
        memory, [(fd, mutex)] = locked.table.memory, locked.guards({slot.lock})
        copy_0 = slot.slot_offset + SLOT_HEAD_BYTES
        copy_1 = copy_0 + slot.copy_bytes
        entry_at = slice(slot.entry_offset, slot.entry_offset + ENTRY_BYTES)
        self._locations[key] = (
            *(memory, slot.entry_bytes, entry_at, slot.slot_offset, copy_0, copy_1, fd, mutex),
        )
        if locked is not self._locked:  # the table was replaced meanwhile
            self._locations.pop(key, None)


def _copy_packer(codec: Codec) -> Callable[..., None] | None:
    """Return what writes expiry time and state in one step; ``None`` if the state varies in size."""
    if isinstance(codec, Struct) and codec.format.startswith("<"):
        return Struct(f"<q{codec.format[1:]}").pack_into
    return None


def _copy_writer(codec: Codec) -> Callable[[Any, int, int, int, Any], bool]:
    """Return what writes a copy of a slot, unless the state does not fit."""

    def write_copy(memory: Any, offset: int, copy_bytes: int, retention_us: int, state: Any) -> bool:
        copy = _EXPIRY.pack(retention_us) + codec.pack(*state)
        if len(copy) > copy_bytes:
            return False
        memory[offset : offset + len(copy)] = copy
        return True

    return write_copy
