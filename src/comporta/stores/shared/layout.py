"""The layout of the file behind ``shared://``: its header, its 16 shards, its classes of slots.

All numbers are little-endian; offsets of slots and pages are kept in units of 8 bytes::

    page 0       magic, version, megabytes, boot id; the change count; how far the file is allocated
    pages 1-2    one header of 512 bytes for each shard: unfinished change, free slots of each class
    directory    for each shard and tree, the index page of every position of every generation (0: none yet)
    chunks       32 KB each, handed to one class of one shard when it needs room; never handed back

    index page   204 entries of 20 bytes: a key's digest, and where its slot is (plus ``BLOCKED``)
    slot         use count, whose lowest bit names the valid copy; class; next free slot; copy 0, copy 1
    copy         when the state expires (µs, plus ``PINNED_US`` if it must not be evicted), the state
    listed slot  the key's text, and its length, at the end of copy 1

The file has its full length from the beginning, as a hole. Space is allocated in segments of 1 MB, so that a
full disk is an error at that moment and never a signal later, and no process has to map the file again. This
module does no I/O.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from comporta.errors import StateUnavailableError
from comporta.stores.base import KEY_BYTES_MAX
from comporta.stores.records import RECORD

MAGIC: Final = b"COMPORTA"
VERSION: Final = 2
HEADER_BYTES: Final = 4096
MEMORY_MB_DEFAULT: Final = 256
MEMORY_MB_MIN: Final = 4
MEMORY_MB_MAX: Final = 16_384

SHARDS: Final = 16
UNIT: Final = 8
PAGE_BYTES: Final = 4096
CHUNK_BYTES: Final = 32_768
SEGMENT_BYTES: Final = 2**20
DIGEST_BYTES: Final = 16
ENTRY_BYTES: Final = DIGEST_BYTES + 4
ENTRIES_PER_PAGE: Final = PAGE_BYTES // ENTRY_BYTES
BLOCKED: Final = 1 << 31
"""Added to where a slot is, in its entry, while fast paths must not decide on its state."""

SLOT_HEAD_BYTES: Final = 8
EXPIRY_BYTES: Final = 8

SLOT_BYTES: Final = (128, 224, 464, 928, 1872, 3640, 5456, 10_920)
"""The classes of slots: bytes of a slot."""

STATE_BYTES: Final = tuple((size - SLOT_HEAD_BYTES) // 2 - EXPIRY_BYTES for size in SLOT_BYTES)
"""The classes of slots: bytes of the largest state."""

STATE_BYTES_MAX: Final = 4224
"""The largest state of a key that is not listed; a listed one needs room for its text too."""

INDEX: Final = len(SLOT_BYTES)
"""The class of index pages."""

CHANGE_COUNT_OFFSET: Final = 128
CHUNKS_TAKEN_OFFSET: Final = 136
LAST_OWNER_OFFSET: Final = 140
SEGMENTS_OFFSET: Final = 144
DISK_FULL_OFFSET: Final = 148
EVICTING_OFFSET: Final = 149

TREES: Final = 2
"""Each shard has two trees of index pages: of states, and of records, which can be listed."""

_SHARDS_OFFSET = HEADER_BYTES
_SHARD_BYTES = 512
_DIRECTORY_OFFSET = _SHARDS_OFFSET + SHARDS * _SHARD_BYTES
_HEADER = Struct("<8sII36s")

assert STATE_BYTES[-1] >= RECORD.codec.size + 2 + KEY_BYTES_MAX  # noqa: S101 - the largest listed state fits


class Geometry(NamedTuple):
    """The offsets of the parts of a table of ``memory_mb``."""

    memory_mb: int
    generations: int
    chunks_offset: int
    chunk_count: int

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.chunks_offset + self.chunk_count * CHUNK_BYTES

    def shard_offset(self, shard: int) -> int:
        """Return the offset of a shard's header."""
        return _SHARDS_OFFSET + shard * _SHARD_BYTES

    def directory_offset(self, shard: int, tree: int) -> int:
        """Return the offset of the directory of a shard's tree."""
        return _DIRECTORY_OFFSET + (shard * TREES + tree) * (4 << self.generations)


def table_geometry(memory_mb: int) -> Geometry:
    """Return the geometry of a table that takes up to ``memory_mb`` megabytes."""
    if not MEMORY_MB_MIN <= memory_mb <= MEMORY_MB_MAX:
        raise ValueError(f"memory must be {MEMORY_MB_MIN} to {MEMORY_MB_MAX} MB, got {memory_mb}")
    memory = memory_mb * 2**20
    keys_per_shard = memory // SLOT_BYTES[0] // SHARDS
    generations = (keys_per_shard // ENTRIES_PER_PAGE).bit_length() + 1
    directory_bytes = SHARDS * TREES * 4 * 2**generations
    chunks_offset = -(-(_DIRECTORY_OFFSET + directory_bytes) // PAGE_BYTES) * PAGE_BYTES
    return Geometry(memory_mb, generations, chunks_offset, (memory - chunks_offset) // CHUNK_BYTES)


def slot_class(size: int) -> int:
    """Return the smallest class of slots for a state of ``size`` bytes."""
    return next(number for number, state_bytes in enumerate(STATE_BYTES) if state_bytes >= size)


def pack_header(memory_mb: int, boot: str) -> bytes:
    """Return the first bytes of a table's file."""
    return _HEADER.pack(MAGIC, VERSION, memory_mb, boot.encode())


def parse_header(data: bytes, path: str) -> tuple[int, str]:
    """Return the megabytes and the boot id, or raise if the file is not a usable table."""
    if len(data) < _HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise StateUnavailableError(f"{path} is not a comporta state file; remove it or use another name")
    _, version, memory_mb, boot = _HEADER.unpack_from(data)
    if not MEMORY_MB_MIN <= memory_mb <= MEMORY_MB_MAX:
        raise StateUnavailableError(
            f"{path} is damaged: its header names {memory_mb} MB, expected {MEMORY_MB_MIN} to "
            f"{MEMORY_MB_MAX}; remove it"
        )
    if version != VERSION:
        raise StateUnavailableError(
            f"{path} has layout version {version}, this comporta reads {VERSION}: "
            "stop the programs that use it and remove it, or use another name"
        )
    return memory_mb, boot.rstrip(b"\0").decode("ascii", "replace")
