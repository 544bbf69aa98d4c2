"""Rows as JSON, one a line."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.support import files_of_at_most

from comporta.errors import SinkFullError, SinkRowError, SinkUnavailableError
from comporta.pipeline.sinks import JsonLinesSink, files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def written(path: Path, *batches: list[Any], key: str | None = "id", durable: bool = False) -> list[Any]:
    sink = JsonLinesSink(path, key, durable=durable)
    sink.open()
    for batch in batches:
        sink.write(batch)
    sink.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("durable", [False, True])
def test_write__batches__are_lines(path: Path, durable: bool) -> None:
    rows = [{"id": 1, "on": date(2026, 1, 2), "text": "é\n"}, {"id": 2}]
    assert written(path, rows[:1], rows[1:], durable=durable) == [
        {"id": 1, "on": "2026-01-02", "text": "é\n"},
        {"id": 2},
    ]


def test_open__again__appends_and_marks_what_is_there_already(path: Path) -> None:
    written(path, [{"id": 1}, {"id": "a"}])
    rows = written(path, [{"id": 1}, {"id": 2}, {"id": 2}], [{"id": 2}])
    assert [row.get("repeated", False) for row in rows] == [False, False, True, False, True, True]


def test_open__no_key__marks_nothing(path: Path) -> None:
    assert written(path, [{"id": 1}], [{"id": 1}], key=None) == [{"id": 1}, {"id": 1}]
    assert len(written(path, [{}], key=None)) == 3


def test_open__half_a_line__is_cut_off(path: Path) -> None:
    written(path, [{"id": 1}])
    with path.open("a") as file:
        file.write('{"id": 2, "te')
    assert written(path, [{"id": 2}]) == [{"id": 1}, {"id": 2}]


def test_keys__more_than_are_remembered__forget_the_oldest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "KEYS_MAX", 2)
    rows = written(path, [{"id": 1}], [{"id": 2}], [{"id": 3}], [{"id": 1}, {"id": 3}])
    assert [row.get("repeated", False) for row in rows] == [False, False, False, False, True]


def test_open__whole_row_that_lacks_the_end_of_its_line__is_kept_and_known(path: Path) -> None:
    path.write_text('{"id": 1}')
    assert written(path, [{"id": 1}]) == [{"id": 1}, {"id": 1, "repeated": True}]


def test_write__field_that_is_the_files_own__is_refused_and_not_written_over(path: Path) -> None:
    with pytest.raises(SinkRowError, match="row 1 of the batch has a field 'repeated'"):
        written(path, [{"id": 1}, {"id": 1, "repeated": "mine"}])
    assert path.read_bytes() == b""


@pytest.mark.parametrize("content", ["mine\n", "{half\n", '{\n "a": 1\n}'])
@pytest.mark.parametrize("key", ["id", None])
def test_open__file_of_others__is_left_alone(path: Path, content: str, key: str | None) -> None:
    path.write_text(content)
    with pytest.raises(SinkUnavailableError, match=r"not begun by us|not a file of ours"):
        JsonLinesSink(path, key).open()
    assert path.read_text() == content


def test_open__in_use_or_no_folder__is_a_named_error(path: Path) -> None:
    sink = JsonLinesSink(path)
    sink.open()
    with pytest.raises(SinkUnavailableError, match="another process, or another sink, writes it"):
        JsonLinesSink(path).open()
    sink.close()
    with pytest.raises(SinkUnavailableError, match="not open"):
        sink.write([{}])
    with pytest.raises(SinkUnavailableError, match="Not a directory"):
        JsonLinesSink(path / "x").open()


def test_write__row_that_cannot_be_kept__says_which(path: Path) -> None:
    with pytest.raises(SinkRowError, match="row 1 of the batch has no 'id'") as raised:
        written(path, [{"id": 1}, {}])
    assert raised.value.index == 1
    path.unlink()
    with pytest.raises(SinkRowError, match="row 0 of the batch"):
        written(path, [{"id": 1, (1, 2): 3}])
    assert path.read_text() == ""


def test_write__disk_is_full__keeps_whole_batches_only(path: Path) -> None:
    sink = JsonLinesSink(path)
    sink.open()
    sink.write([{"id": 1}])
    with files_of_at_most(2000), pytest.raises(SinkFullError, match="File too large"):
        sink.write([{"id": 2, "text": "x" * 3000}])
    sink.write([{"id": 3}])
    sink.close()
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 3]


def test_after_fork__the_file__is_let_go_of(path: Path) -> None:
    sink = JsonLinesSink(path)
    sink.open()
    sink._file._file.after_fork()
    sink.close()
    with pytest.raises(SinkUnavailableError, match="not open"):
        sink.write([{}])


def test_open__rows_without_the_key__are_none_that_could_be_repeated(path: Path) -> None:
    written(path, [{"other": 1}], key=None)
    assert written(path, [{"id": 1}]) == [{"other": 1}, {"id": 1}]


def test_fork__in_the_child__the_file_is_the_parents(path: Path) -> None:
    sink = JsonLinesSink(path)
    sink.open()
    child = os.fork()
    if child == 0:
        os._exit(0 if sink._file._file.descriptor is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    sink.write([{"id": 1}])
    sink.close()
