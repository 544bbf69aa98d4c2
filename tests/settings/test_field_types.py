"""What the fields of settings allow, how they parse text, and how messages show values."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from comporta.settings.field_types import (
    ChoiceField,
    FieldType,
    FlagField,
    JitterField,
    NumberField,
    SecretField,
    TextField,
    TextListField,
    TextTableField,
    UnionField,
    UrlField,
    parse_scalar,
    quoted_list,
    received_value,
    short_repr,
    without_credentials,
)

URL = UrlField("http://a", ("http", "https"))
JITTER = JitterField(("full", "decorrelated"))
JITTER_TEXT = "one of 'full', 'decorrelated', or two numbers of seconds such as [0, 0.5]"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (TextField("text"), ""),
        (TextField("text"), "a:/b"),
        (URL, "http://x"),
        (URL, "https://x://y"),
        (TextListField("texts"), ["a", "b"]),
        (TextListField("texts"), ("a",)),
        (TextTableField("a table"), {"a": "b"}),
        (TextTableField("a table"), {}),
        (SecretField(4), "abcd"),
        (SecretField(), "x" * 16),
        (NumberField(), 10**400),
        (NumberField(), math.inf),
        (NumberField(minimum=1, maximum=3), 1),
        (NumberField(minimum=1, maximum=3), 3.0),
        (NumberField(above=0), 0.001),
        (NumberField(above=0), sys.float_info.max),
        (NumberField(maximum=0), -sys.float_info.max),
        (NumberField(allows_false=True, minimum=1), False),
        (NumberField(is_integer=True), 5),
        (ChoiceField(("a", "b")), "b"),
        (UnionField("a bool or text", (bool, str)), True),
        (FlagField(), False),
        (JITTER, "full"),
        (JITTER, [0, 0.5]),
        (JITTER, (2, 2)),
    ],
)
def test_field__allowed_value__has_no_unmet_requirement(field: FieldType, value: Any) -> None:
    assert field.unmet_requirement(value) is None


@pytest.mark.parametrize(
    ("field", "value", "requirement"),
    [
        (TextField("text"), 5, "text"),
        (TextField("text"), "redis://h", "text"),
        (URL, 5, "a URL such as 'http://a'"),
        (URL, "http", "a URL such as 'http://a'"),
        (URL, "ftp://x", "a URL such as 'http://a'"),
        (URL, "ftp://http://x", "a URL such as 'http://a'"),
        (UrlField("a://b", ("a",), "c://d"), "x", "a URL such as 'a://b' or 'c://d'"),
        (TextListField("texts"), "ab", "texts"),
        (TextListField("texts"), ["a", ""], "texts"),
        (TextListField("texts"), ["a", 5], "texts"),
        (TextTableField("a table"), ["a"], "a table"),
        (TextTableField("a table"), {"": "b"}, "a table"),
        (TextTableField("a table"), {"a": ""}, "a table"),
        (TextTableField("a table"), {"a": "b", "c": 5}, "a table"),
        (SecretField(4), "abc", "at least 4 ASCII characters without a space"),
        (SecretField(), "x" * 15, "at least 16 ASCII characters without a space"),
        (SecretField(4), "abcde f", "at least 4 ASCII characters without a space"),
        (SecretField(4), "abcdé", "at least 4 ASCII characters without a space"),
        (SecretField(4), "abcd\n", "at least 4 ASCII characters without a space"),
        (SecretField(4), ["a"] * 4, "at least 4 ASCII characters without a space"),
        (NumberField(), "5", "a number"),
        (NumberField(), True, "a number"),
        (NumberField(unit="seconds"), None, "a number of seconds"),
        (NumberField(is_integer=True), 5.0, "a whole number"),
        (NumberField(allows_false=True), True, "a number or false"),
        (NumberField(allows_false=True, is_integer=True), "x", "a whole number or false"),
        (NumberField(), False, "a number"),
        (NumberField(minimum=0), math.inf, "finite"),
        (NumberField(maximum=0), -math.inf, "finite"),
        (NumberField(above=0), math.nan, "finite"),
        (NumberField(minimum=0), 10**400, "finite"),
        (NumberField(minimum=1, maximum=3), 0.999, "1 to 3"),
        (NumberField(minimum=1, maximum=3), 3.001, "1 to 3"),
        (NumberField(minimum=1, unit="seconds"), 0, "at least 1 seconds"),
        (NumberField(above=0.5), 0.5, "above 0.5"),
        (NumberField(above=0, maximum=9, unit="seconds"), 10, "above 0 and at most 9 seconds"),
        (ChoiceField(("a", "b")), "c", "one of 'a', 'b'"),
        (UnionField("a bool or text", (bool, str)), 5, "a bool or text"),
        (FlagField(), 1, "true or false"),
        (JITTER, "none", JITTER_TEXT),
        (JITTER, 5, JITTER_TEXT),
        (JITTER, [0], JITTER_TEXT),
        (JITTER, [0, 1, 2], JITTER_TEXT),
        (JITTER, [1, 0.5], JITTER_TEXT),
        (JITTER, [-0.5, 0.5], JITTER_TEXT),
        (JITTER, [0.5, "x"], JITTER_TEXT),
        (JITTER, [True, 2], JITTER_TEXT),
    ],
)
def test_field__other_value__names_what_is_allowed(field: FieldType, value: Any, requirement: str) -> None:
    assert field.unmet_requirement(value) == requirement


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        (TextField("text"), "5", "5"),
        (URL, "5", "5"),
        (TextListField("texts"), "a, b ,c", ["a", "b", "c"]),
        (TextTableField("a table"), "a=b", "a=b"),
        (SecretField(), "5", "5"),
        (NumberField(), "5", 5),
        (NumberField(), " 0.5 ", 0.5),
        (NumberField(), "FALSE", False),
        (NumberField(), "many", "many"),
        (ChoiceField(("a",)), "5", "5"),
        (UnionField("", (bool, str)), "true", True),
        (UnionField("", (bool, str)), "5", "5"),
        (UnionField("", (bool, float)), "5", 5),
        (FlagField(), " 1 ", True),
        (FlagField(), "0", False),
        (FlagField(), "True", True),
        (FlagField(), "FALSE", False),
        (FlagField(), "Yes", "Yes"),
        (JITTER, "full", "full"),
        (JITTER, "0, 0.5", [0, 0.5]),
        (JITTER, "[1, 2]", [1, 2]),
        (JITTER, " [1, 2] ", [1, 2]),
        (JITTER, "1, 2, 3", "1, 2, 3"),
    ],
)
def test_parse__text_of_a_variable__is_the_value_or_the_text(
    field: FieldType, text: str, value: object
) -> None:
    parsed = field.parse(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("7.0", 7.0), (" true\n", True), ("False", False), ("Tru", "Tru")]
)
def test_parse_scalar__number_boolean_or_text__has_its_type(text: str, value: object) -> None:
    parsed = parse_scalar(text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_quoted_list__some_or_no_names__reads_well() -> None:
    assert quoted_list(["a", "b"]) == "'a', 'b'"
    assert quoted_list([]) == "none"


def test_short_repr__long_or_oversized__is_bounded() -> None:
    assert short_repr("x" * 200) == "'" + "x" * 99
    assert short_repr("abc", 3) == "'ab"
    assert short_repr(10**5000) == "an oversized int"
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert short_repr(nested) == "an oversized list"
    while nested:  # freeing it recursively would overflow the stack
        nested = nested[0]


def test_received_value__secret__is_hidden() -> None:
    assert received_value(SecretField(), "s3cret") == "a hidden value"
    assert received_value(TextField("text"), "a") == "'a'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:secret@host/0", "redis://***@host/0"),
        ("://secret@host", "://***@host"),
        ("redis://:p@ss@host", "redis://***@host"),
        ("redis://user:a://b@host", "redis://***@host"),
        ("a@b", "a@b"),
        ("a@redis://host", "a@redis://host"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:6379/0", "redis://:6379/0"),
        ("redis://:6379", "redis://:6379"),
        ("redis://:secret/0", "redis://***@/0"),
        ("redis://host?password=secret&db=1", "redis://host?password=***&db=1"),
    ],
)
def test_without_credentials__url__shows_everything_else(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
