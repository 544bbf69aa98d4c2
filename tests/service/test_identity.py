"""Who may do what: API tokens, an identity header, and what belongs to other users."""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.service.harness import (
    CLIENT,
    OPERATOR,
    TOKEN,
    RunningService,
    async_test,
    lose_database,
    run_service,
    serve_on_thread,
    serve_process,
    service_config,
    wait_until,
)
from tests.support import assert_within, wait_until_async

from comporta import events
from comporta.cli.root_command import comporta
from comporta.database.urls import open_database
from comporta.errors import DatabaseError
from comporta.service import tokens
from comporta.service.app import create_app
from comporta.service.config import check_exposure
from comporta.service.logs import TextFormatter
from comporta.service.tokens import TokenRegistry, TokenTable
from comporta.stores.shared.directory import directory_path

ECHO = "tests.service.test_identity:echo"
DAYS = {"date_from": "2026-01-01", "date_to": "2026-01-01"}


async def echo(account: str) -> str:
    """Process an account."""
    return f"processed {account}"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def add_token(folder: Path, name: str, *, user: str | None = None, is_admin: bool = False) -> dict[str, str]:
    database = open_database(f"sqlite:///{folder}/service.db")
    try:
        return bearer(TokenTable(database).add(name, user or name, is_admin=is_admin))
    finally:
        database.close()


@asynccontextmanager
async def run_with_tokens(folder: Path, **variables: str) -> AsyncIterator[RunningService]:
    async with run_service(
        folder, auth="tokens", client_limit="false", batch_processor=ECHO, **variables
    ) as service:
        yield service


