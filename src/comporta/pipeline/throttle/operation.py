"""The operation that acquires from two limits at once: the global limit and the limit of one partition.

On a server it runs the script of every group of limits (``limits/limit.lua``). In this process it is leaner
than a group: it reads the overrides of both limits in the same step, as the script does, so there may be a
million partitions without a limiter for each; and its reply is two waits.

This module knows nothing about callers that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from comporta.clock import SECOND_US
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.scripts import LIMIT_SPACE, OVERRIDE_SPACE
from comporta.limits.strategies.base import STATE_TTL_US_MIN, Strategy, ceil_div
from comporta.limits.strategies.outage_share import fallback_strategy
from comporta.ramp import FULL_SHARE
from comporta.stores.base import PINNED_US, Codec, Operation, Script, State, StateKey, StateType
from comporta.stores.outage_info import Outage
from comporta.stores.records import RECORD

OVERRIDDEN_MAX = 1000
"""How many strategies made from overrides are cached."""


class ThrottleWaits(NamedTuple):
    """How long each limit makes the caller wait, in microseconds; the call is granted if both are 0."""

    global_us: int
    partition_us: int


GRANTED = ThrottleWaits(0, 0)


class PartitionStateType(StateType):
    """The state of a partition, kept until its bucket is full again, however far it is degraded.

    A limiter keeps its state for at least a minute, because it counts the requests of the last minute. Here
    idle partitions should be forgotten.
    """

    __slots__ = ("_strategy", "_ttl_us", "codec", "name")

    evictable = True

    def __init__(self, strategy: Strategy, floor: int) -> None:
        capacity, per_us, unit, _ = strategy.params
        filled_us = ceil_div(capacity * unit, per_us)
        self._ttl_us = max(SECOND_US, filled_us, min(filled_us * FULL_SHARE // floor, STATE_TTL_US_MIN))
        self._strategy = strategy
        self.name = strategy.name
        self.codec: Codec = strategy.codec

    def expires_us(self, state: State) -> int:
        """Return the time from which this state means the same as no state."""
        return int(state[1]) + self._ttl_us

    def retention_us(self, state: State) -> int:
        """Return the same time, pinned if the bucket has nothing left for another grant."""
        return self.expires_us(state) + (self._strategy.retention_us(state) & PINNED_US)


class ThrottleLimits:
    """The names and strategies of both limits.

    ``partition_state_type`` says how long the state of a partition is kept. ``has_overrides`` says whether
    operators and degradation may change the limits; during an outage a worker's local share has no overrides.
    """

    __slots__ = (
        "_outage_limits",
        "_overridden",
        "fallback",
        "global_strategy",
        "has_overrides",
        "name",
        "partition_state_type",
        "partition_strategy",
    )

    def __init__(
        self,
        name: str,
        global_strategy: Strategy,
        partition_strategy: Strategy,
        partition_state_type: StateType,
        fallback: str,
        *,
        has_overrides: bool = True,
    ) -> None:
        self.name = name
        self.global_strategy = global_strategy
        self.partition_strategy = partition_strategy
        self.partition_state_type = partition_state_type
        self.fallback = fallback
        self.has_overrides = has_overrides
        self._overridden: dict[tuple[Strategy, bytes], Strategy] = {}
        self._outage_limits: tuple[Outage, ThrottleLimits] | None = None

    def partition_name(self, partition: str) -> str:
        """Return the name of a partition's limit; all limits of a throttle are in one slot of a cluster."""
        return f"{self.name}.partition:{partition}"

    def effective_strategy(self, strategy: Strategy, record: State | None) -> Strategy:
        """Return a strategy under the override in this record."""
        if record is None:
            return strategy
        key = (strategy, record[1])
        overridden = self._overridden.get(key)
        if overridden is None:
            if len(self._overridden) >= OVERRIDDEN_MAX:
                self._overridden.clear()
            overridden = self._overridden[key] = strategy.with_override(record[1])
        return overridden

    def state_keys(self, partition: str) -> list[StateKey]:
        """Return the keys of both limits' states, then those of their overrides."""
        name = self.name
        keys = [
            StateKey(f"{LIMIT_SPACE}:{name}", "", self.global_strategy),
            StateKey(f"{LIMIT_SPACE}:{name}.partition", partition, self.partition_state_type),
        ]
        if self.has_overrides:
            keys.append(StateKey(OVERRIDE_SPACE, name, RECORD))
            keys.append(StateKey(OVERRIDE_SPACE, self.partition_name(partition), RECORD))
        return keys

    def local_share(self, outage: Outage) -> ThrottleLimits:
        """Return this worker's local share of both limits, the same object throughout an outage."""
        cached = self._outage_limits
        if cached is None or cached[0] is not outage:
            name = self.name
            global_share = fallback_strategy(self.global_strategy, name, self.fallback, outage)
            partition = fallback_strategy(self.partition_strategy, f"{name}.partition", self.fallback, outage)
            limits = ThrottleLimits(
                name, global_share, partition, partition, self.fallback, has_overrides=False
            )
            cached = self._outage_limits = (outage, limits)
        return cached[1]


