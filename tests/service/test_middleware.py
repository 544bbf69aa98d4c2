"""The middleware in front of all routes, and error responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from tests.service.harness import RunningService, async_test, run_service, service_config

from comporta.errors import LimitReachedError, StateUnavailableError
from comporta.integrations.asgi import Message
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.service.app import create_app
from comporta.service.middleware import EXEMPT_PATHS
from comporta.service.problems import ERRORS_MAX, HttpProblem

PAYLOADS = [
    f"{start}{rest}"
    for start in ("=", "+", "-", "@", "\t=", "\r\n", "\x1b[31m", "%0d%0a", "${jndi:ldap://", "{{")
    for rest in (
        "cmd|'/C calc'!A0",
        "HYPERLINK(1)",
        "ERROR forged line",
        "7*7}}",
        "\nERROR forged",
        "x" * 5000,
    )
] + [f"\n{n} forged\r\n" for n in range(40)]


class Body(BaseModel):
    """A request body for these tests."""

    token: str = Field(default="", max_length=3)
    count: int = Field(default=1, ge=1, le=9)
    names: list[int] = Field(default_factory=list)


def parse_problem(reply: httpx2.Response) -> dict[str, Any]:
    assert reply.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = reply.json()
    assert problem["status"] == reply.status_code
    return problem


def add_routes(service: RunningService) -> RunningService:
    """Add routes that fail in every way."""
    gate, entered = asyncio.Event(), asyncio.Semaphore(0)

    async def failing(how: str) -> None:
        raise {
            "error": RuntimeError("the password is secret"),
            "refused": LimitReachedError("no room at secret", "pncp", 2.5),
            "state": StateUnavailableError("redis://secret"),
            "http": HTTPException(418, "no coffee"),
            "odd": HTTPException(599, "odd"),
            "problem": HttpProblem(409, "Conflict", "it is there", "name", 1.2, headers={"x-more": "1"}),
        }[how]

    async def checked(body: Body, uf: Annotated[str, Query(max_length=2)] = "SP") -> dict[str, Any]:
        return {"uf": uf, **body.model_dump()}

    async def waiting() -> str:
        entered.release()
        await gate.wait()
        return "done"

    async def read(request: Request) -> int:
        return len(await request.body())

    async def streamed() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            yield b"one\n"

        return StreamingResponse(lines())

    service.app.add_api_route("/failing/{how}", failing)
    service.app.add_api_route("/checked", checked, methods=["POST"])
    service.app.add_api_route("/waiting", waiting)
    service.app.add_api_route("/read", read, methods=["POST"])
    service.app.add_api_route("/streamed", streamed)
    service.app.state.gate, service.app.state.entered = gate, entered
    return service


@async_test
async def test_problem__any_error__reports_it_without_internal_details(
    tmp_path: Path,
) -> None:
    async with run_service(tmp_path) as service:
        client = add_routes(service).client
        replies = {
            how: parse_problem(await client.get(f"/failing/{how}"))
            for how in ("error", "refused", "state", "http", "odd", "problem")
        }
        headers = (await client.get("/failing/problem")).headers
        missing, wrong = await client.get("/nowhere"), await client.delete("/livez")
    assert [one["status"] for one in replies.values()] == [500, 503, 503, 418, 599, 409]
    assert "secret" not in json.dumps(replies)
    assert replies["refused"]["retry_after"] == 3
    assert replies["odd"]["title"] == "Error"
    assert (replies["problem"]["field"], headers["retry-after"], headers["x-more"]) == ("name", "2", "1")
    assert (parse_problem(missing)["title"], parse_problem(wrong)["title"]) == (
        "Not Found",
        "Method Not Allowed",
    )
    assert wrong.headers["allow"] == "GET"
    assert missing.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("sent", "query", "field", "message"),
    [
        (b"{", "", "body", "must be valid JSON, got invalid input at character 1"),
        (b"\xff", "", "body", "parsing"),
        (b"[]", "", "body", "must be a JSON object"),
        (b'{"count": 10}', "", "count", "less than or equal to 9, got 10"),
        (b'{"count": "x"}', "", "count", "valid integer"),
        (b'{"token": "much too long"}', "", "token", "at most 3"),
        (b'{"names": [1, "a"]}', "", "names.1", "valid integer"),
        (b"{}", "?uf=PARANA", "uf", "at most 2 characters, got 'PARANA'"),
    ],
)
@async_test
async def test_request__invalid__names_field_range_and_value(
    sent: bytes, query: str, field: str, message: str, tmp_path: Path
) -> None:
    async with run_service(tmp_path) as service:
        reply = await add_routes(service).client.post(
            f"/checked{query}", content=sent, headers={"content-type": "application/json"}
        )
    problem = parse_problem(reply)
    assert problem["status"] in {400, 422}
    assert message in problem["detail"]
    assert problem.get("field", "body") == field
    assert "much too long" not in reply.text


@async_test
async def test_request__body_without_json_content_type__says_which_header_to_send(tmp_path: Path) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}  # curl -d sends this by default
    async with run_service(tmp_path) as service:
        reply = await add_routes(service).client.post("/checked", content=b'{"count": 1}', headers=form)
    assert "must be a JSON object, sent with Content-Type: application/json" in parse_problem(reply)["detail"]


@async_test
async def test_request__thousand_errors__reports_at_most_ten(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        reply = await add_routes(service).client.post("/checked", json={"names": ["x" * 500] * 1000})
    assert len(parse_problem(reply)["errors"]) == ERRORS_MAX
    assert len(reply.content) < 5000


@async_test
async def test_body__larger_than_allowed__is_rejected_with_and_without_length(tmp_path: Path) -> None:
    async def drops() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    async with run_service(tmp_path, body_bytes_max="2048") as service:
        client = add_routes(service).client
        declared = await client.post("/read", content=b"x" * 2049)
        undeclared = await client.post("/read", content=drops())
        absurd = await client.post("/read", content=b"x", headers={"content-length": "9" * 30})
        fits = await client.post("/read", content=b"x" * 2048)
        streamed = await client.get("/streamed")
    for reply in (declared, undeclared, absurd):
        assert (reply.status_code, parse_problem(reply)["field"]) == (413, "body")
        assert "at most 2048 bytes" in reply.text
    assert (fits.json(), streamed.text) == (2048, "one\n")


@async_test
async def test_client__thousand_spoofed_addresses__share_one_limit(tmp_path: Path) -> None:
    async with run_service(tmp_path, client_limit="5/hour") as service:
        replies = [
            await service.client.get(
                "/v1/health/cache", headers={"x-forwarded-for": f"198.51.{n // 250}.{n % 250}"}
            )
            for n in range(1000)
        ]
        exempt = await service.client.get("/livez")
        limited = await service.client.get("/v1/health")
    statuses = [reply.status_code for reply in replies]
    assert (statuses.count(200), statuses.count(429)) == (5, 995)
    assert int(replies[-1].headers["retry-after"]) > 0
    assert replies[0].headers["ratelimit"].startswith('"clients";r=4')
    assert parse_problem(replies[-1])["title"] == "Too Many Requests"
    assert (exempt.status_code, limited.status_code) == (200, 429)


@async_test
async def test_client__behind_a_trusted_proxy__has_its_own_limit(tmp_path: Path) -> None:
    async with run_service(
        tmp_path, client_limit="1/hour", trusted_proxies="127.0.0.1, 10.0.0.0/8"
    ) as service:
        statuses = [
            (await service.client.get("/v1/health/cache", headers={"x-forwarded-for": client})).status_code
            for client in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "6.6.6.6, 192.0.2.2, 10.1.1.1")
        ]
    assert statuses == [200, 429, 200, 429]


@async_test
async def test_calls__at_the_maximum__rejects_others_but_not_health_checks(tmp_path: Path) -> None:
    async with run_service(tmp_path, calls_max="2", client_limit="false") as service:
        client = add_routes(service).client
        in_progress = [asyncio.create_task(client.get("/waiting")) for _ in range(2)]
        for _ in in_progress:
            await service.app.state.entered.acquire()
        refused = await client.get("/v1/health/cache")
        exempt = [(await client.get(path)).status_code for path in sorted(EXEMPT_PATHS)]
        service.app.state.gate.set()
        finished = [reply.status_code for reply in await asyncio.gather(*in_progress)]
        after = await client.get("/v1/health/cache")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "more than 2 requests" in parse_problem(refused)["detail"]
    assert exempt == [200] * len(EXEMPT_PATHS)
    assert (finished, after.status_code) == ([200, 200], 200)


@async_test
async def test_call__cancelled_by_shutdown__gets_503_with_retry_after(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        client = add_routes(service).client
        gone, interrupted = (
            asyncio.create_task(client.get("/waiting")),
            asyncio.create_task(client.get("/waiting")),
        )
        for _ in (gone, interrupted):
            await service.app.state.entered.acquire()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        service.container.shutting_down.set()
        interrupted.cancel()
        reply = await interrupted
    assert (reply.status_code, reply.headers["connection"], parse_problem(reply)["retry_after"]) == (
        503,
        "close",
        1,
    )


@async_test
async def test_payloads__in_every_place__change_nothing_and_forge_no_log_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(PAYLOADS) == 100
    async with run_service(tmp_path, client_limit="false") as service:
        client = add_routes(service).client
        replies = [
            await client.request(
                method, path, params={"uf": payload}, json={"token": payload}, headers={"x-any": "1"}
            )
            for payload in PAYLOADS
            for method, path in (("POST", "/checked"), ("GET", "/failing/error"))
        ]
        after = (await client.get("/v1/health")).json()
    assert {reply.status_code for reply in replies} == {422, 500}
    assert all(len(reply.content) < 2000 for reply in replies)
    assert after["status"] == "ok"
    for line in "".join(capfd.readouterr()).splitlines():
        assert not line.startswith(("ERROR forged", *(f"{n} forged" for n in range(40))))


class BrokenMetrics(InMemoryMetrics):
    """A sink that always fails."""

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        raise RuntimeError


@async_test
async def test_metrics__sink_missing_or_failing__requests_still_succeed(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        for sink in (BrokenMetrics(), None):
            use_metrics(sink)
            assert (await service.client.get("/livez")).status_code == 200
            assert (await service.client.request("BREW", "/livez")).status_code == 405


@async_test
async def test_startup__expected_error__is_reported_in_one_sentence(tmp_path: Path) -> None:
    [message] = await _startup_messages(tmp_path, batch_processor="nowhere:analyse")
    assert message["type"] == "lifespan.startup.failed"
    assert message["message"] == (
        "COMPORTA_SERVICE_BATCH_PROCESSOR: processor must be importable, got "
        "'nowhere:analyse': No module named 'nowhere'"
    )


@async_test
async def test_startup__unexpected_error__is_reported_with_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.service.container.open_batches", lambda *_: 1 / 0)
    [message] = await _startup_messages(tmp_path)
    assert message["message"].startswith("Traceback")


async def _startup_messages(folder: Path, **variables: str) -> list[Message]:
    """Start the application as a server does and return its lifespan messages."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        messages.append(message)

    with suppress(Exception):
        await create_app(service_config(folder, **variables))({"type": "lifespan"}, receive, send)
    return messages
