"""Limits for wrong tokens: per client, in total, and during an outage of the store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import product
from pathlib import Path

import httpx2
import pytest
from tests.service.harness import (
    OPERATOR,
    PATIENCE_SECONDS,
    TOKEN,
    RunningService,
    async_test,
    run_service,
    serve_processes,
)

from comporta.service import auth_throttle
from comporta.stores.memory import MemoryStore
from comporta.testing import Server

DASHBOARD_TOKEN = "a-dashboard-token-for-tests"  # noqa: S105 - of tests only
VIEWER = {"authorization": f"Bearer {DASHBOARD_TOKEN}"}
BOTH = {"admin_token": TOKEN, "dashboard_token": DASHBOARD_TOKEN, "client_limit": "false"}
ADMIN, DASHBOARD = "/v1/admin/whoami", "/v1/dashboard"
TOKENS = [(ADMIN, OPERATOR), (DASHBOARD, VIEWER)]
GUESS = {"authorization": "Bearer a-guess-like-any-other"}
PROXY = {"trusted_proxies": "127.0.0.1"}

both_tokens = pytest.mark.parametrize(("path", "correct"), TOKENS, ids=["admin", "dashboard"])


async def try_token(
    service: RunningService, path: str, headers: dict[str, str], client: str = "192.0.2.1"
) -> int:
    sent = {**headers, "x-forwarded-for": client}
    return (await service.client.get(path, headers=sent)).status_code


@both_tokens
@async_test
async def test_attempts__more_than_a_client_may__are_refused_even_if_correct(
    path: str, correct: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_throttle, "OWN_LIMIT", "1/hour")
    monkeypatch.setattr(auth_throttle, "CLIENT_LIMIT", "4/hour")
    async with run_service(tmp_path, **PROXY, **BOTH) as service:
        guesses = [await try_token(service, path, GUESS) for _ in range(7)]
        reply = await service.client.get(path, headers={**correct, "x-forwarded-for": "192.0.2.1"})
        elsewhere = await try_token(service, path, correct, "192.0.2.2")
    assert guesses == [401] * 5 + [429] * 2
    assert (reply.status_code, reply.json()["status"]) == (429, 429)
    assert reply.headers["content-type"] == "application/problem+json"
    assert int(reply.headers["retry-after"]) > 60
    assert elsewhere in {200, 204}


@both_tokens
@async_test
async def test_attempts__from_many_addresses__never_lock_out_another_client(
    path: str, correct: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_throttle, "OWN_LIMIT", "1/hour")
    monkeypatch.setattr(auth_throttle, "TOTAL_LIMIT", "3/hour")
    async with run_service(tmp_path, **PROXY, **BOTH) as service:
        crowd = [f"192.0.2.{number}" for number in range(20)]
        first = [await try_token(service, path, GUESS, client) for client in crowd]
        second = [await try_token(service, path, GUESS, client) for client in crowd]
        good = [await try_token(service, path, correct, "198.51.100.1") for _ in range(20)]
    assert first == [401] * 20  # each client has one attempt of its own
    assert Counter(second) == {401: 3, 429: 17}
    assert set(good) <= {200, 204}


@async_test
async def test_attempts__with_untrusted_forwarded_headers__count_as_one_client(tmp_path: Path) -> None:
    async with run_service(tmp_path, **BOTH) as service:
        statuses = [await try_token(service, ADMIN, GUESS, f"192.0.2.{number}") for number in range(60)]
    assert statuses.count(429) > 20


@async_test
async def test_correct_tokens__any_number__use_no_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_throttle, "OWN_LIMIT", "1/hour")
    monkeypatch.setattr(auth_throttle, "CLIENT_LIMIT", "1/hour")
    monkeypatch.setattr(auth_throttle, "VERIFIED_MAX", 1)
    async with run_service(tmp_path, **PROXY, **BOTH) as service:
        for client in ("192.0.2.1", "192.0.2.2") * 10:  # each evicts the other
            assert await try_token(service, ADMIN, OPERATOR, client) == 204
        assert list(service.container.admin_throttle._verified) == ["192.0.2.2"]
        assert await try_token(service, ADMIN, GUESS, "192.0.2.1") == 401  # its own attempt
        for _ in range(10):
            assert await try_token(service, ADMIN, OPERATOR, "192.0.2.1") == 204  # from its further attempts
        assert [await try_token(service, ADMIN, GUESS, "192.0.2.1") for _ in range(2)] == [401, 429]


@async_test
async def test_wrong_token__of_a_verified_client__is_counted_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_throttle, "OWN_LIMIT", "1/hour")
    monkeypatch.setattr(auth_throttle, "CLIENT_LIMIT", "1/hour")
    async with run_service(tmp_path, **PROXY, **BOTH) as service:
        assert await try_token(service, ADMIN, OPERATOR) == 204
        guesses = await asyncio.gather(*(try_token(service, ADMIN, GUESS) for _ in range(20)))
        assert Counter(guesses) == {401: 2, 429: 18}
        assert await try_token(service, ADMIN, OPERATOR) == 429


@async_test
async def test_correct_token__attempts_used_up_at_another_worker__is_not_compared(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_throttle, "OWN_LIMIT", "1/hour")
    monkeypatch.setattr(auth_throttle, "CLIENT_LIMIT", "4/hour")
    valkey.command("FLUSHALL")
    (tmp_path / "other").mkdir()
    state = {"COMPORTA_STATE": f"{valkey.url}?timeout=5"}
    async with (
        run_service(tmp_path, **BOTH, **state) as one,
        run_service(tmp_path / "other", **BOTH, **state) as two,
    ):
        guesses = await asyncio.gather(*(try_token(one, ADMIN, GUESS) for _ in range(100)))
        mixed = await asyncio.gather(*(try_token(two, ADMIN, OPERATOR) for _ in range(20)))
    assert Counter(guesses) == {401: 5, 429: 95}
    assert mixed == [429] * 20


@pytest.mark.unmeasured
def test_attempts__two_hundred_at_once_at_two_workers__share_one_limit(
    valkey: Server, tmp_path: Path
) -> None:
    valkey.command("FLUSHALL")
    state = {"COMPORTA_STATE": f"{valkey.url}?timeout=5"}
    with serve_processes(2, tmp_path, **BOTH, **state) as workers:
        began = time.monotonic()
        addresses = [f"{worker.address}{path}" for worker, path in product(workers, (ADMIN, DASHBOARD))]
        replies = asyncio.run(_get_concurrently(addresses * 50, GUESS))
        most = 2 * (1 + 9 + 1 + 3.1 * (time.monotonic() - began))  # for two tokens
        counts = Counter(reply.status_code for reply in replies)
        assert set(counts) == {401, 429}
        assert counts[401] <= most
        refused = [reply for reply in replies if reply.status_code == 429]
        assert {reply.headers["content-type"] for reply in refused} == {"application/problem+json"}
        assert all(1 <= int(reply.headers["retry-after"]) <= 10 for reply in refused)
        for worker, (path, correct) in product(workers, TOKENS):
            [reply] = asyncio.run(_get_concurrently([f"{worker.address}{path}"], correct, "127.0.0.2"))
            assert reply.status_code in {200, 204}


async def _get_concurrently(
    addresses: list[str], headers: dict[str, str], source: str = "127.0.0.1"
) -> list[httpx2.Response]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    transport = httpx2.AsyncHTTPTransport(local_address=source, limits=limits)
    async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE_SECONDS) as client:
        return await asyncio.gather(*(client.get(address, headers=headers) for address in addresses))


@async_test
async def test_store__unreachable__keeps_verified_clients_and_limits_others_to_a_share(
    tmp_path: Path,
) -> None:
    with Server() as server:
        state = {"COMPORTA_STATE": f"{server.url}?timeout=5"}
        async with run_service(tmp_path, **PROXY, **BOTH, **state) as service:
            assert await try_token(service, ADMIN, OPERATOR, "192.0.2.1") == 204
            server.kill()
            assert await try_token(service, ADMIN, OPERATOR, "192.0.2.1") == 204
            began = time.monotonic()
            guesses = [await try_token(service, ADMIN, GUESS, "192.0.2.3") for _ in range(100)]
            assert set(guesses) <= {401, 429}
            assert guesses.count(401) <= 2 + 9 + 3.1 * (time.monotonic() - began)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _wait_until_accepted(service, "192.0.2.2")


async def _wait_until_accepted(service: RunningService, client: str) -> None:
    while True:
        status = await try_token(service, ADMIN, OPERATOR, client)
        if status == 204:
            return
        assert status == 429
        await asyncio.sleep(0.1)  # sleeps: polls until the token is accepted


@async_test
async def test_store__full__compares_tokens_of_verified_clients_only(tmp_path: Path) -> None:
    async with run_service(tmp_path, **PROXY, **BOTH) as service:
        store = service.container.store
        assert isinstance(store, MemoryStore)
        assert await try_token(service, ADMIN, OPERATOR) == 204
        store.keys_max = len(store)
        reply = await service.client.get(ADMIN, headers={**OPERATOR, "x-forwarded-for": "192.0.2.9"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert await try_token(service, ADMIN, OPERATOR) == 204
