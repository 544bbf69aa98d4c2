"""The same fault again and again: short forms of ``tests/soak/test_outages.py``."""

from __future__ import annotations

from tests.outages.repeated import kill_repeatedly, lose_replies, outage_of, stop_repeatedly


def test_server__killed_again_and_again__every_decision_is_answered_and_the_limit_kept() -> None:
    kill_repeatedly(5)


def test_server__stopped_again_and_again__every_decision_is_answered_and_the_limit_kept() -> None:
    stop_repeatedly(5)


def test_replies__50_lost__each_is_answered_and_none_is_carried_out_twice() -> None:
    lose_replies(50)


def test_four_processes__3_s_without_the_server__grant_two_tokens_each_too_much_at_the_most() -> None:
    outage_of(3.0, workers=4)
