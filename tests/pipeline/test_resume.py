"""A run resumes in its files: rows beyond the checkpoint are removed, unless the run did not write them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comporta import Pipeline
from comporta.errors import DeadLettersError, SinkUnavailableError
from comporta.events import latest_events
from comporta.pipeline.dead_letters import DeadLetter, DeadLetters
from comporta.pipeline.files.append_journal import AppendJournal
from comporta.pipeline.run.checkpoint import Checkpoint
from comporta.pipeline.sinks import CsvSink, JsonLinesSink, ResumableSink, ResumePoint, Row, XlsxSink

RUN, OTHER_RUN = "0123456789abcdef", "fedcba9876543210"
SINKS: dict[str, Callable[[Path], ResumableSink]] = {
    "csv": lambda folder: CsvSink(folder / "rows.csv", durable=True),
    "jsonl": lambda folder: JsonLinesSink(folder / "rows.jsonl"),
    "xlsx": lambda folder: XlsxSink(folder / "rows.xlsx"),
}


@pytest.fixture(params=list(SINKS))
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def point(folder: Path, end: int | None, run: str = RUN) -> ResumePoint:
    return ResumePoint(run, end, folder / "journal")


def write_run(kind: str, folder: Path, end: int | None, *batches: list[Row], run: str = RUN) -> list[int]:
    """Write batches as a run does that is killed after them; returns the end after each."""
    sink = SINKS[kind](folder)
    sink.open_run(point(folder, end, run))
    ends = [sink.end]
    for batch in batches:
        sink.write(batch)
        ends.append(sink.end)
    sink.close()
    return ends


def ids_in(kind: str, folder: Path) -> list[int]:
    if kind == "xlsx":
        import openpyxl  # noqa: PLC0415 - only for this sink

        return [row[0] for row in list(openpyxl.load_workbook(folder / "rows.xlsx").active.values)[1:]]
    lines = (folder / f"rows.{kind}").read_text().splitlines()
    return [int(line) for line in lines[1:]] if kind == "csv" else [json.loads(line)["id"] for line in lines]


def test_open_run__rows_beyond_the_checkpoint__are_removed(kind: str, tmp_path: Path) -> None:
    ends = write_run(kind, tmp_path, None, [{"id": 1}], [{"id": 2}, {"id": 3}], [{"id": 4}])
    assert write_run(kind, tmp_path, ends[2], [{"id": 5}])[0] == ends[2]
    assert ids_in(kind, tmp_path) == [1, 2, 3, 5]
    write_run(kind, tmp_path, ends[2])
    assert ids_in(kind, tmp_path) == [1, 2, 3]


def test_open_run__nothing_confirmed__starts_the_file_again(kind: str, tmp_path: Path) -> None:
    [empty, _] = write_run(kind, tmp_path, None, [{"id": 1, "name": "first columns"}])
    write_run(kind, tmp_path, empty, [{"id": 2}])
    assert ids_in(kind, tmp_path) == [2]


def test_open_run__rows_of_another_run__are_refused_and_stay(kind: str, tmp_path: Path) -> None:
    [_, end] = write_run(kind, tmp_path, None, [{"id": 1}])
    write_run(kind, tmp_path, None, [{"id": 2}], run=OTHER_RUN)
    with pytest.raises(SinkUnavailableError, match=r"this run did not write the last \d+ (bytes|rows)"):
        write_run(kind, tmp_path, end)
    assert ids_in(kind, tmp_path) == [1, 2]


def test_open_run__confirmed_rows_are_missing__is_refused(kind: str, tmp_path: Path) -> None:
    [_, end] = write_run(kind, tmp_path, None, [{"id": 1}])
    with pytest.raises(SinkUnavailableError, match="confirmed rows are missing"):
        write_run(kind, tmp_path, end + 1)
    assert write_run(kind, tmp_path, end) == [end]


def test_open_run__another_program_appended__is_refused(tmp_path: Path) -> None:
    ends = write_run("jsonl", tmp_path, None, [{"id": 1}], [{"id": 2}])
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"id": 3}\n')
    with pytest.raises(SinkUnavailableError, match="this run did not write the last 20 bytes"):
        write_run("jsonl", tmp_path, ends[1])
    assert ids_in("jsonl", tmp_path) == [1, 2, 3]


def test_open_run__another_program_changed_a_row__is_refused(tmp_path: Path) -> None:
    ends = write_run("jsonl", tmp_path, None, [{"id": 1}], [{"id": 2}], [{"id": 3}])
    path = tmp_path / "rows.jsonl"
    for old, new in (("2", "7"), ("3", "8")):
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(SinkUnavailableError, match="this run did not write"):
            write_run("jsonl", tmp_path, ends[1])
        path.write_text(path.read_text().replace(new, old))


def test_open_run__rows_removed__publishes_how_many_bytes(tmp_path: Path) -> None:
    ends = write_run("csv", tmp_path, None, [{"id": 1}], [{"id": 2}])
    write_run("csv", tmp_path, ends[1])
    texts = [event.text for event in latest_events() if event.kind == "sink_repaired"]
    assert "removed 3 bytes that were written after the last checkpoint" in texts


@pytest.mark.parametrize(
    ("size", "expected"),
    [(5, True), (4096, True), (100, False), (9000, True), (9001, False), (4, False)],
)
def test_wrote_tail__append_interrupted__ends_at_a_page(tmp_path: Path, size: int, expected: bool) -> None:
    path, data = tmp_path / "file", b"x" * 8995
    journal = AppendJournal(tmp_path / "journal", RUN, durable=False)
    journal.start(0)
    journal.announce(0, b"first")
    journal.announce(5, data)
    journal.close()
    path.write_bytes((b"first" + data + b"more")[:size])
    with path.open("rb") as file:
        assert journal.wrote_tail(file.fileno(), 0, size) is expected


def test_announce__last_append_failed__continues_before_it(tmp_path: Path) -> None:
    journal = AppendJournal(tmp_path / "journal", RUN, durable=False)
    journal.start(0)
    for size, data in ((0, b"one"), (3, b"failed"), (3, b"two")):
        journal.announce(size, data)
    journal.close()
    (tmp_path / "file").write_bytes(b"onetwo")
    with (tmp_path / "file").open("rb") as file:
        assert journal.wrote_tail(file.fileno(), 3, 6)


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_wrote_tail__no_valid_journal__is_false(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "journal"
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "file").write_bytes(b"data")
    with (tmp_path / "file").open("rb") as file:
        assert not AppendJournal(path, RUN, durable=False).wrote_tail(file.fileno(), 0, 4)


# -- through a pipeline


def to_row(item: int) -> Row:
    if item == 3:
        raise ValueError("three")
    return {"id": item}


def pipeline(folder: Path, sink: Any) -> Pipeline:
    return Pipeline(
        range(10),
        to_row,
        sink,
        workers=1,
        max_rows=2,
        dead_letters=folder / "dead.jsonl",
        checkpoint=folder / "checkpoint",
    )


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_run__copied_at_any_batch__resumes_without_repeated_or_missing_rows(
    kind: str, tmp_path: Path
) -> None:
    """A copy of the files, taken while the run writes, is what a kill at that moment leaves."""
    folder = tmp_path / "run"
    folder.mkdir()
    sink = SINKS[kind](folder)
    copies: list[Path] = []

    def write_and_copy(rows: Any) -> None:
        write(rows)
        copies.append(tmp_path / f"killed-{len(copies)}")
        shutil.copytree(folder, copies[-1], ignore=shutil.ignore_patterns("*.lock", "*.new"))

    write, sink.write = sink.write, write_and_copy  # type: ignore[method-assign]
    pipeline(folder, sink).sync.run()
    assert len(copies) == 5
    for copy in (folder, *copies):
        pipeline(copy, SINKS[kind](copy)).sync.run()
        assert sorted(ids_in(kind, copy)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert [letter.position for letter in DeadLetters.read(copy / "dead.jsonl")] == [3]


def test_run__dead_letters_beyond_the_checkpoint__are_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    first = pipeline(tmp_path, None).sync.run()
    assert (first.dead, first.done) == (1, 10)
    [letter] = DeadLetters.read(path)
    state = Checkpoint(tmp_path / "checkpoint").peek()
    assert state is not None
    assert letter.id == f"{state.run}-3"
    others = [DeadLetter("x", f"{state.run}-8 is no id", id=f"{OTHER_RUN}-5"), DeadLetter("y", "no id")]
    DeadLetters(path).extend(others)
    state.confirmed = type(state.confirmed)()
    state.dead = 0
    Checkpoint(tmp_path / "checkpoint").save(state)
    again = pipeline(tmp_path, None).sync.run()
    assert (again.dead, again.dead_before, again.done, again.skipped) == (0, 1, 9, 1)
    assert len(list(DeadLetters.read(path))) == 3


def test_positions_of__file_cannot_be_read__is_a_dead_letters_error(tmp_path: Path) -> None:
    with pytest.raises(DeadLettersError, match="No such file"):
        list(DeadLetters(tmp_path / "absent").positions_of(RUN))
