"""The program of a worker process: ``python -m tests.processes.worker JOB ARGUMENTS``.

It lies about the wall clock if it is told to, before anything of comporta is imported, so that nothing can
have kept the true one. Then it does its job (``jobs.py``, and those of the tests about outages and breakers).
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
    "tests.outages.jobs",
    "tests.breaker.jobs",
    "tests.cache.table_jobs",
    "tests.cache.cache_jobs",
    "tests.pipeline.sheets.jobs",
    "tests.service.batch.jobs",
)
"""Where jobs are; what takes long to import comes last."""


def lie_about_the_time(ahead: float, back_after: float | None) -> None:
    """Set this process's wall clock ahead, and an hour back after some seconds."""
    true, began = time.time, time.monotonic()

    def wall() -> float:
        jumped = back_after is not None and time.monotonic() - began > back_after
        return true() + ahead - (3600 if jumped else 0)

    time.time = wall
    time.time_ns = lambda: round(wall() * 1e9)


def main() -> None:
    """Do the job named on the command line."""
    job, told = sys.argv[1], json.loads(sys.argv[2])
    wall: dict[str, Any] | None = told.pop("wall", None)
    if wall is not None:
        lie_about_the_time(wall.get("ahead", 0.0), wall.get("back_after"))

    _job(job)(**told)


def _job(name: str) -> Callable[..., None]:
    """Find a job, and import nothing that it does not need: processes are started by the hundred."""
    for module in MODULES:
        jobs: dict[str, Callable[..., None]] = import_module(module).JOBS
        if name in jobs:
            return jobs[name]
    raise LookupError(name)


if __name__ == "__main__":
    main()
