"""A run that is killed at random moments and resumed, and what its files must hold afterwards.

As a program (``python -m tests.pipeline.kill_scenario KIND FOLDER``) it is the run; tests import it.
"""

from __future__ import annotations

import asyncio
import csv
import json
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openpyxl

from comporta import Pipeline
from comporta.pipeline.dead_letters import DeadLetters
from comporta.pipeline.run.checkpoint import Checkpoint, CheckpointState
from comporta.pipeline.run.sources import FileSource
from comporta.pipeline.sinks import CsvSink, JsonLinesSink, Row, Sink, SqliteSink, XlsxSink

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0
FILES = {"sqlite": "results.db", "csv": "results.csv", "jsonl": "results.jsonl", "xlsx": "results.xlsx"}
DEAD_EVERY = 97
"""The step fails for the items whose number is a multiple of this."""


def input_of(folder: Path) -> FileSource:
    return FileSource(folder / "input.txt")


def sink_of(kind: str, folder: Path) -> Sink:
    """Return a sink; those for files have no key, so that only the checkpoint can prevent repeated rows."""
    path = folder / FILES[kind]
    if kind == "sqlite":
        return SqliteSink(path, key="line")
    if kind == "xlsx":
        return XlsxSink(path)
    return CsvSink(path) if kind == "csv" else JsonLinesSink(path)


def is_dead(number: int) -> bool:
    return number % DEAD_EVERY == 0


async def step(item: str) -> Row:
    """Wait a little, so that there is time for all kills; some items fail."""
    await asyncio.sleep(0.002)  # sleeps: a run of 20,000 items takes some seconds
    if is_dead(int(item.removeprefix("item "))):
        raise ValueError(f"{item} is wrong")
    return {"text": item}


def run(kind: str, folder: Path) -> None:
    """Run, or resume, to the end."""
    pipeline = Pipeline(
        input_of(folder),
        step,
        sink_of(kind, folder),
        number="line",
        checkpoint=folder / "checkpoint",
        dead_letters=folder / "dead.jsonl",
        max_rows=200,
        max_delay=0.05,
    )
    assert pipeline.sync.run().ended == "complete"


def kill_and_resume(kind: str, folder: Path, *, items: int, kills: int, seed: int) -> str:
    """Kill a run ``kills`` times, let it end, and check that each item has one row or one dead letter."""
    chance = random.Random(seed)
    (folder / "input.txt").write_text("".join(f"item {number}\n" for number in range(1, items + 1)))
    moments = sorted(chance.randrange(items * 9 // 10) for _ in range(kills))
    killed = sum([_run_until(kind, folder, moment, chance) for moment in [*moments, None]])
    assert killed == kills, "the run ended before a kill: the test itself is broken"
    rows = rows_of(kind, folder)
    lines = sorted(int(row["line"]) for row in rows)
    assert lines == [number for number in range(1, items + 1) if not is_dead(number)]
    assert all(row["text"] == f"item {row['line']}" for row in rows)
    dead = sorted(int(letter.position) for letter in DeadLetters.read(folder / "dead.jsonl"))
    assert dead == [number for number in range(1, items + 1) if is_dead(number)]
    assert not (folder / "checkpoint.journal").exists()
    return f"{kind}: {items:,} items, {killed} kills, {len(rows):,} rows and {len(dead)} dead letters"


def _run_until(kind: str, folder: Path, moment: int | None, chance: random.Random) -> bool:
    """Run, and kill it after ``moment`` confirmed items, or let it end; true if it was killed."""
    command = [sys.executable, "-W", "error", "-m", "tests.pipeline.kill_scenario", kind, str(folder)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            while (
                moment is not None
                and len(_checkpoint_state(folder).confirmed) < moment
                and process.poll() is None
            ):
                assert time.monotonic() < deadline
                time.sleep(0.002)
            if moment is None:
                assert process.wait(PATIENCE_SECONDS) == 0
            else:
                time.sleep(chance.random() * 0.05)  # sleeps: kills at a random moment
            return process.poll() is None
        finally:
            process.kill()


def _checkpoint_state(folder: Path) -> CheckpointState:
    path = folder / "checkpoint"
    return Checkpoint(path).load(dict(input_of(folder).identity() or {}))


def rows_of(kind: str, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the sink of a run that ended."""
    path = folder / FILES[kind]
    if kind == "sqlite":
        return _rows_of_table(path)
    if kind == "xlsx":
        names, *rows = openpyxl.load_workbook(path).active.values
        return [dict(zip(names, row, strict=True)) for row in rows]
    lines = path.read_text().splitlines()
    return list(csv.DictReader(lines)) if kind == "csv" else [json.loads(line) for line in lines]


def _rows_of_table(path: Path) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute("SELECT * FROM results ORDER BY line")]
    finally:
        connection.close()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
