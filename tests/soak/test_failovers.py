"""Ten failovers and ten slot moves under load (A8, A12)."""

from __future__ import annotations

import pytest
from tests.outages.failovers import fail_over, move_slots

from comporta import LimitStrategy


def test_primary__killed_ten_times_under_load__every_call_is_answered() -> None:
    print(fail_over(10))  # noqa: T201


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_slot__moved_ten_times_under_load__every_call_is_answered(strategy: LimitStrategy) -> None:
    print(move_slots(10, strategy=strategy.value, window=0.1))  # noqa: T201
