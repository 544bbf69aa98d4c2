"""The program of a worker process: ``python -m tests.processes.worker JOB ARGUMENTS``.

It lies about the wall clock if it is told to, before anything of comporta is imported, so that nothing can
have kept the true one. Then it does its job (``jobs.py``, and those of the tests about outages and breakers).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


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

    from tests.breaker.jobs import JOBS as BREAKER_JOBS  # noqa: PLC0415 - see above
    from tests.cache.cache_jobs import JOBS as CACHE_JOBS  # noqa: PLC0415 - see above
    from tests.cache.table_jobs import JOBS as TABLE_JOBS  # noqa: PLC0415 - see above
    from tests.outages.jobs import JOBS as OUTAGE_JOBS  # noqa: PLC0415 - see above
    from tests.pipeline.sheets.jobs import JOBS as SHEET_JOBS  # noqa: PLC0415 - see above
    from tests.processes.jobs import JOBS  # noqa: PLC0415 - see above

    if job == "batch_work":  # brings in what the others do not need
        from tests.service.batch.jobs import JOBS as BATCH_JOBS  # noqa: PLC0415 - see above

        JOBS = JOBS | BATCH_JOBS  # noqa: N806 - the same table
    (JOBS | OUTAGE_JOBS | BREAKER_JOBS | CACHE_JOBS | TABLE_JOBS | SHEET_JOBS)[job](**told)


if __name__ == "__main__":
    main()
