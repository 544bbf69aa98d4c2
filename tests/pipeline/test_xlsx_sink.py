"""The XLSX sink: a workbook made on close, from rows that survive until then, with text that stays text."""

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
from tests.support import file_size_limit

from comporta.errors import SinkFullError, SinkRowError, SinkUnavailableError
from comporta.pipeline.sinks import XlsxSink, xlsx


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.xlsx"


def read(path: Path) -> list[list[Any]]:
    sheet = openpyxl.load_workbook(path).active
    assert all(cell.data_type != "f" and cell.hyperlink is None for row in sheet for cell in row)
    return [[cell.value for cell in row] for row in sheet]


def open_sink(path: Path, **options: Any) -> XlsxSink:
    sink = XlsxSink(path, **options)
    sink.open()
    return sink


def test_close__rows_written__workbook_has_all_values(path: Path) -> None:
    sink = open_sink(path)
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
    assert sorted(file.name for file in path.parent.iterdir()) == ["rows.xlsx", "rows.xlsx.rows"]


def test_open__rows_of_an_earlier_run__workbook_has_each_key_once(path: Path) -> None:
    sink = open_sink(path, key="id")
    sink.write([{"id": 1, "a": "x"}, {"id": 2, "a": "x"}])
    sink.close()
    sink = open_sink(path, key="id", columns=["id", "a"], durable=True)
    sink.write([{"id": 2, "a": "y"}, {"id": 3, "a": "y"}])
    sink.close()
    assert read(path) == [["id", "a"], [1, "x"], [2, "y"], [3, "y"]]


def test_close__no_new_rows__leaves_the_workbook_unchanged(path: Path) -> None:
    sink = open_sink(path, columns=["id"])
    sink.close()
    before = path.stat().st_ino
    open_sink(path).close()
    assert path.stat().st_ino == before
    assert read(path) == [["id"]]


def test_close__no_rows__makes_an_empty_workbook(path: Path) -> None:
    open_sink(path).close()
    assert path.exists()


def test_write__process_killed__next_workbook_has_confirmed_rows(path: Path) -> None:
    program = (
        "import os, sys\n"
        "from comporta.pipeline.sinks import XlsxSink\n"
        "sink = XlsxSink(sys.argv[1])\n"
        "sink.open()\n"
        "sink.write([{'id': 1}])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -9
    sink = open_sink(path)
    sink.write([{"id": 2}])
    sink.close()
    assert read(path) == [["id"], [1], [2]]


def test_open__workbook_without_its_rows_file__is_refused(path: Path) -> None:
    path.write_text("another program's file")
    with pytest.raises(SinkUnavailableError, match=r"rows.xlsx.rows with its rows does not"):
        XlsxSink(path).open()
    assert path.read_text() == "another program's file"


def test_open__other_columns__are_refused_and_the_rows_file_is_closed(path: Path) -> None:
    sink = open_sink(path, columns=["id"])
    sink.close()
    other = XlsxSink(path, columns=["a", "b"])
    with pytest.raises(SinkUnavailableError, match="expected the columns a, b, got id"):
        other.open()
    assert other._database._writer is None
    with pytest.raises(SinkUnavailableError, match=r"nowhere/x.xlsx: x.xlsx.rows: unable to open"):
        XlsxSink(path.parent / "nowhere" / "x.xlsx").open()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": 2, "b": 1}, "column 'b'"),
        ({"id": "x" * 32_768}, "a cell must have at most 32767 characters, got 32768"),
        ({"id": None}, "row 1 of the batch has no value for the key 'id'"),
    ],
)
def test_write__invalid_row__is_named_in_the_error(path: Path, row: dict[str, Any], message: str) -> None:
    sink = open_sink(path, key="id", columns=["id"])
    with pytest.raises(SinkRowError, match=message) as raised:
        sink.write([{"id": 1}, row])
    assert raised.value.index == 1
    sink.close()
    assert read(path) == [["id"]]


def test_write__first_batch_without_the_key__is_named_in_the_error(path: Path) -> None:
    sink = open_sink(path, key="id")
    with pytest.raises(SinkRowError, match="row 0 of the batch has no value for the key 'id'"):
        sink.write([{"a": 1}])
    sink.write([{"id": 1}])
    sink.close()
    assert read(path) == [["id"], [1]]


def test_write__more_rows_than_a_sheet_can_have__is_a_full_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xlsx, "ROWS_MAX", 2)
    sink = open_sink(path)
    with pytest.raises(SinkFullError, match="a sheet can have 2 rows, got 3"):
        sink.write([{"id": 1}, {"id": 2}, {"id": 3}])
    sink.write([{"id": 1}, {"id": 2}])
    sink.close()
    assert len(read(path)) == 3


def test_write__disk_full__is_a_full_error(path: Path) -> None:
    sink = open_sink(path, columns=["id"])
    with sink._database.write_transaction(1) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(SinkFullError, match="database or disk is full"):
        sink.write([{"id": "x" * 20_000}])
    sink.close()


def assert_close_fails(sink: XlsxSink) -> None:
    """Close a sink on a full disk. The exception, which refers to open files, does not outlive this call."""
    with (
        file_size_limit(1000),
        pytest.raises(SinkFullError, match=r"File too large; the rows are in rows.xlsx.rows"),
    ):
        sink.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_close__disk_full__may_be_called_again(path: Path) -> None:
    sink = open_sink(path)
    sink.write([{"id": number} for number in range(200)])
    assert_close_fails(sink)
    gc.collect()  # the library leaves files open when it fails
    assert not path.exists()
    sink.close()
    assert len(read(path)) == 201


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_close__disk_full_while_packing__is_a_full_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = open_sink(path)
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


def test_open__xlsxwriter_missing__says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "xlsxwriter":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'comporta\[xlsx\]'"):
        XlsxSink(path).open()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["id"], "key": "a"}, "key must be among the columns"),
        ({"sheet": "a/b"}, "sheet must have 1 to 31 characters"),
        *(
            ({"sheet": sheet}, "sheet must have 1 to 31 characters")
            for sheet in ("", "x" * 32, "'a", "a'", "history", 5)
        ),
    ],
)
def test_xlsx_sink__invalid_option__is_named_in_the_error(
    path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        XlsxSink(path, **options)
