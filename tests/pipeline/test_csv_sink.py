"""A CSV file: live, whole rows, gone on with after a kill, no formulas."""

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
from tests.support import files_of_at_most

from comporta.errors import SinkColumnError, SinkFullError, SinkRowError, SinkUnavailableError
from comporta.events import latest_events
from comporta.pipeline import tail
from comporta.pipeline.sinks import CsvSink, files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


def read(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.reader(lines))


def opened(path: Path, **options: Any) -> CsvSink:
    sink = CsvSink(path, **options)
    sink.open()
    return sink


def test_csv__batch__can_be_read_at_once(path: Path) -> None:
    sink = opened(path, columns=["id", "name"], durable=True)
    assert read(path) == [["id", "name"]]
    sink.write([{"id": 1, "name": 'a "b", c\r\nd'}, {"id": 2}])
    assert read(path) == [["id", "name"], ["1", 'a "b", c\r\nd'], ["2", ""]]
    sink.close()
    sink.close()


def test_csv__text_from_outside__is_no_formula_and_numbers_are_numbers(path: Path) -> None:
    sink = opened(path)
    sink.write([{"=id": "=1+1", "n": -5, "t": "-5"}])
    sink.close()
    assert read(path) == [["'=id", "n", "t"], ["'=1+1", "-5", "'-5"]]
    assert b'"\'=1+1",-5,"\'-5"\r\n' in path.read_bytes()


def test_csv__resumed__goes_on_under_the_same_header(path: Path) -> None:
    for number in range(3):
        sink = opened(path)
        sink.write([{"=id": number, "name": "a"}])
        sink.close()
    assert read(path) == [["'=id", "name"], *([str(number), "a"] for number in range(3))]


def test_csv__row_that_is_there_already__is_marked(path: Path) -> None:
    sink = opened(path, key="id")
    sink.write([{"id": 1, "a": "x"}, {"id": "=2", "a": "x"}])
    sink.close()
    sink = opened(path, key="id", columns=["id", "a"])
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


def test_csv__more_keys_than_are_remembered__forgets_the_oldest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "KEYS_MAX", 2)
    sink = opened(path, key="id")
    sink.write([{"id": 1}, {"id": 2}, {"id": 3}])
    sink.write([{"id": 1}, {"id": 3}])
    sink.close()
    assert [row[1] for row in read(path)] == ["repeated", "", "", "", "", "yes"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_csv__cut_anywhere_by_a_kill__goes_on_with_whole_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "rows.csv"
    texts = data.draw(st.lists(st.text(alphabet='ab",\r\n;', max_size=6), min_size=1, max_size=5))
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    sink = opened(path)
    sink.write(rows)
    sink.close()
    whole = read(path)
    path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, path.stat().st_size))])
    sink = opened(path)
    kept = read(path)
    assert kept == whole[: len(kept)]
    sink.write(rows[max(0, len(kept) - 1) :])
    sink.close()
    assert read(path) == whole


def test_csv__half_a_row__is_cut_off_and_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "CHUNK_BYTES", 4)  # quotes and line ends on both sides of every border
    path.write_bytes(b'"id"\r\n"a\n""b"\r\n"c\nd')
    sink = opened(path)
    with pytest.raises(SinkUnavailableError, match="another sink"):
        sink.open()
    sink.close()
    assert path.read_bytes() == b'"id"\r\n"a\n""b"\r\n'
    assert latest_events(1)[0].kind == "sink_mended"


@pytest.mark.parametrize(
    ("there", "options", "said"),
    [
        (b"id,name\n1,a\n", {}, "not begun by us"),
        (b'"id"\r\n"' + b"x\n" * (1 << 20), {}, "no whole row"),
        (b'"id","a"\r\n', {"columns": ["id"]}, "its columns are id, a, and not id"),
        (b'"id","a"\r\n', {"key": "id"}, "its columns are id, a, and not ..., id, repeated"),
        (b'"a","repeated"\r\n', {"key": "id"}, "its columns are a, repeated, and not"),
        (b'"id"\n"1"\n"2"', {"columns": ["a"]}, "its columns are id, and not a"),
        (b'"id","repeated"\r\n\r\n', {"key": "id"}, "not a file of ours"),
        (b'"\xff"\r\n', {}, "not a file of ours"),
    ],
    ids=range(8),
)
def test_csv__file_of_somebody_else__is_left_alone(
    path: Path, there: bytes, options: dict[str, Any], said: str
) -> None:
    path.write_bytes(there)
    with pytest.raises(SinkUnavailableError, match=said):
        CsvSink(path, **options).open()
    assert path.read_bytes() == there


def test_csv__second_writer__is_refused(path: Path) -> None:
    sink = opened(path)
    with pytest.raises(SinkUnavailableError, match="another process, or another sink, writes it"):
        CsvSink(path).open()
    sink.close()
    opened(path).close()


