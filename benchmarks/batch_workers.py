"""Batch jobs with several workers: one large job, and a small one beside eight large ones.

Each worker is a process on the same database. Its processor waits and uses no CPU time, as one that calls an
upstream does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.measure import Effort
from benchmarks.report import Goal, Section, Table
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.service.batch.batches import Batches
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.models import RUNNING
from comporta.service.migrations import MIGRATIONS
from comporta.settings import BatchSettings

ACCOUNTS = 10_000
ACCOUNTS_QUICK = 2_000
LARGE_JOBS = 8
LARGE_ACCOUNTS = 200
WORKERS = 4
RATIO_MAX = 0.3
SMALL_SECONDS_MAX = 2.0


def run(effort: Effort) -> Section:
    """Run all measurements."""
    count = ACCOUNTS_QUICK if effort.quick else ACCOUNTS
    with TemporaryDirectory() as folder:
        one, four = (measure_job(f"sqlite:///{folder}/{n}.db?timeout=30", n, count) for n in (1, WORKERS))
        small = asyncio.run(measure_small_job(f"sqlite:///{folder}/small.db?timeout=30"))
    return Section(
        "Batches with several workers",
        f"SQLite. A job of {count:,} accounts, each of which waits 50 ms; 10 at a time in each worker. "
        f"A job of one account beside {LARGE_JOBS} jobs of {LARGE_ACCOUNTS}, each account waits 1 s, in one "
        "worker.",
        [
            Table(
                "Durations",
                ["", "seconds"],
                [
                    [f"{count:,} accounts, 1 worker", f"{one:.1f}"],
                    [f"{count:,} accounts, {WORKERS} workers", f"{four:.1f}"],
                    ["1 account beside 8 large jobs", f"{small:.2f}"],
                ],
            )
        ],
        [
            Goal(
                f"four workers take at most {RATIO_MAX:g} times the time of one",
                f"{four / one:.2f}",
                four / one <= RATIO_MAX,
            ),
            Goal(
                f"a job of one account finishes within {SMALL_SECONDS_MAX:g} s beside eight jobs of 200",
                f"{small:.2f} s",
                small <= SMALL_SECONDS_MAX,
            ),
        ],
    )


def measure_job(url: str, workers: int, count: int) -> float:
    """Return how many seconds a job takes with this many workers."""
    with started_workers(url, workers, 0.05) as batches:
        return asyncio.run(_duration(batches, "job", count))


async def measure_small_job(url: str) -> float:
    """Return how many seconds a job of one account takes beside large ones, on the worker that adds it."""
    database = open_database(url)
    migrate(database, MIGRATIONS)
    batches = Batches(database, LocalSheets("."), BatchSettings(), processor=partial(_wait, 1.0))
    batches.start()
    for number in range(LARGE_JOBS):
        await _add(batches, f"large-{number}", LARGE_ACCOUNTS)
    await asyncio.sleep(3)  # their accounts occupy every place
    seconds = await _duration(batches, "small", 1)
    await batches.aclose(0)
    database.close()
    return seconds


@contextmanager
def started_workers(url: str, count: int, seconds: float) -> Iterator[Batches]:
    """Start workers, and yield batches that run nothing themselves."""
    database = open_database(url)
    migrate(database, MIGRATIONS)
    with ExitStack() as stack:
        stack.callback(database.close)
        workers = [stack.enter_context(_process(url, seconds)) for _ in range(count)]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
        yield Batches(database, LocalSheets("."), BatchSettings())


@contextmanager
def _process(url: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.batch_workers", url, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def _duration(batches: Batches, job_id: str, count: int) -> float:
    began = time.perf_counter()
    await _add(batches, job_id, count)
    while True:
        job = await batches.read_job(job_id)
        assert job is not None
        if job.status != RUNNING:
            assert job.succeeded == count
            return time.perf_counter() - began
        await asyncio.sleep(0.02)


async def _add(batches: Batches, job_id: str, count: int) -> None:
    accounts = [f"{job_id}-{number}" for number in range(count)]
    assert await batches.add_job("ana", accounts, job_id) is not None


async def _wait(seconds: float, account: str) -> str:
    await asyncio.sleep(seconds)
    return account


async def _work(url: str, seconds: float) -> None:
    batches = Batches(
        open_database(url), LocalSheets("."), BatchSettings(), processor=partial(_wait, seconds)
    )
    batches.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


def main(arguments: Sequence[str]) -> None:
    """Run one worker until it is killed."""
    url, seconds = arguments
    asyncio.run(_work(url, float(seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
