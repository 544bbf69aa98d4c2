"""Failovers and slot moves under load: the short form of ``tests/soak/test_failovers.py``."""

from __future__ import annotations

from tests.outages.failovers import fail_over, move_slots


def test_primary__killed_under_load__every_call_is_answered() -> None:
    fail_over(1)


def test_slot__moved_under_load__every_call_is_answered() -> None:
    move_slots(3)