def test_csv__path_that_cannot_be_opened__is_named(tmp_path: Path) -> None:
    with pytest.raises(SinkUnavailableError, match=r"CsvSink .*nowhere/x.csv: No such file"):
        CsvSink(tmp_path / "nowhere" / "x.csv").open()
    with pytest.raises(SinkUnavailableError, match="Is a directory"):
        CsvSink(tmp_path).open()


def test_csv__not_open__is_named(path: Path) -> None:
    with pytest.raises(SinkUnavailableError, match="not open"):
        CsvSink(path).write([{"id": 1}])


@pytest.mark.parametrize(
    ("rows", "index", "said"),
    [
        ([{"id": 1}, {"id": 2, "b": 3}], 1, "column 'b'"),
        ([{"id": 1}, {"id": "x" * 100_001}], 1, "a cell has 100001 characters, 100000 are the most"),
    ],
)
def test_csv__row_that_cannot_be_kept__is_named(path: Path, rows: Any, index: int, said: str) -> None:
    sink = opened(path, columns=["id"])
    with pytest.raises(SinkRowError, match=said) as raised:
        sink.write(rows)
    assert raised.value.index == index
    sink.write([{"id": "x" * 60_000}, {"id": "y" * 60_000}])
    sink.close()
    assert len(read(path)) == 3


def test_csv__first_batch__must_have_the_key_and_leave_repeated_alone(path: Path) -> None:
    sink = opened(path, key="id")
    with pytest.raises(SinkRowError, match="has no 'id'"):
        sink.write([{"a": 1}])
    with pytest.raises(SinkRowError, match="column of the file's own"):
        sink.write([{"id": 1, "repeated": 1}])
    with pytest.raises(SinkColumnError, match="row 0"):
        sink.write([{"": 1}])
    sink.close()


def test_csv__no_room_on_the_disk__keeps_a_batch_whole_or_not_at_all(path: Path) -> None:
    sink = opened(path)
    sink.write([{"id": 1}])
    size = path.stat().st_size
    with files_of_at_most(size + 10), pytest.raises(SinkFullError, match="File too large"):
        sink.write([{"id": number} for number in range(100)])
    assert path.stat().st_size == size
    sink.write([{"id": 2}])
    sink.close()
    assert read(path) == [["id"], ["1"], ["2"]]


KILLED = """
import sys
from comporta import BatchWriter
from comporta.pipeline.sinks import CsvSink

def told(rows):
    print(rows[-1]["id"], flush=True)

with BatchWriter(CsvSink(sys.argv[1], key="id"), max_rows=20, max_delay=0.01, on_written=told).sync as writer:
    for number in range(1_000_000):
        writer.write({"id": number, "text": "a\\n" * 50})
"""


def test_csv__killed_in_the_middle_of_a_run__has_every_row_that_was_confirmed(path: Path) -> None:
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            last = [int(run.stdout.readline()) for _ in range(30)][-1]
            run.kill()
    sink = opened(path, key="id")
    sink.close()
    rows = read(path)[1:]
    firsts = [int(number) for number, _, repeated in rows if not repeated]
    assert firsts == list(range(len(firsts)))
    assert len(firsts) > last
    assert sum(repeated == "yes" for _, _, repeated in rows) > last, "the second run wrote them again"


def test_csv__forked__is_the_parents(path: Path) -> None:
    sink = opened(path)
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
    ("options", "said"),
    [
        ({"columns": ["id", "repeated"], "key": "id"}, "columns must not have 'repeated'"),
        ({"key": "repeated"}, "columns must not have 'repeated'"),
        ({"columns": ["id"], "key": "a"}, "key must be among the columns"),
    ],
)
def test_csv__bad_option__is_named(path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CsvSink(path, **options)


def test_csv__changed_by_somebody_else__is_not_touched(path: Path) -> None:
    sink = opened(path, columns=["id"])
    ours = path.read_bytes()
    for theirs in (ours + b"theirs\n", b""):
        path.write_bytes(theirs)
        with pytest.raises(SinkUnavailableError, match=f"changed it: {len(theirs)} bytes, {len(ours)} were"):
            sink.write([{"id": 1}])
        assert path.read_bytes() == theirs
    path.write_bytes(ours)
    sink.write([{"id": 1}])
    path.unlink()
    with pytest.raises(SinkUnavailableError, match="removed or replaced"):
        sink.write([{"id": 2}])
    sink.close()


def test_csv__half_a_row__is_none_whose_key_is_known(path: Path) -> None:
    path.write_bytes(b'"id","repeated"\r\n1,""\r\n2,"')
    sink = opened(path, key="id")
    sink.write([{"id": 1}, {"id": 2}])
    sink.close()
    assert read(path)[1:] == [["1", ""], ["1", "yes"], ["2", ""]]
