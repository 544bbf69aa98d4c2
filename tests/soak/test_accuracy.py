"""Ten seconds of hammering: never above what is due, at most half a percent below (C9)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.processes.accounting import check_bucket, check_window
from tests.processes.fleet import started, together

SECONDS = 10.0
AT_LEAST = 0.995


def hammered(
    state: str, limit: dict[str, Any], job: str = "hammer", seconds: float = SECONDS
) -> list[dict[str, Any]]:
    with started(2, job, url=state, limit=limit, seconds=seconds) as workers:
        return together(workers)


@pytest.mark.parametrize("job", ["hammer", "hammer_awaiting"])
@pytest.mark.parametrize("burst", [10, 1000])
def test_token_bucket__hammered_for_ten_seconds__grants_what_is_due(state: str, burst: int, job: str) -> None:
    answers = hammered(state, {"rate": 1000, "capacity": burst}, job)
    print(check_bucket(answers, 1000, burst, AT_LEAST))  # noqa: T201


@pytest.mark.parametrize(("capacity", "window"), [(250, 0.25), (1000, 1)])
def test_sliding_window__hammered_for_ten_seconds__is_never_exceeded(
    state: str, capacity: int, window: float
) -> None:
    limit = {"rate": 1, "capacity": capacity, "window": window, "strategy": "sliding_window"}
    answers = hammered(state, limit, seconds=SECONDS + 0.6 * window)
    print(check_window(answers, capacity, window, AT_LEAST))  # noqa: T201


@pytest.mark.parametrize("wall", [{"ahead": 2.0}, {"ahead": -2.0}, {"back_after": 3.0}])
def test_wall_clock__of_one_process_is_wrong__changes_nothing(state: str, wall: dict[str, float]) -> None:
    told: dict[str, Any] = {"url": state, "limit": {"rate": 1000, "capacity": 1000}, "seconds": SECONDS}
    with started(1, "hammer", **told, wall=wall) as wrong, started(1, "hammer", **told) as right:
        answers = together([*wrong, *right])
    print(check_bucket(answers, 1000, 1000, AT_LEAST))  # noqa: T201
    assert all(answer["grants"][-1][1] > answer["ended_ns"] - 500_000_000 for answer in answers)


@pytest.mark.parametrize("round_", range(25))
def test_shared_limit__15_calls_from_two_processes__grants_exactly_10(state: str, round_: int) -> None:
    limit = {"rate": 10 / 3600, "capacity": 10}
    with started(2, "call", url=state, limit=limit, counts=[8, 7]) as workers:
        assert sum(len(answer["grants"]) for answer in together(workers)) == 10
