"""The CSV sink: rows readable at once, complete rows only, resumable after a kill, no formulas."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import file_size_limit

from comporta.errors import SinkColumnError, SinkFullError, SinkRowError, SinkUnavailableError
from comporta.events import latest_events
from comporta.pipeline.files import torn_tail
from comporta.pipeline.sinks import CsvSink, sink_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


def read(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.reader(lines))


def open_sink(path: Path, **options: Any) -> CsvSink:
    sink = CsvSink(path, **options)
    sink.open()
    return sink


def test_write__batch__can_be_read_at_once(path: Path) -> None:
    sink = open_sink(path, columns=["id", "name"], durable=True)
    assert read(path) == [["id", "name"]]
    sink.write([{"id": 1, "name": 'a "b", c\r\nd'}, {"id": 2}])
    assert read(path) == [["id", "name"], ["1", 'a "b", c\r\nd'], ["2", ""]]
    sink.close()
    sink.close()


def test_write__text_like_a_formula__is_escaped_and_numbers_are_not(path: Path) -> None:
    sink = open_sink(path)
    sink.write([{"=id": "=1+1", "n": -5, "t": "-5"}])
    sink.close()
    assert read(path) == [["'=id", "n", "t"], ["'=1+1", "-5", "'-5"]]
    assert b'"\'=1+1",-5,"\'-5"\r\n' in path.read_bytes()


def test_open__existing_file__appends_under_the_same_header(path: Path) -> None:
    for number in range(3):
        sink = open_sink(path)
        sink.write([{"=id": number, "name": "a"}])
        sink.close()
    assert read(path) == [["'=id", "name"], *([str(number), "a"] for number in range(3))]


def test_write__key_in_the_file_already__is_marked_as_repeated(path: Path) -> None:
    sink = open_sink(path, key="id")
    sink.write([{"id": 1, "a": "x"}, {"id": "=2", "a": "x"}])
    sink.close()
    sink = open_sink(path, key="id", columns=["id", "a"])
    sink.write([{"id": "=2", "a": "y"}, {"id": 3, "a": "y"}, {"id": 3, "a": "z"}])
    sink.close()
    assert read(path) == [
        ["id", "a", "repeated"],
        ["1", "x", ""],
        ["'=2", "x", ""],
        ["'=2", "y", "yes"],
        ["3", "y", ""],
        ["3", "z", "yes"],
    ]


def test_keys__beyond_the_limit__oldest_are_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_file, "KEYS_MAX", 2)
    sink = open_sink(path, key="id")
    sink.write([{"id": 1}, {"id": 2}, {"id": 3}])
    sink.write([{"id": 1}, {"id": 3}])
    sink.close()
    assert [row[1] for row in read(path)] == ["repeated", "", "", "", "", "yes"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_open__file_cut_at_any_byte__keeps_complete_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "rows.csv"
    texts = data.draw(st.lists(st.text(alphabet='ab",\r\n;', max_size=6), min_size=1, max_size=5))
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    sink = open_sink(path)
    sink.write(rows)
    sink.close()
    complete = read(path)
    path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, path.stat().st_size))])
    sink = open_sink(path)
    kept = read(path)
    assert kept == complete[: len(kept)]
    sink.write(rows[max(0, len(kept) - 1) :])
    sink.close()
    assert read(path) == complete


def test_open__incomplete_row__is_removed_and_published(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torn_tail, "CHUNK_BYTES", 4)  # quotes and newlines at every chunk border
    path.write_bytes(b'"id"\r\n"a\n""b"\r\n"c\nd')
    sink = open_sink(path)
    with pytest.raises(SinkUnavailableError, match="another sink"):
        sink.open()
    sink.close()
    assert path.read_bytes() == b'"id"\r\n"a\n""b"\r\n'
    assert latest_events(1)[0].kind == "sink_repaired"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"id,name\n1,a\n", {}, "was not written by a CsvSink"),
        (b'"id"\r\n"' + b"x\n" * (1 << 20), {}, "are not a complete row"),
        (b'"id","a"\r\n', {"columns": ["id"]}, "expected the columns id, got id, a in the file"),
        (b'"id","a"\r\n', {"key": "id"}, r"expected the columns \.\.\., id, repeated, got id, a"),
        (b'"a","repeated"\r\n', {"key": "id"}, r"expected the columns \.\.\., id, repeated, got a, repeated"),
        (b'"id"\n"1"\n"2"', {"columns": ["a"]}, "expected the columns a, got id"),
        (b'"id","repeated"\r\n\r\n', {"key": "id"}, "not one of this kind of sink"),
        (b'"\xff"\r\n', {}, "not one of this kind of sink"),
    ],
    ids=range(8),
)
def test_open__file_of_another_kind__is_refused(
    path: Path, content: bytes, options: dict[str, Any], message: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(SinkUnavailableError, match=message):
        CsvSink(path, **options).open()
    assert path.read_bytes() == content


def test_open__file_in_use__is_refused(path: Path) -> None:
    sink = open_sink(path)
    with pytest.raises(SinkUnavailableError, match="another process, or another sink, has the file open"):
        CsvSink(path).open()
    sink.close()
    open_sink(path).close()


def test_open__invalid_path__is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(SinkUnavailableError, match=r"CsvSink .*nowhere/x.csv: No such file"):
        CsvSink(tmp_path / "nowhere" / "x.csv").open()
    with pytest.raises(SinkUnavailableError, match="Is a directory"):
        CsvSink(tmp_path).open()


def test_write__not_open__is_a_sink_error(path: Path) -> None:
    with pytest.raises(SinkUnavailableError, match="not open"):
        CsvSink(path).write([{"id": 1}])


@pytest.mark.parametrize(
    ("rows", "index", "message"),
    [
        ([{"id": 1}, {"id": 2, "b": 3}], 1, "column 'b'"),
        ([{"id": 1}, {"id": "x" * 100_001}], 1, "a cell must have at most 100000 characters, got 100001"),
    ],
)
def test_write__invalid_row__is_named_in_the_error(path: Path, rows: Any, index: int, message: str) -> None:
    sink = open_sink(path, columns=["id"])
    with pytest.raises(SinkRowError, match=message) as raised:
        sink.write(rows)
    assert raised.value.index == index
    sink.write([{"id": "x" * 60_000}, {"id": "y" * 60_000}])
    sink.close()
    assert len(read(path)) == 3


def test_write__first_batch__needs_the_key_and_no_reserved_column(path: Path) -> None:
    sink = open_sink(path, key="id")
    with pytest.raises(SinkRowError, match="has no value for the key 'id'"):
        sink.write([{"a": 1}])
    with pytest.raises(SinkRowError, match="'repeated' is reserved for the sink"):
        sink.write([{"id": 1, "repeated": 1}])
    with pytest.raises(SinkColumnError, match="row 0"):
        sink.write([{"": 1}])
    sink.close()


def test_write__disk_full__appends_a_batch_completely_or_not_at_all(path: Path) -> None:
    sink = open_sink(path)
    sink.write([{"id": 1}])
    size = path.stat().st_size
    with file_size_limit(size + 10), pytest.raises(SinkFullError, match="File too large"):
        sink.write([{"id": number} for number in range(100)])
    assert path.stat().st_size == size
    sink.write([{"id": 2}])
    sink.close()
    assert read(path) == [["id"], ["1"], ["2"]]


KILLED = """
import sys
from comporta import BatchWriter
from comporta.pipeline.sinks import CsvSink

