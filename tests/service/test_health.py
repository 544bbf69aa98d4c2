"""The health routes."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.service.harness import RunningService, async_test, lose_database, run_service, serve_process

from comporta.errors import DatabaseUnavailableError
from comporta.service import health as health_module
from comporta.service.container import Container
from comporta.service.health import CachedHealth
from comporta.stores.shared.directory import directory_path
from comporta.testing import ManualClock, Server

A_HASH = "a" * 64


@pytest.fixture
def shared_name() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    shutil.rmtree(directory_path(name), ignore_errors=True)


async def read_health(service: RunningService) -> dict[str, Any]:
    reply = await service.client.get("/v1/health")
    assert reply.status_code == 200
    document: dict[str, Any] = reply.json()
    return document


@async_test
async def test_health__all_healthy__has_the_documented_shape(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        health = await read_health(service)
    assert health["status"] == "ok"
    assert health["reasons"] == []
    for name in ("pncp", "pcp"):
        assert health[f"{name}_circuit_breaker"] == {
            "failures": 0,
            "degraded": False,
            "degraded_until": None,
        }
    limiter = health["rate_limiter"]
    assert (limiter["tokens_available"], limiter["requests_last_minute"]) == (10, 0)
    assert {name: one["tokens_available"] for name, one in limiter["sources"].items()} == {
        "pncp": 10,
        "pcp": 5,
    }
    assert health["workers"] == {"alive": 1}
    assert health["state"] == {"status": "ok", "engine": "memory", "fallback": None}
    assert health["database"] == {"status": "ok", "engine": "sqlite", "reason": None}


@async_test
async def test_health__source_circuit_open__warns_and_returns_200(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        breaker = service.container.upstreams["pcp"].breaker
        assert breaker is not None
        for _ in range(30):
            await breaker.record_failure("no answer")
        health = await read_health(service)
    assert health["status"] == "warn"
    assert health["reasons"] == ["pcp is open"]
    assert health["pcp_circuit_breaker"]["failures"] == 30
    assert health["pcp_circuit_breaker"]["degraded"] is True
    assert health["pcp_circuit_breaker"]["degraded_until"] > service.container.started_at
    assert health["sources"]["pncp"]["status"] == "ok"


@async_test
async def test_health__requests_made__counts_them_in_the_shared_store(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        for _ in range(3):
            assert await service.container.upstreams["pncp"].limiter.acquire()
        await service.container.upstreams["pcp"].limiter.pause(60)
        health = await read_health(service)
    assert health["rate_limiter"]["requests_last_minute"] == 3
    assert health["rate_limiter"]["tokens_available"] <= 10
    assert health["reasons"] == ["pcp is paused"]


@async_test
async def test_health__requests_and_failures_of_another_process__are_shown(
    tmp_path: Path, shared_name: str
) -> None:
    variables = {"COMPORTA_STATE": f"shared://{shared_name}", "COMPORTA_UPSTREAM_PNCP_LIMIT": "10/hour"}
    with serve_process(tmp_path, **variables) as other:
        async with run_service(tmp_path, **variables) as service, httpx2.AsyncClient() as client:
            upstream = service.container.upstreams["pncp"]
            for _ in range(3):
                assert await upstream.limiter.acquire()
            assert upstream.breaker is not None
            for _ in range(50):
                await upstream.breaker.record_failure("no answer")
            health = (await client.get(f"{other.address}/v1/health")).json()
    limiter = health["rate_limiter"]["sources"]["pncp"]
    assert (limiter["tokens_available"], limiter["requests_last_minute"]) == (7, 3)
    assert health["pncp_circuit_breaker"]["failures"] == 50
    assert health["pncp_circuit_breaker"]["degraded"] is True


@async_test
async def test_health__upstream_without_a_breaker__is_never_open(tmp_path: Path) -> None:
    async with run_service(tmp_path, COMPORTA_UPSTREAM_PNCP_BREAKER="false") as service:
        health = await read_health(service)
    assert health["pncp_circuit_breaker"] == {"failures": 0, "degraded": False, "degraded_until": None}
    assert health["sources"]["pncp"]["phase"] is None


@async_test
async def test_health__upstream_with_several_limits__has_the_numbers_of_each(tmp_path: Path) -> None:
    async with run_service(tmp_path, COMPORTA_UPSTREAM_PNCP_LIMIT="10/s; 1000/day") as service:
        limiter = (await read_health(service))["rate_limiter"]
    limits = limiter["sources"]["pncp"]["limits"]
    assert {name: one["tokens_available"] for name, one in limits.items()} == {"pncp": 10, "pncp.2": 1000}
    assert limits["pncp"]["paused_seconds"] == 0
    assert "limits" not in limiter["sources"]["pcp"]


@async_test
async def test_health__database_gone__fails_with_the_reason(
    tmp_path: Path,
) -> None:
    async with run_service(tmp_path) as service:
        lose_database(service, tmp_path)
        reply = await service.client.get("/v1/health")
        cache = await service.client.get("/v1/health/cache")
        page = await service.client.get("/metrics")
    assert reply.status_code == 503
    assert reply.json()["status"] == "fail"
    assert reply.json()["database"]["reason"] == DatabaseUnavailableError.__name__
    assert cache.status_code == 503
    assert cache.headers["content-type"] == "application/problem+json"
    assert cache.json()["retry_after"] == 5
    assert "comporta_database_down 1.0" in page.text
    assert "comporta_cache_entries" not in page.text


@async_test
async def test_cache_health__some_keys__counts_them_without_user_names(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        cache = service.container.cache
        await cache.save_to_cache("ana", {"uf": "SP"}, [1, 2])
        await cache.record_cache_fetch_failure("bob", A_HASH)
        await cache.record_cache_fetch_failure("bob", A_HASH)
        reply = await service.client.get("/v1/health/cache")
    health = reply.json()
    assert (health["entries"], health["degraded_keys_count"], health["avg_fail_streak"]) == (2, 1, 1.0)
    assert health["priorities"] == {"hot": 0, "warm": 0, "cold": 2}
    assert health["ages"]["fresh"] == 1
    assert [key["fail_streak"] for key in health["top_keys"]].count(2) == 1
    assert "ana" not in reply.text
    assert "bob" not in reply.text


@async_test
async def test_readyz__worker_shutting_down__returns_503(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        before = await service.client.get("/readyz")
        service.container.shutting_down.set()
        after = await service.client.get("/readyz")
        live = await service.client.get("/livez")
    assert (before.status_code, after.status_code, live.status_code) == (200, 503, 200)
    assert after.headers["retry-after"] == "1"


@async_test
async def test_health__redis_killed__every_response_is_complete(tmp_path: Path) -> None:
    with Server() as server:
        async with run_service(tmp_path, COMPORTA_STATE=f"{server.url}?timeout=5") as service:
            before = await read_health(service)
            server.kill()
            replies = [
                await service.client.get(path)
                for path in ("/v1/health", "/v1/health/cache", "/metrics", "/readyz") * 3
            ]
            after = await read_health(service)
    assert before["state"]["fallback"] is None
    assert [reply.status_code for reply in replies] == [200] * len(replies)
    assert after["status"] == "warn"
    assert after["state"]["fallback"]["workers"] == 1
    assert "cannot be used" in after["state"]["fallback"]["reason"]
    assert after["workers"] == {"alive": 1}


@async_test
async def test_health__many_clients_within_a_second__is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[float] = []
    clock = ManualClock()
    compute = health_module.read_health

    async def count(container: Container) -> dict[str, Any]:
        computed.append(clock.now_ns() / 1e9)
        return await compute(container)

    monkeypatch.setattr(health_module, "read_health", count)
    monkeypatch.setattr(health_module, "MONOTONIC", clock)
    async with run_service(tmp_path) as service:
        service.container.health = CachedHealth()
        await asyncio.gather(*(read_health(service) for _ in range(20)))
        assert len(computed) == 1
        clock.advance(0.99)
        await read_health(service)
        assert len(computed) == 1
        clock.advance(0.01)
        await read_health(service)
        assert len(computed) == 2


@async_test
async def test_health__more_requests_than_the_client_limit__are_429(tmp_path: Path) -> None:
    async with run_service(tmp_path, client_limit="3/hour") as service:
        replies = [await service.client.get("/v1/health") for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert int(replies[-1].headers["retry-after"]) > 0
