"""The file behind ``shared://``: a memory-mapped hash table that the processes of one machine share.

Layout, all little-endian::

    page 0       magic, version, boot id, geometry, the change count that bound limits compare
    per class    buckets of 128 slots; a bucket is 128 digests of 16 bytes, then its slots
    slot         which copy is valid (1 byte), copy 0, copy 1, the key's text for people and listings
    copy         when the state expires (µs), the state

There are three classes of slots, by the size of a state. A key's digest picks its bucket. A writer fills the
copy that is not valid and then flips one byte: a process that is killed in between leaves the old state. A
digest is written last and cleared first, so no reader ever finds a half-written slot.

This module knows bytes and digests. It takes no lock and reads no clock: ``locked_table.py`` does.
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
CHANGE_COUNT_OFFSET = 128
KEYS_DEFAULT = 16_384
KEYS_MAX = 16_777_216

_HEADER = Struct("<8sII36s")
_EXPIRY = Struct("<q")
_KEY_LENGTH = Struct("<H")
_FREE = bytes(DIGEST_BYTES)
_NO_KEYS = bytes(DIGEST_BYTES * SLOTS_PER_BUCKET)
# bytes of a state, bytes of its key, and for how many keys of the table there is one slot of this class
_CLASSES = ((64, 96, 1), (512, KEY_BYTES_MAX, 8), (4224, KEY_BYTES_MAX, 32))
STATE_BYTES_MAX = _CLASSES[-1][0]


class SlotClass(NamedTuple):
    """The geometry of one class of slots."""

    start: int
    buckets: int
    state_bytes: int
    key_bytes: int

    @property
    def copy_bytes(self) -> int:
        """Bytes of one copy: the expiry time and the state."""
        return _EXPIRY.size + self.state_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: the flip byte (padded to a word), two copies, the key."""
        return 8 + 2 * self.copy_bytes + _KEY_LENGTH.size + self.key_bytes + 6

    @property
    def bucket_bytes(self) -> int:
        """Bytes of a bucket: its digests and its slots."""
        return SLOTS_PER_BUCKET * (DIGEST_BYTES + self.slot_bytes)

    @property
    def end(self) -> int:
        """The offset at which the next class starts."""
        return self.start + self.buckets * self.bucket_bytes


class SlotPosition(NamedTuple):
    """Where a key's digest and slot are, and which lock guards them; or, before a lookup, its bucket."""

    digest: bytes
    digest_offset: int
    slot_offset: int
    copy_bytes: int
    lock: int


