"""Batches as ``comporta serve`` serves them: clients that leave, workers that are told to end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from tests.service.batch.rig import accounts, in_google, of_csv, once
from tests.service.running import PATIENCE_SECONDS, health, served, wait_for
from tests.support import Late, within

from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.service.batch.whitelist import Whitelist
from comporta.service.migrations import MIGRATIONS
from comporta.testing import Server, SheetsServer, SimulatedUpstream
from comporta.testing.loopback import Request

OPTIONS = {
    "client_limit": "false",
    "batch_processor": "tests.service.batch.processors:greet",
    "batch_concurrency": "4",
    "batch_poll_seconds": "0.1",
}
END_SECONDS = 10
NOISE_SECONDS = 10
"""What a busy machine may take on top of what is promised."""


def get(address: str, path: str) -> dict[str, Any]:
    reply = httpx2.get(f"{address}/ultra-batch/{path}", timeout=PATIENCE_SECONDS)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def post(address: str, path: str, **body: Any) -> dict[str, Any]:
    reply = httpx2.post(f"{address}/ultra-batch/{path}", json=body, timeout=PATIENCE_SECONDS)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def whitelisted(folder: Path, user_id: str) -> str:
    """Make a database in which somebody may have sheets; returns its URL."""
    url = f"sqlite:///{folder}/service.db?timeout=30"
    database = open_database(url)
    migrate(database, MIGRATIONS)
    Whitelist(database).set_user(user_id, digital=True)
    database.close()
    return url


def whole(address: str, job_id: str) -> str:
    """Wait until a sheet is filled, and return its number."""
    wait_for(lambda: get(address, f"sheets-config/{job_id}")["backfill_status"] == "completed")
    return str(get(address, f"sheets-config/{job_id}")["spreadsheet_id"])


def lines(reply: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in reply.iter_lines():
        yield json.loads(line)


def test_serve__client_leaves_and_workers_are_told_to_end__the_job_and_its_sheet_are_finished_by_the_next(
    tmp_path: Path,
) -> None:
    count = 300
    url, sheets = whitelisted(tmp_path, "ana"), tmp_path / "sheets"
    told = {**OPTIONS, "DATABASE_URL": url, "sheets": str(sheets), "batch_lease_seconds": "600"}
    body = {"accounts": accounts(count), "job_id": "mine"}
    with served(tmp_path, "--workers", "2", **told, GREETING_SECONDS="0.2") as first:  # far from its end
        with httpx2.stream(
            "POST", f"{first.address}/ultra-batch/jobs", json=body, timeout=PATIENCE_SECONDS
        ) as reply:
            told_first = lines(reply)
            assert next(told_first)["event"] == "job"
            assert next(told_first)["event"] == "result"  # while the job runs
        wanted = {"job_id": "mine", "user_id": "ana"}
        assert post(first.address, "configure-sheets", **wanted)["backfill_status"] == "pending"
        done = get(first.address, "jobs/mine")["succeeded"]
        wait_for(lambda: get(first.address, "jobs/mine")["succeeded"] > done)  # nobody listens
        if get(first.address, "jobs/mine")["status"] != "running":
            raise Late("the job was over before its worker was told to end")
        with within(END_SECONDS + NOISE_SECONDS):
            assert first.end() == 0
    with served(tmp_path, **told) as second:
        wait_for(lambda: get(second.address, "jobs/mine")["status"] == "completed")  # though leases last long
        whole(second.address, "mine")
        assert get(second.address, "jobs/mine")["succeeded"] == count
    [path] = sheets.glob("*.csv")
    assert of_csv(path) == once(count)


class Halfway(SimulatedUpstream):
    """Is asked about accounts; once it has answered so many, others wait until it is told to go on."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.goes_on = False
        self._answers = answers

    async def answered(self, request: Request) -> bytes:
        self._answers -= 1
        while self._answers < 0 and not self.goes_on:  # noqa: ASYNC110 - another thread says so
            await asyncio.sleep(0.01)
        return await super().answered(request)


def test_serve__redis_killed_while_jobs_run_and_sheets_are_filled__answers_no_5xx_and_every_row_is_there_once(
    tmp_path: Path, google: SheetsServer
) -> None:
    jobs, count = ["one", "other"], 100
    with Server() as redis, Halfway(60) as upstream, ThreadPoolExecutor(2) as pool:
        told = {
            "allow_private_addresses": "true",
            "batch_address": upstream.url,
            "batch_timeout": str(PATIENCE_SECONDS),
            "batch_google_endpoint": google.url,
            "COMPORTA_UPSTREAM_ACCOUNTS_LIMIT": "1000/s",
            "COMPORTA_UPSTREAM_ACCOUNTS_MAX_CONCURRENT": "30",
            "COMPORTA_UPSTREAM_ACCOUNTS_TIMEOUT": str(PATIENCE_SECONDS),
            "COMPORTA_STATE": redis.url,
            "DATABASE_URL": whitelisted(tmp_path, "ana"),
        }
        with served(tmp_path, **OPTIONS | {"batch_processor": "", **told}) as one:

            def follow(job_id: str) -> dict[str, Any]:
                body = {"accounts": accounts(count), "job_id": job_id}
                with httpx2.stream(
                    "POST", f"{one.address}/ultra-batch/jobs", json=body, timeout=PATIENCE_SECONDS
                ) as reply:
                    follows = lines(reply)
                    assert next(follows)["event"] == "job"
                    assert post(one.address, "configure-sheets", job_id=job_id, user_id="ana")["success"]
                    *_, last = follows
                return last

            following = [pool.submit(follow, job_id) for job_id in jobs]
            wait_for(lambda: len(google.spreadsheets()) == 2)
            wait_for(lambda: any(len(google.rows(sheet)) > 1 for sheet in google.spreadsheets()))
            redis.kill()
            upstream.goes_on = True
            ends = [each.result(PATIENCE_SECONDS) for each in following]
            fallback = health(one.address)["state"]["fallback"]
            sheets = [whole(one.address, job_id) for job_id in jobs]
    assert fallback is not None
    assert [(last["event"], last["succeeded"]) for last in ends] == [("end", count)] * 2
    assert [in_google(google, sheet) for sheet in sheets] == [once(count)] * 2