async def add_job(service: RunningService, headers: dict[str, str], **fields: str) -> list[dict[str, object]]:
    body = {"accounts": ["a", "b"], **fields}
    reply = await service.client.post("/ultra-batch/jobs", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


@async_test
async def test_tokens__missing_or_unknown__are_401_and_health_needs_none(tmp_path: Path) -> None:
    async with run_with_tokens(tmp_path) as service:
        client = service.client
        for headers in ({}, bearer("comporta_wrong"), {"authorization": "Basic YTpi"}):
            for method, path in (
                ("GET", "/v1/search"),
                ("GET", "/v1/search/stream"),
                ("GET", "/ultra-batch/jobs/j"),
                ("GET", "/ultra-batch/sheets-config/j"),
                ("GET", f"/ultra-batch/sheets/{'x' * 30}.csv"),
            ):
                reply = await client.request(method, path, headers=headers, params=DAYS)
                assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        statuses = [(await client.get(path)).status_code for path in ("/livez", "/v1/health", "/metrics")]
    assert statuses == [200, 200, 200]


@async_test
async def test_tokens__another_user_named__is_403_and_other_jobs_are_404(tmp_path: Path) -> None:
    async with run_with_tokens(tmp_path) as service:
        client = service.client
        ana, bob = add_token(tmp_path, "ana"), add_token(tmp_path, "laptop", user="bob")
        root = add_token(tmp_path, "root", is_admin=True)
        service.container.batches.whitelist.set_user("ana", digital=True)
        lines = await add_job(service, ana, job_id="job-1")
        assert lines[-1]["event"] == "end"
        same = await client.post(
            "/ultra-batch/jobs", json={"accounts": ["a", "b"], "job_id": "job-1"}, headers=bob
        )
        assert (same.status_code, same.json()["field"]) == (409, "job_id")
        for path, body in (
            ("/ultra-batch/jobs", {"accounts": ["a"], "user_id": "ana"}),
            ("/ultra-batch/check-whitelist", {"user_id": "ana"}),
            ("/ultra-batch/configure-sheets", {"job_id": "job-1", "user_id": "ana"}),
        ):
            refused = await client.post(path, json=body, headers=bob)
            assert (refused.status_code, refused.json()["field"]) == (403, "user_id"), path
        searched = await client.get("/v1/search", params={**DAYS, "user": "ana"}, headers=bob)
        assert (searched.status_code, searched.json()["field"]) == (403, "user")
        allowed = await client.post("/ultra-batch/check-whitelist", json={}, headers=ana)
        assert allowed.json() == {"authorized": True}
        sheet = await client.post("/ultra-batch/configure-sheets", json={"job_id": "job-1"}, headers=ana)
        address = sheet.json()["spreadsheet_url"].removeprefix("http://service")
        for path in ("/ultra-batch/jobs/job-1", "/ultra-batch/sheets-config/job-1", address):
            found = [(await client.get(path, headers=each)).status_code for each in (ana, bob, root)]
            assert found == [200, 404, 200], path
        hidden = await client.post("/ultra-batch/configure-sheets", json={"job_id": "job-1"}, headers=bob)
    assert hidden.status_code == 403  # bob may have no sheets at all


@async_test
async def test_tokens__admin__open_admin_routes_beside_the_admin_token(tmp_path: Path) -> None:
    async with run_with_tokens(tmp_path, admin_token=TOKEN) as service:
        plain, root = add_token(tmp_path, "plain"), add_token(tmp_path, "root", is_admin=True)
        statuses = [
            (await service.client.post("/v1/admin/breakers/pcp/reset", headers=headers)).status_code
            for headers in (OPERATOR, root, plain, {})
        ]
        audit = (await service.client.get("/v1/admin/audit", headers=root)).json()["actions"]
        document = (await service.client.get("/v1/dashboard")).json()
    assert statuses == [200, 200, 403, 401]
    assert [(one["token"], one["client"]) for one in audit] == [
        ("root", "127.0.0.1"),
        ("admin_token", "127.0.0.1"),
    ]
    assert document["admin"]


@async_test
async def test_action__with_a_named_token__is_one_log_entry_with_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_with_tokens(tmp_path, admin_token=TOKEN) as service:
        root = add_token(tmp_path, "root", is_admin=True)
        path, body = "/v1/admin/breakers/pcp/open", {"reason": "maintenance"}
        with caplog.at_level(logging.INFO, "comporta"):
            await service.client.post(path, json=body, headers=root)
        published = [event for event in events.latest_events(5) if event.kind == "admin"]
    texts = ["open breaker maintenance (by root)"]
    assert [event.text for event in published[-1:]] == texts
    assert [line for line in caplog.messages if "(by " in line] == [f"pcp: {texts[0]}"]


@async_test
async def test_tokens__without_an_admin_token__only_admin_tokens_open_admin_routes(tmp_path: Path) -> None:
    async with run_with_tokens(tmp_path) as service:
        root = add_token(tmp_path, "root", is_admin=True)
        replies = [
            await service.client.get("/v1/admin/whoami", headers=headers) for headers in (root, OPERATOR)
        ]
        assert (await service.client.get("/v1/dashboard")).json()["admin"]  # the page offers to operate
    assert [reply.status_code for reply in replies] == [204, 401]


@async_test
async def test_search__with_a_token__is_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_with_tokens(tmp_path) as service:
        ana = add_token(tmp_path, "ana")
        users = []

        async def answer(query: object) -> object:
            users.append(query.user)  # type: ignore[attr-defined]
            raise ValueError("seen")

        monkeypatch.setattr(service.container.search, "answer", answer)
        for params in (DAYS, {**DAYS, "user": "ana"}):
            await service.client.get("/v1/search", params=params, headers=ana)
    assert users == ["ana", "ana"]


REVOKED_SECONDS = 5.0


@pytest.mark.unmeasured
def test_tokens__revoked__are_refused_within_5_s_by_every_worker_process(
    tmp_path: Path, empty_database_url: str
) -> None:
    state = f"shared://test-{uuid.uuid4().hex}"
    variables = {"DATABASE_URL": empty_database_url, "COMPORTA_STATE": state}
    with serve_process(
        tmp_path, "--workers", "2", auth="tokens", client_limit="false", **variables
    ) as served:
        added = run(tmp_path, "add", "ana", "--json", database=empty_database_url)
        ana = bearer(json.loads(added[1])["token"])
        accepted_by: dict[str, int] = {}

        def try_token() -> tuple[str, int]:
            """Return which worker answered, and how; each request is a new connection."""
            reply = CLIENT.get(f"{served.address}/ultra-batch/jobs/none", headers=ana)
            return reply.headers["x-request-id"].partition("-")[0], reply.status_code

        def both_accept() -> bool:
            accepted_by.update([try_token()])
            return len(accepted_by) == 2 and set(accepted_by.values()) == {404}

        wait_until(both_accept)
        assert run(tmp_path, "revoke", "ana", database=empty_database_url)[0] == 0
        revoked_at = time.monotonic()
        last_accepted_at, refused_by = revoked_at, set[str]()
        while len(refused_by) < 2:
            began = time.monotonic()
            worker, status = try_token()
            if status == 404:
                assert worker not in refused_by, "a worker accepted the token again"
                last_accepted_at = began
            else:
                assert status == 401
                refused_by.add(worker)
    shutil.rmtree(directory_path(state.removeprefix("shared://")), ignore_errors=True)
    assert refused_by == set(accepted_by)
    assert_within(last_accepted_at - revoked_at, REVOKED_SECONDS, "the refusal of a revoked token")


@async_test
async def test_tokens__revoked__are_refused_and_known_ones_survive_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "REFRESH_SECONDS", 0.01)
    async with run_with_tokens(tmp_path) as service:
        ana, bob = add_token(tmp_path, "ana"), add_token(tmp_path, "bob")

        async def status(headers: dict[str, str]) -> int:
            return (await service.client.get("/v1/search", headers=headers)).status_code

        assert (await status(ana), await status(bob)) == (422, 422)  # without dates
        TokenTable(service.container.database).revoke("bob")

        async def is_refused() -> bool:
            return await status(bob) == 401

        await wait_until_async(is_refused)
        lose_database(service, tmp_path)
        assert (await status(ana), await status(bob)) == (422, 401)


