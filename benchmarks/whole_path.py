"""The whole path: ``Pipeline`` with default options, compared with a script around ``asyncio.Queue``.

Both run the same steps and make the same commits. The script does what one writes by hand: workers between
two queues and a task that writes batches on a thread. It has no retries, confirmations or dead letters.
Both are measured in turns, as CPU time per item, so that a busy machine slows both down.
"""

from __future__ import annotations

import asyncio
import csv
import gc
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.measure import Effort
from benchmarks.ours import COMPORTA
from benchmarks.report import Goal, Section, Table
from comporta import Pipeline
from comporta.pipeline.sinks import CsvSink, JsonLinesSink, SqliteSink

ITEMS, HICCUP_SECONDS = 20_000, 0.25
READ_AHEAD, ROWS_AHEAD = 100, 2_000
LONG_ITEMS, RSS_MAX_MB, SPEED_GOAL = 1_000_000, 5.0, 100_000
NO_SINK = "free"

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], None]


async def step(item: int) -> Row:
    """Return a row; a real step would wait for an answer here."""
    return {"id": item, "name": "a company", "value": 2 * item}


def blocking_step(item: int) -> Row:
    """Return a row, on a thread."""
    return {"id": item, "name": "a company", "value": 2 * item}


class Case(NamedTuple):
    """One setting in which both are measured."""

    sink: str
    max_rows: int
    workers: int
    hiccup: bool
    blocking: bool = False

    @property
    def name(self) -> str:
        """The name of the case in a table."""
        return (
            f"{self.sink}{', def steps' if self.blocking else ''}{', with a hiccup' if self.hiccup else ''}"
        )


class Stall:
    """Blocks once, in the tenth batch."""

    def __init__(self, *, enabled: bool) -> None:
        self._batches_left = 10 if enabled else 0

    def __call__(self) -> None:
        self._batches_left -= 1
        if self._batches_left == 0:
            time.sleep(HICCUP_SECONDS)


class BenchmarkSink:
    """A sink of comporta, or none, that may stall once."""

    def __init__(self, sink: Any, stall: Stall) -> None:
        self._sink = sink
        self._stall = stall

    def open(self) -> None:
        """Open the sink."""
        if self._sink is not None:
            self._sink.open()

    def write(self, rows: Sequence[Any]) -> None:
        """Write a batch."""
        self._stall()
        if self._sink is not None:
            self._sink.write(rows)

    def close(self) -> None:
        """Close the sink."""
        if self._sink is not None:
            self._sink.close()


