"""A shared run whose workers are killed at random moments, and what its database must hold afterwards.

As a program (``python -m tests.pipeline.shared_runs URL FILE LEASE``) it is one worker; tests import it.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from comporta import Pipeline
from comporta.database.base import Statement
from comporta.database.command import execute
from comporta.database.urls import open_database, sqlite_path
from comporta.errors import DatabaseError
from comporta.pipeline.shared_run import TableSource
from comporta.pipeline.shared_run.commands import list_runs
from comporta.pipeline.shared_run.models import RunOverview
from comporta.pipeline.sinks import PostgresSink, Row, Sink, SqliteSink
from comporta.retry.retry import Retry

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 900.0
DEAD_EVERY, EMPTY_EVERY = 97, 89
"""The step fails for, or returns no row for, the items whose number is a multiple of these."""


def sink_of(url: str, **options: Any) -> Sink:
    """Return the sink for a database; by default its key does not hide a line that is written twice."""
    options = {"key": ("line", "attempt"), **options}
    path = sqlite_path(url)
    return PostgresSink(url, **options) if path is None else SqliteSink(path, **options)


def select(url: str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    database = open_database(url, 30.0)
    try:
        return database.read(Statement(query), {})
    finally:
        database.close()


def change(url: str, command: str) -> None:
    """Change something behind the back of the workers."""
    database = open_database(url, 30.0)
    try:
        database.write([Statement(command)], {})
    finally:
        database.close()


def overview(url: str) -> RunOverview:
    """Return the only run of a database."""
    database = open_database(url, 30.0)
    try:
        [found] = execute(database, list_runs(10))
    finally:
        database.close()
    return found


def done_lines(url: str) -> int:
    """Return how many lines are done; none before the run exists."""
    try:
        return overview(url).counts.done
    except (DatabaseError, ValueError):
        return 0


async def step(item: str) -> Row | None:
    """Return a row that tells this attempt from all others; some items fail, some have no row."""
    await asyncio.sleep(0.001)  # sleeps: so that there is time for the kills
    number = int(item.removeprefix("item "))
    if number % DEAD_EVERY == 0:
        raise ValueError(f"{item} is wrong")
    return None if number % EMPTY_EVERY == 0 else {"text": item, "attempt": os.urandom(8).hex()}


def work(url: str, path: Path, lease_seconds: float) -> None:
    """Work on the run until it is complete."""
    source = TableSource(url, path, lease_seconds=lease_seconds)
    pipeline = Pipeline(
        source,
        step,
        sink_of(url),
        number="line",
        max_rows=100,
        max_delay=0.1,
        workers=20,
        sink_retry=Retry(8, 0.5, budget=None),
    )
    assert pipeline.sync.run().ended == "complete"


def kill_workers(url: str, folder: Path, *, lines: int, workers: int, lease_seconds: float, seed: int) -> str:
    """Kill all workers but one at random moments, and check that every line is settled once."""
    chance = random.Random(seed)
    path = folder / "input.txt"
    path.write_text("".join(f"item {number}\n" for number in range(1, lines + 1)))
    moments = sorted(chance.randrange(lines * 2 // 3) for _ in range(workers - 1))
    command = [sys.executable, "-W", "error", "-m", "tests.pipeline.shared_runs", url, str(path)]
    began = time.monotonic()
    processes = [subprocess.Popen([*command, str(lease_seconds)], cwd=ROOT) for _ in range(workers)]
    try:
        for process, moment in zip(processes, moments, strict=False):
            _wait_for_lines(url, moment, process)
            time.sleep(chance.random() * 0.05)  # sleeps: kills at a random moment
            process.kill()
        assert processes[-1].wait(PATIENCE_SECONDS) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    seconds = time.monotonic() - began
    check_settled_once(url, lines)
    return (
        f"{lines:,} lines, {workers} workers, killed at {moments}: {seconds:.0f} s ({lines / seconds:,.0f}/s)"
    )


def check_settled_once(url: str, lines: int) -> None:
    """Check that each line has exactly one row, one dead letter, or nothing if its step returned nothing."""
    numbers = range(1, lines + 1)
    dead = [number for number in numbers if number % DEAD_EVERY == 0]
    written = [number for number in numbers if number % DEAD_EVERY and number % EMPTY_EVERY]
    assert [row[0] for row in select(url, "SELECT line FROM results ORDER BY line")] == written
    letters = select(url, "SELECT position FROM comporta_run_dead_letters ORDER BY position")
    assert [row[0] + 1 for row in letters] == dead
    assert select(url, "SELECT count(*) FROM comporta_run_lines") == [(0,)]
    run = overview(url)
    assert run.finished_at is not None
    assert run.counts == (len(written), len(dead), lines - len(written) - len(dead))


def _wait_for_lines(url: str, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while done_lines(url) < count:
        assert process.poll() is None, "the worker ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)  # sleeps: polls the progress of other processes


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