def slot_classes(keys: int) -> tuple[SlotClass, ...]:
    """Return the slot classes of a table for about ``keys`` small states."""
    if not 1 <= keys <= KEYS_MAX:
        raise ValueError(f"keys must be 1 to {KEYS_MAX}, got {keys}")
    classes: list[SlotClass] = []
    start = HEADER_BYTES
    for state_bytes, key_bytes, share in _CLASSES:
        buckets = max(1, -(-keys // (share * SLOTS_PER_BUCKET)))
        classes.append(SlotClass(start, buckets, state_bytes, key_bytes))
        start = classes[-1].end
    return tuple(classes)


def pack_header(keys: int, boot: str) -> bytes:
    """Return the first bytes of a table's file."""
    return _HEADER.pack(MAGIC, VERSION, keys, boot.encode())


def parse_header(data: bytes, path: str) -> tuple[int, str]:
    """Return the number of keys and the boot id, or raise if the file is not a usable table."""
    if len(data) < _HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise StateUnavailableError(f"{path} is not a comporta state file; remove it or use another name")
    _, version, keys, boot = _HEADER.unpack_from(data)
    if not 1 <= keys <= KEYS_MAX:
        raise StateUnavailableError(
            f"{path} is damaged: its header names {keys} keys, expected 1 to {KEYS_MAX}; remove it"
        )
    if version != VERSION:
        raise StateUnavailableError(
            f"{path} has layout version {version}, this comporta reads {VERSION}: "
            "stop the programs that use it and remove it, or use another name"
        )
    return keys, boot.rstrip(b"\0").decode("ascii", "replace")


def key_digest(space: str, key: str) -> bytes:
    """Return the identity of a key: 128 bits, so that two keys never collide in practice."""
    text = key_text(space, key).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=DIGEST_BYTES).digest()


class Table:
    """A mapped table.

    The caller holds the lock of the bucket, except for ``bucket_position``, ``change_count``, ``buckets`` and
    ``slot_usage``.
    """

    def __init__(self, fd: int, keys: int, locks: int) -> None:
        self.classes = slot_classes(keys)
        self.keys = keys
        self.locks = locks
        self.memory = mmap.mmap(fd, self.classes[-1].end)

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

    def bucket_position(self, space: str, key: str, codec: Codec) -> SlotPosition:
        """Return a key's bucket, as a position whose ``digest_offset`` is 0; ``find_slot`` finds the slot."""
        digest = key_digest(space, key)
        slots = next(slots for slots in self.classes if slots.state_bytes >= codec.size)
        bucket = int.from_bytes(digest[:8], "little") % slots.buckets
        at = slots.start + bucket * slots.bucket_bytes
        return SlotPosition(digest, 0, at, slots.copy_bytes, self._lock_of(at))

    def find_slot(self, bucket: SlotPosition) -> SlotPosition | None:
        """Return the position of a key's slot, or ``None``. ``bucket`` is the key's ``bucket_position``."""
        bucket_offset = bucket.slot_offset
        end = bucket_offset + DIGEST_BYTES * SLOTS_PER_BUCKET
        offset = bucket_offset - 1
        while True:
            offset = self.memory.find(bucket.digest, offset + 1, end)
            if offset < 0:
                return None
            number, misaligned = divmod(offset - bucket_offset, DIGEST_BYTES)
            if not misaligned:  # else the digest appears across two others by chance
                return self._slot(bucket, number)

    def allocate_slot(
        self, bucket: SlotPosition, space: str, key: str, now_us: int, reserved: frozenset[int]
    ) -> SlotPosition:
        """Return a free slot for a key, or one whose state has expired and that is not ``reserved``."""
        slot = self._available_slot(bucket, now_us, reserved)
        if slot is None:
            raise StateFullError(
                f"shared:// has no room for {key_text(space, key)[:80]!r}: its table of {self.keys} keys "
                "is full of live ones; open it with a larger ?keys= under another name"
            )
        self.memory[slot.digest_offset : slot.digest_offset + DIGEST_BYTES] = _FREE
        key_offset = slot.slot_offset + 8 + 2 * slot.copy_bytes
        room = self._class_of(slot.slot_offset).key_bytes
        text = key_text(space, key).encode("utf-8", "surrogatepass")[:room]
        _KEY_LENGTH.pack_into(self.memory, key_offset, len(text))
        self.memory[key_offset + 2 : key_offset + 2 + len(text)] = text
        return slot

    def publish_slot(self, slot: SlotPosition) -> None:
        """Make a slot findable, after its first state was written."""
        self.memory[slot.digest_offset : slot.digest_offset + DIGEST_BYTES] = slot.digest

    def free_slot(self, slot: SlotPosition) -> None:
        """Delete a key."""
        self.memory[slot.digest_offset : slot.digest_offset + DIGEST_BYTES] = _FREE

    def read_state(self, slot: SlotPosition, codec: Codec) -> State:
        """Return the state of the valid copy."""
        return codec.unpack_from(self.memory, self._valid_offset(slot) + 8)

    def expires_us(self, slot: SlotPosition) -> int:
        """Return when the state expires."""
        expires_us: int = _EXPIRY.unpack_from(self.memory, self._valid_offset(slot))[0]
        return expires_us

    def write_state(self, slot: SlotPosition, codec: Codec, state: State, expires_us: int) -> None:
        """Write the copy that is not valid, then make it the valid one."""
        flip = self.memory[slot.slot_offset]
        at = slot.slot_offset + 8 + (0 if flip else slot.copy_bytes)
        _EXPIRY.pack_into(self.memory, at, expires_us)
        codec.pack_into(self.memory, at + 8, *state)
        self.memory[slot.slot_offset] = not flip

    def buckets(self, codec: Codec) -> list[SlotPosition]:
        """Return a position for each bucket of the codec's class that holds any key (read without a lock)."""
        slots = next(slots for slots in self.classes if slots.state_bytes >= codec.size)
        starts = range(slots.start, slots.end, slots.bucket_bytes)
        return [
            SlotPosition(_FREE, 0, at, slots.copy_bytes, self._lock_of(at))
            for at in starts
            if self.memory[at : at + len(_NO_KEYS)] != _NO_KEYS
        ]

    @property
    def large_slot_count(self) -> int:
        """How many of the largest states the table has room for."""
        return self.classes[-1].buckets * SLOTS_PER_BUCKET

    def slot_usage(self) -> list[tuple[int, int]]:
        """Return for each class how many slots hold a key, expired ones included, and how many slots it has.

        Read without a lock, so the numbers may be a moment old.
        """
        usage = []
        for slots in self.classes:
            used = sum(self._used_slots(at) for at in range(slots.start, slots.end, slots.bucket_bytes))
            usage.append((used, slots.buckets * SLOTS_PER_BUCKET))
        return usage

    def _used_slots(self, bucket_offset: int) -> int:
        digests = self.memory[bucket_offset : bucket_offset + len(_NO_KEYS)]
        starts = range(0, len(digests), DIGEST_BYTES)
        return sum(digests[at : at + DIGEST_BYTES] != _FREE for at in starts)

    def bucket_states(self, bucket: SlotPosition, codec: Codec) -> list[tuple[str, State]]:
        """Return the keys of a bucket with their states; a key longer than its slot allows is cut off."""
        states = []
        for number in range(SLOTS_PER_BUCKET):
            slot = self._slot(bucket, number)
            digest = self.memory[slot.digest_offset : slot.digest_offset + DIGEST_BYTES]
            key_offset = slot.slot_offset + 8 + 2 * slot.copy_bytes
            length = _KEY_LENGTH.unpack_from(self.memory, key_offset)[0]
            text = self.memory[key_offset + 2 : key_offset + 2 + length]
            if digest != _FREE:
                states.append((text.decode("utf-8", "surrogatepass"), self.read_state(slot, codec)))
        return states

    def _lock_of(self, bucket_offset: int) -> int:
        slots = self._class_of(bucket_offset)
        return ((bucket_offset - slots.start) // slots.bucket_bytes) % self.locks

    def _valid_offset(self, slot: SlotPosition) -> int:
        return slot.slot_offset + 8 + (slot.copy_bytes if self.memory[slot.slot_offset] else 0)

    def _slot(self, bucket: SlotPosition, number: int) -> SlotPosition:
        digests = DIGEST_BYTES * SLOTS_PER_BUCKET
        slots = self._class_of(bucket.slot_offset)
        slot_offset = bucket.slot_offset + digests + number * slots.slot_bytes
        return bucket._replace(
            digest_offset=bucket.slot_offset + number * DIGEST_BYTES, slot_offset=slot_offset
        )

    def _class_of(self, at: int) -> SlotClass:
        return next(slots for slots in self.classes if at < slots.end)

    def _available_slot(
        self, bucket: SlotPosition, now_us: int, reserved: frozenset[int]
    ) -> SlotPosition | None:
        expired = None
        for number in range(SLOTS_PER_BUCKET):
            slot = self._slot(bucket, number)
            if self.memory[slot.digest_offset : slot.digest_offset + DIGEST_BYTES] == _FREE:
                return slot
            if expired is None and self.expires_us(slot) <= now_us and slot.slot_offset not in reserved:
                expired = slot
        return expired
