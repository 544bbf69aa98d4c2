"""Checks of a whole ``shared://`` table: every slot is in use or free, never both, and none is lost."""

from __future__ import annotations

from comporta.stores.shared.layout import CHUNK_BYTES, INDEX, SHARDS, SLOT_BYTES, UNIT
from comporta.stores.shared.table import Table


def table_problems(table: Table) -> list[str]:
    """Return what is wrong with a table that no process is changing."""
    return [problem for shard in range(SHARDS) for problem in _shard_problems(table, shard)]


def _shard_problems(table: Table, shard: int) -> list[str]:
    table._slots.recover(shard)
    used = _used_slots(table, shard)
    free = {number: _free_slots(table, shard, number) for number in range(INDEX)}
    problems = []
    for number, size in enumerate(SLOT_BYTES):
        both = used[number] + free[number]
        if len(set(both)) != len(both):
            problems.append(f"shard {shard} uses a slot of {size} bytes twice")
        lost = _handed_slots(table, shard, number, both) - set(both)
        if lost:
            problems.append(f"shard {shard} lost {len(lost)} slots of {size} bytes")
    return problems


def _used_slots(table: Table, shard: int) -> dict[int, list[int]]:
    used: dict[int, list[int]] = {number: [] for number in range(INDEX)}
    for page in (*table._index.pages(shard, 0), *table._index.pages(shard, 1)):
        for entry in table._index.used_entries(page):
            slot = table._slot_at(entry)
            used[slot.number].append(slot.slot_offset)
    return used


def _free_slots(table: Table, shard: int, number: int) -> list[int]:
    slots, slot = [], table._slots.read_u32(table._slots._class_offset(shard, number)) * UNIT
    while slot:
        slots.append(slot)
        slot = table._slots.read_u32(slot + 4) * UNIT
        if len(slots) > 100_000:
            raise AssertionError("a free list is a ring")
    return slots


def _handed_slots(table: Table, shard: int, number: int, known: list[int]) -> set[int]:
    """Return all slots, up to the next one to be taken, of the chunks that some known slot is in."""
    first, size = table.geometry.chunks_offset, SLOT_BYTES[number]
    bump = table._slots.read_u32(table._slots._class_offset(shard, number) + 4) * UNIT
    slots = set()
    for chunk in {(slot - first) // CHUNK_BYTES for slot in known}:
        start = first + chunk * CHUNK_BYTES
        end = bump if start <= bump < start + CHUNK_BYTES else start + CHUNK_BYTES // size * size
        slots |= set(range(start, end, size))
    return slots
