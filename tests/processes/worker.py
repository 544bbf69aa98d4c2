"""The program of a worker process: ``python -m tests.processes.worker JOB ARGUMENTS``.

With the argument ``wall`` it first replaces the wall clock, before it imports comporta, so that no module
keeps the true one. Then it runs the job, from ``jobs.py`` or from the jobs of other test folders.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

MODULES = (
    "tests.processes.jobs",
    "tests.processes.waiting_jobs",
    "tests.outages.jobs",
    "tests.breaker.jobs",
    "tests.histories.jobs",
    "tests.limits.permit_jobs",
    "tests.fleet.jobs",
    "tests.upstream.jobs",
    "tests.cache.table_jobs",
    "tests.cache.cache_jobs",
    "tests.pipeline.sheets.jobs",
    "tests.service.batch.jobs",
)
"""The modules with jobs; slow imports come last."""


def replace_wall_clock(ahead: float, back_after: float | None) -> None:
    """Set this process's wall clock ahead, and an hour back after ``back_after`` seconds."""
    true_time, began = time.time, time.monotonic()

    def wall() -> float:
        jumped = back_after is not None and time.monotonic() - began > back_after
        return true_time() + ahead - (3600 if jumped else 0)

    time.time = wall
    time.time_ns = lambda: round(wall() * 1e9)


def main() -> None:
    """Run the job named on the command line."""
    job, arguments = sys.argv[1], json.loads(sys.argv[2])
    wall: dict[str, Any] | None = arguments.pop("wall", None)
    if wall is not None:
        replace_wall_clock(wall.get("ahead", 0.0), wall.get("back_after"))

    find_job(job)(**arguments)


def find_job(name: str) -> Callable[..., None]:
    """Return a job. Import only what is needed: the tests start hundreds of processes."""
    for module in MODULES:
        jobs: dict[str, Callable[..., None]] = import_module(module).JOBS
        if name in jobs:
            return jobs[name]
    raise LookupError(name)


if __name__ == "__main__":
    main()
