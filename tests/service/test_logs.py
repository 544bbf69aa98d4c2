"""The log of the service, request ids and the access log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.service.harness import async_test, run_service, service_config

from comporta.database.base import Parameters, Rows, Statement
from comporta.database.sqlite import SqliteDatabase
from comporta.errors import DatabaseError
from comporta.service import database_outage
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


class FailingDatabase(SqliteDatabase):
    """A database whose first reads fail."""

    failures = 2

    async def read_async(self, statement: Statement, parameters: Parameters) -> Rows:
        if self.failures:
            self.failures -= 1
            raise DatabaseError("down")
        return await super().read_async(statement, parameters)


@async_test
async def test_outage__database_fails_again_after_the_first_look__ends_when_it_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_outage, "PROBE_SECONDS", 0.001)
    with closing(FailingDatabase(tmp_path / "db.sqlite3")) as database:
        outage = database_outage.DatabaseOutage(database)
        for _ in range(3):
            outage.record(DatabaseError("down"))
        assert outage._probing is not None
        await asyncio.wait_for(outage._probing, 60)
        assert database.failures == 0
    [begin, end] = [record.getMessage() for record in caplog.records]
    assert begin == "the database is unreachable: down"
    assert end.endswith("requests failed: 3")
