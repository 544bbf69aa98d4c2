"""The dashboard document on every engine, and during outages."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.rig import read_document, run_service, wait_for_document
from tests.processes.fleet import new_state_name, remove_shared_state
from tests.search.rig import DAYS, NINE, PATIENT, SearchRig, open_rig, write_config
from tests.service.harness import OPERATOR, TOKEN, RunningService, async_test, lose_database

from comporta import events
from comporta.cache.queries import DegradedKey, KeyCoverage
from comporta.cache.tables import CacheTables
from comporta.fleet import fleet_history_flow
from comporta.fleet.reader import (
    STORY,
    STORY_NOW,
)
from comporta.flow import Flow
from comporta.service.dashboard import database_snapshot
from comporta.service.dashboard import document as documents
from comporta.service.dashboard.database_snapshot import (
    BackgroundSnapshot,
    Snapshot,
    _degraded_keys,
    _partial_answers,
)
from comporta.service.dashboard.redaction import redact_event, redact_upstream
from comporta.stores.base import Store
from comporta.stores.records import WriteRecord
from comporta.testing import ProcurementServer, Server

MEMBERS = {
    *("at", "version", "status", "reasons", "state", "database", "upstreams", "workers", "cache", "jobs"),
    *("events", "story", "demo", "admin", "recent", "as_of", "worker"),
}
CARD = {
    *("name", "phase", "reason", "since", "until", "forced", "failures", "threshold", "share", "tokens"),
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
WORKER = {
    "name",
    "host",
    "pid",
    "started",
    "last_heartbeat",
    "probes",
    "permits",
    "leases",
    "fetches",
    "jobs",
}
CACHE = {
    *("hit_rate", "stale_served_rate", "entries", "degraded_keys_count", "avg_fail_streak", "fetching"),
    *("minute", "degraded", "coverage"),
}
USER = "a-user-with-a-name"


@pytest.fixture(params=["memory", "shared", "valkey"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "valkey":
        server: Server = request.getfixturevalue("valkey")
        server.command("FLUSHALL")
        yield f"{server.url}?timeout=5"
    elif request.param == "shared":
        name = new_state_name()
        yield f"shared://{name}"
        remove_shared_state(name)
    else:
        yield f"memory://{new_state_name()}"


def test_document__service_in_use__has_every_section(state: str, tmp_path: Path) -> None:
    async def scenario(rig: SearchRig) -> None:
        service = RunningService(rig.app, rig.client)
        rig.server.pncp.set(failing_ufs=["MA"])
        answer = await rig.body(user=USER)
        assert answer["complete"] is False
        await rig.body(user=USER)
        rig.server.pcp.set(mode="dead")
        await rig.search("TO", user=USER, date_from="2026-02-01", date_to="2026-02-02")
        document = await wait_for_document(
            service, lambda document: document["events"] and document["upstreams"][1]["minute"]["calls"] > 9
        )
        assert document.keys() == MEMBERS
        assert [card["name"] for card in document["upstreams"]] == ["pcp", "pncp"]
        assert all(card.keys() >= CARD for card in document["upstreams"])
        assert document["upstreams"][0]["failures"] > 0
        assert document["upstreams"][1]["minute"]["ok"] > 0
        assert [worker.keys() for worker in document["workers"]] == [WORKER]
        assert (document["cache"].keys(), document["cache"]["degraded_keys_count"]) == (CACHE, 1)
        assert document["state"]["engine"] == state.partition("://")[0]
        assert document["recent"]["pncp"]["calls"][-1] > 0
        assert document["admin"] is True
        past = (await rig.client.get("/v1/dashboard/history")).json()
        assert sum(past["series"]["pncp"]["calls"]) > 0
        assert past["series"].keys() == {"pncp", "pcp", "latency.pncp", "latency.pcp", "cache", "service"}
        assert document["upstreams"][1]["minute"]["latency_p99"] > 0
        assert USER not in json.dumps([document, past])

    async def run() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            service = f'client_limit = false\nadmin_token = "{TOKEN}"'
            async with open_rig(tmp_path, server, state=state, service=service, **PATIENT) as rig:
                await scenario(rig)

    asyncio.run(run())


@async_test
async def test_document__breaker_forced_open__gives_the_reason(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        path = "/v1/admin/breakers/pncp/open"
        await service.client.post(path, json={"reason": "maintenance"}, headers=OPERATOR)
        document = await wait_for_document(service, lambda document: document["status"] == "warn")
        assert document["reasons"] == ["pncp is held open by an operator"]
        assert document["upstreams"][1]["in_words"] == "Held open by an operator: maintenance."
        document = await wait_for_document(service, lambda document: document["events"])
    assert {"admin"} <= {event["kind"] for event in document["events"]}


@async_test
async def test_document__database_gone__has_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_snapshot, "SLOW_INTERVAL_SECONDS", 0.1)
    async with run_service(tmp_path) as service:
        before = await read_document(service)
        lose_database(service, tmp_path)
        document = await wait_for_document(
            service, lambda document: document["jobs"] is None is document["workers"][0]["fetches"]
        )
    assert before["database"] == {"status": "ok", "engine": "sqlite", "reason": None}
    assert (document["status"], document["reasons"]) == ("fail", ["the database is unreachable"])
    assert document["database"]["reason"].startswith("Database")
    assert (document["cache"], document["jobs"]) == (None, None)
    assert [(one["fetches"], one["jobs"]) for one in document["workers"]] == [(None, None)]
    assert [card["phase"] for card in document["upstreams"]] == ["closed", "closed"]


@async_test
async def test_document__store_unreachable__says_so_and_shows_what_was_known(tmp_path: Path) -> None:
    with Server(password="hidden-word") as server:  # noqa: S106 - of this test only
        url = f"redis://:hidden-word@127.0.0.1:{server.port}/0?timeout=5"
        async with run_service(tmp_path, COMPORTA_STATE=url) as service:
            service.container.upstreams["pncp"].sync.call(lambda: None)
            story = b'{"title": "Before the outage"}'
            service.container.store.apply(WriteRecord(STORY, STORY_NOW, story, 600))
            before = await wait_for_document(
                service, lambda document: document["workers"] and document["upstreams"][1]["minute"]["calls"]
            )
            series = (await service.client.get("/v1/dashboard/history")).json()["series"]
            server.kill()
            document = await wait_for_document(service, lambda document: document["as_of"])
            past = await service.client.get("/v1/dashboard/history")
    assert (before["status"], before["state"]) == ("ok", {"engine": "redis", "fallback": None})
    assert (document["status"], document["reasons"]) == ("warn", ["the shared store is unreachable"])
    assert document["state"]["fallback"].keys() == {"since", "reason", "workers"}
    assert before["as_of"] is None
    assert before["at"] <= document["as_of"] <= document["at"]
    assert [one["name"] for one in document["workers"]] == [one["name"] for one in before["workers"]]
    assert document["story"] == {"title": "Before the outage"}
    assert document["events"][0]["kind"] == "state_fallback"
    assert [card["name"] for card in document["upstreams"]] == ["pcp", "pncp"]
    assert document["upstreams"][1]["minute"]["calls"] == 1
    assert (past.status_code, past.json()["series"]) == (200, series)
    assert "hidden-word" not in json.dumps(document)


@async_test
async def test_document__jobs__have_shortened_ids(tmp_path: Path) -> None:
    name = "0123456789abcdef0123456789abcdef"
    async with run_service(tmp_path) as service:
        await service.container.batches.add_job(USER, ["an-account", "another"], name)
        events.publish("batch_sheet_failed", name, "SinkError: /sheets/of-ana.csv is gone", "error")
        document = await wait_for_document(service, lambda document: document["jobs"] and document["events"])
    [job] = document["jobs"]
    assert (job["id"], job["status"], job["total"], job["pending"]) == ("01234567", "running", 2, 2)
    assert (job["worker"], job["backfill"]) == (None, None)
    assert {event["source"] for event in document["events"] if event["kind"] == "batch_sheet_failed"} == {
        "01234567"
    }
    for secret in (name, USER, "an-account", "of-ana"):
        assert secret not in json.dumps(document)


@pytest.mark.parametrize(
    ("kind", "source", "text", "shown"),
    [
        ("breaker_opened", "pncp", "open", ("pncp", "open")),
        ("state_fallback", "redis://u:p@h:1/0", "lost", ("redis://***@h:1/0", "lost")),
        ("batch_interrupted", "0123456789ab", "interrupted: E: x", ("01234567", "interrupted")),
        ("admin_refused", "192.0.2.1", "no token", ("a client", "no token")),
        ("dashboard_refused", "192.0.2.1", "a wrong token", ("a client", "a wrong token")),
        (
            "cache_fetch_failed",
            "search",
            "6ae failed 2 times: E: no ana@x.br",
            ("search", "6ae failed 2 times"),
        ),
        ("cache_read_failed", "search", "could not read: Key (user_id)=(ana)", ("search", "could not read")),
        ("heartbeat_failed", "comporta", "ValueError('ana')", ("comporta", "ValueError")),
        ("writer_failed", "sheet", "E: row of ana; 5 wait", ("sheet", "E")),
        (
            *(
                "state_key_unusable",
                "redis://h:1/0",
                "'rate_limiter:clients.192.0.2.1' holds a hash; this key",
            ),
            ("redis://h:1/0", "a key has an unexpected type; its local share applies"),
        ),
        (
            *("breaker_opened", "pncp", "open for 30.0 s: E: '/api?q=ana&cpf=1' (5)"),
            ("pncp", "open for 30.0 s: E: '/api?…' (5)"),
        ),
        ("fleet_publish_failed", "events", "pages will not show it: x", ("events", "pages will not show it")),
        ("admin", "a" * 64, "remove key ana", ("aaaaaa", "remove key")),
        ("admin", "a" * 64, "refresh key", ("aaaaaa", "refresh key")),
        ("admin", "0123456789ab", "retry backfill", ("01234567", "retry backfill")),
        ("admin", "pncp", "pause for 60 s", ("pncp", "pause for 60 s")),
    ],
)
def test_events__on_a_public_page__name_no_user_job_or_client(
    kind: str, source: str, text: str, shown: tuple[str, str]
) -> None:
    result = redact_event({"at": 1.0, "kind": kind, "source": source, "text": text})
    assert (result["source"], result["text"]) == shown
    assert (result["at"], result["kind"]) == (1.0, kind)


def test_degraded_keys__many_rows__are_listed_once_each_up_to_the_maximum() -> None:
    rows = [
        DegradedKey(f"{n % 30:064d}", n + 1, 60.0, bool(n % 2), b'{"search": "pncp"}', None)
        for n in range(50)
    ]
    rows[1] = rows[1]._replace(search_params=b'{"search": "secret"}', coverage=b'{"odd": 1}')
    rows[3] = rows[3]._replace(coverage=b'{"succeeded_ufs": ["SP"], "failed_ufs": ["MA"]}')
    rows[4] = rows[4]._replace(coverage=b'{"succeeded_ufs": ["SP"], "failed_ufs": []}')
    result = _degraded_keys(rows, {"pncp": 1}, 1000.0)
    assert len(result) == database_snapshot.KEYS_MAX
    assert result[0] == {
        "key": "000000",
        "failures": 1,
        "next_retry": 1060.0,
        "reason": "pncp failed once; no answer is cached",
        "coverage": None,
    }
    assert result[1]["reason"] == "its source failed 2 times in a row; the cached answer is served"
    assert [result[n]["coverage"] for n in (1, 3, 4)] == [None, "1 of 2", None]


def test_partial_answers__many_rows__are_listed_once_each_up_to_the_maximum() -> None:
    holes = b'{"succeeded_ufs": ["SP", "RJ"], "failed_ufs": ["MA"], "total_requested": 3}'
    rows = [KeyCoverage(f"{n:064x}", holes) for n in range(30)]
    rows[0:3] = [rows[4], KeyCoverage("a" * 64, b'{"succeeded_ufs": ["SP"]}'), KeyCoverage("b" * 64, b"[]")]
    result = _partial_answers([*rows, rows[4]])
    assert len(result) == database_snapshot.KEYS_MAX
    assert result[0] == {"key": "000000", "of": "2 of 3", "missing": ["MA"]}
    assert len({row.params_hash for row in rows}) == 29


@async_test
async def test_background_snapshot__query_hangs__delays_only_the_first_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database_snapshot, "QUERY_TIMEOUT_SECONDS", 0.05)
    queries = 0
    hangs = asyncio.Event()

    async def query() -> int:
        nonlocal queries
        queries += 1
        if queries > 1:
            await hangs.wait()
        return queries

    snapshot = BackgroundSnapshot(query, 0.0)
    assert await snapshot.get() == Snapshot(1)
    assert [await snapshot.get() for _ in range(3)] == [Snapshot(1)] * 3  # while another query hangs
    async with asyncio.timeout(30):
        while (await snapshot.get()).error is None:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    assert (await snapshot.get()) == Snapshot(None, "TimeoutError")
    await snapshot.aclose()


@async_test
async def test_background_snapshot__query_fails__drops_old_data_and_reports_once() -> None:
    error: Exception | None = None

    async def query() -> int:
        if error is not None:
            raise error
        return 1

    snapshot = BackgroundSnapshot(query, 0.0)
    before = [one.kind for one in events.latest_events()].count("dashboard_failed")
    assert await snapshot.get() == Snapshot(1)
    error = AttributeError("'list' object has no attribute 'get'")
    async with asyncio.timeout(30):
        while (await snapshot.get()).value is not None:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)
    await snapshot.get()
    await snapshot.aclose()
    assert await snapshot.get() == Snapshot(None, "AttributeError")
    assert [one.kind for one in events.latest_events()].count("dashboard_failed") == before + 1


@pytest.mark.parametrize("params", [b"[]", b"no json", b'{"search": ["pncp"]}', b'{"search": null}', b"\xff"])
def test_degraded_keys__unreadable_parameters__do_not_name_the_source(params: bytes) -> None:
    [result] = _degraded_keys([DegradedKey("a" * 64, 1, 60.0, False, params, None)], {"pncp": 1}, 1000.0)
    assert result["reason"] == "its source failed once; no answer is cached"


@async_test
async def test_document__cache_query_times_out__is_not_a_database_outage(
    tmp_path: Path,
) -> None:
    async with run_service(tmp_path) as service:
        standing = service.container.dashboard.snapshot.slow

        async def query() -> None:
            raise TimeoutError

        standing._query, standing._seconds = query, 0.0  # type: ignore[assignment]
        document = await wait_for_document(service, lambda document: document["cache"] is None)
    assert (document["status"], document["database"]["status"]) == ("warn", "ok")
    assert document["reasons"] == ["the cache cannot be read: TimeoutError"]
    assert document["jobs"] == []


def test_upstream_summary__failure_names_urls__redacts_the_query() -> None:
    failure = {"at": 1.0, "worker": "a:1"}
    summary = {"name": "x", "reason": "E: /a?q=ana", "in_words": "Open: http://u:p@h/a?q=ana."}
    shown = redact_upstream({**summary, "last_failures": [{**failure, "text": "E: http://u:p@h/a?q=ana"}]})
    assert shown == {
        "name": "x",
        "reason": "E: /a?…",
        "in_words": "Open: http://***@h/a?…",
        "last_failures": [{**failure, "text": "E: http://***@h/a?…"}],
    }


@async_test
async def test_background_snapshot__still_recent__is_not_queried_again() -> None:
    queries = 0

    async def query() -> int:
        nonlocal queries
        queries += 1
        return queries

    snapshot = BackgroundSnapshot(query, 60.0)
    await snapshot.aclose()
    assert [await snapshot.get() for _ in range(3)] == [Snapshot(1)] * 3
    await snapshot.aclose()


def test_coverage__of_a_partial_answer__is_shown(tmp_path: Path) -> None:
    async def run() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            server.pncp.set(failing_ufs=["MA", "BA"])
            path = write_config(tmp_path, server, **PATIENT)
            async with run_service(tmp_path, COMPORTA_CONFIG=str(path)) as service:
                for _ in range(2):
                    reply = await service.client.get("/v1/search", params={**DAYS, "ufs": NINE})
                    assert reply.status_code == 200
                rows = await CacheTables(service.container.database).list_rows_async(10)
                for row in rows:
                    await CacheTables(service.container.database).record_accesses_async(
                        [(row.user_id, row.params_hash, 1, row.now)]
                    )
                document = await wait_for_document(service, lambda document: document["cache"]["coverage"])
        [partial] = document["cache"]["coverage"]
        assert (partial["of"], sorted(partial["missing"])) == ("7 of 9", ["BA", "MA"])
        assert len(partial["key"]) == database_snapshot.KEY_CHARS

    asyncio.run(run())


@async_test
async def test_history__many_upstreams__is_encoded_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on: list[int] = []

    def noted(store: Store) -> Flow[dict[str, Any]]:
        on.append(threading.get_ident())
        return fleet_history_flow(store)

    monkeypatch.setattr(documents, "fleet_history_flow", noted)
    async with run_service(tmp_path) as service:
        reply = await service.client.get("/v1/dashboard/history")
    assert (reply.status_code, reply.json()["slot_seconds"]) == (200, 10)
    assert on
    assert threading.get_ident() not in on


def test_workers__never_read__are_not_available() -> None:
    container: Any = None
    fleet: dict[str, Any] = {"workers": None, "upstreams": []}
    assert documents._workers_json(container, fleet, Snapshot(None), Snapshot(None)) is None
