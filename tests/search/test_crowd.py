"""A crowd searches at once: a short version of ``tests/soak/test_crowd.py``, with faster portals."""

from __future__ import annotations

from pathlib import Path

from tests.search.crowd import run_crowd
from tests.support import assert_within

from comporta.service.search.query import UFS

PEOPLE = 6
SHORT_TIMEOUT = 5
"""Seconds: less than the limits need for all pages."""


def test_crowd__enough_time__all_answers_are_complete_and_each_page_is_read_once(tmp_path: Path) -> None:
    result = run_crowd(tmp_path, PEOPLE, workers=2, rates=(200, 100), latency=0.01, volume=1)
    assert [answer.is_complete for answer in result.answers] == [True] * PEOPLE, str(result)
    assert result.beside.is_complete
    assert result.pages["pncp"] == PEOPLE * len(UFS) + 2  # and one UF for each of the two others


def test_crowd__too_little_time__all_answers_are_pending_and_come_in_time(tmp_path: Path) -> None:
    result = run_crowd(tmp_path, PEOPLE, rates=(20, 10), latency=0.01, volume=1, timeout=SHORT_TIMEOUT)
    answers = [*result.answers, result.beside]
    assert all(answer.is_complete or answer.is_pending_with_estimate for answer in answers), str(result)
    assert any(answer.is_pending_with_estimate for answer in answers), str(result)
    assert_within(max(answer.seconds for answer in answers), SHORT_TIMEOUT, "the slowest answer")
