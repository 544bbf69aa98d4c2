"""A run that is killed at random moments and resumed, and what its sink must hold afterwards.

As a program (``python -m tests.pipeline.kill_scenario KIND FOLDER``) it is the run; tests import it.
"""

from __future__ import annotations

import csv
import json
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from comporta import Pipeline
from comporta.pipeline.run.checkpoint import Checkpoint, CheckpointState
from comporta.pipeline.run.sources import FileSource
from comporta.pipeline.sinks import CsvSink, JsonLinesSink, Row, Sink, SqliteSink

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0
FILES = {"sqlite": "results.db", "csv": "results.csv", "jsonl": "results.jsonl"}


def input_of(folder: Path) -> FileSource:
    return FileSource(folder / "input.txt")


def sink_of(kind: str, folder: Path) -> Sink:
    path = folder / FILES[kind]
    if kind == "sqlite":
        return SqliteSink(path, key="line")
    return CsvSink(path, key="line") if kind == "csv" else JsonLinesSink(path, key="line")


async def step(item: str) -> Row:
    """Do nothing slow."""
    return {"text": item}


def run(kind: str, folder: Path) -> None:
    """Run, or resume, to the end."""
    pipeline = Pipeline(
        input_of(folder),
        step,
        sink_of(kind, folder),
        number="line",
        checkpoint=folder / "checkpoint",
        max_rows=200,
        max_delay=0.05,
    )
    assert pipeline.sync.run().ended == "complete"


def kill_and_resume(kind: str, folder: Path, *, items: int, kills: int, seed: int) -> str:
    """Kill a run ``kills`` times, let it end, and check that no item is missing and none confirmed twice."""
    chance = random.Random(seed)
    (folder / "input.txt").write_text("".join(f"item {number}\n" for number in range(1, items + 1)))
    moments = sorted(chance.randrange(items) for _ in range(kills))
    killed = 0
    for moment in [*moments, None]:
        before = rows_of(kind, folder)
        confirmed = _checkpoint_state(folder).confirmed
        killed += _run_until(kind, folder, moment, chance)
        again = [row for row in rows_of(kind, folder)[len(before) :] if int(row["line"]) - 1 in confirmed]
        assert kind == "sqlite" or again == [], "a confirmed item was done again"
    assert killed, "the run was never killed in the middle: the test itself is broken"
    rows = rows_of(kind, folder)
    lines = [int(row["line"]) for row in rows]
    assert set(lines) == set(range(1, items + 1))
    assert all(row["text"] == f"item {row['line']}" for row in rows)
    first_time = [int(row["line"]) for row in rows if not row.get("repeated")]
    assert len(first_time) == items, "a repeated row is not marked, or a first one is"
    repeats = len(rows) - items
    assert kind != "sqlite" or repeats == 0
    return f"{kind}: {items:,} items, {killed} kills, {repeats} rows repeated and marked"


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
                time.sleep(chance.random() * 0.1)  # sleeps: kills at a random moment
            return process.poll() is None
        finally:
            process.kill()


def _confirmed_count(folder: Path) -> int:
    return len(_checkpoint_state(folder).confirmed)


def _checkpoint_state(folder: Path) -> CheckpointState:
    path = folder / "checkpoint"
    return Checkpoint(path).load(dict(input_of(folder).identity() or {}))


def rows_of(kind: str, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the sink, without an incomplete last one."""
    path = folder / FILES[kind]
    if not path.exists():
        return []
    if kind == "sqlite":
        return _rows_of_table(path)
    lines = path.read_bytes().rpartition(b"\n")[0].decode().splitlines()
    return list(csv.DictReader(lines)) if kind == "csv" else [json.loads(line) for line in lines]


def _rows_of_table(path: Path) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute("SELECT * FROM results ORDER BY line")]
    except sqlite3.OperationalError:
        return []  # killed before the table existed
    finally:
        connection.close()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
