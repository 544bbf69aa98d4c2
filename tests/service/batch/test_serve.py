"""Batches in ``comporta serve``: clients that disconnect, workers that shut down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from tests.service.batch.rig import accounts, csv_accounts, each_once, google_accounts
from tests.service.harness import PATIENCE_SECONDS, get_health, serve_process, wait_until
from tests.support import Late, within

from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.service.batch.whitelist import Whitelist
from comporta.service.migrations import MIGRATIONS
from comporta.testing import Server, SheetsServer, SimulatedUpstream
from comporta.testing.http_server import HttpRequest

OPTIONS = {
    "client_limit": "false",
    "batch_processor": "tests.service.batch.processors:greet",
    "batch_concurrency": "4",
    "batch_poll_seconds": "0.1",
}
END_SECONDS = 10
NOISE_SECONDS = 10
"""What a busy machine may add to the documented duration."""


def get(address: str, path: str) -> dict[str, Any]:
    reply = httpx2.get(f"{address}/ultra-batch/{path}", timeout=PATIENCE_SECONDS)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


def post(address: str, path: str, **body: Any) -> dict[str, Any]:
    reply = httpx2.post(f"{address}/ultra-batch/{path}", json=body, timeout=PATIENCE_SECONDS)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


def allow_user(folder: Path, user_id: str) -> str:
    """Create a database in which a user may have sheets; return its URL."""
    url = f"sqlite:///{folder}/service.db?timeout=30"
    database = open_database(url)
    migrate(database, MIGRATIONS)
    Whitelist(database).set_user(user_id, digital=True)
    database.close()
    return url


def wait_filled(address: str, job_id: str) -> str:
    """Wait until a backfill is completed and return the id of its sheet."""
    wait_until(lambda: get(address, f"sheets-config/{job_id}")["backfill_status"] == "completed")
    return str(get(address, f"sheets-config/{job_id}")["spreadsheet_id"])


def json_lines(reply: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in reply.iter_lines():
        yield json.loads(line)


def test_serve__client_leaves_and_workers_restart__next_one_finishes_job_and_sheet(
    tmp_path: Path,
) -> None:
    count = 300
    url, sheets = allow_user(tmp_path, "ana"), tmp_path / "sheets"
    options = {
        **OPTIONS,
        "DATABASE_URL": url,
        "batch_sheets": "files",
        "sheets_folder": str(sheets),
        "batch_lease_seconds": "600",
    }
    body = {"accounts": accounts(count), "job_id": "mine"}
    with serve_process(
        tmp_path, "--workers", "2", **options, GREETING_SECONDS="0.2"
    ) as first:  # slow, so that the job does not end
        with httpx2.stream(
            "POST", f"{first.address}/ultra-batch/jobs", json=body, timeout=PATIENCE_SECONDS
        ) as reply:
            events = json_lines(reply)
            assert next(events)["event"] == "job"
            assert next(events)["event"] == "result"  # while the job runs
        wanted = {"job_id": "mine", "user_id": "ana"}
        assert post(first.address, "configure-sheets", **wanted)["backfill_status"] == "pending"
        done = get(first.address, "jobs/mine")["succeeded"]
        wait_until(lambda: get(first.address, "jobs/mine")["succeeded"] > done)  # without a client
        if get(first.address, "jobs/mine")["status"] != "running":
            raise Late("the job finished before its worker was stopped")
        with within(END_SECONDS + NOISE_SECONDS):
            assert first.end() == 0
    with serve_process(tmp_path, **options) as second:
        wait_until(
            lambda: get(second.address, "jobs/mine")["status"] == "completed"
        )  # although leases are long
        wait_filled(second.address, "mine")
        assert get(second.address, "jobs/mine")["succeeded"] == count
    [path] = sheets.glob("*.csv")
    assert csv_accounts(path) == each_once(count)


class PausingUpstream(SimulatedUpstream):
    """Processes accounts; after a number of responses it holds the others until it is resumed."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.resumed = False
        self._answers = answers

    async def _respond(self, request: HttpRequest) -> bytes:
        self._answers -= 1
        while self._answers < 0 and not self.resumed:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)  # sleeps: the upstream holds its reply until it is resumed
        return await super()._respond(request)


def test_serve__redis_killed_while_jobs_fill_sheets__no_5xx_and_every_row_once(
    tmp_path: Path, google: SheetsServer
) -> None:
    jobs, count = ["one", "other"], 100
    with Server() as redis, PausingUpstream(60) as upstream, ThreadPoolExecutor(2) as pool:
        options = {
            "allow_private_addresses": "true",
            "batch_address": upstream.url,
            "batch_timeout": str(PATIENCE_SECONDS),
            "batch_google_endpoint": google.url,
            "COMPORTA_UPSTREAM_ACCOUNTS_LIMIT": "1000/s",
            "COMPORTA_UPSTREAM_ACCOUNTS_MAX_CONCURRENT": "30",
            "COMPORTA_UPSTREAM_ACCOUNTS_TIMEOUT": str(PATIENCE_SECONDS),
            "COMPORTA_STATE": redis.url,
            "DATABASE_URL": allow_user(tmp_path, "ana"),
        }
        with serve_process(tmp_path, **OPTIONS | {"batch_processor": "", **options}) as one:

            def follow(job_id: str) -> dict[str, Any]:
                body = {"accounts": accounts(count), "job_id": job_id}
                with httpx2.stream(
                    "POST", f"{one.address}/ultra-batch/jobs", json=body, timeout=PATIENCE_SECONDS
                ) as reply:
                    follows = json_lines(reply)
                    assert next(follows)["event"] == "job"
                    assert post(one.address, "configure-sheets", job_id=job_id, user_id="ana")["success"]
                    *_, last = follows
                return last

            following = [pool.submit(follow, job_id) for job_id in jobs]
            wait_until(lambda: len(google.spreadsheets()) == 2)
            wait_until(lambda: any(len(google.rows(sheet)) > 1 for sheet in google.spreadsheets()))
            redis.kill()
            upstream.resumed = True
            ends = [each.result(PATIENCE_SECONDS) for each in following]
            fallback = get_health(one.address)["state"]["fallback"]
            sheets = [wait_filled(one.address, job_id) for job_id in jobs]
    assert fallback is not None
    assert [(last["event"], last["succeeded"]) for last in ends] == [("end", count)] * 2
    assert [google_accounts(google, sheet) for sheet in sheets] == [each_once(count)] * 2
