"""The log of the service, request ids, the access log, and what health says about a full disk."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.harness import async_test, run_service, service_config

from comporta.service import disk_check
from comporta.service.disk_check import DiskCheck
from comporta.service.logs import JsonFormatter, TextFormatter, current_request_id, log_config


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("comporta.service", logging.WARNING, __file__, 1, message, (), None)
    made.__dict__.update(fields)
    return made


def test_text__record__has_time_level_worker_request_and_logger() -> None:
    line = TextFormatter().format(record("it happened"))
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING \S+:\d+ - comporta\.service: it happened"
    assert re.fullmatch(pattern, line)


def test_json__record_of_a_request_with_a_traceback__is_one_object() -> None:
    token = current_request_id.set("abc-1")
    try:
        raise ValueError("wrong")
    except ValueError:
        line = JsonFormatter().format(record("two\nlines", exc_info=sys.exc_info(), kind="k", source="s"))
    finally:
        current_request_id.reset(token)
    fields = json.loads(line)
    assert "\n" not in line
    assert "ValueError: wrong" in fields.pop("exception")
    assert fields.pop("time").endswith("Z")
    assert fields.pop("worker")
    assert fields == {
        "level": "warning",
        "request_id": "abc-1",
        "logger": "comporta.service",
        "message": "two\nlines",
        "kind": "k",
        "source": "s",
    }
    assert json.loads(JsonFormatter().format(record("plain")))["request_id"] is None


def test_config__format_and_level__select_them(tmp_path: Path) -> None:
    chosen = log_config(service_config(tmp_path, log_format="json", log_level="debug", access_log="true"))
    assert chosen["formatters"]["default"]["()"] is JsonFormatter
    assert chosen["loggers"]["comporta"]["level"] == "DEBUG"
    assert chosen["loggers"]["comporta.access"]["level"] == "INFO"
    plain = log_config(service_config(tmp_path))
    assert plain["formatters"]["default"]["()"] is TextFormatter
    assert plain["loggers"]["comporta.access"]["level"] == "CRITICAL"


@async_test
async def test_request_id__of_a_client__is_kept_if_it_is_harmless(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        replies = [
            (await service.client.get("/livez", headers=headers)).headers["x-request-id"]
            for headers in (
                {"x-request-id": "abc.1"},
                {"x-request-id": "a b"},
                {"x-request-id": "a" * 65},
                {},
            )
        ]
    assert replies[0] == "abc.1"
    assert all(re.fullmatch(r"[0-9a-f]{8}-\d+", each) for each in replies[1:])


@async_test
async def test_access_log__on__has_a_line_for_each_request_without_its_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "comporta.access")
    async with run_service(tmp_path, access_log="true") as service:
        await service.client.get("/v1/nothing?user=ana")
    [line] = [each.getMessage() for each in caplog.records if each.name == "comporta.access"]
    assert re.fullmatch(r"127\.0\.0\.1 GET '/v1/nothing' 404 [\d.]+ ms", line)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on a disk without room; or, if mounting is forbidden, one that refuses files."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        yield Path("/proc/self")
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@async_test
async def test_health__disk_of_the_database_full__warns_and_serves_reads(
    full_disk: Path, tmp_path: Path
) -> None:
    async with run_service(tmp_path) as service:
        assert (await service.client.get("/v1/health")).json()["disk"] == {"status": "ok", "reasons": []}
        service.container.disk_check = DiskCheck({"the database": full_disk})
        _fill(full_disk)
        reply = await service.client.get("/v1/health")
        job = await service.client.get("/ultra-batch/jobs/none")
        service.container.disk_check.close()
    health = reply.json()
    assert (reply.status_code, health["status"], health["disk"]["status"]) == (200, "warn", "warn")
    [reason] = health["disk"]["reasons"]
    assert reason.startswith("the disk of the database cannot be written: ")
    assert reason in health["reasons"]
    assert job.status_code == 404


def _fill(folder: Path) -> None:
    try:
        with (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        return


@async_test
async def test_disk__hangs__is_reported_within_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(disk_check, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(disk_check, "_write", lambda _: ended.wait())
    check = DiskCheck({"the database": tmp_path})
    assert await check.run() == ["the disk did not respond within 0.05 s"]
    ended.set()
    check.close()


@async_test
async def test_disk__nothing_to_check_or_no_directory_yet__is_fine(tmp_path: Path) -> None:
    nothing, missing = DiskCheck({}), DiskCheck({"the sheets": tmp_path / "missing"})
    assert (await nothing.run(), await missing.run()) == ([], [])
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - names only
    missing.close()
    async with run_service(tmp_path, batch_sheets="files", sheets_folder=str(tmp_path / "s")) as service:
        assert (await service.client.get("/v1/health")).json()["disk"]["status"] == "ok"
