"""Coverage: which units of a request a result covers, its JSON, and invalid input."""

from __future__ import annotations

from typing import Any

import pytest

from comporta import Coverage

SEVEN = {"succeeded_ufs": list("ABCDEFG"), "failed_ufs": ["H"], "total_requested": 9}


def test_parse__mapping__round_trips() -> None:
    coverage = Coverage.parse(SEVEN)
    assert coverage is not None
    assert coverage.as_dict() == SEVEN
    assert str(coverage) == "7 of 9"
    assert not coverage.is_complete
    assert Coverage.parse(coverage) is coverage
    assert Coverage.parse(None) is None


def test_parse__any_name_for_the_units__is_kept_and_ignored_in_comparisons() -> None:
    plain, pages = {"succeeded": ["1"], "failed": [], "total_requested": 1}, {"succeeded_pages": ["1"]}
    assert Coverage.parse(plain) == Coverage.parse(pages) == Coverage(("1",))
    assert Coverage.parse(plain) == Coverage(("1",), units="pages")
    coverage = Coverage.parse(pages)
    assert coverage is not None
    assert coverage.units == "pages"
    assert coverage.as_dict() == {"succeeded_pages": ["1"], "failed_pages": [], "total_requested": 1}
    assert coverage.merge(Coverage(("2",))).units == "pages"
    assert Coverage(("1",)).as_dict() == plain


def test_coverage__total_omitted__counts_the_named_units() -> None:
    assert Coverage(("SP",), ("RJ",)).total_requested == 2
    assert Coverage(("SP",)).is_complete


def test_merge__missing_units_loaded__are_covered() -> None:
    before = Coverage(("SP",), ("RJ", "MA"))
    assert before.merge(Coverage(("RJ",), ("MA",))) == Coverage(("SP", "RJ"), ("MA",))
    assert before.merge(Coverage(("RJ", "MA"))).is_complete
    assert before.merge(Coverage(("RJ", "MA", "PA", "PI"))).total_requested == 5
    assert Coverage(("SP",)).merge(Coverage((), ("RJ",))) == Coverage(("SP",), ("RJ",), 2)
    assert Coverage(("SP",), (), 5).merge(Coverage(("RJ",))) == Coverage(("SP", "RJ"), (), 5)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({**SEVEN, "states": 3}, ValueError, "only the fields .* got 'states': 3"),
        ({"failed_ufs": []}, ValueError, "coverage must have a field succeeded"),
        ("7 of 9", TypeError, "coverage must be a mapping with a field succeeded, got '7 of 9'"),
        ({"succeeded_ufs": "SP"}, TypeError, "coverage.succeeded must be a list of names, got 'SP'"),
        ({"succeeded_ufs": 3}, TypeError, "coverage.succeeded must be a list of names, got 3"),
        ({"succeeded_ufs": [3]}, TypeError, "coverage.succeeded must contain only non-empty names, got 3"),
        ({"succeeded_ufs": [""]}, TypeError, "coverage.succeeded must contain only non-empty names, got ''"),
        ({"succeeded": [], "failed": 3}, TypeError, "coverage.failed must be a list of names, got 3"),
        ({"succeeded_ufs": ["A", "A"]}, ValueError, "coverage.succeeded must name each unit once"),
        (
            {"succeeded_ufs": ["A"], "failed_ufs": ["A"]},
            ValueError,
            "units that succeeded, got 'A'",
        ),
        ({"succeeded_ufs": ["A"], "failed": []}, ValueError, "one name for its units"),
        ({3: ["A"]}, ValueError, "only the fields .* got 3"),
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
def test_coverage__invalid__raises_with_the_value(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Coverage.parse(given)


@pytest.mark.parametrize("units", ["Pages", "a b", "1", "x" * 41, 3])
def test_coverage__invalid_units__raises(units: Any) -> None:
    with pytest.raises(ValueError, match=r"coverage\.units must be a word"):
        Coverage(("1",), units=units)
