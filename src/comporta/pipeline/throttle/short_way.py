"""The shortest way to take from two limits in this process: what ``MemoryBound`` is for one.

It takes no lock: both decisions are made on states that never change, and the new ones are written only if
the old ones are still there. A thread of CPython gives way only at calls and loops, as do signal handlers,
and from that look to the second write there is neither. Everything rarer (a new partition, a limit that is
degraded, paused or changed, a clock that went back, a sweep) goes the long way, by ``TakeBoth``.
"""

from __future__ import annotations

from collections.abc import Callable

from comporta.limits.operation import CHANGES, SPACE
from comporta.pipeline.throttle.levels import GRANTED, Levels, Waits
from comporta.stores.memory import MemoryStore
from comporta.stores.records import RECORD

Taken = Callable[[str, str, int], Waits | None]
"""Takes from a partition, by its text and the name of its limit; nothing if that is not possible here."""


def short_way(store: MemoryStore, levels: Levels) -> Taken:
    """Return what takes from both levels on this store."""
    name = levels.name
    wholes = store.states(f"{SPACE}:{name}", levels.whole)
    partitions = store.states(f"{SPACE}:{name}.partition", levels.kind)
    records = store.states(CHANGES, RECORD)
    whole_step, partition_step = levels.whole.step, levels.partition.step
    whole_of, partition_of, now_ns = wholes.get, partitions.get, store.clock.now_ns

    def taken(text: str, partition_name: str, cost: int) -> Waits | None:
        whole, partition = whole_of(""), partition_of(text)
        if whole is None or partition is None or name in records or partition_name in records:
            return None
        now_us = now_ns() // 1000
        new_whole, whole_us = whole_step(whole, now_us, cost)
        new_partition, partition_us = partition_step(partition, now_us, cost)
        if whole_us or partition_us:
            anchored = (whole_us and new_whole) or (partition_us and new_partition)
            return None if anchored else Waits(whole_us, partition_us)
        try:
            # one step for all other threads: no call and no loop from here to the second write
            if now_us < store.open_until_us and wholes[""] is whole and partitions[text] is partition:
                wholes[""] = new_whole  # type: ignore[assignment]  # what is granted changes the state
                partitions[text] = new_partition  # type: ignore[assignment]
                return GRANTED
        except KeyError:
            pass  # swept out meanwhile
        return None

    return taken
