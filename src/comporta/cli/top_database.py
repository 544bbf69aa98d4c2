"""Reads the database sections of ``comporta top``: the state of the cache and the progress of batch jobs.

It queries the database every few seconds and never creates it. If the database does not answer, the snapshot
says so and still shows the rest.
"""

from __future__ import annotations

import time
from typing import Any, Final

import click

from comporta.cache.tables import CacheTables
from comporta.database.base import Database
from comporta.database.command import execute
from comporta.database.urls import open_database
from comporta.errors import DatabaseError
from comporta.service.batch.commands import count_jobs_by_owner, list_jobs
from comporta.service.batch.models import worker_name
from comporta.service.dashboard.database_snapshot import JOBS_MAX, public_job

QUERY_SECONDS: Final = 3.0

_EMPTY_SECTIONS: Final = {"database": None, "cache": None, "jobs": None}


class TopDatabase:
    """Queries one database; without a URL, none."""

    def __init__(self, url: str | None) -> None:
        self._database = _open(url) if url else None
        self._sections: dict[str, Any] = dict(_EMPTY_SECTIONS)
        self._held_counts: dict[str, dict[str, int]] = {}
        self._next_query_at = 0.0

    def add_to(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with the sections of the database and what each worker holds."""
        if self._database is not None and time.monotonic() >= self._next_query_at:
            self._sections, self._held_counts = _query(self._database)
            self._next_query_at = time.monotonic() + QUERY_SECONDS
        minute = document.get("minutes", {}).get("cache")
        cache = self._sections["cache"] and {**self._sections["cache"], "minute": minute}
        workers = [
            {**worker, **{kind: counts.get(worker["name"], 0) for kind, counts in self._held_counts.items()}}
            for worker in document["workers"]
        ]
        return {**document, **self._sections, "cache": cache, "workers": workers}

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()


def _open(url: str) -> Database:
    try:
        return open_database(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--database") from None
    except ImportError as error:
        raise click.ClickException(str(error)) from None


def _query(database: Database) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    about = {"engine": database.dialect, "status": "ok", "reason": None}
    if database.path is not None and not database.path.exists():
        return {
            **_EMPTY_SECTIONS,
            "database": {**about, "status": "fail", "reason": f"{database.path} does not exist"},
        }, {}
    try:
        table = CacheTables(database)
        sections = {
            "database": about,
            "cache": _cache_summary(table.read_summary()),
            "jobs": [public_job(each) for each in execute(database, list_jobs(JOBS_MAX))],
        }
        jobs_held = {
            worker_name(owner) or owner: count
            for owner, count in execute(database, count_jobs_by_owner()).items()
        }
        return sections, {"fetches": table.count_fetches_by_worker(), "jobs": jobs_held}
    except DatabaseError as error:
        return {
            **_EMPTY_SECTIONS,
            "database": {**about, "status": "fail", "reason": str(error).rstrip(".")},
        }, {}


def _cache_summary(figures: dict[str, Any]) -> dict[str, Any]:
    day = figures["last_24_hours"]
    return {
        "hit_rate": day["hit_rate"],
        "stale_served_rate": day["stale_rate"],
        **{name: figures[name] for name in ("entries", "degraded_keys_count", "avg_fail_streak", "fetching")},
    }
