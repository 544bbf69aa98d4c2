"""The file behind ``shared://``: a memory-mapped hash table that processes of one machine share.

Layout, all little-endian::

    page 0       magic, version, boot id, geometry, a count of changes that followers watch
    per class    buckets of 128 slots; a bucket is 128 digests of 16 bytes, then its slots
    slot         which copy is valid (1 byte), copy 0, copy 1, the key for people and listings
    copy         when it ends (µs), the state

There are three classes of slots by the size of a state. A key's digest picks its bucket. A state is
written into the copy that is not valid, then one byte flips: a process killed in between leaves the
old state. A digest is written last and cleared first, so that no slot is ever found half made.

This file knows bytes and digests. It takes no lock and reads no clock: ``shared.py`` does.
"""

from __future__ import annotations

import mmap
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from comporta.errors import StateFullError, StateUnavailableError
from comporta.stores.base import KEY_BYTES_MAX, Codec, State, key_text

MAGIC = b"COMPORTA"
VERSION = 1
SLOTS_PER_BUCKET = 128
DIGEST_BYTES = 16
HEADER_BYTES = mmap.PAGESIZE
CHANGES_AT = 128
KEYS_DEFAULT = 16_384
KEYS_MAX = 16_777_216

_HEADER = Struct("<8sII36s")
_ENDS = Struct("<q")
_KEY_LENGTH = Struct("<H")
_FREE = bytes(DIGEST_BYTES)
_NO_KEYS = bytes(DIGEST_BYTES * SLOTS_PER_BUCKET)
# size of a state, room for its key, one slot of this class for how many keys
_CLASSES = ((64, 96, 1), (512, KEY_BYTES_MAX, 8), (4224, KEY_BYTES_MAX, 32))


class Slots(NamedTuple):
    """The geometry of one class of slots."""

    start: int
    buckets: int
    state_bytes: int
    key_bytes: int

    @property
    def copy_bytes(self) -> int:
        """When it ends, and the state."""
        return _ENDS.size + self.state_bytes

    @property
    def slot_bytes(self) -> int:
        """The flip (padded to a word), two copies, the key."""
        return 8 + 2 * self.copy_bytes + _KEY_LENGTH.size + self.key_bytes + 6

    @property
    def bucket_bytes(self) -> int:
        """The digests and the slots."""
        return SLOTS_PER_BUCKET * (DIGEST_BYTES + self.slot_bytes)

    @property
    def end(self) -> int:
        """Where the next class starts."""
        return self.start + self.buckets * self.bucket_bytes


class Place(NamedTuple):
    """Where a key's digest and slot are, and which lock guards them."""

    digest: bytes
    digest_at: int
    slot_at: int
    copy_bytes: int
    lock: int


