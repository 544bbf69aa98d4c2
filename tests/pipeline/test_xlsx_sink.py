"""A workbook: made at the end, from rows that survive until then, with text that stays text."""

from __future__ import annotations

import builtins
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import xlsxwriter
from tests.support import files_of_at_most

from comporta.errors import SinkFullError, SinkRowError, SinkUnavailableError
from comporta.pipeline.sinks import XlsxSink, xlsx


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.xlsx"


def read(path: Path) -> list[list[Any]]:
    book = openpyxl.load_workbook(path)
    assert all(one.data_type != "f" and one.hyperlink is None for row in book.active for one in row)
    return [[one.value for one in row] for row in book.active]


def opened(path: Path, **options: Any) -> XlsxSink:
    sink = XlsxSink(path, **options)
    sink.open()
    return sink


def test_xlsx__closed__holds_all_rows_as_they_were(path: Path) -> None:
    sink = opened(path)
    sink.write([{"=id": 1, "t": "=1+1"}, {"=id": -2.5, "t": "https://example.org"}])
    assert not path.exists()
    sink.write([{"=id": True}, {"=id": 10**20, "t": "+"}, {"=id": "{=1}", "t": "@a"}])
    sink.close()
    sink.close()
    assert read(path) == [
        ["=id", "t"],
        [1, "=1+1"],
        [-2.5, "https://example.org"],
        [True, None],
        [str(10**20), "+"],
        ["{=1}", "@a"],
    ]
    assert sorted(one.name for one in path.parent.iterdir()) == ["rows.xlsx", "rows.xlsx.rows"]


def test_xlsx__resumed__has_the_rows_of_both_runs_each_key_once(path: Path) -> None:
    sink = opened(path, key="id")
    sink.write([{"id": 1, "a": "x"}, {"id": 2, "a": "x"}])
    sink.close()
    sink = opened(path, key="id", columns=["id", "a"], durable=True)
    sink.write([{"id": 2, "a": "y"}, {"id": 3, "a": "y"}])
    sink.close()
    assert read(path) == [["id", "a"], [1, "x"], [2, "y"], [3, "y"]]


def test_xlsx__nothing_new__leaves_the_workbook_as_it_is(path: Path) -> None:
    sink = opened(path, columns=["id"])
    sink.close()
    before = path.stat().st_ino
    opened(path).close()
    assert path.stat().st_ino == before
    assert read(path) == [["id"]]


def test_xlsx__no_rows_at_all__is_an_empty_workbook(path: Path) -> None:
    opened(path).close()
    assert path.exists()


def test_xlsx__killed_before_the_end__has_what_was_confirmed(path: Path) -> None:
    program = (
        "import os, sys\n"
        "from comporta.pipeline.sinks import XlsxSink\n"
        "sink = XlsxSink(sys.argv[1])\n"
        "sink.open()\n"
        "sink.write([{'id': 1}])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -9
    sink = opened(path)
    sink.write([{"id": 2}])
    sink.close()
    assert read(path) == [["id"], [1], [2]]


def test_xlsx__workbook_whose_rows_are_gone__is_left_alone(path: Path) -> None:
    path.write_text("somebody's work")
    with pytest.raises(SinkUnavailableError, match=r"rows.xlsx.rows, the rows it was made of, is gone"):
        XlsxSink(path).open()
    assert path.read_text() == "somebody's work"


def test_xlsx__other_columns__are_named(path: Path) -> None:
    sink = opened(path, columns=["id"])
    sink.close()
    with pytest.raises(SinkUnavailableError, match="its columns are id, and not a, b"):
        XlsxSink(path, columns=["a", "b"]).open()
    with pytest.raises(SinkUnavailableError, match=r"nowhere/x.xlsx: x.xlsx.rows: unable to open"):
        XlsxSink(path.parent / "nowhere" / "x.xlsx").open()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 2, "b": 1}, "column 'b'"),
        ({"id": "x" * 32_768}, "a cell has 32768 characters, 32767 are the most"),
        ({"id": None}, "row 1 of the batch has no 'id'"),
    ],
)
def test_xlsx__row_that_cannot_be_kept__is_named(path: Path, row: dict[str, Any], said: str) -> None:
    sink = opened(path, key="id", columns=["id"])
    with pytest.raises(SinkRowError, match=said) as raised:
        sink.write([{"id": 1}, row])
    assert raised.value.index == 1
    sink.close()
    assert read(path) == [["id"]]


def test_xlsx__first_batch_without_the_key__is_named(path: Path) -> None:
    sink = opened(path, key="id")
    with pytest.raises(SinkRowError, match="row 0 of the batch has no 'id'"):
        sink.write([{"a": 1}])
    sink.write([{"id": 1}])
    sink.close()
    assert read(path) == [["id"], [1]]


def test_xlsx__more_rows_than_a_sheet_has__is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "ROWS_MAX", 2)
    sink = opened(path)
    with pytest.raises(SinkFullError, match="a sheet has 2 rows, these would be 3"):
        sink.write([{"id": 1}, {"id": 2}, {"id": 3}])
    sink.write([{"id": 1}, {"id": 2}])
    sink.close()
    assert len(read(path)) == 3


def test_xlsx__no_room_for_the_rows__is_named(path: Path) -> None:
    sink = opened(path, columns=["id"])
    with sink._database.writing(1) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(SinkFullError, match="database or disk is full"):
        sink.write([{"id": "x" * 20_000}])
    sink.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_xlsx__no_room_for_the_workbook__can_be_closed_again(path: Path) -> None:
    sink = opened(path)
    sink.write([{"id": number} for number in range(200)])
    full = pytest.raises(SinkFullError, match=r"File too large; its rows are in rows.xlsx.rows")
    with files_of_at_most(1000), full:
        sink.close()
    gc.collect()  # the library leaves files open when it fails
    assert not path.exists()
    sink.close()
    assert len(read(path)) == 201


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_xlsx__no_room_when_it_is_packed__is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(path)
    sink.write([{"id": 1}])

    def full(self: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(xlsxwriter.workbook.Workbook, "_store_workbook", full)
        with pytest.raises(SinkFullError, match="No space left on device"):
            sink.close()
    gc.collect()
    sink.close()
    assert read(path) == [["id"], [1]]


def test_xlsx__without_the_library__says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def without(name: str, *given: Any, **named: Any) -> Any:
        if name == "xlsxwriter":
            raise ImportError(name)
        return known(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'comporta\[xlsx\]'"):
        XlsxSink(path).open()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": ["id"], "key": "a"}, "key must be among the columns"),
        ({"sheet": "a/b"}, "sheet must be 1 to 31 characters"),
        *(
            ({"sheet": sheet}, "sheet must be 1 to 31 characters")
            for sheet in ("", "x" * 32, "'a", "a'", "history", 5)
        ),
    ],
)
def test_xlsx__bad_option__is_named(path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        XlsxSink(path, **options)
