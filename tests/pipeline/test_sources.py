"""What is read, by number, with what cannot be read in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comporta.errors import SourceError
from comporta.pipeline.letters import DeadLetters
from comporta.pipeline.runs import sources
from comporta.pipeline.runs.sources import Entry, FileSource, Items, source_of


def read(path: Path, content: bytes | str, form: str | None = None) -> list[Entry]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(FileSource(path, form).entries())


def test_lines__some_empty__are_items_with_the_numbers_of_their_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "x.txt", "\ufeffa\r\n\n  \nb ção\nlast")
    assert found == [Entry(0, 1, "a"), Entry(1, 4, "b ção"), Entry(2, 5, "last")]


def test_lines__not_text__says_so_and_keeps_the_bytes(tmp_path: Path) -> None:
    [good, bad, after] = read(tmp_path / "x.txt", b"a\nb\xff\xe9c\nd\n")
    assert (good.trouble, after) == ("", Entry(2, 3, "d"))
    assert bad == Entry(1, 2, r"b\xff\xe9c", "line 2 is not UTF-8: byte 2 is 0xff")


def test_lines__too_long__is_cut_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 64)
    fits = "x" * 63
    found = read(tmp_path / "x.txt", f"{fits}\n{'y' * 500}\nz\n{'w' * 65}")
    assert [entry.number for entry in found] == [1, 2, 3, 4]
    assert [found[0], found[2]] == [Entry(0, 1, fits), Entry(2, 3, "z")]
    assert found[1].item == "yyyy"
    assert "is longer than 64 bytes" in found[1].trouble
    assert "is longer" in found[3].trouble


def test_json_lines__some_are_none__say_so(tmp_path: Path) -> None:
    found = read(tmp_path / "x.jsonl", '{"a": 1}\n[1, 2]\nnonsense\n"s"\n' + "[" * 100_000)
    assert [entry.item for entry in found if not entry.trouble] == [{"a": 1}, [1, 2], "s"]
    bad, deep = (entry for entry in found if entry.trouble)
    assert (bad.number, bad.item) == (3, "nonsense")
    assert "is not JSON: Expecting value" in bad.trouble
    assert "is not JSON" in deep.trouble


def test_csv__rows__are_dictionaries_and_may_span_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "x.csv", '\ufeffid,name\n1,"Ana\nMaria"\n\n2,Bob\n')
    assert found == [
        Entry(0, 2, {"id": "1", "name": "Ana\nMaria"}),
        Entry(1, 5, {"id": "2", "name": "Bob"}),
    ]


def test_csv__rows_that_are_none__say_so_and_nothing_else_is_lost(tmp_path: Path) -> None:
    content = b'id,name\n1,a,b\n2\n3,"x"y\n4,\xff\n5,good\n6,"never closed\n'
    found = read(tmp_path / "x.csv", content)
    assert [entry.item for entry in found if not entry.trouble] == [{"id": "5", "name": "good"}]
    told = {entry.number: (entry.item, entry.trouble) for entry in found if entry.trouble}
    assert told[2] == ("1,a,b\n", "line 2 must have 2 columns, has 3")
    assert told[3] == ("2\n", "line 3 must have 2 columns, has 1")
    assert told[4][1].startswith("line 4 is not CSV")
    assert told[5] == (r"4,\xff", "line 5 is not UTF-8")
    assert told[7] == ('6,"never closed\n', "line 7 is not CSV: unexpected end of data")


def test_csv__broken_and_not_text__can_still_be_kept_as_json(tmp_path: Path) -> None:
    [found] = read(tmp_path / "x.csv", b'id\n"\xff"x\n')
    assert json.dumps(found.item).isascii()
    assert "is not CSV" in found.trouble


def test_csv__line_too_long__is_no_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 64)
    found = read(tmp_path / "x.csv", f"id\n{'y' * 500}\nz\n")
    assert "is longer than 64 bytes" in found[0].trouble
    assert found[1].item == {"id": "z"}


@pytest.mark.parametrize(("head", "said"), [("a,b,a\n", "'a' is there twice"), ('"a"b\n', "are not CSV")])
def test_csv__names_of_columns_are_wrong__is_a_named_error(tmp_path: Path, head: str, said: str) -> None:
    with pytest.raises(SourceError, match=rf"x\.csv:1: .*{said}"):
        read(tmp_path / "x.csv", head)


def test_csv__empty_lines_before_the_names__are_none(tmp_path: Path) -> None:
    assert read(tmp_path / "x.csv", "\ufeff\r\n\nid\n1\n") == [Entry(0, 4, {"id": "1"})]
    with pytest.raises(SourceError, match=r"x\.csv:2: .*'a' is there twice"):
        read(tmp_path / "x.csv", "\na,a\n")


def test_csv__names_are_not_utf_8__is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"x\.csv:1: the names of the columns are not UTF-8"):
        read(tmp_path / "x.csv", "nome,endere\xe7o\n1,2\n".encode("latin-1"))


@pytest.mark.parametrize("name", ["x.csv", "x.txt", "x.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_file__utf_16__is_a_named_error(tmp_path: Path, name: str, encoding: str) -> None:
    text = "id\n1\n" if encoding == "utf-16" else "\ufeffid\n1\n"
    with pytest.raises(SourceError, match=rf"{name}:1: is UTF-16, convert it to UTF-8"):
        read(tmp_path / name, text.encode(encoding))


def test_csv__long_cell__is_read(tmp_path: Path) -> None:
    cell = "y" * 1_000_000
    assert read(tmp_path / "x.csv", f'id\n"{cell}"\n{cell}\n') == [
        Entry(0, 2, {"id": cell}),
        Entry(1, 3, {"id": cell}),
    ]


def test_csv__empty_file__has_no_items(tmp_path: Path) -> None:
    assert read(tmp_path / "x.csv", "") == []


def test_letters__fed_in_again__are_the_items_by_their_old_numbers(tmp_path: Path) -> None:
    path = tmp_path / "results.dead.jsonl"
    letters = DeadLetters(path)
    letters.append({"id": 7}, "why", position=17)
    letters.append("text", "why", position="elsewhere")
    letters.close()
    with path.open("a") as file:
        file.write('{"no": "item"}\nhalf a l')
    good, unnumbered, other, torn = FileSource(path).entries()
    assert good == Entry(0, 17, {"id": 7})
    assert unnumbered == Entry(1, 2, "text")
    assert "is no dead letter" in other.trouble
    assert "is not JSON" in torn.trouble


def test_file__identity__is_path_size_and_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n")
    source = FileSource(path)
    known = source.identity()
    assert known is not None
    assert (known["path"], known["size_bytes"], source.total) == (str(path), 4, 2)
    path.write_text("c\nb\n")
    assert source.identity() != known


def test_file__absent__is_a_named_error(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "absent")
    for ask in (source.identity, lambda: source.total, lambda: list(source.entries())):
        with pytest.raises(SourceError, match="absent: cannot be read: No such file"):
            ask()


def test_file__that_cannot_be_read_on__is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot be read: Is a directory"):
        list(FileSource(tmp_path).entries())
    with pytest.raises(SourceError, match=r"/proc/self/mem:1: cannot be read"):
        list(FileSource("/proc/self/mem").entries())


def test_file__standard_input__has_no_identity_and_no_length() -> None:
    source = FileSource("-")
    assert (source.identity(), source.total) == (None, None)


def test_file__form__is_by_its_name_or_as_told(tmp_path: Path) -> None:
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


def test_items__anything_to_iterate__is_numbered_from_0() -> None:
    assert list(Items("ab").entries()) == [Entry(0, 0, "a"), Entry(1, 1, "b")]
    assert (Items([1, 2]).total, Items(iter([1])).total) == (2, None)
    assert Items([1, 2]).identity() == {"kind": "items", "total": 2}


@pytest.mark.parametrize("wrong", ["file.txt", b"file.txt", 5, None])
def test_source_of__what_is_none__is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="source must be"):
        source_of(wrong)


def test_source_of__a_source__is_itself() -> None:
    source = Items([])
    assert source_of(source) is source
