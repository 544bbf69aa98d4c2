"""Line numbers of keys: in a text written by hand, and in generated files."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import max_examples

from comporta.settings.toml_positions import key_lines, nearest_line, table_header

TEXT = '''# [not.a.table]
state = "redis://localhost"  # = [no]

[limits.default]   # a comment
limit = "10/s"

[limits."a.b"]
'quoted key' = """
[not.this]
nor = "this \\""""""
text = \'\'\'
[nor.this]\'\'\'\'\'
list = [
  "a", # ] "
  { x = 1 },
]
after = 1
[ upstreams . pncp ]
retry.retries = 3
"esc\\u0061ped" = {a = {b = 1}}
[[array.of]]
x = 1
[[array.of]]
x = 2
'''


def test_key_lines__every_syntax__has_the_right_line() -> None:
    tomllib.loads(TEXT)
    assert key_lines(TEXT) == {
        ("state",): 2,
        ("limits",): 4,
        ("limits", "default"): 4,
        ("limits", "default", "limit"): 5,
        ("limits", "a.b"): 7,
        ("limits", "a.b", "quoted key"): 8,
        ("limits", "a.b", "text"): 11,
        ("limits", "a.b", "list"): 13,
        ("limits", "a.b", "after"): 17,
        ("upstreams",): 18,
        ("upstreams", "pncp"): 18,
        ("upstreams", "pncp", "retry"): 19,
        ("upstreams", "pncp", "retry", "retries"): 19,
        ("upstreams", "pncp", "escaped"): 20,
        ("array",): 21,
        ("array", "of"): 21,
        ("array", "of", "x"): 22,
    }


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("upstreams", "pncp", "escaped", "a", "b"), 20),
        (("limits", "default", "rate"), 4),
        (("nowhere", "at", "all"), None),
        ((), None),
    ],
)
def test_nearest_line__path_without_a_line__is_that_of_the_table_around_it(
    path: tuple[str, ...], line: int | None
) -> None:
    assert nearest_line(key_lines(TEXT), path) == line


def test_table_header__names_with_spaces__are_quoted() -> None:
    assert table_header(("limits", "a b", "x-1")) == "[limits.'a b'.x-1]"
    assert table_header(()) == ""


def test_key_lines__key_with_an_invalid_escape__is_used_as_it_is() -> None:
    assert key_lines('\n"\\q" = 1') == {('"\\q"',): 2}


def test_key_lines__bare_keys_that_look_like_values__are_names() -> None:
    assert key_lines("true = 1\n1_0 = 2") == {("true",): 1, ("1_0",): 2}


def test_key_lines__key_with_many_parts__is_bounded() -> None:
    assert len(key_lines("a" + ".a" * 100_000 + " = 1")) == 8


@settings(max_examples=max_examples(300), deadline=None)
@given(st.text(alphabet="ab.[]{}='\"#\\\n \x00é", max_size=60))
def test_key_lines__random_text__does_not_fail(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in key_lines(text).values())


KEYS = st.text(max_size=4).filter(lambda key: key.isprintable())
VALUES = st.sampled_from(
    ["1", '"a#[="', '"""\n[x]\n"""', "'''\na = 1\n'''", "[\n1, # ]\n2\n]", "{a = '}', b = [1]}", "1979-05-27"]
)


@settings(max_examples=max_examples(200), deadline=None)
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3), st.data())
def test_key_lines__generated_file__has_the_right_lines(
    tables: dict[str, dict[str, str]], data: st.DataObject
) -> None:
    """The test writes the file line by line, with blank lines in between, and counts them."""
    written: list[str] = []
    expected: dict[tuple[str, ...], int] = {}

    def write(text: str, path: tuple[str, ...]) -> None:
        written.extend(data.draw(st.lists(st.sampled_from(["", "# a = [", "  "]), max_size=2)))
        expected[path] = "\n".join([*written, ""]).count("\n") + 1
        written.append(text)

    for table, keys in tables.items():
        write(f"[{_quote(table)}]", (table,))
        for key, value in keys.items():
            write(f"{_quote(key)} = {value}", (table, key))
    text = "\n".join(written)
    read: dict[str, Any] = tomllib.loads(text)
    assert {name: set(keys) for name, keys in read.items()} == {
        name: set(keys) for name, keys in tables.items()
    }
    assert key_lines(text) == expected


def _quote(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
