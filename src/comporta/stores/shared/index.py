"""The index of the table behind ``shared://``: from a key's digest to its entry.

A key's digest picks one of 16 shards, and in it one index page of each generation: generation ``n`` has twice
as many pages as the one before. A page is created when all pages of the key's path are full. The index
therefore grows with the number of keys, and no entry is ever moved.

A digest is written last and cleared first, so no reader ever finds a half-written entry. This module knows
about slots only where an entry points. It takes no lock.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from comporta.stores.base import StateKey, key_text
from comporta.stores.shared.layout import (
    DIGEST_BYTES,
    ENTRIES_PER_PAGE,
    ENTRY_BYTES,
    SHARDS,
    UNIT,
    Geometry,
)
from comporta.stores.shared.slots import FREE_DIGEST, SlotAllocator

_ENTRIES_END = ENTRIES_PER_PAGE * ENTRY_BYTES


class KeyPosition(NamedTuple):
    """How to find a key's state: its digest, its shard (which is also its lock) and its tree."""

    digest: bytes
    lock: int
    tree: int


def locate(key: StateKey) -> KeyPosition:
    """Return the position of a key. Its type's name is part of its identity: strategies share no state."""
    text = f"{key.type.name}\0{key_text(key.space, key.key)}"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
    return KeyPosition(digest, digest[0] % SHARDS, int(key.type.listed))


class Index:
    """The index pages of a mapped table; ``slots`` allocates new ones."""

    def __init__(self, memory: mmap.mmap, geometry: Geometry, slots: SlotAllocator) -> None:
        self._memory = memory
        self._geometry = geometry
        self._slots = slots

    def find(self, position: KeyPosition) -> int | None:
        """Return the offset of a key's entry, or ``None``."""
        for page in self.path(position):
            for offset in _digest_offsets(self._memory[page : page + _ENTRIES_END], position.digest):
                return page + offset
        return None

    def path(self, position: KeyPosition) -> list[int]:
        """Return the index pages that may hold a key, up to the first that does not exist."""
        directory = self._geometry.directory_offset(position.lock, position.tree)
        bits, pages = int.from_bytes(position.digest[1:8], "little"), []
        for generation in range(self._geometry.generations):
            first = (1 << generation) - 1
            page = self._slots.read_u32(directory + 4 * (first + (bits & first)))
            if not page:
                break
            pages.append(page * UNIT)
        return pages

    def pages(self, lock: int, tree: int) -> list[int]:
        """Return all index pages of a tree."""
        at = self._geometry.directory_offset(lock, tree)
        directory = memoryview(self._memory[at : at + 4 * 2**self._geometry.generations]).cast("I")
        return sorted({page * UNIT for page in directory if page})

    def used_entries(self, page: int) -> Iterator[int]:
        """Yield the offsets of the entries of a page that lead to a slot."""
        content = self._memory[page : page + _ENTRIES_END]
        for offset in range(0, _ENTRIES_END, ENTRY_BYTES):
            if content[offset : offset + DIGEST_BYTES] != FREE_DIGEST:
                yield page + offset

    def free_entry(self, position: KeyPosition, pages: list[int], chunks_max: int) -> int | None:
        """Return a free entry on a path, on a new page if need be and there is room."""
        for page in pages:
            for offset in _digest_offsets(self._memory[page : page + _ENTRIES_END], FREE_DIGEST):
                return page + offset
        generation = len(pages)
        if generation == self._geometry.generations:
            return None
        first = (1 << generation) - 1
        bits = int.from_bytes(position.digest[1:8], "little")
        directory = self._geometry.directory_offset(position.lock, position.tree)
        return self._slots.take_page(position.lock, directory + 4 * (first + (bits & first)), chunks_max)


def _digest_offsets(entries: bytes, digest: bytes) -> Iterator[int]:
    """Yield the offsets of a digest in a page; by chance, bytes across two entries may also match."""
    offset = entries.find(digest)
    while offset >= 0:
        aligned = -(-offset // ENTRY_BYTES) * ENTRY_BYTES
        if entries[aligned : aligned + DIGEST_BYTES] == digest:
            yield aligned
        offset = entries.find(digest, max(aligned, offset + 1))
