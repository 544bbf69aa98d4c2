"""Several processes, one limit: never more than due, and hardly less (A6, A15, C9).

The long forms, with the promised half a percent, are in tests/soak.
"""

from __future__ import annotations

from math import floor
from typing import Any

import pytest
from tests.processes.accounting import check_bucket, check_window, granted
from tests.processes.fleet import patient, started, together
from tests.support import hold_to

TEN_PER_HOUR = {"rate": 10 / 3600, "capacity": 10}
TEN_PER_SECOND = {"rate": 10, "capacity": 10}
SECONDS = 0.8
# A machine of two cores that others use too: what is due is counted fairly, the rest is for rounding.
AT_LEAST = 0.95


@pytest.mark.parametrize("face", ["call", "call_at_once"])
def test_shared_limit__15_calls_from_two_processes__grants_exactly_10(state: str, face: str) -> None:
    with started(2, face, url=patient(state), limit=TEN_PER_HOUR, counts=[8, 7]) as workers:
        answers = together(workers)
    assert len(granted(answers)) == 10


def test_shared_limit__15_calls_at_10_per_second__grants_no_more_than_is_due(state: str) -> None:
    with started(2, "call", url=patient(state), limit=TEN_PER_SECOND, counts=[8, 7]) as workers:
        grants = granted(together(workers))
    elapsed = (max(after for _, after in grants) - min(before for before, _ in grants)) / 1e9
    assert 10 <= len(grants) <= 10 + floor(10 * (elapsed + 1e-6))


def hammered(
    state: str, limit: dict[str, Any], job: str = "hammer", seconds: float = SECONDS
) -> list[dict[str, Any]]:
    with started(2, job, url=patient(state), limit=limit, seconds=seconds) as workers:
        return together(workers)


@pytest.mark.parametrize("burst", [10, 1000])
def test_token_bucket__hammered_by_two_processes__grants_what_is_due(state: str, burst: int) -> None:
    answers = hammered(state, {"rate": 1000, "capacity": burst})
    print(check_bucket(answers, 1000, burst, AT_LEAST))  # noqa: T201


def test_token_bucket__awaited_by_two_processes__grants_what_is_due(state: str) -> None:
    answers = hammered(state, {"rate": 1000, "capacity": 100}, "hammer_awaiting")
    print(check_bucket(answers, 1000, 100, AT_LEAST))  # noqa: T201


@pytest.mark.parametrize(("capacity", "window", "rounds"), [(100, 0.1, 8.6), (500, 0.5, 2.6)])
def test_sliding_window__hammered_by_two_processes__is_never_exceeded(
    state: str, capacity: int, window: float, rounds: float
) -> None:
    limit = {"rate": 1, "capacity": capacity, "window": window, "strategy": "sliding_window"}
    answers = hammered(state, limit, seconds=rounds * window)
    print(check_window(answers, capacity, window, AT_LEAST))  # noqa: T201


def test_wall_clocks__two_seconds_apart_or_jumping_back__change_nothing(state: str) -> None:
    with (
        started(1, "hammer", url=patient(state), limit=PACED, seconds=SECONDS, wall={"ahead": 2.0}) as ahead,
        started(
            1, "hammer", url=patient(state), limit=PACED, seconds=SECONDS, wall={"back_after": 0.4}
        ) as jumping,
    ):
        answers = together([*ahead, *jumping])
    print(check_bucket(answers, 1000, 100, AT_LEAST))  # noqa: T201
    for answer in answers:
        hold_to((answer["ended_ns"] - answer["grants"][-1][1]) / 1e9, 0.5, "the last grant before the end")


PACED = {"rate": 1000, "capacity": 100}
