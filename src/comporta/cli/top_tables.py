"""What ``comporta top`` sees of a database: how the cache fares, and how far batches are.

It is looked at every few seconds only, and never made; one that does not answer is said to, and the rest of
the picture is there all the same.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import click

from comporta.cache.table import CacheTable
from comporta.database.base import Database
from comporta.database.urls import open_database
from comporta.errors import DatabaseError
from comporta.service.batch.requests import ask, holders, shown
from comporta.service.batch.values import worker_of
from comporta.service.dashboard.kept import JOBS_MAX, job_of

EVERY_SECONDS: Final = 3.0

_NOTHING: Final = {"database": None, "cache": None, "jobs": None}


class Tables:
    """Looks at one database; no URL: at none."""

    def __init__(self, url: str | None) -> None:
        self._database = _opened(url) if url else None
        self._seen: dict[str, Any] = dict(_NOTHING)
        self._held: dict[str, dict[str, int]] = {}
        self._until = 0.0

    def add_to(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with what the tables say, and what each worker is at."""
        if self._database is not None and time.monotonic() >= self._until:
            self._seen, self._held = _looked(self._database)
            self._until = time.monotonic() + EVERY_SECONDS
        minute = document.get("minutes", {}).get("cache")
        cache = self._seen["cache"] and {**self._seen["cache"], "minute": minute}
        workers = [
            {**worker, **{what: found.get(worker["name"], 0) for what, found in self._held.items()}}
            for worker in document["workers"]
        ]
        return {**document, **self._seen, "cache": cache, "workers": workers}

    def close(self) -> None:
        """Let go of it."""
        if self._database is not None:
            self._database.close()


def _opened(url: str) -> Database:
    try:
        return open_database(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--database") from None
    except ImportError as error:
        raise click.ClickException(str(error)) from None


def _looked(database: Database) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    about = {"engine": database.dialect, "status": "ok", "why": None}
    path: Path | None = getattr(database, "path", None)
    if path is not None and not path.exists():
        return {**_NOTHING, "database": {**about, "status": "fail", "why": f"{path} is not there"}}, {}
    try:
        table = CacheTable(database)
        found = {
            "database": about,
            "cache": _cache(table.brief()),
            "jobs": [job_of(each) for each in ask(database, shown(JOBS_MAX))],
        }
        at_jobs = {worker_of(owner) or owner: count for owner, count in ask(database, holders()).items()}
        return found, {"fetches": table.fetchers(), "jobs": at_jobs}
    except DatabaseError as error:
        return {**_NOTHING, "database": {**about, "status": "fail", "why": str(error).rstrip(".")}}, {}


def _cache(figures: dict[str, Any]) -> dict[str, Any]:
    day = figures["last_24_hours"]
    return {
        "hit_rate": day["hit_rate"],
        "stale_served_rate": day["stale_rate"],
        **{name: figures[name] for name in ("entries", "degraded_keys_count", "avg_fail_streak", "fetching")},
    }
