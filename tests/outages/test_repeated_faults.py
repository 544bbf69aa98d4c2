"""Repeated faults: the short form of ``tests/soak/test_outages.py``."""

from __future__ import annotations

from tests.outages.repeated_faults import kill_repeatedly, lose_replies, outage_of, stop_repeatedly


def test_server__killed_repeatedly__every_call_is_answered_and_the_limit_kept() -> None:
    kill_repeatedly(5)


def test_server__stopped_repeatedly__every_call_is_answered_and_the_limit_kept() -> None:
    stop_repeatedly(5)


def test_replies__50_lost__every_call_is_answered_and_executed_at_most_once() -> None:
    lose_replies(50)


def test_four_processes__outage_of_3_s__exceed_by_at_most_two_tokens_each() -> None:
    outage_of(3.0, workers=4)
