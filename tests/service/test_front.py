"""What is in front of all routes, and what is answered when something is wrong."""

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
from tests.service.running import Asked, awaited, config, running

from comporta.errors import LimitReachedError, StateUnavailableError
from comporta.integrations.asgi import Message
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.service.app import create_app
from comporta.service.front import EXEMPT
from comporta.service.problems import ERRORS_MAX, Problem

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
    """Something to send."""

    token: str = Field(default="", max_length=3)
    count: int = Field(default=1, ge=1, le=9)
    names: list[int] = Field(default_factory=list)


def problem(reply: httpx2.Response) -> dict[str, Any]:
    assert reply.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = reply.json()
    assert found["status"] == reply.status_code
    return found


def with_routes(asked: Asked) -> Asked:
    """Add routes that go wrong in every way."""
    gate, entered = asyncio.Event(), asyncio.Semaphore(0)

    async def failing(how: str) -> None:
        raise {
            "error": RuntimeError("the password is secret"),
            "refused": LimitReachedError("no room at secret", "pncp", 2.5),
            "state": StateUnavailableError("redis://secret"),
            "http": HTTPException(418, "no coffee"),
            "odd": HTTPException(599, "odd"),
            "problem": Problem(409, "Conflict", "it is there", "name", 1.2, headers={"x-more": "1"}),
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

    asked.app.add_api_route("/failing/{how}", failing)
    asked.app.add_api_route("/checked", checked, methods=["POST"])
    asked.app.add_api_route("/waiting", waiting)
    asked.app.add_api_route("/read", read, methods=["POST"])
    asked.app.add_api_route("/streamed", streamed)
    asked.app.state.gate, asked.app.state.entered = gate, entered
    return asked


@awaited
async def test_problem__whatever_goes_wrong__is_told_and_no_more(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as asked:
        client = with_routes(asked).client
        replies = {
            how: problem(await client.get(f"/failing/{how}"))
            for how in ("error", "refused", "state", "http", "odd", "problem")
        }
        told = (await client.get("/failing/problem")).headers
        missing, wrong = await client.get("/nowhere"), await client.delete("/livez")
    assert [one["status"] for one in replies.values()] == [500, 503, 503, 418, 599, 409]
    assert "secret" not in json.dumps(replies)
    assert replies["refused"]["retry_after"] == 3
    assert replies["odd"]["title"] == "Error"
    assert (replies["problem"]["field"], told["retry-after"], told["x-more"]) == ("name", "2", "1")
    assert (problem(missing)["title"], problem(wrong)["title"]) == ("Not Found", "Method Not Allowed")
    assert wrong.headers["allow"] == "GET"
    assert missing.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("sent", "query", "field", "said"),
    [
        (b"{", "", "body", "must be JSON, got something else at character 1"),
        (b"\xff", "", "body", "parsing"),
        (b"[]", "", "body", "must be a JSON object"),
        (b'{"count": 10}', "", "count", "less than or equal to 9, got 10"),
        (b'{"count": "x"}', "", "count", "valid integer"),
        (b'{"token": "much too long"}', "", "token", "at most 3"),
        (b'{"names": [1, "a"]}', "", "names.1", "valid integer"),
        (b"{}", "?uf=PARANA", "uf", "at most 2 characters, got 'PARANA'"),
    ],
)
@awaited
async def test_request__not_valid__names_field_range_and_value(
    sent: bytes, query: str, field: str, said: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as asked:
        reply = await with_routes(asked).client.post(
            f"/checked{query}", content=sent, headers={"content-type": "application/json"}
        )
    found = problem(reply)
    assert found["status"] in {400, 422}
    assert said in found["detail"]
    assert found.get("field", "body") == field
    assert "much too long" not in reply.text


@awaited
async def test_request__body_not_said_to_be_json__is_told_how_to_say_so(tmp_path: Path) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d says by itself
    async with running(tmp_path) as asked:
        reply = await with_routes(asked).client.post("/checked", content=b'{"count": 1}', headers=form)
    assert "must be a JSON object, sent with Content-Type: application/json" in problem(reply)["detail"]


@awaited
async def test_request__a_thousand_mistakes__tells_of_a_few(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        reply = await with_routes(asked).client.post("/checked", json={"names": ["x" * 500] * 1000})
    assert len(problem(reply)["errors"]) == ERRORS_MAX
    assert len(reply.content) < 5000


@awaited
async def test_body__larger_than_allowed__is_refused_however_it_comes(tmp_path: Path) -> None:
    async def drops() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    async with running(tmp_path, body_bytes_max="2048") as asked:
        client = with_routes(asked).client
        said = await client.post("/read", content=b"x" * 2049)
        unsaid = await client.post("/read", content=drops())
        absurd = await client.post("/read", content=b"x", headers={"content-length": "9" * 30})
        fits = await client.post("/read", content=b"x" * 2048)
        streamed = await client.get("/streamed")
    for reply in (said, unsaid, absurd):
        assert (reply.status_code, problem(reply)["field"]) == (413, "body")
        assert "at most 2048 bytes" in reply.text
    assert (fits.json(), streamed.text) == (2048, "one\n")


@awaited
async def test_client__a_thousand_spoofed_addresses__get_one_limit(tmp_path: Path) -> None:
    async with running(tmp_path, client_limit="5/hour") as asked:
        replies = [
            await asked.client.get(
                "/v1/health/cache", headers={"x-forwarded-for": f"198.51.{n // 250}.{n % 250}"}
            )
            for n in range(1000)
        ]
        watched = await asked.client.get("/v1/health")
    statuses = [reply.status_code for reply in replies]
    assert (statuses.count(200), statuses.count(429)) == (5, 995)
    assert int(replies[-1].headers["retry-after"]) > 0
    assert replies[0].headers["ratelimit"].startswith('"clients";r=4')
    assert problem(replies[-1])["title"] == "Too Many Requests"
    assert watched.status_code == 200


@awaited
async def test_client__behind_a_trusted_proxy__has_a_limit_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path, client_limit="1/hour", trusted_proxies="127.0.0.1, 10.0.0.0/8") as asked:
        statuses = [
            (await asked.client.get("/v1/health/cache", headers={"x-forwarded-for": client})).status_code
            for client in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "6.6.6.6, 192.0.2.2, 10.1.1.1")
        ]
    assert statuses == [200, 429, 200, 429]


@awaited
async def test_calls__as_many_as_allowed__others_come_later_and_watchers_pass(tmp_path: Path) -> None:
    async with running(tmp_path, calls_max="2", client_limit="false") as asked:
        client = with_routes(asked).client
        under_way = [asyncio.create_task(client.get("/waiting")) for _ in range(2)]
        for _ in under_way:
            await asked.app.state.entered.acquire()
        refused = await client.get("/v1/health/cache")
        watched = [(await client.get(path)).status_code for path in sorted(EXEMPT)]
        asked.app.state.gate.set()
        finished = [reply.status_code for reply in await asyncio.gather(*under_way)]
        after = await client.get("/v1/health/cache")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "more than 2 requests" in problem(refused)["detail"]
    assert watched == [200] * len(EXEMPT)
    assert (finished, after.status_code) == ([200, 200], 200)


@awaited
async def test_call__cut_short__is_told_to_come_back_where_the_worker_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        client = with_routes(asked).client
        gone, cut_short = (
            asyncio.create_task(client.get("/waiting")),
            asyncio.create_task(client.get("/waiting")),
        )
        for _ in (gone, cut_short):
            await asked.app.state.entered.acquire()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        asked.parts.leaving.set()
        cut_short.cancel()
        reply = await cut_short
    assert (reply.status_code, reply.headers["connection"], problem(reply)["retry_after"]) == (
        503,
        "close",
        1,
    )


@awaited
async def test_payloads__in_every_place__change_nothing_and_forge_no_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(PAYLOADS) == 100
    async with running(tmp_path, client_limit="false") as asked:
        client = with_routes(asked).client
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


class Broken(InMemoryMetrics):
    """A sink that cannot count."""

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        raise RuntimeError


@awaited
async def test_figures__sink_that_fails_or_is_none__holds_up_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        for sink in (Broken(), None):
            use_metrics(sink)
            assert (await asked.client.get("/livez")).status_code == 200
            assert (await asked.client.request("BREW", "/livez")).status_code == 405


@awaited
async def test_start__that_fails__is_told_in_one_sentence(tmp_path: Path) -> None:
    [message] = await _started(tmp_path, batch_processor="nowhere:analyse")
    assert message["type"] == "lifespan.startup.failed"
    assert message["message"] == (
        "COMPORTA_SERVICE_BATCH_PROCESSOR: processor must be something that can be imported, got "
        "'nowhere:analyse': No module named 'nowhere'"
    )


@awaited
async def test_start__that_breaks__is_told_with_the_way_to_where_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.service.parts.open_batches", lambda *_: 1 / 0)
    [message] = await _started(tmp_path)
    assert message["message"].startswith("Traceback")


async def _started(folder: Path, **variables: str) -> list[Message]:
    """Start the application as a server does, and return what it says before it is told to end."""
    told: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        told.append(message)

    with suppress(Exception):
        await create_app(config(folder, **variables))({"type": "lifespan"}, receive, send)
    return told
