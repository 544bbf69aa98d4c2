"""The batch routes: responses, streams and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.service.batch.rig import (
    Gate,
    accounts,
    each_once,
    file_accounts,
    greet,
    wait_backfilled,
    wait_finished,
    wait_stored,
    wait_until,
)
from tests.service.harness import OPERATOR, TOKEN, RunningService, async_test, service_config

from comporta.errors import DatabaseUnavailableError, SinkAuthError, SinkUnavailableError
from comporta.service.app import create_app
from comporta.service.batch.factory import BatchComponents
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.models import Cursor, StoredResult
from comporta.service.routes import batch as routes


@asynccontextmanager
async def run_batch_service(
    folder: Path, processor: Any = greet, sheets: Any = None, is_digital: Any = None, **variables: str
) -> AsyncIterator[RunningService]:
    components = BatchComponents(processor, sheets or LocalSheets(folder / "sheets"), is_digital)
    variables = {"client_limit": "false", "batch_poll_seconds": "0.05", "batch_concurrency": "4", **variables}
    app = create_app(service_config(folder, **variables), batch_components=components)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client,
    ):
        service = RunningService(app, client)
        await asyncio.to_thread(service.container.batches.whitelist.set_user, "ana", digital=True)
        yield service


async def post(service: RunningService, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    reply = await service.client.post(f"/ultra-batch/{path}", json=body)
    assert reply.status_code == status, reply.text
    if status != 200:
        assert reply.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = reply.json()
    return document


async def get_json(service: RunningService, path: str, status: int = 200, **query: Any) -> dict[str, Any]:
    reply = await service.client.get(f"/ultra-batch/{path}", params=query)
    assert reply.status_code == status, reply.text
    document: dict[str, Any] = reply.json()
    return document


async def stream_job(service: RunningService, **body: Any) -> list[dict[str, Any]]:
    reply = await service.client.post("/ultra-batch/jobs", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert lines[0]["job_id"] == reply.headers["x-job-id"]
    return lines


@async_test
async def test_check_whitelist__known_and_unknown_users__returns_authorized(tmp_path: Path) -> None:
    async with run_batch_service(tmp_path) as service:
        assert await post(service, "check-whitelist", user_id="ana") == {"authorized": True}
        assert await post(service, "check-whitelist", user_id="bob") == {"authorized": False}


@async_test
async def test_jobs__accounts__are_streamed_and_can_be_read_later(tmp_path: Path) -> None:
    async with run_batch_service(tmp_path) as service:
        lines = await stream_job(service, accounts=accounts(250), user_id="ana")
        job_id = lines[0]["job_id"]
        assert [lines[0]["event"], lines[-1]["event"]] == ["job", "end"]
        results = lines[1:-1]
        assert {each["event"] for each in results} == {"result"}
        assert {each["account"] for each in results} == set(accounts(250))
        assert lines[-1]["succeeded"] == 250
        read: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = await get_json(
                service, f"jobs/{job_id}", limit=100, **({"cursor": cursor} if cursor else {})
            )
            if not page["results"]:
                break
            read += page["results"]
            cursor = page["next_cursor"]
        assert [each | {"event": "result"} for each in read] == results
        none = await get_json(service, f"jobs/{job_id}", limit=0)
        assert (none["results"], none["next_cursor"], none["status"]) == ([], None, "completed")


@async_test
async def test_jobs__sent_again_with_the_same_id__is_the_same_job(tmp_path: Path) -> None:
    async with run_batch_service(tmp_path) as service:
        first = await stream_job(service, accounts=["a", "b"], job_id="mine")
        again = await stream_job(service, accounts=["a", "b"], job_id="mine")
        assert again[1:] == first[1:]
        problem = await post(service, "jobs", 409, accounts=["c"], job_id="mine")
        assert problem["field"] == "job_id"


@async_test
async def test_jobs__worker_shuts_down__stream_ends_with_a_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.service.container.BATCH_STOP_SECONDS", 0.1)
    async with run_batch_service(tmp_path, Gate(3)) as service:
        reply = asyncio.create_task(stream_job(service, accounts=accounts(10), job_id="mine"))

        async def three() -> bool:
            job = await service.container.batches.read_job("mine")
            return job is not None and job.succeeded == 3

        await wait_until(three)
        service.container.shutting_down.set()
        lines = await reply
    last = lines[-1]
    assert last["event"] == "interrupted"
    assert len(lines) <= 5


@async_test
async def test_jobs__no_capacity__is_refused_with_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.service.container.BATCH_STOP_SECONDS", 0.1)
    async with run_batch_service(tmp_path, Gate(), batch_running_max="1", batch_accounts_max="5") as service:
        problem = await post(service, "jobs", 422, accounts=accounts(6))
        assert problem["detail"] == "accounts must be 1 to 5, got 6"
        waiting = asyncio.create_task(service.client.post("/ultra-batch/jobs", json={"accounts": ["a"]}))

        async def there() -> bool:
            return bool(service.container.batches._followers)

        await wait_until(there)
        problem = await post(service, "jobs", 503, accounts=["b"])
        assert problem["retry_after"] == 5
        monkeypatch.setattr("comporta.service.batch.batches.FOLLOWERS_MAX", 1)
        assert (await post(service, "jobs", 503, accounts=["b"]))[
            "detail"
        ] == "too many clients are streaming jobs"
        service.container.shutting_down.set()
        await waiting


@async_test
async def test_jobs__no_processor_configured__says_what_is_missing(tmp_path: Path) -> None:
    async with run_batch_service(tmp_path, None) as service:
        problem = await post(service, "jobs", 503, accounts=["a"])
    assert "set batch.processor or batch.address" in problem["detail"]


@async_test
async def test_configure_sheets__full_sequence__has_the_documented_fields(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    async with run_batch_service(tmp_path, sheets=sheets, admin_token=TOKEN) as service:
        await stream_job(service, accounts=accounts(30), job_id="mine")
        refused = await post(service, "configure-sheets", 403, job_id="mine", user_id="bob")
        assert refused["field"] == "user_id"
        assert (await get_json(service, "sheets-config/mine", 404))["field"] == "job_id"
        new = await post(service, "configure-sheets", job_id="mine", user_id="ana", custom_name="Março")
        config = await wait_backfilled(service.container.batches, "mine")
        assert new == {
            "success": True,
            "spreadsheet_id": config.download_id,
            "spreadsheet_url": f"http://service/ultra-batch/sheets/{config.download_id}.csv",
            "spreadsheet_name": "Março",
            "backfill_status": "pending",
        }
        del new["backfill_status"]
        assert await post(service, "configure-sheets", job_id="mine", user_id="ana") == new
        sheet = await get_json(service, "sheets-config/mine")
        assert (sheet["backfill_status"], sheet["backfilled_rows"]) == ("completed", 30)
        assert "backfill_error" not in sheet
        assert file_accounts(sheets, config.spreadsheet_id) == each_once(30)
        reply = await service.client.post("/v1/admin/backfills/mine/retry", headers=OPERATOR)
        assert (reply.status_code, reply.json()["detail"]) == (404, "job mine has no failed backfill")


@async_test
async def test_configure_sheets__backfill_failed__is_scheduled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    async with run_batch_service(tmp_path, sheets=sheets) as service:
        await stream_job(service, accounts=accounts(3), job_id="mine")
        monkeypatch.setattr(sheets, "sink", _raise_denied)
        await post(service, "configure-sheets", job_id="mine", user_id="ana")
        await wait_backfilled(service.container.batches, "mine")
        sheet = await get_json(service, "sheets-config/mine")
        assert (sheet["backfill_status"], sheet["backfilled_rows"]) == ("failed", 0)
        assert sheet["backfill_error"] == "SinkAuthError: no"
        monkeypatch.undo()
        again = await post(service, "configure-sheets", job_id="mine", user_id="ana")
        assert again["backfill_status"] == "pending"
        assert (await wait_backfilled(service.container.batches, "mine")).backfilled_rows == 3


def _raise_denied(*_: object) -> Any:
    raise SinkAuthError("no")


def _raise_gone(*_: object) -> Any:
    raise SinkUnavailableError("no")


@async_test
async def test_sheets_config__backfill_pending__has_no_row_count(tmp_path: Path) -> None:
    async with run_batch_service(tmp_path) as service:
        await stream_job(service, accounts=accounts(3), job_id="mine")
        service.container.batches._leases.stopping = True  # so that no backfill runs
        await post(service, "configure-sheets", job_id="mine", user_id="ana")
        sheet = await get_json(service, "sheets-config/mine")
    assert sheet["backfill_status"] == "pending"
    assert "backfilled_rows" not in sheet


@async_test
async def test_configure_sheets__sheets_unavailable__reports_no_internal_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    async with run_batch_service(tmp_path, sheets=sheets) as service:
        await stream_job(service, accounts=["a"], job_id="mine")
        for refusal, status in ((_raise_denied, 502), (_raise_gone, 503)):
            monkeypatch.setattr(sheets, "create", refusal)
            problem = await post(service, "configure-sheets", status, job_id="mine", user_id="ana")
            assert "no" not in problem["detail"].split()


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("check-whitelist", {}, "user_id"),
        ("check-whitelist", {"user_id": ""}, "user_id"),
        ("check-whitelist", {"user_id": "a\0b"}, "user_id"),
        ("check-whitelist", {"user_id": "x" * 201}, "user_id"),
        ("jobs", {"accounts": []}, "accounts"),
        ("jobs", {"accounts": ["a", " "]}, "accounts.1"),
        ("jobs", {"accounts": ["a", 1]}, "accounts.1"),
        ("jobs", {"accounts": ["a"] * routes.VALIDATION_CHUNK * 2 + [1]}, "accounts.1000"),
        ("jobs", {"accounts": [1] * 100_000}, "accounts.0"),
        ("jobs", {"accounts": ["a"] * 100_001}, "accounts"),
        ("jobs", {"accounts": ["a\0"]}, "accounts.0"),
        ("jobs", {"accounts": ["x" * 201]}, "accounts.0"),
        ("jobs", {"accounts": ["a"], "job_id": "../x"}, "job_id"),
        ("configure-sheets", {"job_id": "mine"}, "user_id"),
        ("configure-sheets", {"job_id": "mine", "user_id": "ana", "custom_name": ""}, "custom_name"),
    ],
)
@async_test
async def test_routes__invalid_body__names_the_field(
    tmp_path: Path, path: str, body: Any, field: str
) -> None:
    async with run_batch_service(tmp_path) as service:
        assert (await post(service, path, 422, **body))["field"] == field


@async_test
async def test_routes__lone_surrogate__is_refused_or_stored_as_text(tmp_path: Path) -> None:
    async with run_batch_service(tmp_path) as service:
        reply = await service.client.post(
            "/ultra-batch/jobs",
            content=b'{"accounts": ["\\ud800"]}',
            headers={"content-type": "application/json"},
        )
        assert reply.status_code == 422


@async_test
async def test_routes__unknown_job__returns_404(tmp_path: Path) -> None:
    async with run_batch_service(tmp_path) as service:
        assert (await get_json(service, "jobs/nothing", 404))["field"] == "job_id"
        assert (await get_json(service, "sheets-config/nothing", 404))["field"] == "job_id"
        assert (await get_json(service, "jobs/a%20b", 422))["field"] == "job_id"
        assert (await get_json(service, "jobs/nothing", 422, cursor="x"))["field"] == "cursor"
        problem = await post(service, "configure-sheets", 404, job_id="nothing", user_id="ana")
        assert problem["field"] == "job_id"


def test_results_page__limit_too_large__is_refused() -> None:
    assert routes.PAGE_RESULTS_MAX == 1000


@async_test
async def test_job__client_disconnects__continues(tmp_path: Path) -> None:
    gate = Gate(5)
    async with run_batch_service(tmp_path, gate) as service:
        reply = asyncio.create_task(
            service.client.post("/ultra-batch/jobs", json={"accounts": accounts(20), "job_id": "mine"})
        )

        async def begun() -> bool:
            job = await service.container.batches.read_job("mine")
            return job is not None and job.succeeded == 5

        await wait_until(begun)
        reply.cancel()
        await asyncio.gather(reply, return_exceptions=True)
        assert service.container.batches.has_follower_room
        gate.open(15)
        assert (await wait_finished(service.container.batches, "mine")).succeeded == 20


@async_test
async def test_jobs__database_lost_while_streaming__ends_with_a_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, away = Gate(3), False
    async with run_batch_service(tmp_path, gate) as service:
        batches = service.container.batches
        read = batches.read_results

        async def results(job_id: str, after: Cursor, count: int) -> list[StoredResult]:
            if away:
                raise DatabaseUnavailableError("on purpose")
            return await read(job_id, after, count)

        monkeypatch.setattr(batches, "read_results", results)
        asking = asyncio.create_task(stream_job(service, accounts=accounts(9), job_id="job"))
        await wait_stored(batches, 3)
        away = True
        gate.open(6)
        lines = await asking
        monkeypatch.undo()
        assert (lines[0]["event"], lines[-1]["event"]) == ("job", "interrupted")
        await wait_finished(batches)
        rest = await get_json(service, "jobs/job", cursor=lines[-1]["next_cursor"])
        seen = [each["account"] for each in (*lines[1:-1], *rest["results"])]
        assert sorted(seen) == sorted(accounts(9))


@async_test
async def test_job__long_messages__are_split_into_small_pages(tmp_path: Path) -> None:
    async def long(account: str) -> str:
        return "x" * 40_000

    async with run_batch_service(tmp_path, long) as service:
        lines = await stream_job(service, accounts=accounts(60), job_id="job")
        assert len(lines) == 62
        seen: list[str] = []
        cursor: dict[str, Any] = {}
        while (page := await get_json(service, "jobs/job", limit=1000, **cursor))["results"]:
            assert sum(len(each["message"]) for each in page["results"]) <= 1_000_000
            seen += [each["account"] for each in page["results"]]
            cursor = {"cursor": page["next_cursor"]}
    assert sorted(seen) == sorted(accounts(60))
