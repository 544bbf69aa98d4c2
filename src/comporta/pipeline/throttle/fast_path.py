"""The fast path: acquire from both limits in this process, like ``MemoryBoundLimit`` does for one limit.

It takes no lock. It decides on states that never change, and stores the new ones only if the old ones are
still there. CPython switches threads and runs signal handlers only at calls and loops, and between that check
and the second write there is neither. All rarer cases go through ``AcquireBoth``: a new partition, a limit
that is degraded, paused or overridden, a clock that was set back, a sweep of the store.
"""

from __future__ import annotations

from collections.abc import Callable

from comporta.limits.scripts import LIMIT_SPACE, OVERRIDE_SPACE
from comporta.pipeline.throttle.operation import GRANTED, ThrottleLimits, ThrottleWaits
from comporta.stores.in_process_states import InProcessStates
from comporta.stores.records import RECORD

FastAcquire = Callable[[str, str, int], ThrottleWaits | None]
"""Acquires from a partition, given its key, the name of its limit and a cost; ``None``: use the operation."""


def fast_acquire(store: InProcessStates | None, limits: ThrottleLimits) -> FastAcquire | None:
    """Return the function that acquires from both limits on this store; ``None`` without one."""
    if store is None:
        return None
    name = limits.name
    global_states = store.space_states(f"{LIMIT_SPACE}:{name}", limits.global_strategy)
    partition_states = store.space_states(f"{LIMIT_SPACE}:{name}.partition", limits.partition_state_type)
    overrides = store.space_states(OVERRIDE_SPACE, RECORD)
    global_step, partition_step = limits.global_strategy.step, limits.partition_strategy.step
    global_of, partition_of, now_ns = global_states.get, partition_states.get, store.clock.now_ns

    def acquire(key: str, limit_name: str, cost: int) -> ThrottleWaits | None:
        global_state, state = global_of(""), partition_of(key)
        if global_state is None or state is None or name in overrides or limit_name in overrides:
            return None
        now_us = now_ns() // 1000
        new_global, global_us = global_step(global_state, now_us, cost)
        new_state, partition_us = partition_step(state, now_us, cost)
        if global_us or partition_us:
            is_anchored = (global_us and new_global) or (partition_us and new_state)
            return None if is_anchored else ThrottleWaits(global_us, partition_us)
        try:
            # one step for all other threads: no call and no loop from here to the second write
            if (
                now_us < store.fast_path_until_us
                and global_states[""] is global_state
                and partition_states[key] is state
            ):
                global_states[""] = new_global  # type: ignore[assignment]  # a grant changes the state
                partition_states[key] = new_state  # type: ignore[assignment]
                return GRANTED
        except KeyError:
            pass  # swept from the store meanwhile
        return None

    return acquire