@async_test
async def test_registry__database_lost_before_the_first_read__reports_the_outage(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        lose_database(service, tmp_path)
        registry = TokenRegistry(service.container.database)
        with pytest.raises(DatabaseError):
            await registry.find("comporta_any")


@async_test
async def test_header__from_a_trusted_proxy_only__names_the_user(tmp_path: Path) -> None:
    proxied = {"auth": "header", "trusted_proxies": "127.0.0.1", "batch_processor": ECHO}
    async with run_service(tmp_path, **proxied) as service:
        lines = await add_job(service, {"x-forwarded-user": "ana"})
        path = f"/ultra-batch/jobs/{lines[0]['job_id']}"
        statuses = [
            (await service.client.get(path, headers=headers)).status_code
            for headers in (
                [("x-forwarded-user", "ana")],
                [("x-forwarded-user", "bob")],
                [("x-forwarded-user", "ana"), ("x-forwarded-user", "bob")],
                [],
            )
        ]
    assert statuses == [200, 404, 401, 401]
    async with run_service(tmp_path, **{**proxied, "trusted_proxies": "10.0.0.1"}) as service:
        reply = await service.client.get(path, headers={"x-forwarded-user": "ana"})
    assert reply.status_code == 401


@async_test
async def test_none__contract__requires_the_user_as_before(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        for path, body in (("check-whitelist", {}), ("configure-sheets", {"job_id": "j"})):
            reply = await service.client.post(f"/ultra-batch/{path}", json=body)
            assert (reply.status_code, reply.json()["field"]) == (422, "user_id")


@async_test
async def test_jobs__beyond_the_bounds_of_a_user__are_429_and_of_the_fleet_503(tmp_path: Path) -> None:
    stalled = {"batch_processor": "tests.service.test_identity:stall"}
    async with run_service(tmp_path, batch_running_per_user_max="2", **stalled) as service:
        database, batches = service.container.database, service.container.batches
        database.close()
        for number in range(2):
            await batches.add_job("ana", ["a"], f"job-{number}")
        refused = await service.client.post("/ultra-batch/jobs", json={"accounts": ["a"], "user_id": "ana"})
        assert (refused.status_code, "at most 2 are allowed" in refused.json()["detail"]) == (429, True)
        assert await batches.add_job("bob", ["a"], "job-bob") is not None
    other = tmp_path / "other"
    other.mkdir()
    bounds = {"batch_accounts_per_user_max": "3", "batch_running_max": "2", **stalled}
    async with run_service(other, **bounds) as service:
        batches = service.container.batches
        await batches.add_job("ana", ["a", "b", "c"], "job-1")
        full = await service.client.post("/ultra-batch/jobs", json={"accounts": ["a"], "user_id": "ana"})
        await batches.add_job("bob", ["a"], "job-2")
        fleet = await service.client.post("/ultra-batch/jobs", json={"accounts": ["a"], "user_id": "eve"})
    assert (full.status_code, "3 accounts of this user are pending" in full.json()["detail"]) == (429, True)
    assert fleet.status_code == 503


def add_stalled_job(address: str, user: str | None, accounts: int, **headers: str) -> tuple[int, str]:
    """Add a job that does not end; return the status, and the detail if it is refused."""
    body = {"accounts": [f"account-{number}" for number in range(accounts)], "user_id": user}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with CLIENT.stream("POST", f"{address}/ultra-batch/jobs", json=body, headers=named) as reply:
        return reply.status_code, "" if reply.status_code == 200 else json.loads(reply.read())["detail"]


def test_jobs__beyond_the_bounds_of_a_client__are_429_whatever_user_it_names(tmp_path: Path) -> None:
    config = service_config(
        tmp_path,
        batch_processor="tests.service.test_identity:stall",
        batch_running_per_client_max="2",
        batch_accounts_per_client_max="5",
        trusted_proxies="127.0.0.1",
    )
    with serve_on_thread(create_app(config)) as (address, _):
        outcomes = [
            add_stalled_job(address, user, accounts, x_forwarded_for=client)
            for user, accounts, client in (
                ("ana", 1, "192.0.2.1"),
                ("bob", 1, "192.0.2.1"),
                ("eve", 1, "192.0.2.1"),
                ("ana", 5, "192.0.2.2"),
                ("bob", 1, "192.0.2.2"),
                ("ana", 1, "192.0.2.3"),
            )
        ]
    assert [status for status, _ in outcomes] == [200, 200, 429, 200, 429, 200]
    assert outcomes[2][1] == "2 jobs of this client are running, at most 2 are allowed"
    assert outcomes[4][1] == "5 accounts of this client are pending, at most 5 are allowed"


def test_jobs__of_authenticated_users__have_no_bound_for_their_address(tmp_path: Path) -> None:
    config = service_config(
        tmp_path,
        auth="header",
        batch_processor="tests.service.test_identity:stall",
        batch_running_per_client_max="1",
        trusted_proxies="127.0.0.1",
    )
    with serve_on_thread(create_app(config)) as (address, _):
        outcomes = [add_stalled_job(address, None, 1, x_forwarded_user=user) for user in ("ana", "bob")]
    assert outcomes == [(200, ""), (200, "")]


async def stall(account: str) -> str:
    """Process an account for longer than any test."""
    import asyncio  # noqa: PLC0415 - of this function only

    await asyncio.sleep(3600)  # sleeps: the job must still run when the test ends
    return account


@async_test
async def test_metrics__with_a_token__need_it(tmp_path: Path) -> None:
    async with run_service(tmp_path, metrics_token="a-token-for-metrics") as service:  # noqa: S106 - of this test
        statuses = [
            (await service.client.get("/metrics", headers=headers)).status_code
            for headers in ({}, bearer("wrong"), bearer("a-token-for-metrics"))
        ]
    assert statuses == [401, 401, 200]


@async_test
async def test_metrics__jobs_and_wrong_tokens__show_no_job_id_and_no_address(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN, batch_processor=ECHO) as service:
        await add_job(service, {}, job_id="secret-job-id")
        await service.client.get("/v1/admin/audit", headers=bearer("wrong-token-of-a-client"))
        await service.client.post("/v1/admin/backfills/secret-job-id/retry", headers=OPERATOR)
        page = (await service.client.get("/metrics")).text
    assert 'events_total{kind="admin_refused",source="clients"}' in page
    assert 'events_total{kind="admin",source="operators"}' in page
    assert "secret-job-id" not in page
    assert "127.0.0.1" not in page


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])  # noqa: S104 - not bound here
def test_host__other_than_loopback_without_auth__is_refused_unless_open(host: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"reachable from other machines, and auth is 'none'"):
        check_exposure(service_config(tmp_path, host=host))
    check_exposure(service_config(tmp_path, host=host, open="1"))
    check_exposure(service_config(tmp_path, host=host, auth="tokens"))
    for loopback in ("127.0.0.1", "::1", "localhost"):
        check_exposure(service_config(tmp_path, host=loopback))


