"""The line of everything in a file: against texts by hand, and against files that are made up."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import examples

from comporta.settings.lines import line_at, lines_of, table_shown

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


def test_lines__of_all_ways_to_write__are_found() -> None:
    tomllib.loads(TEXT)
    assert lines_of(TEXT) == {
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
def test_line__of_what_has_none__is_that_of_the_table_around_it(
    path: tuple[str, ...], line: int | None
) -> None:
    assert line_at(lines_of(TEXT), path) == line


def test_table__shown__is_quoted_where_it_must_be() -> None:
    assert table_shown(("limits", "a b", "x-1")) == "[limits.'a b'.x-1]"
    assert table_shown(()) == ""


def test_lines__key_that_cannot_be_read__is_taken_as_it_stands() -> None:
    assert lines_of('\n"\\q" = 1') == {('"\\q"',): 2}


def test_lines__key_of_many_parts__are_bounded() -> None:
    assert len(lines_of("a" + ".a" * 100_000 + " = 1")) == 8


@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet="ab.[]{}='\"#\\\n \x00é", max_size=60))
def test_lines__of_any_text__never_fail(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in lines_of(text).values())


KEYS = st.text(max_size=4).filter(lambda key: key.isprintable())
VALUES = st.sampled_from(
    ["1", '"a#[="', '"""\n[x]\n"""', "'''\na = 1\n'''", "[\n1, # ]\n2\n]", "{a = '}', b = [1]}", "1979-05-27"]
)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3), st.data())
def test_lines__of_any_file__are_where_it_was_written(
    tables: dict[str, dict[str, str]], data: st.DataObject
) -> None:
    """Written line by line, with blank ones between, while counting."""
    written: list[str] = []
    expected: dict[tuple[str, ...], int] = {}

    def write(text: str, path: tuple[str, ...]) -> None:
        written.extend(data.draw(st.lists(st.sampled_from(["", "# a = [", "  "]), max_size=2)))
        expected[path] = "\n".join([*written, ""]).count("\n") + 1
        written.append(text)

    for table, keys in tables.items():
        write(f"[{_quoted(table)}]", (table,))
        for key, value in keys.items():
            write(f"{_quoted(key)} = {value}", (table, key))
    text = "\n".join(written)
    read: dict[str, Any] = tomllib.loads(text)
    assert {name: set(keys) for name, keys in read.items()} == {
        name: set(keys) for name, keys in tables.items()
    }
    assert lines_of(text) == expected


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
