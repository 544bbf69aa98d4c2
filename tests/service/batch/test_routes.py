"""Batches over HTTP: what is answered, streamed and refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.service.batch.rig import Gate, accounts, filled, greet, in_file, once, over, stored, until
from tests.service.running import OPERATOR, TOKEN, Asked, awaited, config

from comporta.errors import DatabaseUnavailableError, SinkDeniedError, SinkUnavailableError
from comporta.service.app import create_app
from comporta.service.batch.local import LocalSheets
from comporta.service.batch.opening import BatchPlugs
from comporta.service.batch.values import Place, Result
from comporta.service.routes import batch as routes


@asynccontextmanager
async def running(
    folder: Path, processor: Any = greet, sheets: Any = None, is_digital: Any = None, **told: str
) -> AsyncIterator[Asked]:
    plugs = BatchPlugs(processor, sheets or LocalSheets(folder / "sheets"), is_digital)
    told = {"client_limit": "false", "batch_poll_seconds": "0.05", "batch_concurrency": "4", **told}
    app = create_app(config(folder, **told), plugs=plugs)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client,
    ):
        asked = Asked(app, client)
        await asyncio.to_thread(asked.parts.batches.whitelist.set_user, "ana", digital=True)
        yield asked


async def posted(asked: Asked, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    reply = await asked.client.post(f"/ultra-batch/{path}", json=body)
    assert reply.status_code == status, reply.text
    if status != 200:
        assert reply.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = reply.json()
    return found


async def got(asked: Asked, path: str, status: int = 200, **query: Any) -> dict[str, Any]:
    reply = await asked.client.get(f"/ultra-batch/{path}", params=query)
    assert reply.status_code == status, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def streamed(asked: Asked, **body: Any) -> list[dict[str, Any]]:
    reply = await asked.client.post("/ultra-batch/jobs", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert lines[0]["job_id"] == reply.headers["x-job-id"]
    return lines


@awaited
async def test_check_whitelist__known_and_unknown__says_which(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        assert await posted(asked, "check-whitelist", user_id="ana") == {"authorized": True}
        assert await posted(asked, "check-whitelist", user_id="bob") == {"authorized": False}


@awaited
async def test_jobs__accounts__are_streamed_and_can_be_read_later(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        lines = await streamed(asked, accounts=accounts(250), user_id="ana")
        job_id = lines[0]["job_id"]
        assert [lines[0]["event"], lines[-1]["event"]] == ["job", "end"]
        results = lines[1:-1]
        assert {each["event"] for each in results} == {"result"}
        assert {each["account"] for each in results} == set(accounts(250))
        assert lines[-1]["succeeded"] == 250
        read: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = await got(asked, f"jobs/{job_id}", limit=100, **({"cursor": cursor} if cursor else {}))
            if not page["results"]:
                break
            read += page["results"]
            cursor = page["next_cursor"]
        assert [each | {"event": "result"} for each in read] == results
        none = await got(asked, f"jobs/{job_id}", limit=0)
        assert (none["results"], none["next_cursor"], none["status"]) == ([], None, "completed")


@awaited
async def test_jobs__sent_again_with_its_id__is_the_same_job(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        first = await streamed(asked, accounts=["a", "b"], job_id="mine")
        again = await streamed(asked, accounts=["a", "b"], job_id="mine")
        assert again[1:] == first[1:]
        problem = await posted(asked, "jobs", 409, accounts=["c"], job_id="mine")
        assert problem["field"] == "job_id"


@awaited
async def test_jobs__worker_ends__the_stream_says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.service.parts.HALT_SECONDS", 0.1)
    async with running(tmp_path, Gate(3)) as asked:
        reply = asyncio.create_task(streamed(asked, accounts=accounts(10), job_id="mine"))

        async def three() -> bool:
            job = await asked.parts.batches.job("mine")
            return job is not None and job.succeeded == 3

        await until(three)
        asked.parts.leaving.set()
        lines = await reply
    last = lines[-1]
    assert last["event"] == "interrupted"
    assert len(lines) <= 5


@awaited
async def test_jobs__no_room__is_refused_with_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.service.parts.HALT_SECONDS", 0.1)
    async with running(tmp_path, Gate(), batch_running_max="1", batch_accounts_max="5") as asked:
        problem = await posted(asked, "jobs", 422, accounts=accounts(6))
        assert problem["detail"] == "accounts must be 1 to 5, got 6"
        waiting = asyncio.create_task(asked.client.post("/ultra-batch/jobs", json={"accounts": ["a"]}))

        async def there() -> bool:
            return bool(asked.parts.batches._followers)

        await until(there)
        problem = await posted(asked, "jobs", 503, accounts=["b"])
        assert problem["retry_after"] == 5
        monkeypatch.setattr("comporta.service.batch.batches.FOLLOWERS_MAX", 1)
        assert (await posted(asked, "jobs", 503, accounts=["b"]))[
            "detail"
        ] == "too many follow their jobs already"
        asked.parts.leaving.set()
        await waiting


@awaited
async def test_jobs__nobody_can_process__says_what_is_missing(tmp_path: Path) -> None:
    async with running(tmp_path, None) as asked:
        problem = await posted(asked, "jobs", 503, accounts=["a"])
    assert "batch.processor or batch.address must be set" in problem["detail"]


@awaited
async def test_configure_sheets__whole_story__answers_as_clients_know(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    async with running(tmp_path, sheets=sheets, admin_token=TOKEN) as asked:
        await streamed(asked, accounts=accounts(30), job_id="mine")
        refused = await posted(asked, "configure-sheets", 403, job_id="mine", user_id="bob")
        assert refused["field"] == "user_id"
        assert (await got(asked, "sheets-config/mine", 404))["field"] == "job_id"
        new = await posted(asked, "configure-sheets", job_id="mine", user_id="ana", custom_name="Março")
        config = await filled(asked.parts.batches, "mine")
        assert new == {
            "success": True,
            "spreadsheet_id": config.spreadsheet_id,
            "spreadsheet_url": config.spreadsheet_url,
            "spreadsheet_name": "Março",
            "backfill_status": "pending",
        }
        del new["backfill_status"]
        assert await posted(asked, "configure-sheets", job_id="mine", user_id="ana") == new
        told = await got(asked, "sheets-config/mine")
        assert (told["backfill_status"], told["backfilled_rows"]) == ("completed", 30)
        assert "backfill_error" not in told
        assert in_file(sheets, config.spreadsheet_id) == once(30)
        reply = await asked.client.post("/v1/admin/backfills/mine/retry", headers=OPERATOR)
        assert (reply.status_code, reply.json()["detail"]) == (404, "no backfill of the job mine has failed")


@awaited
async def test_configure_sheets__backfill_failed__is_scheduled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    async with running(tmp_path, sheets=sheets) as asked:
        await streamed(asked, accounts=accounts(3), job_id="mine")
        monkeypatch.setattr(sheets, "sink", _denied)
        await posted(asked, "configure-sheets", job_id="mine", user_id="ana")
        await filled(asked.parts.batches, "mine")
        told = await got(asked, "sheets-config/mine")
        assert (told["backfill_status"], told["backfilled_rows"]) == ("failed", 0)
        assert told["backfill_error"] == "SinkDeniedError: no"
        monkeypatch.undo()
        again = await posted(asked, "configure-sheets", job_id="mine", user_id="ana")
        assert again["backfill_status"] == "pending"
        assert (await filled(asked.parts.batches, "mine")).backfilled_rows == 3


def _denied(*_: object) -> Any:
    raise SinkDeniedError("no")


def _gone(*_: object) -> Any:
    raise SinkUnavailableError("no")


@awaited
async def test_sheets_config__backfill_not_done__has_no_count_yet(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        await streamed(asked, accounts=accounts(3), job_id="mine")
        asked.parts.batches._taking.stopping = True  # nobody fills it
        await posted(asked, "configure-sheets", job_id="mine", user_id="ana")
        told = await got(asked, "sheets-config/mine")
    assert told["backfill_status"] == "pending"
    assert "backfilled_rows" not in told


@awaited
async def test_configure_sheets__sheets_out_of_reach__is_told_without_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    async with running(tmp_path, sheets=sheets) as asked:
        await streamed(asked, accounts=["a"], job_id="mine")
        for refusal, status in ((_denied, 502), (_gone, 503)):
            monkeypatch.setattr(sheets, "create", refusal)
            problem = await posted(asked, "configure-sheets", status, job_id="mine", user_id="ana")
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
        ("jobs", {"accounts": ["a"] * routes.CHECKED_AT_ONCE * 2 + [1]}, "accounts.1000"),
        ("jobs", {"accounts": [1] * 100_000}, "accounts.0"),
        ("jobs", {"accounts": ["a"] * 100_001}, "accounts"),
        ("jobs", {"accounts": ["a\0"]}, "accounts.0"),
        ("jobs", {"accounts": ["x" * 201]}, "accounts.0"),
        ("jobs", {"accounts": ["a"], "job_id": "../x"}, "job_id"),
        ("configure-sheets", {"job_id": "mine"}, "user_id"),
        ("configure-sheets", {"job_id": "mine", "user_id": "ana", "custom_name": ""}, "custom_name"),
    ],
)
@awaited
async def test_routes__bad_body__names_the_field(tmp_path: Path, path: str, body: Any, field: str) -> None:
    async with running(tmp_path) as asked:
        assert (await posted(asked, path, 422, **body))["field"] == field


@awaited
async def test_routes__half_a_surrogate__is_refused_or_kept_as_text(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        reply = await asked.client.post(
            "/ultra-batch/jobs",
            content=b'{"accounts": ["\\ud800"]}',
            headers={"content-type": "application/json"},
        )
        assert reply.status_code == 422


@awaited
async def test_routes__no_such_job__is_not_found(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        assert (await got(asked, "jobs/nothing", 404))["field"] == "job_id"
        assert (await got(asked, "sheets-config/nothing", 404))["field"] == "job_id"
        assert (await got(asked, "jobs/a%20b", 422))["field"] == "job_id"
        assert (await got(asked, "jobs/nothing", 422, cursor="x"))["field"] == "cursor"
        problem = await posted(asked, "configure-sheets", 404, job_id="nothing", user_id="ana")
        assert problem["field"] == "job_id"


def test_page__of_results__is_bounded() -> None:
    assert routes.PAGE_MAX == 1000


@awaited
async def test_job__client_goes_away__goes_on(tmp_path: Path) -> None:
    gate = Gate(5)
    async with running(tmp_path, gate) as asked:
        reply = asyncio.create_task(
            asked.client.post("/ultra-batch/jobs", json={"accounts": accounts(20), "job_id": "mine"})
        )

        async def begun() -> bool:
            job = await asked.parts.batches.job("mine")
            return job is not None and job.succeeded == 5

        await until(begun)
        reply.cancel()
        await asyncio.gather(reply, return_exceptions=True)
        assert asked.parts.batches.can_be_followed
        gate.open(15)
        assert (await over(asked.parts.batches, "mine")).succeeded == 20


@awaited
async def test_jobs__database_goes_away_while_somebody_listens__says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, away = Gate(3), False
    async with running(tmp_path, gate) as asked:
        batches = asked.parts.batches
        read = batches.results

        async def results(job_id: str, after: Place, count: int) -> list[Result]:
            if away:
                raise DatabaseUnavailableError("on purpose")
            return await read(job_id, after, count)

        monkeypatch.setattr(batches, "results", results)
        asking = asyncio.create_task(streamed(asked, accounts=accounts(9), job_id="job"))
        await stored(batches, 3)
        away = True
        gate.open(6)
        lines = await asking
        monkeypatch.undo()
        assert (lines[0]["event"], lines[-1]["event"]) == ("job", "interrupted")
        await over(batches)
        rest = await got(asked, "jobs/job", cursor=lines[-1]["next_cursor"])
        seen = [each["account"] for each in (*lines[1:-1], *rest["results"])]
        assert sorted(seen) == sorted(accounts(9))


@awaited
async def test_job__long_messages__come_in_pages_that_hold_up_nobody(tmp_path: Path) -> None:
    async def long(account: str) -> str:
        return "x" * 40_000

    async with running(tmp_path, long) as asked:
        lines = await streamed(asked, accounts=accounts(60), job_id="job")
        assert len(lines) == 62
        seen: list[str] = []
        cursor: dict[str, Any] = {}
        while (page := await got(asked, "jobs/job", limit=1000, **cursor))["results"]:
            assert sum(len(each["message"]) for each in page["results"]) <= 1_000_000
            seen += [each["account"] for each in page["results"]]
            cursor = {"cursor": page["next_cursor"]}
    assert sorted(seen) == sorted(accounts(60))
