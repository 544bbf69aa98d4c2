"""Cells: no text becomes a formula, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comporta.pipeline.sinks.formula_escaping import cell, csv_cell

OPERATORS = "=+-@＝＋－＠"  # noqa: RUF001 - some programs treat full-width operators like ASCII ones
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


class Level(IntEnum):
    HIGH = 3
    LOW = -1


@pytest.mark.unmeasured
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(
    "before", ["", " ", "\t", "\r", "\n", "\u00a0", "\u200b", "\ufeff", '"', "\0", " \t\u2003"]
)
def test_csv_cell__text_that_could_be_a_formula__starts_with_an_apostrophe(
    operator: str, before: str
) -> None:
    assert str(csv_cell(f"{before}{operator}1+1")).startswith("'")


@pytest.mark.parametrize("separator", [";", "|", "\t", "\r", "\n"])
def test_csv_cell__formula_after_another_locales_separator__gets_an_apostrophe(separator: str) -> None:
    assert csv_cell(f'a{separator} "=1+1') == f"a{separator}' \"=1+1"
    assert csv_cell(f"a{separator}b=c") == f"a{separator}b=c"


@pytest.mark.parametrize("text", ["", "a", "Ana=1", "a - b", "São Paulo", "5-3", "(=1)", "'=1", "x@y.com"])
def test_csv_cell__other_text__is_unchanged(text: str) -> None:
    assert csv_cell(text) == cell(text) == text


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_csv_cell__any_text__is_never_a_formula_in_any_column(text: str) -> None:
    import re  # noqa: PLC0415 - only here

    for piece in re.split("[;|\t\r\n]", str(csv_cell(text))):
        shown = piece.lstrip(' \u00a0\u200b\ufeff\0"')
        assert not shown or shown[0] not in OPERATORS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-5, -5),
        (0.5, 0.5),
        (True, True),
        (None, ""),
        (10**15, "1000000000000000"),
        (-(10**16), "-10000000000000000"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (Decimal("1.10"), "1.10"),
        (Level.HIGH, 3),
        (date(2026, 2, 3), "2026-02-03"),
        (datetime(2026, 2, 3, 4, 5, tzinfo=UTC), "2026-02-03T04:05:00+00:00"),
        (b"a\xff", "a\ufffd"),
        ("\ud800x", "?x"),
        ({"é": [1, date(2026, 2, 3)]}, '{"é": [1, "2026-02-03"]}'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (CYCLE, "[[...]]"),
        (1j, "1j"),
        (type("Text", (str,), {})("=x"), "=x"),
    ],
)
def test_cell__any_value__is_a_number_or_text(value: Any, expected: Any) -> None:
    assert cell(value) == expected
    assert type(cell(value)) is type(expected)


@pytest.mark.parametrize("value", [-5, -0.5, True])
def test_csv_cell__number__stays_a_number(value: Any) -> None:
    assert csv_cell(value) is value or csv_cell(value) == value
    assert type(csv_cell(value)) is type(value)


@pytest.mark.parametrize("value", [-(10**16), {"a": 1}, b"=x", ["=x"], Decimal("-Infinity"), float("-inf")])
def test_csv_cell__value_that_becomes_text__is_escaped_like_text(value: Any) -> None:
    out = io.StringIO()
    csv.writer(out).writerow([csv_cell(value)])
    assert out.getvalue()[0] not in OPERATORS


@pytest.mark.parametrize(("value", "expected"), [(Decimal("-5.20"), "-5.20"), (Level.LOW, -1)])
def test_csv_cell__number_of_another_type__is_no_formula(value: Any, expected: Any) -> None:
    assert csv_cell(value) == expected
