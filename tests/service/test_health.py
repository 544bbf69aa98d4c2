"""How the service tells how it fares."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.running import Asked, awaited, lose_database, running

from comporta.errors import DatabaseUnavailableError
from comporta.stores.folder import path_of
from comporta.testing import Server

A_HASH = "a" * 64


@pytest.fixture
def shared_name() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    shutil.rmtree(path_of(name), ignore_errors=True)


async def seen(asked: Asked) -> dict[str, Any]:
    reply = await asked.client.get("/v1/health")
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json()
    return found


@awaited
async def test_health__all_well__has_the_shape_that_clients_know(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        found = await seen(asked)
    assert found["status"] == "ok"
    assert found["reasons"] == []
    for name in ("pncp", "pcp"):
        assert found[f"{name}_circuit_breaker"] == {
            "failures": 0,
            "degraded": False,
            "degraded_until": None,
        }
    limiter = found["rate_limiter"]
    assert (limiter["tokens_available"], limiter["requests_last_minute"]) == (10, 0)
    assert {name: one["tokens_available"] for name, one in limiter["sources"].items()} == {
        "pncp": 10,
        "pcp": 5,
    }
    assert found["workers"] == {"alive": 1}
    assert found["state"] == {"status": "ok", "engine": "memory", "fallback": None}
    assert found["database"] == {"status": "ok", "engine": "sqlite", "why": None}


@awaited
async def test_health__source_open__warns_and_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        breaker = asked.parts.upstreams["pcp"].breaker
        assert breaker is not None
        for _ in range(30):
            await breaker.record_failure("no answer")
        found = await seen(asked)
    assert found["status"] == "warn"
    assert found["reasons"] == ["pcp is open"]
    assert found["pcp_circuit_breaker"]["failures"] == 30
    assert found["pcp_circuit_breaker"]["degraded"] is True
    assert found["pcp_circuit_breaker"]["degraded_until"] > asked.parts.started
    assert found["sources"]["pncp"]["status"] == "ok"


@awaited
async def test_health__requests_made__are_counted_where_all_see_them(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        for _ in range(3):
            assert await asked.parts.upstreams["pncp"].limiter.acquire()
        await asked.parts.upstreams["pcp"].limiter.pause(60)
        found = await seen(asked)
    assert found["rate_limiter"]["requests_last_minute"] == 3
    assert found["rate_limiter"]["tokens_available"] <= 10
    assert found["reasons"] == ["pcp is paused"]


@awaited
async def test_health__upstream_without_a_breaker__is_never_open(tmp_path: Path) -> None:
    async with running(tmp_path, COMPORTA_UPSTREAM_PNCP_BREAKER="false") as asked:
        found = await seen(asked)
    assert found["pncp_circuit_breaker"] == {"failures": 0, "degraded": False, "degraded_until": None}
    assert found["sources"]["pncp"]["phase"] is None


@awaited
async def test_health__database_gone__fails_and_says_so(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as asked:
        lose_database(asked, tmp_path)
        reply = await asked.client.get("/v1/health")
        cache = await asked.client.get("/v1/health/cache")
        page = await asked.client.get("/metrics")
    assert reply.status_code == 503
    assert reply.json()["status"] == "fail"
    assert reply.json()["database"]["why"] == DatabaseUnavailableError.__name__
    assert cache.status_code == 503
    assert cache.headers["content-type"] == "application/problem+json"
    assert cache.json()["retry_after"] == 5
    assert "comporta_database_down 1.0" in page.text
    assert "comporta_cache_entries" not in page.text


@awaited
async def test_cache_health__some_keys__counts_them_and_names_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        cache = asked.parts.cache
        await cache.save_to_cache("ana", {"uf": "SP"}, [1, 2])
        await cache.record_cache_fetch_failure("bob", A_HASH)
        await cache.record_cache_fetch_failure("bob", A_HASH)
        reply = await asked.client.get("/v1/health/cache")
    found = reply.json()
    assert (found["entries"], found["degraded_keys_count"], found["avg_fail_streak"]) == (2, 1, 1.0)
    assert found["priorities"] == {"hot": 0, "warm": 0, "cold": 2}
    assert found["ages"]["fresh"] == 1
    assert [key["fail_streak"] for key in found["top_keys"]].count(2) == 1
    assert "ana" not in reply.text
    assert "bob" not in reply.text


@awaited
async def test_ready__told_to_end__wants_no_more_requests(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        before = await asked.client.get("/readyz")
        asked.parts.leaving.set()
        after = await asked.client.get("/readyz")
        live = await asked.client.get("/livez")
    assert (before.status_code, after.status_code, live.status_code) == (200, 503, 200)
    assert after.headers["retry-after"] == "1"


@awaited
async def test_health__redis_killed__every_answer_is_still_one(tmp_path: Path) -> None:
    with Server() as server:
        async with running(tmp_path, COMPORTA_STATE=f"{server.url}?timeout=5") as asked:
            before = await seen(asked)
            server.kill()
            replies = [
                await asked.client.get(path)
                for path in ("/v1/health", "/v1/health/cache", "/metrics", "/readyz") * 3
            ]
            after = await seen(asked)
    assert before["state"]["fallback"] is None
    assert [reply.status_code for reply in replies] == [200] * len(replies)
    assert after["status"] == "warn"
    assert after["state"]["fallback"]["workers"] == 1
    assert "cannot be used" in after["state"]["fallback"]["why"]
    assert after["workers"] == {"alive": 1}
