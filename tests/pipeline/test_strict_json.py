"""JSON that every reader accepts."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from comporta.pipeline.dead_letters import DeadLetters
from comporta.pipeline.sinks import JsonLinesSink
from comporta.pipeline.sinks.formula_escaping import as_text
from comporta.pipeline.strict_json import dump_json


def load_strictly(text: str) -> Any:
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
def test_dump_json__nan_and_infinity__are_strings(value: Any, read: Any) -> None:
    assert load_strictly(dump_json(value)) == read
    assert load_strictly(as_text([value])) == [read]


def test_dump_json__cyclic_value__is_an_error() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RecursionError):
        dump_json(value)
    assert as_text(value) == "[[...]]"


def test_files__nan_and_infinity__are_valid_json(tmp_path: Path) -> None:
    dead_letters = DeadLetters(tmp_path / "dead.jsonl")
    dead_letters.append({"a": nan}, "reason", key=inf)
    dead_letters.close()
    dead_letter = load_strictly((tmp_path / "dead.jsonl").read_text())
    assert (dead_letter["item"], dead_letter["key"]) == ({"a": "nan"}, "inf")
    for _ in range(2):
        sink = JsonLinesSink(tmp_path / "rows.jsonl", key=["id", "a"])
        sink.open()
        sink.write([{"id": 1, "a": nan}])
        sink.close()
    rows = [load_strictly(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert rows == [{"id": 1, "a": "nan"}, {"id": 1, "a": "nan", "repeated": True}]