def geometry(keys: int) -> tuple[Slots, ...]:
    """Return the classes of a table for about ``keys`` small states."""
    if not 1 <= keys <= KEYS_MAX:
        raise ValueError(f"keys must be 1 to {KEYS_MAX}, got {keys}")
    classes: list[Slots] = []
    start = HEADER_BYTES
    for state_bytes, key_bytes, share in _CLASSES:
        buckets = max(1, -(-keys // (share * SLOTS_PER_BUCKET)))
        classes.append(Slots(start, buckets, state_bytes, key_bytes))
        start = classes[-1].end
    return tuple(classes)


def header(keys: int, boot: str) -> bytes:
    """Return what the file of a table starts with."""
    return _HEADER.pack(MAGIC, VERSION, keys, boot.encode())


def read_header(found: bytes, path: str) -> tuple[int, str]:
    """Return keys and boot id, or say why this is no table of ours."""
    if len(found) < _HEADER.size or found[: len(MAGIC)] != MAGIC:
        raise StateUnavailableError(f"{path} is not a comporta state file; remove it or use another name")
    _, version, keys, boot = _HEADER.unpack_from(found)
    if not 1 <= keys <= KEYS_MAX:
        raise StateUnavailableError(f"{path} is damaged: made for {keys} keys; remove it")
    if version != VERSION:
        raise StateUnavailableError(
            f"{path} has layout version {version}, this comporta reads {VERSION}: "
            "stop what uses it and remove it, or use another name"
        )
    return keys, boot.rstrip(b"\0").decode("ascii", "replace")


def digest_of(space: str, key: str) -> bytes:
    """Return the identity of a key: 128 bits, so that two keys never meet in practice."""
    text = key_text(space, key).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=DIGEST_BYTES).digest()


class Table:
    """A mapped table. Every method but ``place``, ``changes`` and ``used`` needs the lock of its place."""

    def __init__(self, fd: int, keys: int, locks: int) -> None:
        self.classes = geometry(keys)
        self.keys = keys
        self.locks = locks
        self.memory = mmap.mmap(fd, self.classes[-1].end)

    def close(self) -> None:
        """Unmap; the state stays in the file."""
        self.memory.close()

    @property
    def changes(self) -> bytes:
        """A count that goes up whenever an operator changes something that others follow."""
        return self.memory[CHANGES_AT : CHANGES_AT + 8]

    def count_change(self) -> None:
        """Tell the followers; needs lock 0."""
        count = int.from_bytes(self.changes, "little") + 1
        self.memory[CHANGES_AT : CHANGES_AT + 8] = count.to_bytes(8, "little")

    def place(self, space: str, key: str, codec: Codec) -> Place:
        """Return where a key belongs; ``digest_at`` 0 until it is looked up with ``find``."""
        digest = digest_of(space, key)
        slots = next(slots for slots in self.classes if slots.state_bytes >= codec.size)
        bucket = int.from_bytes(digest[:8], "little") % slots.buckets
        at = slots.start + bucket * slots.bucket_bytes
        return Place(digest, 0, at, slots.copy_bytes, self._lock_of(at))

    def find(self, place: Place) -> Place | None:
        """Return where the slot of a key is, if it has one. ``place`` names the bucket."""
        bucket_at = place.slot_at
        found = bucket_at - 1
        while True:
            found = self.memory.find(place.digest, found + 1, bucket_at + DIGEST_BYTES * SLOTS_PER_BUCKET)
            if found < 0:
                return None
            number, beside = divmod(found - bucket_at, DIGEST_BYTES)
            if not beside:
                return self._slot(place, number)

    def make(self, place: Place, space: str, key: str, now_us: int, spared: frozenset[int]) -> Place:
        """Give a key a free slot, or one whose state has ended and that is not among the spared."""
        slot = self._free_slot(place, now_us, spared)
        if slot is None:
            raise StateFullError(
                f"shared:// has no room for {key_text(space, key)[:80]!r}: its table of {self.keys} keys "
                "is full of live ones; open it with a larger ?keys= under another name"
            )
        self.memory[slot.digest_at : slot.digest_at + DIGEST_BYTES] = _FREE
        key_at = slot.slot_at + 8 + 2 * slot.copy_bytes
        room = self._class_at(slot.slot_at).key_bytes
        text = key_text(space, key).encode("utf-8", "surrogatepass")[:room]
        _KEY_LENGTH.pack_into(self.memory, key_at, len(text))
        self.memory[key_at + 2 : key_at + 2 + len(text)] = text
        return slot

    def claim(self, slot: Place) -> None:
        """Make a slot findable, once its first state is written."""
        self.memory[slot.digest_at : slot.digest_at + DIGEST_BYTES] = slot.digest

    def free(self, slot: Place) -> None:
        """Forget a key."""
        self.memory[slot.digest_at : slot.digest_at + DIGEST_BYTES] = _FREE

    def read(self, slot: Place, codec: Codec) -> State:
        """Return the valid copy's state."""
        return codec.unpack_from(self.memory, self._valid_at(slot) + 8)

    def ends_us(self, slot: Place) -> int:
        """Return when the state ends."""
        found: int = _ENDS.unpack_from(self.memory, self._valid_at(slot))[0]
        return found

    def write(self, slot: Place, codec: Codec, state: State, ends_us: int) -> None:
        """Write the copy that is not valid, then make it the valid one."""
        flip = self.memory[slot.slot_at]
        at = slot.slot_at + 8 + (0 if flip else slot.copy_bytes)
        _ENDS.pack_into(self.memory, at, ends_us)
        codec.pack_into(self.memory, at + 8, *state)
        self.memory[slot.slot_at] = not flip

    def buckets(self, codec: Codec) -> list[Place]:
        """Return a place for each bucket of a class that has any key (read without a lock)."""
        slots = next(slots for slots in self.classes if slots.state_bytes >= codec.size)
        starts = range(slots.start, slots.end, slots.bucket_bytes)
        return [
            Place(_FREE, 0, at, slots.copy_bytes, self._lock_of(at))
            for at in starts
            if self.memory[at : at + len(_NO_KEYS)] != _NO_KEYS
        ]

    @property
    def large_slots(self) -> int:
        """How many of the largest states there is room for."""
        return self.classes[-1].buckets * SLOTS_PER_BUCKET

    def used(self) -> list[tuple[int, int]]:
        """Return for each class how many slots hold a key, ended ones too, and how many there are.

        Read without a lock, so it may be a moment old.
        """
        found = []
        for slots in self.classes:
            taken = sum(self._taken(at) for at in range(slots.start, slots.end, slots.bucket_bytes))
            found.append((taken, slots.buckets * SLOTS_PER_BUCKET))
        return found

    def _taken(self, bucket_at: int) -> int:
        digests = self.memory[bucket_at : bucket_at + len(_NO_KEYS)]
        starts = range(0, len(digests), DIGEST_BYTES)
        return sum(digests[at : at + DIGEST_BYTES] != _FREE for at in starts)

    def listed(self, bucket: Place, codec: Codec) -> list[tuple[str, State]]:
        """Return the keys of a bucket, as far as they are kept, with their states."""
        found = []
        for number in range(SLOTS_PER_BUCKET):
            slot = self._slot(bucket, number)
            digest = self.memory[slot.digest_at : slot.digest_at + DIGEST_BYTES]
            key_at = slot.slot_at + 8 + 2 * slot.copy_bytes
            length = _KEY_LENGTH.unpack_from(self.memory, key_at)[0]
            text = self.memory[key_at + 2 : key_at + 2 + length]
            if digest != _FREE:
                found.append((text.decode("utf-8", "surrogatepass"), self.read(slot, codec)))
        return found

    def _lock_of(self, bucket_at: int) -> int:
        slots = self._class_at(bucket_at)
        return ((bucket_at - slots.start) // slots.bucket_bytes) % self.locks

    def _valid_at(self, slot: Place) -> int:
        return slot.slot_at + 8 + (slot.copy_bytes if self.memory[slot.slot_at] else 0)

    def _slot(self, bucket: Place, number: int) -> Place:
        digests = DIGEST_BYTES * SLOTS_PER_BUCKET
        slots = self._class_at(bucket.slot_at)
        slot_at = bucket.slot_at + digests + number * slots.slot_bytes
        return bucket._replace(digest_at=bucket.slot_at + number * DIGEST_BYTES, slot_at=slot_at)

    def _class_at(self, at: int) -> Slots:
        return next(slots for slots in self.classes if at < slots.end)

    def _free_slot(self, bucket: Place, now_us: int, spared: frozenset[int]) -> Place | None:
        ended = None
        for number in range(SLOTS_PER_BUCKET):
            slot = self._slot(bucket, number)
            if self.memory[slot.digest_at : slot.digest_at + DIGEST_BYTES] == _FREE:
                return slot
            if ended is None and self.ends_us(slot) <= now_us and slot.slot_at not in spared:
                ended = slot
        return ended
