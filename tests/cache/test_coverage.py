"""Coverage: what part an answer holds, and what is no coverage."""

from __future__ import annotations

from typing import Any

import pytest

from comporta import Coverage

SEVEN = {"succeeded_ufs": list("ABCDEFG"), "failed_ufs": ["H"], "total_requested": 9}


def test_coverage__of_a_mapping__is_that_mapping_again() -> None:
    coverage = Coverage.of(SEVEN)
    assert coverage is not None
    assert coverage.as_dict() == SEVEN
    assert str(coverage) == "7 of 9"
    assert not coverage.complete
    assert Coverage.of(coverage) is coverage
    assert Coverage.of(None) is None


def test_coverage__total_left_out__is_all_that_is_named() -> None:
    assert Coverage(("SP",), ("RJ",)).total_requested == 2
    assert Coverage(("SP",)).complete


def test_joined__what_was_missing__is_there() -> None:
    before = Coverage(("SP",), ("RJ", "MA"))
    assert before.joined(Coverage(("RJ",), ("MA",))) == Coverage(("SP", "RJ"), ("MA",))
    assert before.joined(Coverage(("RJ", "MA"))).complete
    assert before.joined(Coverage(("RJ", "MA", "PA", "PI"))).total_requested == 5


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({**SEVEN, "states": 3}, ValueError, "nothing else, got 'states': 3"),
        ({"failed_ufs": []}, ValueError, "coverage.succeeded_ufs must be there"),
        ("7 of 9", TypeError, "coverage must be a mapping with succeeded_ufs"),
        ({"succeeded_ufs": "SP"}, TypeError, "coverage.succeeded_ufs must be a list of names, got 'SP'"),
        ({"succeeded_ufs": 3}, TypeError, "coverage.succeeded_ufs must be a list of names, got 3"),
        ({"succeeded_ufs": [3]}, TypeError, "coverage.succeeded_ufs must hold names, got 3"),
        ({"succeeded_ufs": [""]}, TypeError, "coverage.succeeded_ufs must hold names, got ''"),
        ({"succeeded_ufs": ["A", "A"]}, ValueError, "coverage.succeeded_ufs must name each part once"),
        ({"succeeded_ufs": ["A"], "failed_ufs": ["A"]}, ValueError, "must not hold what succeeded, got 'A'"),
        (
            {"succeeded_ufs": ["A"], "total_requested": 0},
            ValueError,
            "total_requested must be 1 to 1000, got 0",
        ),
        (
            {"succeeded_ufs": [], "total_requested": True},
            TypeError,
            "total_requested must be an int, got True",
        ),
    ],
)
def test_coverage__what_is_none__is_named(given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Coverage.of(given)
