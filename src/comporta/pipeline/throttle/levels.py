"""Taking from two limits at once, a global one and one of many partitions, as one operation.

On a server it is the script of every group of limits (``limits/limit.lua``). Here it is leaner than a group:
what is in force of each limit is read in the same step, as the script does it, so that there may be a million
partitions of which nobody keeps a limiter; and the answer is two waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from comporta.clock import SECOND_US
from comporta.limits.operation import CHANGES, SPACE, LimitOperation, Question
from comporta.limits.rule import KEPT_AT_LEAST_US, Rule, ceil_div
from comporta.limits.share import rule_alone
from comporta.steps import WHOLE
from comporta.stores.base import Codec, Kind, Outage, Part, Script, State
from comporta.stores.records import RECORD

REVISED_MAX = 1000
"""How many rules made from records are kept to be used again."""


class Waits(NamedTuple):
    """What both levels say, in microseconds; granted if both are 0."""

    whole_us: int
    partition_us: int


GRANTED = Waits(0, 0)


class Settling:
    """How long the state of a partition is kept: until its bucket is full again, however far it is degraded.

    A limiter keeps it for a minute at least, for what it counts of the last minute. Here idle partitions are
    to be forgotten.
    """

    __slots__ = ("_kept_us", "codec")

    def __init__(self, rule: Rule, floor: int) -> None:
        capacity, per_us, unit, _ = rule.numbers
        filled_us = ceil_div(capacity * unit, per_us)
        self._kept_us = max(SECOND_US, filled_us, min(filled_us * WHOLE // floor, KEPT_AT_LEAST_US))
        self.codec: Codec = rule.codec

    def expires_us(self, state: State) -> int:
        """Tell from when on this state means no more than having none."""
        return int(state[1]) + self._kept_us


class Levels:
    """The two limits by their names and rules, and what is in force of them.

    ``kind`` says how long the state of a partition is kept. ``recorded``: operators and degradation have a
    say; not for a worker that is on its own.
    """

    __slots__ = ("_alone", "_revised", "fallback", "kind", "name", "partition", "recorded", "whole")

    def __init__(
        self, name: str, whole: Rule, partition: Rule, kind: Kind, fallback: str, *, recorded: bool = True
    ) -> None:
        self.name = name
        self.whole = whole
        self.partition = partition
        self.kind = kind
        self.fallback = fallback
        self.recorded = recorded
        self._revised: dict[tuple[Rule, bytes], Rule] = {}
        self._alone: tuple[Outage, Levels] | None = None

    def partition_name(self, partition: str) -> str:
        """Return what a partition's limit is called; all of a throttle live in one part of a cluster."""
        return f"{self.name}.partition:{partition}"

    def in_force(self, rule: Rule, record: State | None) -> Rule:
        """Return a rule under what is recorded."""
        if record is None:
            return rule
        key = (rule, record[1])
        found = self._revised.get(key)
        if found is None:
            if len(self._revised) >= REVISED_MAX:
                self._revised.clear()
            found = self._revised[key] = rule.revised(record[1])
        return found

    def parts(self, partition: str) -> list[Part]:
        """Return the states of both limits, and after each of them what is recorded of it."""
        name = self.name
        found = [
            Part(f"{SPACE}:{name}", "", self.whole),
            Part(f"{SPACE}:{name}.partition", partition, self.kind),
        ]
        if self.recorded:
            found.append(Part(CHANGES, name, RECORD))
            found.append(Part(CHANGES, self.partition_name(partition), RECORD))
        return found

    def alone(self, outage: Outage) -> Levels:
        """Return this worker's own part of both, the same throughout an outage."""
        kept = self._alone
        if kept is None or kept[0] is not outage:
            name = self.name
            whole = rule_alone(self.whole, name, self.fallback, outage)
            partition = rule_alone(self.partition, f"{name}.partition", self.fallback, outage)
            own = Levels(name, whole, partition, partition, self.fallback, recorded=False)
            kept = self._alone = (outage, own)
        return kept[1]


class TakeBoth:
    """Take from both limits, or from none; the reply says how long each would have one wait.

    It says nothing of the moment, so one value may be applied again and again.
    """

    __slots__ = ("_levels", "_partition", "cost", "parts")

    followed = False

    def __init__(
        self, levels: Levels, partition: str, cost: int, parts: Sequence[Part] | None = None
    ) -> None:
        self._levels = levels
        self._partition = partition
        self.cost = cost
        self.parts = levels.parts(partition) if parts is None else parts

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], Waits]:
        """Decide both, then charge both or none; a refusal's new state only anchors the clock."""
        levels, cost = self._levels, self.cost
        whole, partition = levels.whole, levels.partition
        if levels.recorded:
            whole = levels.in_force(whole, states[2])
            partition = levels.in_force(partition, states[3])
        new_whole, whole_us = whole.step(states[0], now_us, cost)
        new_partition, partition_us = partition.step(states[1], now_us, cost)
        more = (None, None) if levels.recorded else ()
        if whole_us == 0 == partition_us:
            return (new_whole, new_partition, *more), GRANTED
        kept = (new_whole if whole_us else None, new_partition if partition_us else None)
        return (*kept, *more), Waits(whole_us, partition_us)

    @property
    def script(self) -> Script:
        """The one of any two limits."""
        return self._group(self.cost).script

    def key_names(self) -> list[str]:
        """Return the states and the records."""
        return self._group(self.cost).key_names()

    def arguments(self) -> list[int | str | bytes]:
        """Return the numbers of both."""
        return self._group(self.cost).arguments()

    @property
    def fields(self) -> int:
        """What a group of two has."""
        return self._group(self.cost).fields

    def parse(self, raw: Sequence[Any]) -> Waits:
        """Read the two waits."""
        whole, partition = self._group(self.cost).parse(raw)
        return Waits(whole.wait_us, partition.wait_us)

    def undo(self, reply: Waits) -> LimitOperation | None:
        """Give back what was granted to a caller that is gone."""
        return self._group(-self.cost) if reply == GRANTED else None

    def alone(self, outage: Outage) -> TakeBoth:
        """Take from this worker's own part of both limits."""
        return TakeBoth(self._levels.alone(outage), self._partition, self.cost)

    def _group(self, amount: int) -> LimitOperation:
        levels = self._levels
        partition = levels.partition_name(self._partition)
        return LimitOperation(
            [
                Question(levels.whole, levels.name, "", amount),
                Question(levels.partition, partition, "", amount),
            ]
        )
