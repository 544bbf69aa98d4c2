"""Batches as ``comporta serve`` serves them: clients that leave, workers that are told to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from tests.service.batch.rig import accounts, of_csv, once
from tests.service.running import PATIENCE_SECONDS, served, wait_for
from tests.support import Late, within

from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.service.batch.whitelist import Whitelist
from comporta.service.migrations import MIGRATIONS

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


def lines(reply: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in reply.iter_lines():
        yield json.loads(line)


def test_serve__client_leaves_and_workers_are_told_to_end__the_job_and_its_sheet_are_finished_by_the_next(
    tmp_path: Path,
) -> None:
    count = 300
    url, sheets = f"sqlite:///{tmp_path}/service.db?timeout=30", tmp_path / "sheets"
    database = open_database(url)
    migrate(database, MIGRATIONS)
    Whitelist(database).set_user("ana", digital=True)
    database.close()
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
        made = httpx2.post(
            f"{first.address}/ultra-batch/configure-sheets", json=wanted, timeout=PATIENCE_SECONDS
        )
        assert made.json()["backfill_status"] == "pending"
        done = get(first.address, "jobs/mine")["succeeded"]
        wait_for(lambda: get(first.address, "jobs/mine")["succeeded"] > done)  # nobody listens
        if get(first.address, "jobs/mine")["status"] != "running":
            raise Late("the job was over before its worker was told to end")
        with within(END_SECONDS + NOISE_SECONDS):
            assert first.end() == 0
    with served(tmp_path, **told) as second:
        wait_for(lambda: get(second.address, "jobs/mine")["status"] == "completed")  # though leases last long
        wait_for(lambda: get(second.address, "sheets-config/mine")["backfill_status"] == "completed")
        assert get(second.address, "jobs/mine")["succeeded"] == count
    [path] = sheets.glob("*.csv")
    assert of_csv(path) == once(count)
