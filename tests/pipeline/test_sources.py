"""Sources: items with their numbers, and entries with errors for what cannot be parsed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comporta.errors import SourceError
from comporta.pipeline.dead_letters import DeadLetters
from comporta.pipeline.run import sources
from comporta.pipeline.run.sources import FileSource, IterableSource, SourceEntry, source_of


def line(position: int, number: int, item: object, error: str = "") -> SourceEntry:
    """Return the entry of a line of a file."""
    return SourceEntry(position, number, item, error, "line")


def read(path: Path, content: bytes | str, form: str | None = None) -> list[SourceEntry]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(FileSource(path, form).entries())


def test_lines__some_empty__items_keep_their_line_numbers(tmp_path: Path) -> None:
    entries = read(tmp_path / "x.txt", "\ufeffa\r\n\n  \nb ção\nlast")
    assert entries == [line(0, 1, "a"), line(1, 4, "b ção"), line(2, 5, "last")]


def test_lines__not_utf_8__are_errors_and_keep_the_bytes(tmp_path: Path) -> None:
    [good, bad, after] = read(tmp_path / "x.txt", b"a\nb\xff\xe9c\nd\n")
    assert (good.error, after) == ("", line(2, 3, "d"))
    assert bad == line(1, 2, r"b\xff\xe9c", "line 2 is not UTF-8: byte 2 is 0xff")


def test_lines__too_long__are_truncated_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 64)
    fits = "x" * 63
    entries = read(tmp_path / "x.txt", f"{fits}\n{'y' * 500}\nz\n{'w' * 65}")
    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert [entries[0], entries[2]] == [line(0, 1, fits), line(2, 3, "z")]
    assert entries[1].item == "yyyy"
    assert "is longer than 64 bytes" in entries[1].error
    assert "is longer" in entries[3].error


def test_json_lines__some_invalid__are_errors(tmp_path: Path) -> None:
    entries = read(tmp_path / "x.jsonl", '{"a": 1}\n[1, 2]\nnonsense\n"s"\n' + "[" * 100_000)
    assert [entry.item for entry in entries if not entry.error] == [{"a": 1}, [1, 2], "s"]
    bad, deep = (entry for entry in entries if entry.error)
    assert (bad.number, bad.item) == (3, "nonsense")
    assert "is not JSON: Expecting value" in bad.error
    assert "is not JSON" in deep.error


def test_csv__rows__are_dictionaries_and_may_span_lines(tmp_path: Path) -> None:
    entries = read(tmp_path / "x.csv", '\ufeffid,name\n1,"Ana\nMaria"\n\n2,Bob\n')
    assert entries == [
        line(0, 2, {"id": "1", "name": "Ana\nMaria"}),
        line(1, 5, {"id": "2", "name": "Bob"}),
    ]


def test_csv__invalid_rows__are_errors_and_no_other_row_is_lost(tmp_path: Path) -> None:
    content = b'id,name\n1,a,b\n2\n3,"x"y\n4,\xff\n5,good\n6,"never closed\n'
    entries = read(tmp_path / "x.csv", content)
    assert [entry.item for entry in entries if not entry.error] == [{"id": "5", "name": "good"}]
    errors = {entry.number: (entry.item, entry.error) for entry in entries if entry.error}
    assert errors[2] == ("1,a,b\n", "line 2 must have 2 columns, got 3")
    assert errors[3] == ("2\n", "line 3 must have 2 columns, got 1")
    assert errors[4][1].startswith("line 4 is not CSV")
    assert errors[5] == (r"4,\xff", "line 5 is not UTF-8")
    assert errors[7] == ('6,"never closed\n', "line 7 is not CSV: unexpected end of data")


def test_csv__invalid_and_not_utf_8__can_be_dumped_as_json(tmp_path: Path) -> None:
    [entry] = read(tmp_path / "x.csv", b'id\n"\xff"x\n')
    assert json.dumps(entry.item).isascii()
    assert "is not CSV" in entry.error


def test_csv__line_too_long__is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 64)
    entries = read(tmp_path / "x.csv", f"id\n{'y' * 500}\nz\n")
    assert "is longer than 64 bytes" in entries[0].error
    assert entries[1].item == {"id": "z"}


@pytest.mark.parametrize(("head", "message"), [("a,b,a\n", "got 'a' twice"), ('"a"b\n', "are not CSV")])
def test_csv__invalid_column_names__is_a_source_error(tmp_path: Path, head: str, message: str) -> None:
    with pytest.raises(SourceError, match=rf"x\.csv, line 1: .*{message}"):
        read(tmp_path / "x.csv", head)


def test_csv__empty_lines_before_the_column_names__are_skipped(tmp_path: Path) -> None:
    assert read(tmp_path / "x.csv", "\ufeff\r\n\nid\n1\n") == [line(0, 4, {"id": "1"})]
    with pytest.raises(SourceError, match=r"x\.csv, line 2: .*got 'a' twice"):
        read(tmp_path / "x.csv", "\na,a\n")


def test_csv__column_names_not_utf_8__is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"x\.csv, line 1: the column names are not UTF-8"):
        read(tmp_path / "x.csv", "nome,endere\xe7o\n1,2\n".encode("latin-1"))


@pytest.mark.parametrize("name", ["x.csv", "x.txt", "x.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_file__utf_16__is_a_source_error(tmp_path: Path, name: str, encoding: str) -> None:
    text = "id\n1\n" if encoding == "utf-16" else "\ufeffid\n1\n"
    with pytest.raises(SourceError, match=rf"{name}, line 1: expected UTF-8, got UTF-16"):
        read(tmp_path / name, text.encode(encoding))


def test_csv__cell_longer_than_the_default_limit__is_read(tmp_path: Path) -> None:
    cell = "y" * 1_000_000
    assert read(tmp_path / "x.csv", f'id\n"{cell}"\n{cell}\n') == [
        line(0, 2, {"id": cell}),
        line(1, 3, {"id": cell}),
    ]


def test_csv__empty_file__has_no_items(tmp_path: Path) -> None:
    assert read(tmp_path / "x.csv", "") == []


def test_dead_letters__as_a_source__are_items_with_their_original_numbers(tmp_path: Path) -> None:
    path = tmp_path / "results.dead.jsonl"
    dead_letters = DeadLetters(path)
    dead_letters.append({"id": 7}, "reason", position=17)
    dead_letters.append("text", "reason", position="elsewhere")
    dead_letters.close()
    with path.open("a") as file:
        file.write('{"no": "item"}\nhalf a l')
    good, unnumbered, other, torn = FileSource(path).entries()
    assert good == line(0, 17, {"id": 7})
    assert unnumbered == line(1, 2, "text")
    assert "is not a dead letter" in other.error
    assert "is not JSON" in torn.error


def test_file__identity__is_path_size_and_hash_of_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n")
    source = FileSource(path)
    identity = source.identity()
    assert identity is not None
    assert (identity["path"], identity["size_bytes"], source.total) == (str(path), 4, 2)
    path.write_text("c\nb\n")
    assert source.identity() != identity


def test_file__missing__is_a_source_error(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "absent")
    for read_it in (source.identity, lambda: source.total, lambda: list(source.entries())):
        with pytest.raises(SourceError, match=r"cannot read .*absent: No such file"):
            read_it()


def test_file__read_fails_in_the_middle__is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot read .*: Is a directory"):
        list(FileSource(tmp_path).entries())
    with pytest.raises(SourceError, match=r"cannot read /proc/self/mem, line 1"):
        list(FileSource("/proc/self/mem").entries())


def test_file__standard_input__has_no_identity_and_no_length() -> None:
    source = FileSource("-")
    assert (source.identity(), source.total) == (None, None)


def test_file__form__follows_from_its_name_or_the_option(tmp_path: Path) -> None:
    names = {
        "a.CSV": "csv",
        "a.jsonl": "jsonl",
        "a.ndjson": "jsonl",
        "a.dead.jsonl": "letters",
        "a.b": "lines",
    }
    assert {name: FileSource(tmp_path / name).form for name in names} == names
    assert FileSource("a.csv", "lines").form == "lines"
    with pytest.raises(ValueError, match="form must be one of 'lines', 'csv', 'jsonl', 'letters', got 'xml'"):
        FileSource("a", "xml")


def test_items__any_iterable__is_numbered_from_0() -> None:
    assert list(IterableSource("ab").entries()) == [SourceEntry(0, 0, "a"), SourceEntry(1, 1, "b")]
    assert (IterableSource([1, 2]).total, IterableSource(iter([1])).total) == (2, None)
    assert IterableSource([1, 2]).identity() == {"kind": "items", "total": 2}


@pytest.mark.parametrize("wrong", ["file.txt", b"file.txt", 5, None])
def test_source_of__not_iterable__is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="source must be"):
        source_of(wrong)


def test_source_of__source__is_returned() -> None:
    source = IterableSource([])
    assert source_of(source) is source