class AcquireBoth(Operation[ThrottleWaits]):
    """Acquire from both limits or from neither; the reply says how long each makes the caller wait.

    The operation holds no time, so one object may be applied many times.
    """

    __slots__ = ("_limits", "_partition", "cost", "state_keys")

    state_keys: Sequence[StateKey]

    def __init__(
        self, limits: ThrottleLimits, partition: str, cost: int, state_keys: Sequence[StateKey] | None = None
    ) -> None:
        self._limits = limits
        self._partition = partition
        self.cost = cost
        self.state_keys = limits.state_keys(partition) if state_keys is None else state_keys

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], ThrottleWaits]:
        """Decide both, then charge both or neither; the new state of a refusal only anchors the clock."""
        limits, cost = self._limits, self.cost
        global_strategy, partition_strategy = limits.global_strategy, limits.partition_strategy
        if limits.has_overrides:
            global_strategy = limits.effective_strategy(global_strategy, states[2])
            partition_strategy = limits.effective_strategy(partition_strategy, states[3])
        new_global, global_us = global_strategy.step(states[0], now_us, cost)
        new_partition, partition_us = partition_strategy.step(states[1], now_us, cost)
        overrides = (None, None) if limits.has_overrides else ()  # unchanged
        if global_us == 0 == partition_us:
            return (new_global, new_partition, *overrides), GRANTED
        anchored = (new_global if global_us else None, new_partition if partition_us else None)
        return (*anchored, *overrides), ThrottleWaits(global_us, partition_us)

    @property
    def script(self) -> Script:
        """The script of a group of two limits."""
        return self._group_operation(self.cost).script

    def script_keys(self) -> list[str]:
        """Return the keys of the states and the overrides."""
        return self._group_operation(self.cost).script_keys()

    def script_args(self) -> list[int | str | bytes]:
        """Return the parameters of both limits."""
        return self._group_operation(self.cost).script_args()

    @property
    def reply_size(self) -> int:
        """The reply size of a group of two limits."""
        return self._group_operation(self.cost).reply_size

    def parse(self, raw: Sequence[Any]) -> ThrottleWaits:
        """Read the two waits."""
        of_global, of_partition = self._group_operation(self.cost).parse(raw)
        return ThrottleWaits(of_global.wait_us, of_partition.wait_us)

    def undo(self, reply: ThrottleWaits) -> LimitOperation | None:
        """Return the operation that gives back a grant whose caller was cancelled."""
        return self._group_operation(-self.cost) if reply == GRANTED else None

    def fallback(self, outage: Outage) -> AcquireBoth:
        """Acquire from this worker's local share of both limits."""
        return AcquireBoth(self._limits.local_share(outage), self._partition, self.cost)

    def _group_operation(self, amount: int) -> LimitOperation:
        limits = self._limits
        partition = limits.partition_name(self._partition)
        return LimitOperation(
            [
                LimitDemand(limits.global_strategy, limits.name, "", amount),
                LimitDemand(limits.partition_strategy, partition, "", amount),
            ]
        )
