"""A crowd searches at once on portals with 0.3 s a page, at 10/s and 5/s, with the default settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.search.crowd import BESIDE_AFTER_SECONDS, run_crowd
from tests.support import assert_within

TIMEOUT = 60
"""The default of ``search.timeout``."""

BESIDE_SECONDS_MAX = 3.0
"""How long a person waits beside the crowd who needs one page."""


@pytest.mark.parametrize("workers", [1, 2])
def test_crowd__twelve_people__get_complete_answers_within_the_timeout(tmp_path: Path, workers: int) -> None:
    result = run_crowd(tmp_path, 12, workers=workers, beside_after=BESIDE_AFTER_SECONDS)
    assert [answer.is_complete for answer in result.answers] == [True] * 12, str(result)
    assert result.beside.is_complete
    assert_within(max(answer.seconds for answer in result.answers), TIMEOUT, "the slowest answer")
    assert_within(result.beside.seconds, BESIDE_SECONDS_MAX, "one UF beside the crowd")


@pytest.mark.parametrize("workers", [1, 2])
def test_crowd__fifty_people__get_complete_or_pending_answers_within_the_timeout(
    tmp_path: Path, workers: int
) -> None:
    result = run_crowd(tmp_path, 50, workers=workers, beside_after=BESIDE_AFTER_SECONDS)
    answers = [*result.answers, result.beside]
    assert all(answer.is_complete or answer.is_pending_with_estimate for answer in answers), str(result)
    assert_within(max(answer.seconds for answer in answers), TIMEOUT, f"the slowest answer ({result})")
