"""JSON that every reader takes."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from comporta.pipeline.cells import as_text
from comporta.pipeline.letters import DeadLetters
from comporta.pipeline.sinks import JsonLinesSink
from comporta.pipeline.strict_json import dumped


def strictly(text: str) -> Any:
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ([1.5, "a", None], [1.5, "a", None]),
        (nan, "nan"),
        ({"a": [inf, 1], "b": (-inf, {"c": 2.0})}, {"a": ["inf", 1], "b": ["-inf", {"c": 2.0}]}),
        ({nan: 1}, {"nan": 1}),
    ],
)
def test_dumped__numbers_that_json_does_not_have__are_texts(value: Any, read: Any) -> None:
    assert strictly(dumped(value)) == read
    assert strictly(as_text([value])) == [read]


def test_dumped__holds_itself__is_an_error() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RecursionError):
        dumped(value)
    assert as_text(value) == "[[...]]"


def test_files__numbers_that_json_does_not_have__can_be_read_by_everybody(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "dead.jsonl")
    letters.append({"a": nan}, "why", key=inf)
    letters.close()
    letter = strictly((tmp_path / "dead.jsonl").read_text())
    assert (letter["item"], letter["key"]) == ({"a": "nan"}, "inf")
    for _ in range(2):
        sink = JsonLinesSink(tmp_path / "rows.jsonl", key=["id", "a"])
        sink.open()
        sink.write([{"id": 1, "a": nan}])
        sink.close()
    rows = [strictly(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert rows == [{"id": 1, "a": "nan"}, {"id": 1, "a": "nan", "repeated": True}]
