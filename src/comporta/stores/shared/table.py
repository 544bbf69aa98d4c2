"""The file behind ``shared://`` as a memory-mapped hash table: find, create, write, grow and free states.

An entry of the index (``index.py``) leads to the slot of a key. A writer fills the copy of a slot that is not
valid and then counts up one byte, whose lowest bit names the valid copy: a process that is killed in between
leaves the old state. A state that outgrows its slot is copied to a larger one; one write to its entry
switches over.

The table is full when its memory or its disk is used up. It then reuses the slot of an expired state; if
there is none, it evicts the least often written of some states on the key's path, but never a pinned one. New
evictable keys leave a quarter of the memory to others and to growing states.

This module knows only bytes and digests. It takes no lock except the one for growth, and reads no clock.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from comporta.stores.base import PINNED_US, Codec, State, StateKey, key_text
from comporta.stores.shared.index import Index, KeyPosition
from comporta.stores.shared.layout import (
    BLOCKED,
    CHANGE_COUNT_OFFSET,
    CHUNK_BYTES,
    DIGEST_BYTES,
    ENTRIES_PER_PAGE,
    ENTRY_BYTES,
    EVICTING_OFFSET,
    EXPIRY_BYTES,
    SHARDS,
    SLOT_HEAD_BYTES,
    STATE_BYTES,
    UNIT,
    slot_class,
    table_geometry,
)
from comporta.stores.shared.slots import FREE_DIGEST, RunGrowth, SlotAllocator, entry_slot

OVERFLOW_KEY: Final = "\0overflow"
"""The key of the state that the keys of one limit share when there is no room for their own."""

USE_COUNT_NEXT: Final = bytes((*range(1, 256), 254))
"""The use count after one more write: it ends by alternating between 254 and 255."""

_SCAN_MAX = 96
_ENTRIES_SCANNED_MAX = 1024
_SWEEP_SIZE = 4
_TEXT_LENGTH = Struct("<H")


class NoRoomError(Exception):
    """There is no room for the state of a key."""

    def __init__(self, key: StateKey) -> None:
        super().__init__(key)
        self.key = key


class SlotRequest(NamedTuple):
    """A key that may need a slot, and the slots that other keys of its operation have."""

    key: StateKey
    position: KeyPosition
    now_us: int
    reserved: frozenset[int] = frozenset()


class SlotPosition(NamedTuple):
    """Where a key's index entry and its slot are, the slot's class, and the lock that guards them."""

    digest: bytes
    lock: int
    entry_offset: int
    slot_offset: int
    number: int

    @property
    def copy_bytes(self) -> int:
        """Bytes of one copy: the expiry time and the state."""
        return EXPIRY_BYTES + STATE_BYTES[self.number]

    @property
    def entry_bytes(self) -> bytes:
        """The index entry that leads to this slot, unless its state is blocked."""
        return self.digest + (self.slot_offset // UNIT).to_bytes(4, "little")

    @property
    def text_offset(self) -> int:
        """The offset of the length of a listed key's text; the text precedes it."""
        return self.slot_offset + SLOT_HEAD_BYTES + 2 * self.copy_bytes - _TEXT_LENGTH.size


class TableUsage(NamedTuple):
    """How full a table is."""

    keys: int
    megabytes: float
    megabytes_max: int
    is_disk_full: bool
    has_evicted: bool


