"""How many tokens are looked at: of one client, of all, and while the state is away."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import product
from pathlib import Path

import httpx2
import pytest
from tests.service.running import OPERATOR, PATIENCE_SECONDS, TOKEN, Asked, awaited, running, several_served

from comporta.service import tries
from comporta.stores.memory import MemoryStore
from comporta.testing import Server

DASHBOARD_TOKEN = "a-dashboard-token-for-tests"  # noqa: S105 - of tests only
VIEWER = {"authorization": f"Bearer {DASHBOARD_TOKEN}"}
BOTH = {"admin_token": TOKEN, "dashboard_token": DASHBOARD_TOKEN, "client_limit": "false"}
ADMIN, DASHBOARD = "/v1/admin/whoami", "/v1/dashboard"
DOORS = [(ADMIN, OPERATOR), (DASHBOARD, VIEWER)]
GUESS = {"authorization": "Bearer a-guess-like-any-other"}
PROXY = {"trusted_proxies": "127.0.0.1"}

both_doors = pytest.mark.parametrize(("path", "right"), DOORS, ids=["admin", "dashboard"])


async def shown(asked: Asked, path: str, headers: dict[str, str], client: str = "192.0.2.1") -> int:
    sent = {**headers, "x-forwarded-for": client}
    return (await asked.client.get(path, headers=sent)).status_code


@both_doors
@awaited
async def test_guesses__more_than_a_client_has__are_refused_and_so_is_a_right_one(
    path: str, right: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "OWN", "1/hour")
    monkeypatch.setattr(tries, "EACH", "4/hour")
    async with running(tmp_path, **PROXY, **BOTH) as asked:
        guesses = [await shown(asked, path, GUESS) for _ in range(7)]
        reply = await asked.client.get(path, headers={**right, "x-forwarded-for": "192.0.2.1"})
        elsewhere = await shown(asked, path, right, "192.0.2.2")
    assert guesses == [401] * 5 + [429] * 2
    assert (reply.status_code, reply.json()["status"]) == (429, 429)
    assert reply.headers["content-type"] == "application/problem+json"
    assert int(reply.headers["retry-after"]) > 60
    assert elsewhere in {200, 204}


@both_doors
@awaited
async def test_guesses__of_many_addresses__never_keep_a_right_token_from_another_out(
    path: str, right: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "OWN", "1/hour")
    monkeypatch.setattr(tries, "ALL", "3/hour")
    async with running(tmp_path, **PROXY, **BOTH) as asked:
        crowd = [f"192.0.2.{number}" for number in range(20)]
        first = [await shown(asked, path, GUESS, client) for client in crowd]
        second = [await shown(asked, path, GUESS, client) for client in crowd]
        good = [await shown(asked, path, right, "198.51.100.1") for _ in range(20)]
    assert first == [401] * 20  # each has one of its own
    assert Counter(second) == {401: 3, 429: 17}
    assert set(good) <= {200, 204}


@awaited
async def test_guesses__by_a_header_that_nobody_may_be_believed__are_of_one_client(tmp_path: Path) -> None:
    async with running(tmp_path, **BOTH) as asked:
        found = [await shown(asked, ADMIN, GUESS, f"192.0.2.{number}") for number in range(60)]
    assert found.count(429) > 20


@awaited
async def test_right_tokens__however_many__use_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "OWN", "1/hour")
    monkeypatch.setattr(tries, "EACH", "1/hour")
    monkeypatch.setattr(tries, "KNOWN_MAX", 1)
    async with running(tmp_path, **PROXY, **BOTH) as asked:
        for client in ("192.0.2.1", "192.0.2.2") * 10:  # the one pushes the other out
            assert await shown(asked, ADMIN, OPERATOR, client) == 204
        assert list(asked.parts.admin_tries._known) == ["192.0.2.2"]
        assert await shown(asked, ADMIN, GUESS, "192.0.2.1") == 401  # its own
        for _ in range(10):
            assert await shown(asked, ADMIN, OPERATOR, "192.0.2.1") == 204  # what it has beyond
        assert [await shown(asked, ADMIN, GUESS, "192.0.2.1") for _ in range(2)] == [401, 429]


@awaited
async def test_wrong_token__of_one_who_was_right__is_counted_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "OWN", "1/hour")
    monkeypatch.setattr(tries, "EACH", "1/hour")
    async with running(tmp_path, **PROXY, **BOTH) as asked:
        assert await shown(asked, ADMIN, OPERATOR) == 204
        guesses = await asyncio.gather(*(shown(asked, ADMIN, GUESS) for _ in range(20)))
        assert Counter(guesses) == {401: 2, 429: 18}
        assert await shown(asked, ADMIN, OPERATOR) == 429


@awaited
async def test_right_guess__at_another_worker_than_the_wrong_ones__is_not_compared(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "OWN", "1/hour")
    monkeypatch.setattr(tries, "EACH", "4/hour")
    valkey.command("FLUSHALL")
    (tmp_path / "other").mkdir()
    state = {"COMPORTA_STATE": f"{valkey.url}?timeout=5"}
    async with running(tmp_path, **BOTH, **state) as one, running(tmp_path / "other", **BOTH, **state) as two:
        guesses = await asyncio.gather(*(shown(one, ADMIN, GUESS) for _ in range(100)))
        mixed = await asyncio.gather(*(shown(two, ADMIN, OPERATOR) for _ in range(20)))
    assert Counter(guesses) == {401: 5, 429: 95}
    assert mixed == [429] * 20


def test_guesses__two_hundred_at_once_at_two_workers__are_compared_as_often_as_one_may(
    valkey: Server, tmp_path: Path
) -> None:
    valkey.command("FLUSHALL")
    state = {"COMPORTA_STATE": f"{valkey.url}?timeout=5"}
    with several_served(2, tmp_path, **BOTH, **state) as workers:
        began = time.monotonic()
        addresses = [f"{worker.address}{path}" for worker, path in product(workers, (ADMIN, DASHBOARD))]
        replies = asyncio.run(_at_once(addresses * 50, GUESS))
        most = 2 * (1 + 9 + 1 + 3.1 * (time.monotonic() - began))  # at two doors
        found = Counter(reply.status_code for reply in replies)
        assert set(found) == {401, 429}
        assert found[401] <= most
        refused = [reply for reply in replies if reply.status_code == 429]
        assert {reply.headers["content-type"] for reply in refused} == {"application/problem+json"}
        assert all(1 <= int(reply.headers["retry-after"]) <= 10 for reply in refused)
        for worker, (path, right) in product(workers, DOORS):
            [reply] = asyncio.run(_at_once([f"{worker.address}{path}"], right, "127.0.0.2"))
            assert reply.status_code in {200, 204}


async def _at_once(
    addresses: list[str], headers: dict[str, str], source: str = "127.0.0.1"
) -> list[httpx2.Response]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    transport = httpx2.AsyncHTTPTransport(local_address=source, limits=limits)
    async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE_SECONDS) as client:
        return await asyncio.gather(*(client.get(address, headers=headers) for address in addresses))


@awaited
async def test_state__away__leaves_those_in_who_were_right_and_lets_others_try_by_a_share(
    tmp_path: Path,
) -> None:
    with Server() as server:
        state = {"COMPORTA_STATE": f"{server.url}?timeout=5"}
        async with running(tmp_path, **PROXY, **BOTH, **state) as asked:
            assert await shown(asked, ADMIN, OPERATOR, "192.0.2.1") == 204
            server.kill()
            assert await shown(asked, ADMIN, OPERATOR, "192.0.2.1") == 204
            began = time.monotonic()
            guesses = [await shown(asked, ADMIN, GUESS, "192.0.2.3") for _ in range(100)]
            assert set(guesses) <= {401, 429}
            assert guesses.count(401) <= 2 + 9 + 3.1 * (time.monotonic() - began)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _let_in(asked, "192.0.2.2")


async def _let_in(asked: Asked, client: str) -> None:
    while True:
        status = await shown(asked, ADMIN, OPERATOR, client)
        if status == 204:
            return
        assert status == 429
        await asyncio.sleep(0.1)


@awaited
async def test_state__that_is_full__has_nothing_compared_but_of_those_who_were_right(tmp_path: Path) -> None:
    async with running(tmp_path, **PROXY, **BOTH) as asked:
        store = asked.parts.store
        assert isinstance(store, MemoryStore)
        assert await shown(asked, ADMIN, OPERATOR) == 204
        store.keys_max = len(store)
        reply = await asked.client.get(ADMIN, headers={**OPERATOR, "x-forwarded-for": "192.0.2.9"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert await shown(asked, ADMIN, OPERATOR) == 204
