"""A share that falls and climbs in steps."""

from __future__ import annotations

import pytest

from comporta.steps import WHOLE, is_due, lowered, lowered_to, millionths, raised


def test_share__from_the_whole_to_the_floor_and_back__stays_between() -> None:
    share, seen = WHOLE, []
    for _ in range(12):
        share = lowered(share, 100_000, 100_000)
        seen.append(share)
    for _ in range(12):
        share = raised(share, 100_000)
        seen.append(share)
    down = [n * 100_000 for n in range(9, 0, -1)]
    assert seen == [*down, 100_000, 100_000, 100_000, *(n * 100_000 for n in range(2, 11)), *[WHOLE] * 3]


def test_share__below_the_floor__is_not_lifted_and_never_nothing() -> None:
    assert lowered(50, 10, 100) == 50
    assert lowered(5, 10, 0) == 1
    assert lowered_to(500, 900, 100) == 500
    assert lowered_to(500, 0, 0) == 1
    assert lowered_to(500, 200, 100) == 200
    assert millionths(1e-9) == 1
    assert millionths(0.1) == 100_000


@pytest.mark.parametrize(("since_us", "due"), [(0, False), (4, False), (5, True), (-1, True)])
def test_due__by_the_time_since_the_last_step__is_told(since_us: int, due: bool) -> None:
    assert is_due(100 + since_us, 100, 5) is due
