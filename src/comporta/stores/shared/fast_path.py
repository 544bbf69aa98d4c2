"""The fast path of ``shared://``: from a key to a decision with one lock and one lookup in the table.

It decides under the same lock as every other operation on the table (``locked_table.py``) and writes states
the same way. It does not know what a step means.

A refusal of one unit is cached together with the bytes of the slot on which it is based. As long as the slot
has these bytes, the answer stays the same until the time that it named, and is given without a lock: a reader
that races with a writer may refuse what would be granted a moment later, but never grants.

A blocked state (``StateType.blocks_fast_path``) has a different index entry from the one that the fast path
knows. The fast path therefore looks up the entry and leaves the decision to an operation, at no cost if
nothing is blocked.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from operator import attrgetter
from struct import Struct
from typing import Any, Final, TypeVar

from comporta.stores.base import Codec, StateKey
from comporta.stores.bound_limit import (
    Algorithm,
    Binding,
    FastPathBlocked,
    LocalBoundLimit,
    StepOf,
    WouldBlock,
)
from comporta.stores.bounded_cache import drop_oldest
from comporta.stores.records import ReadRecord
from comporta.stores.shared.index import locate
from comporta.stores.shared.layout import CHANGE_COUNT_OFFSET, ENTRY_BYTES, SLOT_BYTES, SLOT_HEAD_BYTES
from comporta.stores.shared.locked_table import LOCK, UNLOCK, Guard, LockedTable, run_locked, take_lock
from comporta.stores.shared.table import (
    OVERFLOW_KEY,
    USE_COUNT_NEXT,
    SlotPosition,
    SlotRequest,
)

R = TypeVar("R")

_LOCATIONS_MAX = 32_768
_REFUSALS_MAX = 10_000
_CHANGE_COUNT: Final = slice(CHANGE_COUNT_OFFSET, CHANGE_COUNT_OFFSET + 8)
_EXPIRY = Struct("<q")


_SlotLocation = tuple[bytes, int, int, int, int, int, int]
"""The position of a key's slot, in the form that the fast path needs.

The key's index entry, where that begins and ends, the slot, its two copies, and the number of its lock. A
plain tuple, which is unpacked in half the time of a named one, of numbers and bytes only: the garbage
collector does not visit such tuples, and there are many.
"""

_OpenTable = tuple[Any, list[Guard], dict[Any, _SlotLocation]]
"""A mapped table, its locks, and where the slots of some keys are in it."""

_Refusal = tuple[Any, bytes, bytes, slice, slice, bytes, int, int]
"""The memory, the change count, the entry, where it and the slot are, the slot's bytes, from and until."""


