"""Slots of several sizes in the file behind ``shared://``: take a slot, free a slot, grow the table.

Every class of every shard has a list of free slots and a chunk from which it takes slots one after the other.
When both are used up, the class gets the next chunk of the file. A process may be killed between any two
steps, so before it takes or frees a slot it writes a note with the slot and its entry into the shard's
header; the next process that takes or frees a slot in that shard completes the noted step (``recover``).

The caller holds the shard's lock. Growth takes a separate lock, always last. This module does not know what
is in a slot.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from struct import Struct
from typing import Final

from comporta.runtime import RUNTIME
from comporta.stores.shared.layout import (
    BLOCKED,
    CHUNK_BYTES,
    CHUNKS_TAKEN_OFFSET,
    DIGEST_BYTES,
    DISK_FULL_OFFSET,
    ENTRY_BYTES,
    INDEX,
    LAST_OWNER_OFFSET,
    PAGE_BYTES,
    SEGMENT_BYTES,
    SEGMENTS_OFFSET,
    SLOT_BYTES,
    UNIT,
    Geometry,
)

FREE_DIGEST: Final = bytes(DIGEST_BYTES)

RunGrowth = Callable[[Callable[[], "int | None"]], "int | None"]
"""Runs a function under the growth lock, or raises ``WouldBlock``."""

_U32 = Struct("<I")
_PENDING = Struct("<QQQ")
_NOTHING_PENDING = bytes(_PENDING.size)
_CLASS_BYTES = 12
_CLASSES_OFFSET = _PENDING.size
_BYTES_OF_CLASS = (*SLOT_BYTES, PAGE_BYTES)
_GROWTH_RETRY_SECONDS = 1.0


def entry_slot(entry: bytes) -> int:
    """Return the offset of the slot that an index entry leads to."""
    return (int.from_bytes(entry[DIGEST_BYTES:], "little") & ~BLOCKED) * UNIT


def allocate(fd: int, start: int, size: int) -> None:
    """Allocate a part of a file; raises ``OSError`` if the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, size)
    else:
        block = bytes(2**16)
        for at in range(start, start + size, len(block)):
            os.pwrite(fd, block[: start + size - at], at)


