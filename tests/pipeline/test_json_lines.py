"""The JSON lines sink: one object per line, complete lines only, resumable after a kill."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.support import file_size_limit

from comporta.errors import SinkFullError, SinkRowError, SinkUnavailableError
from comporta.pipeline.sinks import JsonLinesSink, sink_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def write_rows(path: Path, *batches: list[Any], key: str | None = "id", durable: bool = False) -> list[Any]:
    sink = JsonLinesSink(path, key, durable=durable)
    sink.open()
    for batch in batches:
        sink.write(batch)
    sink.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("durable", [False, True])
def test_write__batches__are_one_line_per_row(path: Path, durable: bool) -> None:
    rows = [{"id": 1, "on": date(2026, 1, 2), "text": "é\n"}, {"id": 2}]
    assert write_rows(path, rows[:1], rows[1:], durable=durable) == [
        {"id": 1, "on": "2026-01-02", "text": "é\n"},
        {"id": 2},
    ]


def test_open__again__appends_and_marks_repeated_rows(path: Path) -> None:
    write_rows(path, [{"id": 1}, {"id": "a"}])
    rows = write_rows(path, [{"id": 1}, {"id": 2}, {"id": 2}], [{"id": 2}])
    assert [row.get("repeated", False) for row in rows] == [False, False, True, False, True, True]


def test_open__no_key__marks_no_rows(path: Path) -> None:
    assert write_rows(path, [{"id": 1}], [{"id": 1}], key=None) == [{"id": 1}, {"id": 1}]
    assert len(write_rows(path, [{}], key=None)) == 3


def test_open__incomplete_line__is_removed(path: Path) -> None:
    write_rows(path, [{"id": 1}])
    with path.open("a") as file:
        file.write('{"id": 2, "te')
    assert write_rows(path, [{"id": 2}]) == [{"id": 1}, {"id": 2}]


def test_keys__beyond_the_limit__oldest_are_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_file, "KEYS_MAX", 2)
    rows = write_rows(path, [{"id": 1}], [{"id": 2}], [{"id": 3}], [{"id": 1}, {"id": 3}])
    assert [row.get("repeated", False) for row in rows] == [False, False, False, False, True]


def test_open__complete_row_without_newline__is_kept_with_its_key(path: Path) -> None:
    path.write_text('{"id": 1}')
    assert write_rows(path, [{"id": 1}]) == [{"id": 1}, {"id": 1, "repeated": True}]


def test_write__reserved_field__is_refused_and_not_overwrite_rows(path: Path) -> None:
    with pytest.raises(SinkRowError, match="row 1 of the batch has the field 'repeated'"):
        write_rows(path, [{"id": 1}, {"id": 1, "repeated": "mine"}])
    assert path.read_bytes() == b""


@pytest.mark.parametrize("content", ["mine\n", "{half\n", '{\n "a": 1\n}'])
@pytest.mark.parametrize("key", ["id", None])
def test_open__file_of_another_kind__is_refused(path: Path, content: str, key: str | None) -> None:
    path.write_text(content)
    with pytest.raises(SinkUnavailableError, match=r"hold JSON objects|not one of this kind of sink"):
        JsonLinesSink(path, key).open()
    assert path.read_text() == content


def test_open__in_use_or_missing_folder__is_a_sink_error(path: Path) -> None:
    sink = JsonLinesSink(path)
    sink.open()
    with pytest.raises(SinkUnavailableError, match="another process, or another sink, has the file open"):
        JsonLinesSink(path).open()
    sink.close()
    with pytest.raises(SinkUnavailableError, match="not open"):
        sink.write([{}])
    with pytest.raises(SinkUnavailableError, match="Not a directory"):
        JsonLinesSink(path / "x").open()


def test_write__row_not_json__is_named_in_the_error(path: Path) -> None:
    with pytest.raises(SinkRowError, match="row 1 of the batch has no value for the key 'id'") as raised:
        write_rows(path, [{"id": 1}, {}])
    assert raised.value.index == 1
    path.unlink()
    with pytest.raises(SinkRowError, match="row 0 of the batch"):
        write_rows(path, [{"id": 1, (1, 2): 3}])
    assert path.read_text() == ""


def test_write__disk_full__keeps_only_complete_batches(path: Path) -> None:
    sink = JsonLinesSink(path)
    sink.open()
    sink.write([{"id": 1}])
    with file_size_limit(2000), pytest.raises(SinkFullError, match="File too large"):
        sink.write([{"id": 2, "text": "x" * 3000}])
    sink.write([{"id": 3}])
    sink.close()
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 3]


def test_after_fork__open_file__is_closed(path: Path) -> None:
    sink = JsonLinesSink(path)
    sink.open()
    sink._file._file.after_fork()
    sink.close()
    with pytest.raises(SinkUnavailableError, match="not open"):
        sink.write([{}])


def test_open__rows_without_the_key__are_ignored(path: Path) -> None:
    write_rows(path, [{"other": 1}], key=None)
    assert write_rows(path, [{"id": 1}]) == [{"other": 1}, {"id": 1}]


def test_fork__in_the_child__sink_is_not_open(path: Path) -> None:
    sink = JsonLinesSink(path)
    sink.open()
    child = os.fork()
    if child == 0:
        os._exit(0 if sink._file._file.descriptor is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    sink.write([{"id": 1}])
    sink.close()