class Table:
    """A mapped table.

    The caller holds the lock of the key's shard, except for ``change_count`` and ``usage``.
    """

    locks = SHARDS

    def __init__(self, fd: int, memory_mb: int, run_growth: RunGrowth) -> None:
        self.geometry = table_geometry(memory_mb)
        self.memory_mb = memory_mb
        self.memory = mmap.mmap(fd, self.geometry.size)
        self._slots = SlotAllocator(self.memory, self.geometry, fd, run_growth)
        self._index = Index(self.memory, self.geometry, self._slots)
        self._sweep_at = 0

    def close(self) -> None:
        """Unmap the file. The state stays in it."""
        self.memory.close()

    @property
    def change_count(self) -> bytes:
        """A counter that every write of an override increments."""
        return self.memory[CHANGE_COUNT_OFFSET : CHANGE_COUNT_OFFSET + 8]

    def increment_change_count(self) -> None:
        """Make all bound limits read their overrides again. The caller holds lock 0."""
        count = int.from_bytes(self.change_count, "little") + 1
        self.memory[CHANGE_COUNT_OFFSET : CHANGE_COUNT_OFFSET + 8] = count.to_bytes(8, "little")

    @property
    def is_disk_full(self) -> bool:
        """Whether the table could not grow because its disk was full."""
        return self._slots.is_disk_full

    @property
    def has_evicted(self) -> bool:
        """Whether the table ever had to evict a live state."""
        return bool(self.memory[EVICTING_OFFSET])

    def find(self, position: KeyPosition) -> SlotPosition | None:
        """Return where a key's slot is, or ``None``."""
        entry = self._index.find(position)
        return None if entry is None else self._slot_at(entry)

    def create(self, request: SlotRequest, size: int) -> SlotPosition:
        """Return a slot for a new key, not published yet, or raise ``NoRoomError``."""
        key, position = request.key, request.position
        self._slots.recover(position.lock)
        text = _listed_text(key)
        number = slot_class(size + len(text))
        pages = self._index.path(position)
        self._sweep(pages, request)
        chunks_max = self._chunks_max(key, grows=False)
        entry = self._index.free_entry(position, pages, chunks_max)
        if entry is None:
            entry = self._evict(request, pages, None)
        slot = None if entry is None else self._take_slot(request, pages, number, entry, chunks_max)
        if entry is None or slot is None:
            raise NoRoomError(key)
        created = SlotPosition(position.digest, position.lock, entry, slot, number)
        self._write_text(created, text)
        return created

    def publish(self, slot: SlotPosition) -> None:
        """Publish a slot in the index after its first state was written."""
        at = slot.entry_offset + DIGEST_BYTES
        self._slots.write_u32(at, slot.slot_offset // UNIT)
        self.memory[slot.entry_offset : at] = slot.digest
        self._slots.finish(slot.lock)

    def fits(self, slot: SlotPosition, key: StateKey, size: int) -> bool:
        """Whether a state of ``size`` bytes fits into a slot."""
        return size + len(_listed_text(key)) <= STATE_BYTES[slot.number]

    def grow(self, request: SlotRequest, slot: SlotPosition, size: int) -> SlotPosition:
        """Move a state to a slot that has room for ``size`` bytes, or raise ``NoRoomError``."""
        self._slots.recover(slot.lock)
        text = _listed_text(request.key)
        number = slot_class(size + len(text))
        chunks_max = self._chunks_max(request.key, grows=True)
        pages = self._index.path(request.position)
        taken = self._take_slot(request, pages, number, slot.entry_offset, chunks_max)
        if taken is None:
            raise NoRoomError(request.key)
        grown = slot._replace(slot_offset=taken, number=number)
        valid = self._valid_offset(slot)
        use_count = self.memory[slot.slot_offset]
        target = taken + SLOT_HEAD_BYTES + (grown.copy_bytes if use_count & 1 else 0)
        self.memory[target : target + slot.copy_bytes] = self.memory[valid : valid + slot.copy_bytes]
        self.memory[taken] = use_count
        self._write_text(grown, text)
        self._slots.replace(slot.lock, slot.entry_offset, slot.slot_offset, taken)
        return grown

    def free(self, slot: SlotPosition) -> None:
        """Delete a key."""
        self._slots.recover(slot.lock)
        self._slots.free(slot.lock, slot.entry_offset, slot.slot_offset)

    def read_state(self, slot: SlotPosition, codec: Codec) -> State:
        """Return the state of the valid copy. Fields that a smaller layout did not write are zero."""
        valid = self._valid_offset(slot)
        data = self.memory[valid + EXPIRY_BYTES : valid + slot.copy_bytes]
        return codec.unpack_from(data if len(data) >= codec.size else data + bytes(codec.size - len(data)))

    def expires_us(self, slot: SlotPosition) -> int:
        """Return when the state expires."""
        return self.retention_us(slot) & ~PINNED_US

    def retention_us(self, slot: SlotPosition) -> int:
        """Return when the state expires, plus ``PINNED_US`` if it must not be evicted."""
        valid = self._valid_offset(slot)
        return int.from_bytes(self.memory[valid : valid + EXPIRY_BYTES], "little")

    def write_state(self, slot: SlotPosition, retention_us: int, state: bytes) -> None:
        """Write the copy that is not valid, then make it the valid one."""
        use_count = self.memory[slot.slot_offset]
        at = slot.slot_offset + SLOT_HEAD_BYTES + (0 if use_count & 1 else slot.copy_bytes)
        copy = retention_us.to_bytes(EXPIRY_BYTES, "little") + state
        self.memory[at : at + len(copy)] = copy
        self.memory[slot.slot_offset] = USE_COUNT_NEXT[use_count]

    def is_blocked(self, slot: SlotPosition) -> bool:
        """Whether fast paths must not decide on the state of a slot."""
        return bool(self._slots.read_u32(slot.entry_offset + DIGEST_BYTES) & BLOCKED)

    def set_blocked(self, slot: SlotPosition, *, blocked: bool) -> None:
        """Change the entry of a slot, so that fast paths that know it look it up again, or use it again."""
        if self.is_blocked(slot) != blocked:
            word = slot.slot_offset // UNIT | (BLOCKED if blocked else 0)
            self._slots.write_u32(slot.entry_offset + DIGEST_BYTES, word)

    def listed_states(self, lock: int, codec: Codec) -> list[tuple[str, State]]:
        """Return the texts of the listed keys of a shard with their states."""
        states = []
        for page in self._index.pages(lock, tree=1):
            for entry in self._index.used_entries(page):
                slot = self._slot_at(entry)
                (length,) = _TEXT_LENGTH.unpack_from(self.memory, slot.text_offset)
                text = self.memory[slot.text_offset - length : slot.text_offset]
                states.append((text.decode("utf-8", "surrogatepass"), self.read_state(slot, codec)))
        return states

    def usage(self) -> TableUsage:
        """Count the keys, expired ones included. Read without a lock, so it may be a moment old."""
        pages = [page for lock in range(SHARDS) for tree in (0, 1) for page in self._index.pages(lock, tree)]
        keys = sum(1 for page in pages for _ in self._index.used_entries(page))
        megabytes = (self.geometry.chunks_offset + self._slots.chunks_taken * CHUNK_BYTES) / 2**20
        return TableUsage(keys, megabytes, self.memory_mb, self.is_disk_full, self.has_evicted)

    def _slot_at(self, entry: int) -> SlotPosition:
        content = self.memory[entry : entry + ENTRY_BYTES]
        digest, slot = content[:DIGEST_BYTES], entry_slot(content)
        return SlotPosition(digest, digest[0] % SHARDS, entry, slot, self.memory[slot + 1])

    def _valid_offset(self, slot: SlotPosition) -> int:
        is_second = self.memory[slot.slot_offset] & 1
        return slot.slot_offset + SLOT_HEAD_BYTES + (slot.copy_bytes if is_second else 0)

    def _write_text(self, slot: SlotPosition, text: bytes) -> None:
        if text:
            end = slot.text_offset + _TEXT_LENGTH.size
            self.memory[end - len(text) : end] = text

    def _chunks_max(self, key: StateKey, *, grows: bool) -> int:
        """Return how far the table may grow: evictable states leave room for others and for growing ones."""
        count = self.geometry.chunk_count
        if not key.type.evictable or key.key == OVERFLOW_KEY:
            return count
        return count * 7 // 8 if grows else count * 3 // 4

    def _take_slot(
        self, request: SlotRequest, pages: list[int], number: int, entry: int, chunks_max: int
    ) -> int | None:
        shard = request.position.lock
        slot = self._slots.take(shard, number, entry, chunks_max)
        if slot is None and self._evict(request, pages, number) is not None:
            slot = self._slots.take(shard, number, entry, chunks_max)
        return slot

    def _sweep(self, pages: list[int], request: SlotRequest) -> None:
        """Free the slots of a few expired states, so that a table of short-lived keys does not grow."""
        total = len(pages) * ENTRIES_PER_PAGE
        for _ in range(_SWEEP_SIZE if pages else 0):
            self._sweep_at += 1
            page, entry = divmod(self._sweep_at % total, ENTRIES_PER_PAGE)
            slot = self._candidate(pages[page] + entry * ENTRY_BYTES, None, request.reserved)
            if slot is not None and self.expires_us(slot) <= request.now_us:
                self.free(slot)

    def _evict(self, request: SlotRequest, pages: list[int], number: int | None) -> int | None:
        """Free the slot of an expired state, or of the least used of some; return its entry.

        The slot is of class ``number``, or of any class if that is ``None``. Returns ``None`` if no slot may
        be freed.
        """
        best, best_rank = None, (256, 0)
        for slot in islice(self._candidates(request, pages, number), _SCAN_MAX):
            retention_us = self.retention_us(slot)
            rank = (self.memory[slot.slot_offset], retention_us)
            if retention_us & ~PINNED_US <= request.now_us:
                best, best_rank = slot, (0, 0)
            elif not retention_us & PINNED_US and rank < best_rank:
                best, best_rank = slot, rank
            if best_rank[0] <= 1:
                break
        if best is None:
            return None
        if best_rank[0]:
            self.memory[EVICTING_OFFSET] = 1
        self.free(best)
        return best.entry_offset

    def _candidates(
        self, request: SlotRequest, pages: list[int], number: int | None
    ) -> Iterator[SlotPosition]:
        """Yield the slots of a class on a path, from an entry that differs from key to key."""
        total = len(pages) * ENTRIES_PER_PAGE
        start = int.from_bytes(request.position.digest[8:12], "little")
        for step in range(min(total, _ENTRIES_SCANNED_MAX)):
            page, entry = divmod((start + step) % total, ENTRIES_PER_PAGE)
            slot = self._candidate(pages[page] + entry * ENTRY_BYTES, number, request.reserved)
            if slot is not None:
                yield slot

    def _candidate(self, entry: int, number: int | None, reserved: frozenset[int]) -> SlotPosition | None:
        """Return the slot of an entry if it is in use, of class ``number``, and not reserved."""
        if self.memory[entry : entry + DIGEST_BYTES] == FREE_DIGEST:
            return None
        slot = self._slot_at(entry)
        is_other_class = number is not None and slot.number != number
        return None if is_other_class or slot.slot_offset in reserved else slot


def _listed_text(key: StateKey) -> bytes:
    """Return the text of a key that can be listed, and its length; nothing for other keys."""
    if not key.type.listed:
        return b""
    text = key_text(key.space, key.key).encode("utf-8", "surrogatepass")
    return text + _TEXT_LENGTH.pack(len(text))
