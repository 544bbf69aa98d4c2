"""What operators may do, and what is written down of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.service.running import OPERATOR, TOKEN, Asked, awaited, lose_database, running

from comporta import events
from comporta.cache.table import CacheTable
from comporta.service import tries
from comporta.service.audit import Audit
from comporta.service.search.searching import Search

A_HASH = "a" * 64
ROUTES = [
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


async def act(asked: Asked, method: str, path: str, body: Any = None) -> httpx2.Response:
    return await asked.client.request(method, f"/v1/admin{path}", json=body, headers=OPERATOR)


async def done(asked: Asked) -> list[tuple[str, str, str, str]]:
    found = (await act(asked, "GET", "/audit")).json()["actions"]
    return [(one["action"], one["target"], one["detail"], one["outcome"]) for one in reversed(found)]


@awaited
async def test_routes__all_of_them__are_tried_here(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        paths = asked.app.openapi()["paths"]
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
def many_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "EACH", "1000/s")


@pytest.mark.usefixtures("many_tries")
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
@awaited
async def test_admin__without_the_token__does_nothing(
    token: str | None, sent: dict[str, str], status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {} if token is None else {"admin_token": token}
    async with running(tmp_path, **given) as asked:
        replies = [await asked.client.request(method, path, json={}, headers=sent) for method, path in ROUTES]
        written = await asked.parts.audit.latest()
    assert [reply.status_code for reply in replies] == [status] * len(ROUTES)
    assert all(reply.headers["content-type"] == "application/problem+json" for reply in replies)
    assert written == []
    shown = (
        "".join(reply.text for reply in replies) + str(events.latest_events()) + "".join(capfd.readouterr())
    )
    assert TOKEN not in shown
    assert "something-else" not in shown


@awaited
async def test_breaker__opened_closed_and_reset__stands_so_for_all(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN) as asked:
        opened = await act(asked, "POST", "/breakers/pncp/open", {"why": "they asked for it"})
        health = (await asked.client.get("/v1/health")).json()
        closed = await act(asked, "POST", "/breakers/pncp/close", {})
        reset = await act(asked, "POST", "/breakers/pncp/reset")
        written = await done(asked)
    assert (opened.json()["degraded"], opened.json()["forced"]) == (True, "open")
    assert (health["status"], health["reasons"]) == ("warn", ["pncp is open"])
    assert (closed.json()["degraded"], closed.json()["forced"]) == (False, "closed")
    assert (reset.json()["degraded"], reset.json()["forced"]) == (False, None)
    assert written == [
        ("open breaker", "pncp", "they asked for it", "done"),
        ("close breaker", "pncp", "", "done"),
        ("reset breaker", "pncp", "", "done"),
    ]


@awaited
async def test_limit__changed_and_revoked__holds_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN) as asked:
        changed = await act(asked, "PUT", "/limits/pncp", {"limit": "2/s"})
        wrong = await act(asked, "PUT", "/limits/pncp", {"limit": "2"})
        revoked = await act(asked, "DELETE", "/limits/pncp")
        written = await done(asked)
    assert changed.json()["limiter"]["limit"] == 2
    assert (wrong.status_code, wrong.json()["field"]) == (422, "limit")
    assert "got '2'" in wrong.json()["detail"]
    assert revoked.json()["limiter"]["limit"] == 10
    assert [one[0] for one in written] == ["change limit", "revoke limit"]


@awaited
async def test_upstream__paused_and_resumed__is_so_for_all(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN) as asked:
        paused = await act(asked, "POST", "/upstreams/pcp/pause", {"seconds": 60})
        resumed = await act(asked, "POST", "/upstreams/pcp/resume")
        wrong = await act(asked, "POST", "/upstreams/pcp/pause", {"seconds": 0})
        unknown = await act(asked, "POST", "/upstreams/nobody/resume")
    assert 50 < paused.json()["limiter"]["paused"] <= 60
    assert resumed.json()["limiter"]["paused"] == 0
    assert (wrong.status_code, wrong.json()["field"]) == (422, "seconds")
    assert "greater than 0, got 0" in wrong.json()["detail"]
    assert (unknown.status_code, unknown.json()["field"]) == (404, "name")
    assert "one of pncp, pcp, got 'nobody'" in unknown.json()["detail"]


@awaited
async def test_breaker__upstream_has_none__says_so(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN, COMPORTA_UPSTREAM_PCP_BREAKER="false") as asked:
        reply = await act(asked, "POST", "/breakers/pcp/open", {})
    assert (reply.status_code, reply.json()["detail"]) == (404, "pcp has no breaker")


@awaited
async def test_keys__looked_at_refreshed_and_removed__one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "refresh_soon", lambda _: None)  # what is due is to be seen, and not done yet
    async with running(tmp_path, admin_token=TOKEN) as asked:
        await asked.parts.cache.save_to_cache("ana", {"uf": "SP"}, [1, 2])
        [row] = (await act(asked, "GET", "/cache/keys?user=ana")).json()["keys"]
        key = f"/cache/keys/{row['params_hash']}"
        shown = await act(asked, "GET", f"{key}?user=ana")
        nobody = await act(asked, "GET", f"{key}?user=bob")
        marked = await act(asked, "POST", f"{key}/refresh")
        [due] = await _due(asked)
        doubtful = await act(asked, "DELETE", f"{key}?user=ana")
        removed = await act(asked, "DELETE", f"{key}?user=ana&confirm={row['params_hash']}")
        again = await act(asked, "DELETE", f"{key}?user=ana&confirm={row['params_hash']}")
        gone = await asked.parts.cache.get_from_cache("ana", {"uf": "SP"})
        nothing = await act(asked, "POST", f"{key}/refresh?user=ana")
    assert (shown.json()["search_params"], shown.json()["size_bytes"]) == ({"uf": "SP"}, 5)
    assert shown.json()["coverage"] is None
    assert "results" not in shown.json()
    assert (nobody.status_code, nobody.json()["field"]) == (404, "params_hash")
    assert (marked.json(), due) == ({"marked": 1}, row["params_hash"])
    assert (doubtful.status_code, doubtful.json()["field"]) == (422, "confirm")
    assert removed.json() == {"removed": 1}
    assert (again.status_code, nothing.status_code) == (404, 404)
    assert gone is None


async def _due(asked: Asked) -> list[str]:
    return [due.params_hash for due in await CacheTable(asked.parts.database).due_async(10, 60)]


@awaited
async def test_cache__cleared__only_by_whoever_says_everything(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN) as asked:
        for uf in ("SP", "RJ", "MG"):
            await asked.parts.cache.save_to_cache("ana", {"uf": uf}, [uf], coverage={"succeeded_ufs": [uf]})
        doubtful = await act(asked, "DELETE", "/cache/keys?confirm=yes")
        kept = (await act(asked, "GET", "/cache/keys")).json()["keys"]
        cleared = await act(asked, "DELETE", "/cache/keys?confirm=everything")
        left = (await asked.client.get("/v1/health/cache")).json()["entries"]
    assert (doubtful.status_code, doubtful.json()["detail"]) == (
        422,
        "confirm must be 'everything', got 'yes'",
    )
    assert (len(kept), cleared.json(), left) == (3, {"removed": 3}, 0)


@awaited
async def test_backfill__retried__by_whoever_has_backfills(tmp_path: Path) -> None:
    retried: list[str] = []

    async def retry(job_id: str) -> str:
        retried.append(job_id)
        if job_id == "bad":
            raise RuntimeError("no such job")
        return "pending" if job_id == "7" else ""

    async with running(tmp_path, admin_token=TOKEN) as asked:
        asked.parts.retry_backfill = None
        none = await act(asked, "POST", "/backfills/7/retry")
        asked.parts.retry_backfill = retry
        some = await act(asked, "POST", "/backfills/7/retry")
        failed = await act(asked, "POST", "/backfills/bad/retry")
        nothing = await act(asked, "POST", "/backfills/well/retry")
        written = await done(asked)
    assert none.status_code == 404
    assert some.json() == {"job_id": "7", "result": "pending"}
    assert failed.status_code == 500
    assert "no such job" not in failed.text
    assert (nothing.status_code, nothing.json()["field"]) == (404, "job_id")
    assert retried == ["7", "bad", "well"]
    assert [one[3] for one in written] == ["done", "failed: RuntimeError", "done"]


@awaited
async def test_action__that_cannot_be_written_down__is_not_done(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN) as asked:
        lose_database(asked, tmp_path)
        reply = await act(asked, "POST", "/breakers/pncp/open", {})
        state = await asked.parts.upstreams["pncp"].get_state()
    assert (reply.status_code, reply.json()["retry_after"]) == (503, 5)
    assert state.breaker is not None
    assert state.breaker.forced is None


@awaited
async def test_audit__more_than_is_kept__loses_the_oldest(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        audit = Audit(asked.parts.database, kept_max=3)
        for number in range(5):
            await audit.begun("try", f"{number}\nforged line", "x" * 1000, "192.0.2.1")
        found = await audit.latest()
    assert [one.target for one in found] == ["4 forged line", "3 forged line", "2 forged line"]
    assert {(len(one.detail), one.outcome) for one in found} == {(500, "unknown")}


@awaited
async def test_service__on_either_database__makes_its_tables_and_writes_down(
    tmp_path: Path, empty_database_url: str
) -> None:
    async with running(tmp_path, DATABASE_URL=empty_database_url, admin_token=TOKEN) as asked:
        await asked.parts.cache.save_to_cache("ana", {"uf": "SP"}, [1])
        paused = await act(asked, "POST", "/upstreams/pcp/pause", {"seconds": 1})
        cleared = await act(asked, "DELETE", "/cache/keys?confirm=everything")
        strange = await asked.client.get("/v1/admin/cache/keys?user=%00", headers=OPERATOR)
        assert (strange.status_code, strange.json()["field"]) == (422, "user")
        health = await asked.client.get("/v1/health")
        written = await done(asked)
    assert (paused.status_code, cleared.json(), health.status_code) == (200, {"removed": 1}, 200)
    assert [one[3] for one in written] == ["done", "done"]


@awaited
async def test_whoami__with_the_token__is_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN) as asked:
        reply = await act(asked, "GET", "/whoami")
    assert (reply.status_code, reply.content) == (204, b"")


@awaited
async def test_jobs__listed__have_the_whole_of_their_names(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN) as asked:
        names = ["a-job-with-a-long-name", "another-job-with-a-long-name"]
        for name in names:
            await asked.parts.batches.add("ana", ["one", "two"], name)
        found = (await act(asked, "GET", "/jobs")).json()["jobs"]
        first = (await act(asked, "GET", "/jobs?limit=1")).json()["jobs"]
        wrong = await act(asked, "GET", "/jobs?limit=0")
    assert ([job["id"] for job in found], len(first)) == (names[::-1], 1)
    assert (found[0]["total"], found[0]["pending"], found[0]["status"]) == (2, 2, "running")
    assert "ana" not in str(found)
    assert (wrong.status_code, wrong.json()["field"]) == (422, "limit")
