"""The validators of values that users pass: what they accept, and what their errors say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from comporta.validators import (
    range_text,
    require_bool,
    require_choice,
    require_integer,
    require_number,
    require_text,
)


@pytest.mark.parametrize("value", [1, 7, 10])
def test_require_integer__value_in_range__is_returned(value: int) -> None:
    assert require_integer("size", value, 1, 10) == value


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_require_integer__other_type__is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"size must be an int, got"):
        require_integer("size", value, 1, 10)


@pytest.mark.parametrize("value", [0, 11])
def test_require_integer__value_out_of_range__names_field_range_and_value(value: int) -> None:
    with pytest.raises(ValueError, match=rf"^size must be 1 to 10, got {value}$"):
        require_integer("size", value, 1, 10)


@pytest.mark.parametrize("value", [True, False])
def test_require_bool__bool__is_returned(value: bool) -> None:
    assert require_bool("shadow", value) is value


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_require_bool__anything_else__is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^shadow must be a bool, got {value!r}$"):
        require_bool("shadow", value)


@pytest.mark.parametrize("value", [0.5, 1, 60])
def test_require_number__value_in_range__is_returned_as_a_float(value: float) -> None:
    result = require_number("timeout", value, 0.5, 60)
    assert (result, type(result)) == (value, float)


@pytest.mark.parametrize("value", [True, "1", None])
def test_require_number__other_type__is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"timeout must be a number of seconds, got"):
        require_number("timeout", value, 0, unit="seconds")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_require_number__not_finite__is_a_value_error(value: float) -> None:
    with pytest.raises(ValueError, match=r"^timeout must be finite, got "):
        require_number("timeout", value)


def test_require_number__at_an_exclusive_bound__names_it() -> None:
    with pytest.raises(ValueError, match=r"^rate must be above 0, got 0$"):
        require_number("rate", 0, above=0)
    with pytest.raises(ValueError, match=r"^rate must be above 0 and at most 5 seconds, got 6$"):
        require_number("rate", 6, above=0, maximum=5, unit="seconds")


@pytest.mark.parametrize("value", ["c", 3, None])
def test_require_choice__anything_else__lists_the_choices(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^mode must be one of 'a', 'b', got "):
        require_choice("mode", value, ("a", "b"))
    assert require_choice("mode", "a", ("a", "b")) == "a"


def test_range_text__each_form__reads_well() -> None:
    texts = [range_text(1, 100), range_text(0.5, 60.0), range_text(1, None), range_text(None, 9)]
    assert [*texts, range_text(None, None)] == ["1 to 100", "0.5 to 60", "at least 1", "at most 9", "finite"]


@pytest.mark.parametrize("value", ["a", "São Paulo", "x" * 8])
def test_require_text__printable_text__is_returned(value: str) -> None:
    assert require_text("user_id", value, 9) == value


@pytest.mark.parametrize("value", ["", "x" * 10, "a\nb", "\0"])
def test_require_text__empty_long_or_unprintable__names_field_range_and_value(value: str) -> None:
    with pytest.raises(ValueError, match=r"^user_id must be 1 to 9 printable characters, got '") as failure:
        require_text("user_id", value, 9)
    assert str(failure.value).endswith(repr(value))


def test_require_text__other_type__is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"^user_id must be a str, got 7$"):
        require_text("user_id", 7, 9)
