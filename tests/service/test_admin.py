"""The admin routes and the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.service.harness import OPERATOR, TOKEN, RunningService, async_test, lose_database, run_service

from comporta import events
from comporta.cache.tables import CacheTables
from comporta.fleet.reader import SUMMARIES, encode_summary, remember_names_flow, summary_flow
from comporta.flow import run_async
from comporta.service import auth_throttle
from comporta.service.audit import AuditLog
from comporta.service.search.search import Search
from comporta.stores.memory import MemoryStore
from comporta.stores.records import WriteRecord
from comporta.upstream.upstream import Upstream

A_HASH = "a" * 64
ROUTES = [
    ("GET", "/v1/admin/upstreams"),
    ("POST", "/v1/admin/breakers/pncp/open"),
    ("POST", "/v1/admin/breakers/pncp/close"),
    ("POST", "/v1/admin/breakers/pncp/reset"),
    ("PUT", "/v1/admin/limits/pncp"),
    ("DELETE", "/v1/admin/limits/pncp"),
    ("POST", "/v1/admin/upstreams/pncp/pause"),
    ("POST", "/v1/admin/upstreams/pncp/resume"),
    ("GET", "/v1/admin/cache/keys"),
    ("GET", f"/v1/admin/cache/keys/{A_HASH}?user=ana"),
    ("POST", f"/v1/admin/cache/keys/{A_HASH}/refresh"),
    ("DELETE", f"/v1/admin/cache/keys/{A_HASH}?user=ana&confirm={A_HASH}"),
    ("DELETE", "/v1/admin/cache/keys?confirm=everything"),
    ("POST", "/v1/admin/backfills/1/retry"),
    ("GET", "/v1/admin/audit"),
    ("GET", "/v1/admin/jobs"),
    ("GET", "/v1/admin/whoami"),
]


async def admin_request(service: RunningService, method: str, path: str, body: Any = None) -> httpx2.Response:
    return await service.client.request(method, f"/v1/admin{path}", json=body, headers=OPERATOR)


async def audited_actions(service: RunningService) -> list[tuple[str, str, str, str]]:
    actions = (await admin_request(service, "GET", "/audit")).json()["actions"]
    return [(one["action"], one["target"], one["detail"], one["outcome"]) for one in reversed(actions)]


@async_test
async def test_routes__all_admin_routes__are_covered_by_these_tests(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        paths = service.app.openapi()["paths"]
    there = {
        (method.upper(), path)
        for path, one in paths.items()
        for method in one
        if path.startswith("/v1/admin")
    }
    tried = {
        (method, path.partition("?")[0].replace("pncp", "{name}").replace(A_HASH, "{params_hash}"))
        for method, path in ROUTES
    }
    assert there == {(method, path.replace("/1/", "/{job_id}/")) for method, path in tried}


@pytest.fixture
def unlimited_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_throttle, "CLIENT_LIMIT", "1000/s")


@pytest.mark.usefixtures("unlimited_attempts")
@pytest.mark.parametrize(
    ("token", "sent", "status"),
    [
        (None, OPERATOR, 403),
        (TOKEN, {}, 401),
        (TOKEN, {"authorization": "Bearer something-else"}, 401),
        (TOKEN, {"authorization": TOKEN}, 401),
        (TOKEN, {"authorization": "Basic dXNlcjpwYXNz"}, 401),
    ],
)
@async_test
async def test_admin__without_the_token__changes_nothing(
    token: str | None, sent: dict[str, str], status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {} if token is None else {"admin_token": token}
    async with run_service(tmp_path, **given) as service:
        replies = [
            await service.client.request(method, path, json={}, headers=sent) for method, path in ROUTES
        ]
        logged = await service.container.audit.latest()
    assert [reply.status_code for reply in replies] == [status] * len(ROUTES)
    assert all(reply.headers["content-type"] == "application/problem+json" for reply in replies)
    assert logged == []
    shown = (
        "".join(reply.text for reply in replies) + str(events.latest_events()) + "".join(capfd.readouterr())
    )
    assert TOKEN not in shown
    assert "something-else" not in shown


@async_test
async def test_breaker__opened_closed_and_reset__changes_for_all_workers(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        opened = await admin_request(service, "POST", "/breakers/pncp/open", {"reason": "maintenance"})
        health = (await service.client.get("/v1/health")).json()
        closed = await admin_request(service, "POST", "/breakers/pncp/close", {})
        reset = await admin_request(service, "POST", "/breakers/pncp/reset")
        logged = await audited_actions(service)
    assert (opened.json()["degraded"], opened.json()["forced"]) == (True, "open")
    assert (health["status"], health["reasons"]) == ("warn", ["pncp is held open by an operator"])
    assert (closed.json()["degraded"], closed.json()["forced"]) == (False, "closed")
    assert (reset.json()["degraded"], reset.json()["forced"]) == (False, None)
    assert logged == [
        ("open breaker", "pncp", "maintenance", "done"),
        ("close breaker", "pncp", "", "done"),
        ("reset breaker", "pncp", "", "done"),
    ]


@async_test
async def test_limit__changed_and_revoked__takes_effect_immediately(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        changed = await admin_request(service, "PUT", "/limits/pncp", {"limit": "2/s"})
        wrong = await admin_request(service, "PUT", "/limits/pncp", {"limit": "2"})
        revoked = await admin_request(service, "DELETE", "/limits/pncp")
        logged = await audited_actions(service)
    assert changed.json()["limiter"]["limit"] == 2
    assert (wrong.status_code, wrong.json()["field"]) == (422, "limit")
    assert "got '2'" in wrong.json()["detail"]
    assert revoked.json()["limiter"]["limit"] == 10
    assert [one[0] for one in logged] == ["change limit", "revoke limit"]


@pytest.mark.parametrize(
    ("configured", "given", "text", "capacity"),
    [
        ("5/s burst 3", "8/s", "8/s burst 3", 3),
        ("5/s burst 3", "8/s burst 4", "8/s burst 4", 4),
        ("5/s", "8/s", "8/s", 8),
    ],
)
@async_test
async def test_limit__without_a_burst__keeps_that_of_the_limit(
    configured: str, given: str, text: str, capacity: int, tmp_path: Path
) -> None:
    async with run_service(tmp_path, admin_token=TOKEN, COMPORTA_UPSTREAM_PCP_LIMIT=configured) as service:
        changed = (await admin_request(service, "PUT", "/limits/pcp", {"limit": given})).json()
        health = (await service.client.get("/v1/health")).json()
    assert (changed["limit_text"], changed["configured_text"]) == (text, configured)
    assert changed["limit_before"] == configured
    assert changed["limiter"]["limit"] == capacity
    assert health["reasons"] == [f"an operator changed the limit of pcp to {text}"]
    assert health["sources"]["pcp"]["limit"] == text


@async_test
async def test_limit__one_of_several__is_changed_and_revoked_by_its_name(tmp_path: Path) -> None:
    variables = {"admin_token": TOKEN, "COMPORTA_UPSTREAM_PCP_LIMIT": "5/s; 1000/minute"}
    async with run_service(tmp_path, **variables) as service:
        body, path = {"limit": "700/minute"}, "/limits/pcp?limit_name=pcp.2"
        changed = (await admin_request(service, "PUT", path, body)).json()
        health = (await service.client.get("/v1/health")).json()
        unknown = await admin_request(service, "PUT", "/limits/pcp?limit_name=nix", body)
        single = await admin_request(service, "DELETE", "/limits/pncp?limit_name=nix")
        revoked = (await admin_request(service, "DELETE", path)).json()
        second = service.container.upstreams["pcp"].limits
        assert second is not None
        await second.limiters["pcp.2"].pause(60)
        resumed = (await admin_request(service, "POST", "/upstreams/pcp/resume")).json()
        logged = await audited_actions(service)
    assert (changed["limit_before"], changed["limit_after"]) == ("1000/minute", "700/minute")
    assert changed["limit_text"] == "5/s"
    assert health["reasons"] == ["an operator changed the limit pcp.2 of pcp to 700/minute"]
    assert (unknown.status_code, unknown.json()["field"]) == (404, "limit_name")
    assert unknown.json()["detail"] == "limit_name must be one of pcp, pcp.2, got 'nix'"
    assert single.json()["detail"] == "limit_name must be left out: the upstream has one limit, got 'nix'"
    assert revoked["limit_after"] == "1000/minute"
    assert [limit["stats"]["paused"] for limit in resumed["limits"]] == [0, 0]
    assert [one[2] for one in logged[:2]] == ["pcp.2 700/minute", "pcp.2"]


@async_test
async def test_upstream__paused_and_resumed__changes_for_all_workers(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        paused = await admin_request(service, "POST", "/upstreams/pcp/pause", {"seconds": 60})
        resumed = await admin_request(service, "POST", "/upstreams/pcp/resume")
        wrong = await admin_request(service, "POST", "/upstreams/pcp/pause", {"seconds": 0})
        unknown = await admin_request(service, "POST", "/upstreams/unknown/resume")
    assert 50 < paused.json()["limiter"]["paused"] <= 60
    assert resumed.json()["limiter"]["paused"] == 0
    assert (wrong.status_code, wrong.json()["field"]) == (422, "seconds")
    assert "greater than 0, got 0" in wrong.json()["detail"]
    assert (unknown.status_code, unknown.json()["field"]) == (404, "name")
    expected = "name must be one of pncp, pcp, or published by another program, got 'unknown'"
    assert unknown.json()["detail"] == expected


@async_test
async def test_breaker__upstream_without_one__returns_404(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN, COMPORTA_UPSTREAM_PCP_BREAKER="false") as service:
        reply = await admin_request(service, "POST", "/breakers/pcp/open", {})
    assert (reply.status_code, reply.json()["detail"]) == (404, "pcp has no breaker")


async def publish(service: RunningService, upstream: Upstream) -> None:
    """Publish an upstream to the store of a service, as another program does."""
    store, name = service.container.store, upstream.name
    summary = await run_async(summary_flow(upstream))
    await store.apply_async(WriteRecord(SUMMARIES, name, encode_summary(summary), 30.0))
    await run_async(remember_names_flow(store, [name]))


@async_test
async def test_upstream_of_another_program__every_action__changes_its_records(tmp_path: Path) -> None:
    limits = {"calls": "5/s burst 3", "words": "1000/minute"}
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        await publish(service, Upstream("billing", limits, state=MemoryStore()))
        listed = (await admin_request(service, "GET", "/upstreams")).json()["upstreams"]
        opened = (await admin_request(service, "POST", "/breakers/billing/open", {"reason": "run"})).json()
        reset = (await admin_request(service, "POST", "/breakers/billing/reset")).json()
        changed = (await admin_request(service, "PUT", "/limits/billing", {"limit": "8/s"})).json()
        words = "/limits/billing?limit_name=words"
        second = (await admin_request(service, "PUT", words, {"limit": "700/minute"})).json()
        revoked = (await admin_request(service, "DELETE", words)).json()
        paused = (await admin_request(service, "POST", "/upstreams/billing/pause", {"seconds": 60})).json()
        resumed = (await admin_request(service, "POST", "/upstreams/billing/resume")).json()
        unknown = await admin_request(service, "DELETE", "/limits/billing?limit_name=nix")
        wrong = await admin_request(service, "PUT", "/limits/billing", {"limit": "fast"})
        logged = await audited_actions(service)
    assert [each["name"] for each in listed] == ["billing", "pcp", "pncp"]
    assert (opened["forced"], opened["reason"], reset["forced"]) == ("open", "run", None)
    assert (changed["limit_before"], changed["limit_after"]) == ("5/s burst 3", "8/s burst 3")
    assert (second["limit_before"], second["limit_after"]) == ("1000/minute", "700/minute")
    assert (revoked["limit_text"], revoked["limit_after"]) == ("8/s burst 3", "1000/minute")
    assert 50 < paused["paused"] <= 60
    assert resumed["paused"] == 0
    assert (unknown.status_code, unknown.json()["field"]) == (404, "limit_name")
    assert unknown.json()["detail"] == "limit_name must be one of calls, words, got 'nix'"
    assert (wrong.status_code, wrong.json()["field"]) == (422, "limit")
    assert [one[3] for one in logged] == ["done"] * 7


@async_test
async def test_breaker__upstream_of_another_program_without_one__returns_404(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        await publish(service, Upstream("plain", "10/s", breaker=False, state=MemoryStore()))
        reply = await admin_request(service, "POST", "/breakers/plain/open", {})
    assert (reply.status_code, reply.json()["detail"]) == (404, "plain has no breaker")


@async_test
async def test_cache_keys__listed_refreshed_and_removed__one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "request_refresh", lambda _: None)  # so that the key stays due
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        await service.container.cache.save_to_cache("ana", {"uf": "SP"}, [1, 2])
        [row] = (await admin_request(service, "GET", "/cache/keys?user=ana")).json()["keys"]
        key = f"/cache/keys/{row['params_hash']}"
        shown = await admin_request(service, "GET", f"{key}?user=ana")
        other_user = await admin_request(service, "GET", f"{key}?user=bob")
        marked = await admin_request(service, "POST", f"{key}/refresh")
        [due] = await _due_keys(service)
        doubtful = await admin_request(service, "DELETE", f"{key}?user=ana")
        removed = await admin_request(service, "DELETE", f"{key}?user=ana&confirm={row['params_hash']}")
        again = await admin_request(service, "DELETE", f"{key}?user=ana&confirm={row['params_hash']}")
        gone = await service.container.cache.get_from_cache("ana", {"uf": "SP"})
        nothing = await admin_request(service, "POST", f"{key}/refresh?user=ana")
    assert (shown.json()["search_params"], shown.json()["size_bytes"]) == ({"uf": "SP"}, 5)
    assert shown.json()["coverage"] is None
    assert "results" not in shown.json()
    assert (other_user.status_code, other_user.json()["field"]) == (404, "params_hash")
    assert (marked.json(), due) == ({"marked": 1}, row["params_hash"])
    assert (doubtful.status_code, doubtful.json()["field"]) == (422, "confirm")
    assert removed.json() == {"removed": 1}
    assert (again.status_code, nothing.status_code) == (404, 404)
    assert gone is None


async def _due_keys(service: RunningService) -> list[str]:
    return [due.params_hash for due in await CacheTables(service.container.database).list_due_async(10, 60)]


@async_test
async def test_cache__cleared__only_with_confirmation(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        for uf in ("SP", "RJ", "MG"):
            await service.container.cache.save_to_cache(
                "ana", {"uf": uf}, [uf], coverage={"succeeded_ufs": [uf]}
            )
        doubtful = await admin_request(service, "DELETE", "/cache/keys?confirm=yes")
        kept = (await admin_request(service, "GET", "/cache/keys")).json()["keys"]
        cleared = await admin_request(service, "DELETE", "/cache/keys?confirm=everything")
        left = (await service.client.get("/v1/health/cache")).json()["entries"]
    assert (doubtful.status_code, doubtful.json()["detail"]) == (
        422,
        "confirm must be 'everything', got 'yes'",
    )
    assert (len(kept), cleared.json(), left) == (3, {"removed": 3}, 0)


@async_test
async def test_backfill__retried__returns_the_result_or_404(tmp_path: Path) -> None:
    retried: list[str] = []

    async def retry(job_id: str) -> str:
        retried.append(job_id)
        if job_id == "bad":
            raise RuntimeError("no such job")
        return "pending" if job_id == "7" else ""

    async with run_service(tmp_path, admin_token=TOKEN) as service:
        service.container.retry_backfill = None
        none = await admin_request(service, "POST", "/backfills/7/retry")
        service.container.retry_backfill = retry
        some = await admin_request(service, "POST", "/backfills/7/retry")
        failed = await admin_request(service, "POST", "/backfills/bad/retry")
        nothing = await admin_request(service, "POST", "/backfills/well/retry")
        logged = await audited_actions(service)
    assert none.status_code == 404
    assert some.json() == {"job_id": "7", "result": "pending"}
    assert failed.status_code == 500
    assert "no such job" not in failed.text
    assert (nothing.status_code, nothing.json()["field"]) == (404, "job_id")
    assert retried == ["7", "bad", "well"]
    assert [one[3] for one in logged] == ["done", "failed: RuntimeError", "done"]


@async_test
async def test_action__audit_log_not_writable__is_not_performed(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        lose_database(service, tmp_path)
        reply = await admin_request(service, "POST", "/breakers/pncp/open", {})
        state = await service.container.upstreams["pncp"].get_state()
    assert (reply.status_code, reply.json()["retry_after"]) == (503, 5)
    assert state.breaker is not None
    assert state.breaker.forced is None


@async_test
async def test_audit_log__more_than_the_maximum__drops_the_oldest(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        audit = AuditLog(service.container.database, entries_max=3)
        for number in range(5):
            await audit.begin("try", f"{number}\nforged line", "x" * 1000, "192.0.2.1", "root")
        entries = await audit.latest()
    assert [one.target for one in entries] == ["4 forged line", "3 forged line", "2 forged line"]
    assert {(len(one.detail), one.outcome) for one in entries} == {(500, "unknown")}


@async_test
async def test_service__on_either_database__creates_its_tables_and_audits(
    tmp_path: Path, empty_database_url: str
) -> None:
    async with run_service(tmp_path, DATABASE_URL=empty_database_url, admin_token=TOKEN) as service:
        await service.container.cache.save_to_cache("ana", {"uf": "SP"}, [1])
        paused = await admin_request(service, "POST", "/upstreams/pcp/pause", {"seconds": 1})
        cleared = await admin_request(service, "DELETE", "/cache/keys?confirm=everything")
        strange = await service.client.get("/v1/admin/cache/keys?user=%00", headers=OPERATOR)
        assert (strange.status_code, strange.json()["field"]) == (422, "user")
        health = await service.client.get("/v1/health")
        logged = await audited_actions(service)
    assert (paused.status_code, cleared.json(), health.status_code) == (200, {"removed": 1}, 200)
    assert [one[3] for one in logged] == ["done", "done"]


@async_test
async def test_whoami__with_the_token__returns_204(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        reply = await admin_request(service, "GET", "/whoami")
    assert (reply.status_code, reply.content) == (204, b"")


@async_test
async def test_jobs__listed_by_an_operator__have_their_full_ids(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN) as service:
        names = ["a-job-with-a-long-name", "another-job-with-a-long-name"]
        for name in names:
            await service.container.batches.add_job("ana", ["one", "two"], name)
        jobs = (await admin_request(service, "GET", "/jobs")).json()["jobs"]
        first = (await admin_request(service, "GET", "/jobs?limit=1")).json()["jobs"]
        wrong = await admin_request(service, "GET", "/jobs?limit=0")
    assert ([job["id"] for job in jobs], len(first)) == (names[::-1], 1)
    assert (jobs[0]["total"], jobs[0]["pending"], jobs[0]["status"]) == (2, 2, "running")
    assert "ana" not in str(jobs)
    assert (wrong.status_code, wrong.json()["field"]) == (422, "limit")