class SharedBoundLimit(LocalBoundLimit):
    """An algorithm tied to one space; ``try_acquire`` is the shortest path from a key to a decision.

    It caches the positions of its keys' slots (the index entry confirms them each time), and compares the
    table's change count under the same lock under which it decides.
    """

    try_acquire: Callable[[Any, int], int]

    __slots__ = ("__dict__", "__weakref__", "cached_algorithm")

    cached_algorithm: Algorithm
    """The algorithm in force when this process last read the override; a slot, which Python reads fastest."""

    def __init__(self, locked: LockedTable, binding: Binding) -> None:
        self._locked = locked
        self._space = binding.space
        self._override_key = binding.override
        self._key_text = binding.key_text
        self._operation = binding.operation
        self.cached_algorithm = self._configured = binding.algorithm
        self._seen_change_count = b""
        self._switch_callbacks: list[Callable[[Algorithm, bytes], None]] = []
        self._refusals: dict[Any, _Refusal] = {}
        self._open_table = self._without_locations()
        self.try_acquire = self._build_fast_path(attrgetter("step"), self._refusals)

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm in effect now."""
        if self._locked.change_count != self._seen_change_count:
            self._locked.retry_until_unlocked(self._read_override)
        return self.cached_algorithm

    async def algorithm_async(self) -> Algorithm:
        """Return the algorithm in effect; waits for a taken lock without blocking the event loop."""
        if self._locked.change_count != self._seen_change_count:
            await self._locked.retry_until_unlocked_async(self._read_override)
        return self.cached_algorithm

    def acquire(self, key: Any, cost: int) -> int:
        """Decide, waiting for the lock for at most the store's ``lock_timeout``."""
        try:
            return self.try_acquire(key, cost)
        except WouldBlock:
            return self._locked.retry_until_unlocked(lambda: self._try_apply(key, cost))

    async def acquire_async(self, key: Any, cost: int) -> int:
        """Decide; waits for a taken lock without blocking the event loop."""
        try:
            return self.try_acquire(key, cost)
        except WouldBlock:
            return await self._locked.retry_until_unlocked_async(lambda: self._try_apply(key, cost))

    def _try_apply(self, key: Any, cost: int) -> int:
        """Decide, by an operation if the state is blocked; raises ``WouldBlock`` if a lock is taken."""
        try:
            return self.try_acquire(key, cost)
        except FastPathBlocked:
            return self._locked.try_apply(self._operation(self._key_text(key), cost))

    def forget_locations(self) -> None:
        """Look up every slot again, because the locks change after a fork."""
        self._open_table = self._without_locations()
        self._refusals.clear()

    def _without_locations(self) -> _OpenTable:
        return self._locked.table.memory, self._locked.all_guards(), {}

    def use_table(self, locked: LockedTable) -> None:
        """Decide on another table from now on, because the directory was replaced."""
        self._locked = locked
        self._seen_change_count = b""
        for switch in self._switch_callbacks:
            switch(self.cached_algorithm, b"")  # so that the next decision reads the override
        self.forget_locations()

    def _read_override(self) -> None:
        """Read the operator's override and decide by it from now on."""
        change_count = self._locked.change_count
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
        """Return a fast path; it caches refusals if given the limit's own cache. Local names are faster."""
        now_ns = self._locked.clock.now_ns
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
            memory, guards, locations = self._open_table
            location = locations.get(key)
            if location is None:
                return self._decide_by_lookup(key, cost, step_of)
            entry, entry_offset, entry_end, slot_offset, copy_0, copy_1, lock = location
            fd, mutex = guards[lock]
            with mutex:  # see `run_locked` for why in this order
                try:
                    try:
                        flock(fd, LOCK)
                    except BlockingIOError:
                        take_lock(fd)
                    if memory[_CHANGE_COUNT] == seen and memory[entry_offset:entry_end] == entry:
                        now_us = now_ns() // 1000
                        use_count = memory[slot_offset]
                        if use_count & 1:
                            valid, other = copy_1, copy_0
                        else:
                            valid, other = copy_0, copy_1
                        new, reply = step(unpack(memory, valid + 8), now_us, cost)
                        if new is None:
                            if remembers and cost == 1:
                                self._remember_refusal(key, memory, location, (seen, now_us, reply))
                            return reply
                        if pack is not None:
                            pack(*((memory, other, retention_us(new)) + new))  # noqa: RUF005 - faster
                            memory[slot_offset] = USE_COUNT_NEXT[use_count]
                            return reply
                        if write(memory, other, copy_1 - copy_0, retention_us(new), new):
                            memory[slot_offset] = USE_COUNT_NEXT[use_count]
                            return reply
                finally:
                    flock(fd, UNLOCK)
            # an operator changed a limit, another key has the slot now, or the state outgrew it
            return self._decide_by_lookup(key, cost, step_of)

        self._switch_callbacks.append(switch)
        return decide

    def _remember_refusal(
        self, key: Any, memory: Any, location: _SlotLocation, refused: tuple[bytes, int, Any]
    ) -> None:
        """Cache a refusal of one unit: the change count, when it was made, and how long it holds.

        The caller holds the slot's lock.
        """
        change_count, now_us, wait_us = refused
        entry, entry_offset, entry_end, slot_offset, *_ = location
        drop_oldest(self._refusals, _REFUSALS_MAX)
        entry_at = slice(entry_offset, entry_end)
        slot_at = slice(slot_offset, slot_offset + SLOT_BYTES[memory[slot_offset + 1]])
        self._refusals[key] = (
            *(memory, change_count, entry, entry_at, slot_at, memory[slot_at], now_us, now_us + wait_us),
        )
        if self._open_table[0] is not memory:  # the table was replaced meanwhile
            self._refusals.pop(key, None)

    def _decide_by_lookup(self, caller_key: Any, cost: int, step_of: StepOf[R]) -> R:
        """Decide for a key whose slot is not cached, or after an override changed."""
        if self._locked.change_count != self._seen_change_count:
            self._read_override()
        text, algorithm = self._key_text(caller_key), self.cached_algorithm
        locked, step, codec = self._locked, step_of(algorithm), algorithm.codec
        table = locked.table

        def decide_locked(key: StateKey) -> tuple[SlotPosition | None, R]:
            now_us = locked.clock.now_ns() // 1000
            slot = table.find(position := locate(key))
            if slot is not None and table.is_blocked(slot):
                raise FastPathBlocked
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
        memory, _, locations = self._open_table
        if memory is not locked.table.memory:
            return  # the table was replaced meanwhile
        drop_oldest(locations, _LOCATIONS_MAX)
        entry_offset, copy_0 = slot.entry_offset, slot.slot_offset + SLOT_HEAD_BYTES
        locations[key] = (
            *(slot.entry_bytes, entry_offset, entry_offset + ENTRY_BYTES),
            *(slot.slot_offset, copy_0, copy_0 + slot.copy_bytes, slot.lock),
        )


def _copy_packer(codec: Codec) -> Callable[..., None] | None:
    """Return a function that writes expiry time and state in one step; ``None`` if the size varies."""
    if isinstance(codec, Struct) and codec.format.startswith("<"):
        return Struct(f"<q{codec.format[1:]}").pack_into
    return None


def _copy_writer(codec: Codec) -> Callable[[Any, int, int, int, Any], bool]:
    """Return a function that writes a copy of a slot, unless the state does not fit."""

    def write_copy(memory: Any, offset: int, copy_bytes: int, retention_us: int, state: Any) -> bool:
        copy = _EXPIRY.pack(retention_us) + codec.pack(*state)
        if len(copy) > copy_bytes:
            return False
        memory[offset : offset + len(copy)] = copy
        return True

    return write_copy