class SlotAllocator:
    """The slots of a mapped table. ``fd`` is its file, ``run_growth`` takes the growth lock."""

    def __init__(self, memory: mmap.mmap, geometry: Geometry, fd: int, run_growth: RunGrowth) -> None:
        self._memory = memory
        self._geometry = geometry
        self._fd = fd
        self._run_growth = run_growth
        self._retry_growth_at = 0.0

    def read_u32(self, offset: int) -> int:
        """Read a number of the file's own bookkeeping."""
        return int.from_bytes(self._memory[offset : offset + 4], "little")

    def write_u32(self, offset: int, value: int) -> None:
        """Write a number in one step: a killed process leaves the old value or the new."""
        self._memory[offset : offset + 4] = value.to_bytes(4, "little")

    def recover(self, shard: int) -> None:
        """Complete what a killed process was doing with a slot of this shard."""
        entry, *slots = _PENDING.unpack_from(self._memory, self._geometry.shard_offset(shard))
        for slot in filter(None, slots):
            if not self._is_entry_of(entry, slot):
                self._push(shard, slot)
        self.finish(shard)

    def take(self, shard: int, number: int, entry: int, chunks_max: int) -> int | None:
        """Return the offset of a zeroed slot of a class for an entry, or ``None`` if there is no room.

        The caller publishes the slot in the entry and calls ``finish``. The table may grow to ``chunks_max``
        chunks for it.
        """
        head_at = self._class_offset(shard, number)
        head, bump, end = (self.read_u32(head_at + 4 * part) for part in range(3))
        if not head and bump >= end:
            start = self._run_growth(lambda: self._take_chunk(head_at, number, chunks_max))
            if start is None:
                return None
            bump = start
        slot = (head or bump) * UNIT
        self._memory[slot + 1] = number  # before the note, because recovery reads the class from the slot
        self._note(shard, entry, slot)
        size = _BYTES_OF_CLASS[number]
        if head:
            self.write_u32(head_at, self.read_u32(slot + 4))
        else:
            self.write_u32(head_at + 4, bump + size // UNIT)
        self._memory[slot : slot + size] = bytes((0, number)) + bytes(size - 2)
        return slot

    def finish(self, shard: int) -> None:
        """Clear the note of a slot that was taken, because its entry now leads to it."""
        at = self._geometry.shard_offset(shard)
        self._memory[at : at + _PENDING.size] = _NOTHING_PENDING

    def take_page(self, shard: int, directory_entry: int, chunks_max: int) -> int | None:
        """Return the offset of a new index page, which is never freed; ``None`` if there is no room.

        The directory names the page before the page is taken. If a process dies in between, two positions
        name the same page, which only means that they share it.
        """
        head_at = self._class_offset(shard, INDEX)
        _, bump, end = (self.read_u32(head_at + 4 * part) for part in range(3))
        if bump >= end:
            start = self._run_growth(lambda: self._take_chunk(head_at, INDEX, chunks_max))
            if start is None:
                return None
            bump = start
        self.write_u32(directory_entry, bump)
        self.write_u32(head_at + 4, bump + PAGE_BYTES // UNIT)
        return bump * UNIT

    def replace(self, shard: int, entry: int, old_slot: int, slot: int) -> None:
        """Make an entry lead to a slot that was just taken for it, and free its previous slot."""
        at = self._geometry.shard_offset(shard) + 16
        self._memory[at : at + 8] = old_slot.to_bytes(8, "little")
        self.write_u32(entry + DIGEST_BYTES, slot // UNIT)
        self._push(shard, old_slot)
        self.finish(shard)

    def free(self, shard: int, entry: int, slot: int) -> None:
        """Clear an entry and return its slot to the slot's class."""
        self._note(shard, entry, slot)
        self._memory[entry : entry + DIGEST_BYTES] = FREE_DIGEST
        self._push(shard, slot)
        self.finish(shard)

    @property
    def chunks_taken(self) -> int:
        """How many chunks are in use."""
        return self.read_u32(CHUNKS_TAKEN_OFFSET)

    @property
    def is_disk_full(self) -> bool:
        """Whether the table could not grow because its disk was full."""
        return bool(self._memory[DISK_FULL_OFFSET])

    def _note(self, shard: int, entry: int, slot: int) -> None:
        at = self._geometry.shard_offset(shard)
        self._memory[at + 8 : at + 24] = bytes(16)  # without a slot the note means nothing
        self._memory[at : at + 8] = entry.to_bytes(8, "little")
        self._memory[at + 8 : at + 16] = slot.to_bytes(8, "little")

    def _is_entry_of(self, entry: int, slot: int) -> bool:
        content = self._memory[entry : entry + ENTRY_BYTES]
        return content[:DIGEST_BYTES] != FREE_DIGEST and entry_slot(content) == slot

    def _push(self, shard: int, slot: int) -> None:
        """Put a slot on the free list, unless it was never taken from it or is there already."""
        head_at = self._class_offset(shard, self._memory[slot + 1])
        head, bump = self.read_u32(head_at), self.read_u32(head_at + 4)
        if slot // UNIT in (head, bump):
            return
        self.write_u32(slot + 4, head)
        self.write_u32(head_at, slot // UNIT)

    def _class_offset(self, shard: int, number: int) -> int:
        return self._geometry.shard_offset(shard) + _CLASSES_OFFSET + _CLASS_BYTES * number

    def _take_chunk(self, head_at: int, number: int, chunks_max: int) -> int | None:
        """Give the next chunk to a class; return where it starts, in units. The caller holds both locks.

        The class names the chunk before the count of chunks includes it. ``last owner`` shows the next
        process whether a killed one got that far.
        """
        self._complete_last_chunk()
        taken = self.chunks_taken
        if taken >= min(chunks_max, self._geometry.chunk_count) or not self._ensure_allocated(taken + 1):
            return None
        size = _BYTES_OF_CLASS[number]
        start = self._geometry.chunks_offset + taken * CHUNK_BYTES
        end = start + CHUNK_BYTES // size * size
        self.write_u32(LAST_OWNER_OFFSET, head_at)
        self._memory[head_at + 4 : head_at + 12] = _U32.pack(start // UNIT) + _U32.pack(end // UNIT)
        self.write_u32(CHUNKS_TAKEN_OFFSET, taken + 1)
        return start // UNIT

    def _complete_last_chunk(self) -> None:
        owner, taken = self.read_u32(LAST_OWNER_OFFSET), self.chunks_taken
        next_start = (self._geometry.chunks_offset + taken * CHUNK_BYTES) // UNIT
        if owner and self.read_u32(owner + 8) > next_start:
            self.write_u32(CHUNKS_TAKEN_OFFSET, taken + 1)

    def _ensure_allocated(self, chunks: int) -> bool:
        """Allocate the segment of a chunk; false if the disk is full, which is retried once a second."""
        needed = self._geometry.chunks_offset + chunks * CHUNK_BYTES
        segments = self.read_u32(SEGMENTS_OFFSET)
        if needed <= segments * SEGMENT_BYTES:
            return True
        if RUNTIME.monotonic() < self._retry_growth_at:
            return False
        start = segments * SEGMENT_BYTES
        try:
            allocate(self._fd, start, min(SEGMENT_BYTES, self._geometry.size - start))
        except OSError:
            self._memory[DISK_FULL_OFFSET] = 1
            self._retry_growth_at = RUNTIME.monotonic() + _GROWTH_RETRY_SECONDS
            return False
        self.write_u32(SEGMENTS_OFFSET, segments + 1)
        self._memory[DISK_FULL_OFFSET] = 0
        return True
