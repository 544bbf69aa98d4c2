"""Two machines with one PostgreSQL and one Redis: a job that runs on one has its sheet on both."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.service.batch.rig import HEADER, accounts
from tests.service.harness import (
    CLIENT,
    PATIENCE_SECONDS,
    ROOT,
    ServedProcess,
    environment,
    serve_process,
    wait_until,
)

from comporta.database.base import Database
from comporta.service.batch.whitelist import Whitelist
from comporta.testing import Server

COUNT = 2_500
OPTIONS = {"client_limit": "false", "batch_poll_seconds": "0.1", "batch_lease_seconds": "600"}


def host_folder(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path


def get_json(host: ServedProcess, path: str) -> dict[str, Any]:
    reply = CLIENT.get(f"{host.address}/ultra-batch/{path}")
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


def download(url: str) -> list[list[str]]:
    reply = CLIENT.get(url)
    assert reply.status_code == 200, reply.text
    return list(csv.reader(io.StringIO(reply.text, newline="")))


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_hosts__job_runs_on_one_and_is_configured_on_the_other__has_every_row_once(
    url: str, database: Database, valkey: Server, tmp_path: Path
) -> None:
    Whitelist(database).set_user("ana", digital=True)
    shared = {**OPTIONS, "DATABASE_URL": url, "COMPORTA_STATE": f"{valkey.url}?timeout=5&connect_timeout=60"}
    runs = {"batch_processor": "tests.service.batch.processors:greet", "batch_concurrency": "50"}
    with (
        serve_process(host_folder(tmp_path, "one"), **shared, **runs, GREETING_SECONDS="0.02") as first,
        serve_process(host_folder(tmp_path, "other"), **shared) as second,  # it cannot run jobs
    ):
        body: dict[str, Any] = {"accounts": accounts(COUNT), "job_id": "mine"}
        with httpx2.stream(
            "POST", f"{first.address}/ultra-batch/jobs", json=body, timeout=PATIENCE_SECONDS
        ) as reply:
            assert reply.status_code == 200  # the job continues without its client
        wait_until(lambda: get_json(second, "jobs/mine?limit=0")["succeeded"] > 0)
        wanted = {"job_id": "mine", "user_id": "ana"}
        configured = CLIENT.post(f"{second.address}/ultra-batch/configure-sheets", json=wanted).json()
        assert configured["backfill_status"] == "pending"
        part = download(configured["spreadsheet_url"])
        wait_until(lambda: get_json(first, "jobs/mine?limit=0")["status"] == "completed")
        wait_until(lambda: get_json(second, "sheets-config/mine")["backfill_status"] == "completed")
        urls = [get_json(host, "sheets-config/mine")["spreadsheet_url"] for host in (first, second)]
        complete = [download(each) for each in urls]
    rows = [HEADER, *([name, f"hello {name}"] for name in accounts(COUNT))]
    assert complete == [rows, rows]
    assert part == [row for row in rows if row in part]
    assert [each.partition("/ultra-batch/")[0] for each in urls] == [first.address, second.address]
    assert urls[1] == configured["spreadsheet_url"]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_serve__files_with_postgresql__does_not_start(url: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "comporta.cli", "serve", "--port", "0"],
        cwd=ROOT,
        env=environment(tmp_path, DATABASE_URL=url, batch_sheets="files"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode != 0
    message = "COMPORTA_SERVICE_BATCH_SHEETS: sheets must be 'database' or 'google' if the database is"
    assert message in " ".join(ended.stderr.split())
