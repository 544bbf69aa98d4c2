"""A minute of faults under load, hundreds of repetitions of one fault, one long outage (A8, A12)."""

from __future__ import annotations

import pytest
from tests.outages.double_faults import Script, check_excess, hang_twice, lose_packets, lose_requests
from tests.outages.latency import assert_steady, run_far_away
from tests.outages.promises import assert_promises
from tests.outages.repeated_faults import kill_repeatedly, lose_replies, outage_of, stop_repeatedly
from tests.outages.scenario import ALL_FAULTS, run_faults


@pytest.mark.parametrize("burst", [10, 100])
def test_fleet__every_fault_in_turn__keeps_the_limit(burst: int) -> None:
    print(assert_promises(run_faults(ALL_FAULTS, capacity=burst)))  # noqa: T201


def test_server__killed_100_times__every_call_is_answered() -> None:
    print(kill_repeatedly(100))  # noqa: T201


def test_server__stopped_100_times__every_call_is_answered_in_time() -> None:
    print(stop_repeatedly(100))  # noqa: T201


def test_replies__1000_lost__every_call_is_answered_and_executed_at_most_once() -> None:
    print(lose_replies(1000))  # noqa: T201


def test_eight_processes__outage_of_20_s__exceed_by_at_most_two_tokens_each() -> None:
    print(outage_of(20.0, workers=8))  # noqa: T201


@pytest.mark.parametrize("faults", [hang_twice, lose_packets, lose_requests])
@pytest.mark.parametrize("workers", [4, 8])
def test_fleet__double_faults_five_times__grants_at_most_a_token_per_worker_too_many(
    faults: Script, workers: int
) -> None:
    for _ in range(5):
        print(check_excess(faults, workers))  # noqa: T201


def test_fleet__round_trips_of_40_ms_for_a_minute__falls_back_at_most_once() -> None:
    assert_steady(run_far_away(60.0), fallbacks_max=1)
