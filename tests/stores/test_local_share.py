"""A worker's local state during one outage."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from comporta.errors import StateUnavailableError
from comporta.stores.base import Operation, Script, State, StateKey, StateType
from comporta.stores.failover.local_share import LocalShare
from comporta.stores.outage_info import Outage
from comporta.testing import ManualClock


class ReportedState(StateType):
    """A state that reports itself."""

    name = "reported"
    codec = Struct("<q")

    def __init__(self, reports: list[tuple[object, ...]]) -> None:
        self._reports = reports

    def expires_us(self, state: State) -> int:
        return 2**60

    def take_report(
        self, space: str, key: str, state: State, now_us: int
    ) -> tuple[Operation[object] | None, State | None]:
        self._reports.append((space, key, state, now_us))
        return None, None


class WriteOne(Operation[None]):
    """Writes 1, also during an outage."""

    script = Script("none", str)

    def __init__(self, key: StateKey) -> None:
        self._key = key

    @property
    def state_keys(self) -> list[StateKey]:
        return [self._key]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], None]:
        return [(1,)], None

    def script_args(self) -> list[int | str | bytes]:
        return []

    def parse(self, raw: Sequence[Any]) -> None:
        return None

    def fallback(self, outage: Outage) -> WriteOne:
        return self


def local_share() -> LocalShare:
    return LocalShare(Outage(0.0, 0, "gone", 2), StateUnavailableError("gone"), ManualClock(7))


def test_local_share__divided_by_more_workers__refuses_further_keys_by_the_same_count() -> None:
    share = local_share()
    assert share.divide_by(3)
    assert share.outage == Outage(0.0, 0, "gone", 3, first_worker_count=2)
    assert share.full_outage == share.outage._replace(full=True)
    assert not share.divide_by(3)


def test_collect_reports__any_state__gets_its_space_key_and_time() -> None:
    share, reports = local_share(), list[tuple[object, ...]]()
    share.apply(WriteOne(StateKey("space", "k", ReportedState(reports))))
    assert share.collect_reports() == []
    assert reports == [("space", "k", (1,), 7_000_000)]
