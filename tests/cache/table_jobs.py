"""What worker processes do with the cache's tables."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from tests.processes.jobs import send_result, wait_for_start

from comporta.cache.tables import CacheTables
from comporta.database.urls import open_database

KEY = "h"


def table_fails(number: int, url: str, times: int) -> None:
    """Record failures of one key."""
    table = CacheTables(open_database(url))
    table.check()
    wait_for_start()
    for _ in range(times):
        table.record_failure(KEY, None, f"user-{number}", KEY)
    send_result(table.read_claim(KEY).fail_streak)
    table.database.close()


def table_claims(number: int, url: str, keys: int) -> None:
    """Claim many keys, each once, and report which were granted."""
    table = CacheTables(open_database(url))
    table.check()
    wait_for_start()
    send_result([key for key in range(keys) if table.claim(f"k{key}", str(number), 600).granted])
    table.database.close()


def table_migrates(number: int, url: str) -> None:
    """Create the tables, as every worker does when it starts."""
    table = CacheTables(open_database(url))
    wait_for_start()
    table.migrate()
    table.check()
    send_result(number)
    table.database.close()


def table_claims_and_waits(number: int, url: str, seconds: float) -> None:
    """Claim a key and do nothing more, until killed."""
    table = CacheTables(open_database(url))
    wait_for_start()
    send_result(table.claim(KEY, str(number), seconds))
    sys.stdin.readline()


def table_forks(number: int, url: str, times: int) -> None:
    """Record failures together with a forked child, which inherits the same tables."""
    table = CacheTables(open_database(url))
    asyncio.run(table.record_failure_async(KEY, None, "before", KEY))
    wait_for_start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what this job tests
        child = os.fork()
    asyncio.run(_fail(table, times))
    if not child:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    send_result([status, table.read_claim(KEY).fail_streak])
    table.database.close()


async def _fail(table: CacheTables, times: int) -> None:
    for _ in range(times):
        await table.record_failure_async(KEY, None, str(os.getpid()), KEY)


JOBS: dict[str, Callable[..., Any]] = {
    "table_fails": table_fails,
    "table_claims": table_claims,
    "table_claims_and_waits": table_claims_and_waits,
    "table_forks": table_forks,
    "table_migrates": table_migrates,
}