def path(effort: Effort) -> Section:
    """Compare the CPU time per item in many cases, and send many items through a pipeline."""
    rounds = 3 if effort.quick else 7
    measured = {case: _measure(case, rounds) for case in _cases(quick=effort.quick)}
    rows = [
        [
            case.name,
            f"{case.max_rows}",
            f"{case.workers}",
            f"{ours:.1f} µs",
            f"{script:.1f} µs",
            f"{ours / script:.2f}",
        ]
        for case, (ours, script) in measured.items()
    ]
    speed, grown = _long_run(LONG_ITEMS // 10 if effort.quick else LONG_ITEMS)
    return Section(
        "The whole path",
        f"`Pipeline` with {ITEMS:,} items and a step that only returns a row, one process, compared with a "
        f"script of two `asyncio.Queue`s with the same commits. A hiccup: the sink stalls once for "
        f"{HICCUP_SECONDS:g} s. CPU time per item, median of {rounds} rounds.",
        [
            Table("Sink", ["", "max_rows", "workers", COMPORTA, "script", "ratio"], rows),
            Table(
                f"{LONG_ITEMS:,} items into SQLite, 500 rows at a time",
                ["", "items/s", "resident memory grew by"],
                [[COMPORTA, f"{speed:,.0f}", f"{grown:.1f} MB"]],
            ),
        ],
        [
            _goal(2, "a file or SQLite", [pair for case, pair in measured.items() if case.sink != NO_SINK]),
            _goal(
                4,
                "a sink that costs nothing",
                [pair for case, pair in measured.items() if case.sink == NO_SINK],
            ),
            Goal(f"whole path: at least {SPEED_GOAL:,} items/s", f"{speed:,.0f}", speed >= SPEED_GOAL),
            Goal(
                f"whole path: memory grows by less than {RSS_MAX_MB:g} MB",
                f"{grown:.1f} MB",
                grown < RSS_MAX_MB,
            ),
        ],
    )


def _goal(most: float, what: str, pairs: Iterable[tuple[float, float]]) -> Goal:
    worst = max(ours / script for ours, script in pairs)
    return Goal(
        f"whole path, {what}: at most {most:g} times the CPU time of a script", f"{worst:.2f}", worst <= most
    )


def _cases(*, quick: bool) -> list[Case]:
    cases = [
        Case(sink, max_rows, workers, hiccup)
        for sink in (NO_SINK, "JSON lines", "CSV", "SQLite")
        for max_rows in (50, 500)
        for workers in (8, 100)
        for hiccup in (False, True)
    ]
    cases += [
        Case(sink, 50, workers, hiccup=False, blocking=True)
        for sink in (NO_SINK, "SQLite")
        for workers in (8, 100)
    ]
    return cases[::3] if quick else cases


def _measure(case: Case, rounds: int) -> tuple[float, float]:
    """Return the CPU time per item of both, in µs."""
    ours, script = [], []
    for _ in range(rounds):
        ours.append(_cpu_us(_run_pipeline, case))
        script.append(_cpu_us(_run_script, case))
    return median(ours), median(script)


def _cpu_us(run: Callable[[Case, Path], Awaitable[None]], case: Case) -> float:
    with TemporaryDirectory() as folder:
        gc.collect()
        began = time.process_time()
        asyncio.run(_awaited(run(case, Path(folder))))
        return (time.process_time() - began) / ITEMS * 1e6


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _run_pipeline(case: Case, folder: Path) -> None:
    sinks: dict[str, Callable[[], Any]] = {
        NO_SINK: lambda: None,
        "JSON lines": lambda: JsonLinesSink(folder / "rows.jsonl"),
        "CSV": lambda: CsvSink(folder / "rows.csv"),
        "SQLite": lambda: SqliteSink(folder / "rows.db"),
    }
    sink = BenchmarkSink(sinks[case.sink](), Stall(enabled=case.hiccup))
    function = blocking_step if case.blocking else step
    pipeline = Pipeline(range(ITEMS), function, sink, workers=case.workers, max_rows=case.max_rows)
    report = await pipeline.run()
    if report.written != ITEMS:
        raise RuntimeError(f"{case}: {report.written} of {ITEMS} rows were written")


# the script -------------------------------------------------------------------------------------------


async def _run_script(case: Case, folder: Path) -> None:
    stall = Stall(enabled=case.hiccup)
    write, close = _SCRIPT_SINKS[case.sink](folder)
    items: asyncio.Queue[Any] = asyncio.Queue(READ_AHEAD)
    rows: asyncio.Queue[Any] = asyncio.Queue(max(ROWS_AHEAD, 10 * case.max_rows))

    async def feed() -> None:
        for item in range(ITEMS):
            await items.put(item)
        for _ in range(case.workers):
            await items.put(None)

    async def work() -> None:
        while (item := await items.get()) is not None:
            await rows.put(
                await asyncio.to_thread(blocking_step, item) if case.blocking else await step(item)
            )

    def write_batch(batch: list[Row]) -> None:
        stall()
        write(batch)

    async def save() -> None:
        batch: list[Row] = []
        while (row := await rows.get()) is not None:
            batch.append(row)
            if len(batch) == case.max_rows:
                await asyncio.to_thread(write_batch, batch)
                batch = []
        await asyncio.to_thread(write_batch, batch)

    saving = asyncio.create_task(save())
    await asyncio.gather(feed(), *(work() for _ in range(case.workers)))
    await rows.put(None)
    await saving
    close()


def _script_free(folder: Path) -> tuple[Write, Callable[[], None]]:
    return lambda rows: None, lambda: None


def _script_json_lines(folder: Path) -> tuple[Write, Callable[[], None]]:
    file = (folder / "rows.jsonl").open("w")

    def write(rows: Sequence[Row]) -> None:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
        file.flush()

    return write, file.close


def _script_csv(folder: Path) -> tuple[Write, Callable[[], None]]:
    file = (folder / "rows.csv").open("w", newline="")
    writer = csv.DictWriter(file, ["id", "name", "value"])
    writer.writeheader()

    def write(rows: Sequence[Row]) -> None:
        writer.writerows(rows)
        file.flush()

    return write, file.close


def _script_sqlite(folder: Path) -> tuple[Write, Callable[[], None]]:
    connection = sqlite3.connect(folder / "rows.db", check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE results (id INTEGER PRIMARY KEY, name, value)")
    statement = (
        "INSERT INTO results VALUES (:id, :name, :value) "
        "ON CONFLICT (id) DO UPDATE SET name = excluded.name, value = excluded.value"
    )

    def write(rows: Sequence[Row]) -> None:
        with connection:
            connection.executemany(statement, rows)

    return write, connection.close


_SCRIPT_SINKS = {
    NO_SINK: _script_free,
    "JSON lines": _script_json_lines,
    "CSV": _script_csv,
    "SQLite": _script_sqlite,
}


# a long run -------------------------------------------------------------------------------------------


def _long_run(count: int) -> tuple[float, float]:
    """Return the items per second, and by how many MB the process grew after the first tenth."""
    memory_before = 0.0

    def items() -> Iterable[int]:
        nonlocal memory_before
        for number in range(count):
            if number == count // 10:
                memory_before = _resident_mb()
            yield number

    with TemporaryDirectory() as folder:
        database = Path(folder) / "results.db"
        began = time.monotonic()
        Pipeline(items(), step, SqliteSink(database), max_rows=500).sync.run()
        speed = count / (time.monotonic() - began)
        grown = _resident_mb() - memory_before
        with closing(sqlite3.connect(database)) as connection:
            if connection.execute("SELECT count(*) FROM results").fetchone() != (count,):
                raise RuntimeError(f"not all of {count} rows were written")
    return speed, grown


def _resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
