"""A minute of faults in turn under load, hundreds of one kind, one long outage (A8, A12)."""

from __future__ import annotations

import pytest
from tests.outages.promises import hold_to_promises
from tests.outages.repeated import kill_repeatedly, lose_replies, outage_of, stop_repeatedly
from tests.outages.story import ALL, play


@pytest.mark.parametrize("burst", [10, 100])
def test_fleet__every_fault_in_turn_under_load__keeps_the_limit_and_lets_nobody_down(burst: int) -> None:
    print(hold_to_promises(play(ALL, capacity=burst)))  # noqa: T201


def test_server__killed_100_times__every_decision_is_answered() -> None:
    print(kill_repeatedly(100))  # noqa: T201


def test_server__stopped_100_times__every_decision_is_answered_in_time() -> None:
    print(stop_repeatedly(100))  # noqa: T201


def test_replies__1000_lost__each_is_answered_and_none_is_carried_out_twice() -> None:
    print(lose_replies(1000))  # noqa: T201


def test_eight_processes__20_s_without_the_server__grant_two_tokens_each_too_much_at_the_most() -> None:
    print(outage_of(20.0, workers=8))  # noqa: T201