def test_serve__open_host_without_auth__names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/service.db")
    monkeypatch.setenv("COMPORTA_SERVICE_HOST", "")
    ran = CliRunner().invoke(comporta, ["serve", "--host", "0.0.0.0"])  # noqa: S104 - it is refused
    assert (ran.exit_code, "--open" in ran.output) == (2, True)


def test_config__header_without_proxies_or_with_a_wrong_name__is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="auth must be 'none' or 'tokens' without trusted_proxies"):
        service_config(tmp_path, auth="header")
    with pytest.raises(ValueError, match="identity_header must be the name of a header, got 'X User'"):
        service_config(tmp_path, identity_header="X User")
    with pytest.raises(ValueError, match="open must be true or false, got 'maybe'"):
        service_config(tmp_path, open="maybe")


def run(folder: Path, *arguments: str, database: str | None = None) -> tuple[int, str]:
    url = database or f"sqlite:///{folder}/service.db"
    result = CliRunner().invoke(comporta, ["tokens", *arguments, "--database", url])
    return result.exit_code, result.output


def test_command__add_list_revoke__shows_the_token_once(tmp_path: Path) -> None:
    missing = run(tmp_path, "list")
    CliRunner().invoke(comporta, ["db", "migrate", f"sqlite:///{tmp_path}/service.db"])
    assert run(tmp_path, "list") == (
        0,
        "There are no tokens. To add one, run `comporta tokens add NAME`.\n",
    )
    status, output = run(tmp_path, "add", "ana", "--json")
    added = json.loads(output)
    assert (status, added["user"], added["admin"]) == (0, "ana", False)
    assert added["token"].startswith("comporta_")
    status, output = run(tmp_path, "add", "laptop", "--user", "bob", "--admin")
    assert (status, output.splitlines()[1]) == (0, "Added laptop for user bob. Store the token now.")
    status, output = run(tmp_path, "add", "ana")
    assert (status, "name must be new, got 'ana'" in output) == (2, True)
    assert run(tmp_path, "add", "a\nb")[0] == 2
    assert run(tmp_path, "revoke", "ana") == (0, "Revoked ana. Workers refuse it within 5 s.\n")
    assert run(tmp_path, "revoke", "ana")[0] == 1
    assert json.loads(run(tmp_path, "revoke", "laptop", "--json")[1]) == {"name": "laptop", "revoked": True}
    names = [row["name"] for row in json.loads(run(tmp_path, "list", "--json")[1])]
    table = run(tmp_path, "list")[1]
    stored = (tmp_path / "service.db").read_bytes()
    assert missing[0] == 1
    assert names == ["ana", "laptop"]
    assert table.count("UTC") == 4
    assert added["token"].encode() not in stored


