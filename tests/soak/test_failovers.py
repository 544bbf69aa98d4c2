"""Ten primaries behind sentinels, killed one after the other under load (A8, A12)."""

from __future__ import annotations

import pytest
from tests.outages.failovers import fail_over, move_slots

from comporta import LimitStrategy


def test_primary__killed_ten_times_under_load__is_followed_and_lets_nobody_down() -> None:
    print(fail_over(10))  # noqa: T201


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_slot__moved_ten_times_under_load__lets_nobody_down(strategy: LimitStrategy) -> None:
    print(move_slots(10, strategy=strategy.value, window=0.1))  # noqa: T201