def confirm(rows):
    print(rows[-1]["id"], flush=True)

sink = CsvSink(sys.argv[1], key="id")
with BatchWriter(sink, max_rows=20, max_delay=0.01, on_written=confirm).sync as writer:
    for number in range(1_000_000):
        writer.write({"id": number, "text": "a\\n" * 50})
"""


def test_write__process_killed__file_has_every_confirmed_row(path: Path) -> None:
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            last = [int(run.stdout.readline()) for _ in range(30)][-1]
            run.kill()
    sink = open_sink(path, key="id")
    sink.close()
    rows = read(path)[1:]
    firsts = [int(number) for number, _, repeated in rows if not repeated]
    assert firsts == list(range(len(firsts)))
    assert len(firsts) > last
    assert sum(repeated == "yes" for _, _, repeated in rows) > last, "the second run wrote them again"


def test_fork__in_the_child__sink_is_not_open(path: Path) -> None:
    sink = open_sink(path)
    child = os.fork()
    if child == 0:
        try:
            sink.write([{"id": 2}])
        except SinkUnavailableError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sink.write([{"id": 1}])
    sink.close()
    assert read(path) == [["id"], ["1"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["id", "repeated"], "key": "id"}, "columns must not contain 'repeated'"),
        ({"key": "repeated"}, "columns must not contain 'repeated'"),
        ({"columns": ["id"], "key": "a"}, "key must be among the columns"),
    ],
)
def test_csv_sink__invalid_option__is_named_in_the_error(
    path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CsvSink(path, **options)


def test_write__file_changed_by_another_program__is_refused(path: Path) -> None:
    sink = open_sink(path, columns=["id"])
    before = path.read_bytes()
    for changed in (before + b"more\n", b""):
        path.write_bytes(changed)
        with pytest.raises(SinkUnavailableError, match=f"expected {len(before)} bytes, got {len(changed)}"):
            sink.write([{"id": 1}])
        assert path.read_bytes() == changed
    path.write_bytes(before)
    sink.write([{"id": 1}])
    path.unlink()
    with pytest.raises(SinkUnavailableError, match="removed or replaced"):
        sink.write([{"id": 2}])
    sink.close()


def test_open__incomplete_row__its_key_is_not_remembered(path: Path) -> None:
    path.write_bytes(b'"id","repeated"\r\n1,""\r\n2,"')
    sink = open_sink(path, key="id")
    sink.write([{"id": 1}, {"id": 2}])
    sink.close()
    assert read(path)[1:] == [["1", ""], ["1", "yes"], ["2", ""]]