def test_command__add_with_as_many_tokens_as_allowed__says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 1)
    CliRunner().invoke(comporta, ["db", "migrate", f"sqlite:///{tmp_path}/service.db"])
    assert run(tmp_path, "add", "ana")[0] == 0
    status, output = run(tmp_path, "add", "bob")
    assert status == 2
    assert "at most 1 tokens may be valid at once: revoke one before you add 'bob'" in output


def test_log__many_failed_requests__reports_the_outage_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.service.database_outage.PROBE_SECONDS", 0.01)
    caplog.set_level(logging.WARNING, "comporta.service")
    caplog.handler.setFormatter(TextFormatter())

    async def scenario() -> None:
        async with run_service(tmp_path) as service:
            keep = (tmp_path / "service.db").read_bytes()
            lose_database(service, tmp_path)
            for _ in range(20):
                assert (await service.client.get("/ultra-batch/jobs/any")).status_code == 503
            (tmp_path / "service.db").rmdir()
            (tmp_path / "service.db").write_bytes(keep)

            async def has_recovered() -> bool:
                return "responds again" in caplog.text

            await wait_until_async(has_recovered)
            lose_database(service, tmp_path)
            assert (await service.client.get("/ultra-batch/jobs/any")).status_code == 503

    async_test(scenario)()
    [recovery] = [line for line in caplog.text.splitlines() if "responds again" in line]
    assert recovery.split()[3:5] == ["-", "comporta.service:"]  # it is the end of no request
    messages = [record.getMessage() for record in caplog.records if record.name == "comporta.service"]
    assert [text.split(":")[0].split(" after")[0] for text in messages] == [
        "the database is unreachable",
        "the database responds again",
        "the database is unreachable",
    ]
    assert messages[1].endswith("requests failed: 20")


@async_test
async def test_registry__database_lost_after_a_read__refuses_unknown_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "RETRY_SECONDS", 0)  # every unknown token causes a read
    async with run_service(tmp_path) as service:
        registry = TokenRegistry(service.container.database)
        before = await registry.find("comporta_any")
        lose_database(service, tmp_path)
        assert (before, await registry.find("comporta_any")) == (None, None)
