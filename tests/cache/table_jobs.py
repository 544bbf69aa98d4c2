"""What worker processes do to a table of the cache."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from tests.processes.jobs import ready, say

from comporta.cache.table import CacheTable
from comporta.database.urls import open_database

KEY = "h"


def table_fails(number: int, url: str, times: int) -> None:
    """Report failures of one key."""
    table = CacheTable(open_database(url))
    table.check()
    ready()
    for _ in range(times):
        table.fail(KEY, None, f"user-{number}", KEY)
    say(table.look(KEY).fail_streak)
    table.database.close()


def table_claims(number: int, url: str, keys: int) -> None:
    """Claim many keys, each once, and tell which were granted."""
    table = CacheTable(open_database(url))
    table.check()
    ready()
    say([key for key in range(keys) if table.claim(f"k{key}", str(number), 600).granted])
    table.database.close()


def table_migrates(number: int, url: str) -> None:
    """Bring the tables up to date, as every worker does when it starts."""
    table = CacheTable(open_database(url))
    ready()
    table.migrate()
    table.check()
    say(number)
    table.database.close()


def table_claims_and_waits(number: int, url: str, seconds: float) -> None:
    """Claim a key and do nothing more, until killed."""
    table = CacheTable(open_database(url))
    ready()
    say(table.claim(KEY, str(number), seconds))
    sys.stdin.readline()


def table_forks(number: int, url: str, times: int) -> None:
    """Fail together with a forked child, which has the same table in its hands."""
    table = CacheTable(open_database(url))
    asyncio.run(table.fail_async(KEY, None, "before", KEY))
    ready()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads are the point
        child = os.fork()
    asyncio.run(_fail(table, times))
    if not child:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    say([status, table.look(KEY).fail_streak])
    table.database.close()


async def _fail(table: CacheTable, times: int) -> None:
    for _ in range(times):
        await table.fail_async(KEY, None, str(os.getpid()), KEY)


JOBS: dict[str, Callable[..., Any]] = {
    "table_fails": table_fails,
    "table_claims": table_claims,
    "table_claims_and_waits": table_claims_and_waits,
    "table_forks": table_forks,
    "table_migrates": table_migrates,
}
