"""A minute of faults under load, hundreds of repetitions of one fault, one long outage (A8, A12)."""

from __future__ import annotations

import pytest
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
