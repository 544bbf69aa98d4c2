"""The document: what it says of a fleet, on every kind of state, and while something is out of reach."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.rig import document, documented, running
from tests.processes.fleet import new_name, remove
from tests.search.rig import DAYS, NINE, PATIENT, Rig, rigged, written
from tests.service.running import OPERATOR, TOKEN, Asked, awaited, lose_database

from comporta import events
from comporta.cache.looks import Covered, Unwell
from comporta.cache.table import CacheTable
from comporta.flow import Flow
from comporta.service.dashboard import document as documents
from comporta.service.dashboard import kept
from comporta.service.dashboard.discreet import discreet, of_upstream
from comporta.service.dashboard.kept import Lately, Look, _degraded, _partial
from comporta.stores.base import Store
from comporta.testing import ProcurementServer, Server
from comporta.watching import recalling

MEMBERS = {
    *("at", "version", "status", "reasons", "state", "database", "upstreams", "workers", "cache", "jobs"),
    *("events", "story", "demo", "admin", "recent"),
}
CARD = {
    *("name", "phase", "why", "since", "until", "forced", "failures", "threshold", "share", "tokens"),
    *(
        "capacity",
        "limit",
        "original",
        "configured",
        "paused",
        "in_flight",
        "in_flight_max",
        "in_words",
        "minute",
    ),
}
WORKER = {"name", "host", "pid", "started", "heard", "probes", "permits", "leases", "fetches", "jobs"}
CACHE = {
    *("hit_rate", "stale_served_rate", "entries", "degraded_keys_count", "avg_fail_streak", "fetching"),
    *("minute", "degraded", "coverage"),
}
USER = "somebody-with-a-name"


@pytest.fixture(params=["memory", "shared", "valkey"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "valkey":
        server: Server = request.getfixturevalue("valkey")
        server.command("FLUSHALL")
        yield f"{server.url}?timeout=5"
    elif request.param == "shared":
        name = new_name()
        yield f"shared://{name}"
        remove(name)
    else:
        yield f"memory://{new_name()}"


def test_document__of_a_service_at_work__says_all_of_it(state: str, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        asked = Asked(rig.app, rig.client)
        rig.server.pncp.set(failing_ufs=["MA"])
        found = await rig.found(user=USER)
        assert found["complete"] is False
        await rig.found(user=USER)
        rig.server.pcp.set(mode="dead")
        await rig.search("TO", user=USER)
        told = await documented(
            asked, lambda told: told["events"] and told["upstreams"][1]["minute"]["calls"] > 9
        )
        assert told.keys() == MEMBERS
        assert [card["name"] for card in told["upstreams"]] == ["pcp", "pncp"]
        assert all(card.keys() >= CARD for card in told["upstreams"])
        assert told["upstreams"][0]["failures"] > 0
        assert told["upstreams"][1]["minute"]["ok"] > 0
        assert [worker.keys() for worker in told["workers"]] == [WORKER]
        assert (told["cache"].keys(), told["cache"]["degraded_keys_count"]) == (CACHE, 1)
        assert told["state"]["engine"] == state.partition("://")[0]
        assert told["recent"]["pncp"]["calls"][-1] > 0
        assert told["admin"] is True
        past = (await rig.client.get("/v1/dashboard/history")).json()
        assert sum(past["series"]["pncp"]["calls"]) > 0
        assert past["series"].keys() == {"pncp", "pcp", "cache", "service"}
        assert USER not in json.dumps([told, past])

    async def telling() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            service = f'client_limit = false\nadmin_token = "{TOKEN}"'
            async with rigged(tmp_path, server, state=state, service=service, **PATIENT) as rig:
                await story(rig)

    asyncio.run(telling())


@awaited
async def test_document__breaker_held_open_by_an_operator__says_why(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN) as asked:
        path = "/v1/admin/breakers/pncp/open"
        await asked.client.post(path, json={"why": "they asked for it"}, headers=OPERATOR)
        told = await documented(asked, lambda told: told["status"] == "warn")
        assert told["reasons"] == ["pncp is open"]
        assert told["upstreams"][1]["in_words"] == "Held open by an operator: they asked for it."
        told = await documented(asked, lambda told: told["events"])
    assert {"admin"} <= {event["kind"] for event in told["events"]}


@awaited
async def test_document__database_gone__has_all_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "SLOW_SECONDS", 0.1)
    async with running(tmp_path) as asked:
        before = await document(asked)
        lose_database(asked, tmp_path)
        told = await documented(asked, lambda told: told["jobs"] is None is told["workers"][0]["fetches"])
    assert before["database"] == {"status": "ok", "engine": "sqlite", "why": None}
    assert (told["status"], told["reasons"]) == ("fail", ["the database is out of reach"])
    assert told["database"]["why"].startswith("Database")
    assert (told["cache"], told["jobs"]) == (None, None)
    assert [(one["fetches"], one["jobs"]) for one in told["workers"]] == [(None, None)]
    assert [card["phase"] for card in told["upstreams"]] == ["closed", "closed"]


@awaited
async def test_document__state_gone__says_so_and_has_what_this_worker_knows(tmp_path: Path) -> None:
    with Server(password="hidden-word") as server:  # noqa: S106 - of this test only
        url = f"redis://:hidden-word@127.0.0.1:{server.port}/0?timeout=5"
        async with running(tmp_path, COMPORTA_STATE=url) as asked:
            before = await documented(asked, lambda told: told["workers"])
            server.kill()
            told = await documented(asked, lambda told: told["state"]["fallback"])
            past = await asked.client.get("/v1/dashboard/history")
    assert (before["status"], before["state"]) == ("ok", {"engine": "redis", "fallback": None})
    assert (told["status"], told["reasons"]) == ("warn", ["the shared state is out of reach"])
    assert told["state"]["fallback"].keys() == {"since", "why", "workers"}
    assert (told["workers"], told["events"], told["story"]) == (None, None, None)
    assert [card["name"] for card in told["upstreams"]] == ["pcp", "pncp"]
    assert (past.status_code, past.json()["series"]) == (200, {})
    assert "hidden-word" not in json.dumps(told)


@awaited
async def test_document__jobs__are_told_without_the_whole_of_their_names(tmp_path: Path) -> None:
    name = "0123456789abcdef0123456789abcdef"
    async with running(tmp_path) as asked:
        await asked.parts.batches.add(USER, ["an-account", "another"], name)
        events.publish("batch_sheet_failed", name, "SinkError: /sheets/of-ana.csv is gone", "error")
        told = await documented(asked, lambda told: told["jobs"] and told["events"])
    [job] = told["jobs"]
    assert (job["id"], job["status"], job["total"], job["pending"]) == ("01234567", "running", 2, 2)
    assert (job["worker"], job["backfill"]) == (None, None)
    assert {event["source"] for event in told["events"] if event["kind"] == "batch_sheet_failed"} == {
        "01234567"
    }
    for secret in (name, USER, "an-account", "of-ana"):
        assert secret not in json.dumps(told)


@pytest.mark.parametrize(
    ("kind", "source", "text", "shown"),
    [
        ("breaker_opened", "pncp", "open", ("pncp", "open")),
        ("state_fallback", "redis://u:p@h:1/0", "lost", ("redis://***@h:1/0", "lost")),
        ("batch_interrupted", "0123456789ab", "interrupted: E: x", ("01234567", "interrupted")),
        ("admin_refused", "192.0.2.1", "no token", ("somebody", "no token")),
        ("dashboard_refused", "192.0.2.1", "a wrong token", ("somebody", "a wrong token")),
        (
            "cache_fetch_failed",
            "search",
            "6ae failed 2 times: E: no ana@x.br",
            ("search", "6ae failed 2 times"),
        ),
        ("cache_unreadable", "search", "could not read: Key (user_id)=(ana)", ("search", "could not read")),
        ("keeper_failed", "comporta", "ValueError('ana')", ("comporta", "ValueError")),
        ("writer_failed", "sheet", "E: row of ana; 5 wait", ("sheet", "E")),
        (
            *(
                "state_key_unusable",
                "redis://h:1/0",
                "'rate_limiter:clients.192.0.2.1' holds a hash; this key",
            ),
            ("redis://h:1/0", "a key holds something else; it goes by the local share"),
        ),
        (
            *("breaker_opened", "pncp", "open for 30.0 s: E: '/api?q=ana&cpf=1' (5)"),
            ("pncp", "open for 30.0 s: E: '/api?…' (5)"),
        ),
        ("telling_failed", "events", "pages will not show it: x", ("events", "pages will not show it")),
        ("admin", "a" * 64, "remove key ana", ("aaaaaa", "remove key")),
        ("admin", "a" * 64, "refresh key", ("aaaaaa", "refresh key")),
        ("admin", "0123456789ab", "retry backfill", ("01234567", "retry backfill")),
        ("admin", "pncp", "pause for 60 s", ("pncp", "pause for 60 s")),
    ],
)
def test_events__on_a_page_that_anybody_may_open__name_nobody(
    kind: str, source: str, text: str, shown: tuple[str, str]
) -> None:
    found = discreet({"at": 1.0, "kind": kind, "source": source, "text": text})
    assert (found["source"], found["text"]) == shown
    assert (found["at"], found["kind"]) == (1.0, kind)


def test_keys__in_trouble__are_told_once_each_and_so_many_at_the_most() -> None:
    rows = [
        Unwell(f"{n % 30:064d}", n + 1, 60.0, bool(n % 2), b'{"search": "pncp"}', None) for n in range(50)
    ]
    rows[1] = rows[1]._replace(search_params=b'{"search": "secret"}', coverage=b'{"odd": 1}')
    rows[3] = rows[3]._replace(coverage=b'{"succeeded_ufs": ["SP"], "failed_ufs": ["MA"]}')
    rows[4] = rows[4]._replace(coverage=b'{"succeeded_ufs": ["SP"], "failed_ufs": []}')
    found = _degraded(rows, {"pncp": 1}, 1000.0)
    assert len(found) == kept.KEYS_MAX
    assert found[0] == {
        "key": "000000",
        "failures": 1,
        "next_retry": 1060.0,
        "why": "pncp failed once; nothing is kept",
        "coverage": None,
    }
    assert found[1]["why"] == "its source failed 2 times in a row; what is kept is served"
    assert [found[n]["coverage"] for n in (1, 3, 4)] == [None, "1 of 2", None]


def test_answers__not_whole__are_told_once_each_and_so_many_at_the_most() -> None:
    holes = b'{"succeeded_ufs": ["SP", "RJ"], "failed_ufs": ["MA"], "total_requested": 3}'
    rows = [Covered(f"{n:064x}", holes) for n in range(30)]
    rows[0:3] = [rows[4], Covered("a" * 64, b'{"succeeded_ufs": ["SP"]}'), Covered("b" * 64, b"[]")]
    found = _partial([*rows, rows[4]])
    assert len(found) == kept.KEYS_MAX
    assert found[0] == {"key": "000000", "of": "2 of 3", "missing": ["MA"]}
    assert len({row.params_hash for row in rows}) == 29


@awaited
async def test_lately__a_look_that_hangs__holds_up_nobody_but_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "WAIT_SECONDS", 0.05)
    looks = 0
    hangs = asyncio.Event()

    async def look() -> int:
        nonlocal looks
        looks += 1
        if looks > 1:
            await hangs.wait()
        return looks

    lately = Lately(look, 0.0)
    assert await lately.get() == Look(1)
    assert [await lately.get() for _ in range(3)] == [Look(1)] * 3  # while another look hangs
    async with asyncio.timeout(30):
        while (await lately.get()).why is None:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
    assert (await lately.get()) == Look(None, "TimeoutError")
    await lately.aclose()


@awaited
async def test_lately__a_look_that_fails_in_any_way__shows_nothing_old_and_is_said_once() -> None:
    error: Exception | None = None

    async def look() -> int:
        if error is not None:
            raise error
        return 1

    lately = Lately(look, 0.0)
    before = [one.kind for one in events.latest_events()].count("dashboard_failed")
    assert await lately.get() == Look(1)
    error = AttributeError("'list' object has no attribute 'get'")
    async with asyncio.timeout(30):
        while (await lately.get()).found is not None:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
    await lately.get()
    await lately.aclose()
    assert await lately.get() == Look(None, "AttributeError")
    assert [one.kind for one in events.latest_events()].count("dashboard_failed") == before + 1


@pytest.mark.parametrize("params", [b"[]", b"no json", b'{"search": ["pncp"]}', b'{"search": null}', b"\xff"])
def test_keys__whose_parameters_somebody_wrote__are_shown_without_whom_was_asked(params: bytes) -> None:
    [found] = _degraded([Unwell("a" * 64, 1, 60.0, False, params, None)], {"pncp": 1}, 1000.0)
    assert found["why"] == "its source failed once; nothing is kept"


@awaited
async def test_document__cache_too_large_to_be_counted_in_time__is_no_outage_of_the_database(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as asked:
        standing = asked.parts.dashboard.kept.standing

        async def look() -> None:
            raise TimeoutError

        standing._look, standing._seconds = look, 0.0  # type: ignore[assignment]
        told = await documented(asked, lambda told: told["cache"] is None)
    assert (told["status"], told["database"]["status"]) == ("warn", "ok")
    assert told["reasons"] == ["the cache cannot be looked at: TimeoutError"]
    assert told["jobs"] == []


def test_card__of_an_upstream_whose_failures_name_addresses__says_nothing_of_what_was_asked() -> None:
    shown = of_upstream({"name": "x", "why": "E: /a?q=ana", "in_words": "Open: http://u:p@h/a?q=ana."})
    assert shown == {"name": "x", "why": "E: /a?…", "in_words": "Open: http://***@h/a?…"}


@awaited
async def test_lately__looked_at_just_now__is_not_looked_at_again() -> None:
    looks = 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        return looks

    lately = Lately(look, 60.0)
    await lately.aclose()
    assert [await lately.get() for _ in range(3)] == [Look(1)] * 3
    await lately.aclose()


def test_coverage__of_a_partial_answer__is_shown(tmp_path: Path) -> None:
    async def telling() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            server.pncp.set(failing_ufs=["MA", "BA"])
            path = written(tmp_path, server, **PATIENT)
            async with running(tmp_path, COMPORTA_CONFIG=str(path)) as asked:
                for _ in range(2):
                    reply = await asked.client.get("/v1/search", params={**DAYS, "ufs": NINE})
                    assert reply.status_code == 200
                rows = await CacheTable(asked.parts.database).rows_async(10)
                for row in rows:
                    await CacheTable(asked.parts.database).touch_async(
                        [(row.user_id, row.params_hash, 1, row.now)]
                    )
                told = await documented(asked, lambda told: told["cache"]["coverage"])
        [partial] = told["cache"]["coverage"]
        assert (partial["of"], sorted(partial["missing"])) == ("7 of 9", ["BA", "MA"])
        assert len(partial["key"]) == kept.KEY_CHARS

    asyncio.run(telling())


@awaited
async def test_history__of_many_upstreams__is_made_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on: list[int] = []

    def noted(store: Store) -> Flow[dict[str, Any]]:
        on.append(threading.get_ident())
        return recalling(store)

    monkeypatch.setattr(documents, "recalling", noted)
    async with running(tmp_path) as asked:
        reply = await asked.client.get("/v1/dashboard/history")
    assert (reply.status_code, reply.json()["slot_seconds"]) == (200, 10)
    assert on
    assert threading.get_ident() not in on
