"""Who may look at the dashboard where a token is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.dashboard.rig import BEARER, LOCKED, TOKEN, running
from tests.service.running import Asked, awaited, config

from comporta import events
from comporta.service import tries
from comporta.service.dashboard.doors import COOKIE, FORM_BYTES_MAX, seal
from comporta.service.dashboard.files import WRONG
from comporta.service.refusals import SAY_SECONDS, Refusals

DATA = ("/v1/dashboard", "/v1/dashboard/history", "/v1/dashboard/stream", "/dashboard/app.js")
HTML = {"accept": "text/html,application/xhtml+xml"}
SEALED = {"cookie": f"{COOKIE}={seal(TOKEN)}"}


async def sign_in(asked: Asked, token: str, **headers: str) -> httpx2.Response:
    return await asked.client.post("/dashboard/signin", data={"token": token}, headers=headers)


@awaited
async def test_token__not_sent__gives_neither_page_nor_data(tmp_path: Path) -> None:
    async with running(tmp_path, **LOCKED) as asked:
        page = await asked.client.get("/")
        replies = [await asked.client.get(path) for path in DATA]
        unknown = await asked.client.get("/dashboard/nothing.js")
        style = await asked.client.get("/dashboard/style.css")
    assert (page.status_code, page.headers["www-authenticate"]) == (401, "Bearer")
    assert 'action="/dashboard/signin"' in page.text
    assert "content-security-policy" in page.headers
    for reply in (*replies, unknown):
        assert (reply.status_code, reply.json()["status"]) == (401, 401)
        assert reply.headers["content-type"] == "application/problem+json"
        assert TOKEN not in reply.text
    assert style.status_code == 200  # of the page to sign in at


@awaited
async def test_token__sent__gives_all_of_it(tmp_path: Path) -> None:
    async with running(tmp_path, **LOCKED) as asked:
        for headers in (BEARER, {"authorization": f"bearer {TOKEN}"}, SEALED):
            page = await asked.client.get("/", headers=headers)
            assert (page.status_code, "signin" in page.text) == (200, False)
            replies = [await asked.client.get(path, headers=headers) for path in DATA if "stream" not in path]
            assert [reply.status_code for reply in replies] == [200, 200, 200]


@awaited
async def test_token__wrong__is_as_none(tmp_path: Path) -> None:
    async with running(tmp_path, **LOCKED) as asked:
        for headers in (
            {"authorization": "Bearer something-else-entirely"},
            {"authorization": "Bearer "},
            {"authorization": f"Basic {TOKEN}"},
            {"cookie": f"{COOKIE}={TOKEN}"},
            {"cookie": f"{COOKIE}={seal('something-else-entirely')}"},
            {"cookie": f"other={seal(TOKEN)}"},
        ):
            reply = await asked.client.get("/v1/dashboard", headers=headers)
            assert reply.status_code == 401


@awaited
async def test_sign_in__right_token__gives_a_cookie_that_other_workers_know(tmp_path: Path) -> None:
    async with running(tmp_path, **LOCKED) as asked:
        reply = await sign_in(asked, TOKEN, **HTML)
        quiet = await sign_in(asked, TOKEN)
    flags = {part.strip().lower() for part in reply.headers["set-cookie"].split(";")[1:]}
    assert (reply.status_code, reply.headers["location"], quiet.status_code) == (303, "/", 204)
    assert flags == {"httponly", "samesite=strict", "path=/"}
    assert TOKEN not in reply.headers["set-cookie"]
    cookie = reply.headers["set-cookie"].partition(";")[0]
    (tmp_path / "other").mkdir()
    async with running(tmp_path / "other", **LOCKED) as other:
        page = await other.client.get("/", headers={"cookie": cookie})
        out = await other.client.post("/dashboard/signout", headers={"cookie": cookie})
    assert page.status_code == 200
    assert (out.status_code, f'{COOKIE}=""' in out.headers["set-cookie"]) == (204, True)


@awaited
async def test_sign_in__wrong_token__is_said_and_is_an_event(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, **LOCKED) as asked:
        page = await sign_in(asked, "not-the-token-at-all", **HTML)
        plain = await sign_in(asked, "not-the-token-at-all")
        none = await asked.client.post("/dashboard/signin")
        large = await sign_in(asked, "x" * FORM_BYTES_MAX)
    assert (page.status_code, WRONG.decode() in page.text) == (401, True)
    assert "set-cookie" not in page.headers
    assert (plain.status_code, plain.json()["field"], none.status_code) == (401, "token", 401)
    assert large.status_code == 413
    refused = [event for event in events.latest_events() if event.kind == "dashboard_refused"]
    assert [event.text for event in refused] == ["a wrong token for the dashboard"]
    assert "not-the-token" not in "".join(capfd.readouterr())


@awaited
async def test_sign_in__no_token_configured__leads_to_the_page(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        reply = await sign_in(asked, "anything", **HTML)
    assert (reply.status_code, reply.headers["location"]) == (303, "/")


@awaited
async def test_tries__more_than_a_few__are_refused_however_the_token_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "OWN", "1/hour")
    monkeypatch.setattr(tries, "EACH", "4/hour")
    async with running(tmp_path, **LOCKED) as asked:
        statuses = [(await sign_in(asked, f"guess-number-{n}-of-many")).status_code for n in range(7)]
        bearer = await asked.client.get("/v1/dashboard", headers=BEARER)
        cookie = await asked.client.get("/", headers=SEALED)
        nothing = await asked.client.get("/")
    assert statuses == [401] * 5 + [429] * 2
    assert (bearer.status_code, cookie.status_code, nothing.status_code) == (429, 429, 401)
    assert int(bearer.headers["retry-after"]) > 60


def test_events__of_a_flood_of_wrong_tokens__are_few() -> None:
    found = Refusals("dashboard_refused", "the dashboard")
    for second in (0.0, 1.0, 2.0, SAY_SECONDS, SAY_SECONDS + 1):
        found.add("192.0.2.1", second)
    said = [event.text for event in events.latest_events() if event.kind == "dashboard_refused"]
    assert said == ["a wrong token for the dashboard", "3 wrong tokens, the last for the dashboard"]


@awaited
async def test_events__of_a_flood_of_wrong_admin_tokens__leave_room_for_others(tmp_path: Path) -> None:
    async with running(tmp_path, admin_token=TOKEN, client_limit="false") as asked:
        wrong = {"authorization": "Bearer not-the-token-at-all"}
        for _ in range(30):
            reply = await asked.client.get("/v1/admin/whoami", headers=wrong)
            assert reply.status_code in {401, 429}
    said = [event.text for event in events.latest_events() if event.kind == "admin_refused"]
    assert said == ["a wrong token for an admin route"]


@awaited
async def test_sign_in_and_out__from_another_site__are_refused(tmp_path: Path) -> None:
    told: list[tuple[dict[str, str], int]] = [
        ({"sec-fetch-site": "same-origin", "origin": "null"}, 204),
        ({"sec-fetch-site": "none"}, 204),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://service"}, 204),
        ({"origin": "http://elsewhere"}, 403),
        ({"origin": "null"}, 403),
    ]
    async with running(tmp_path, **LOCKED) as asked:
        for headers, status in told:
            into = await sign_in(asked, TOKEN, **headers)
            out = await asked.client.post("/dashboard/signout", headers=headers)
            assert (into.status_code, out.status_code) == (status, status)


@awaited
async def test_cookie__came_by_https__is_for_https_only(tmp_path: Path) -> None:
    told = [
        ("https", "192.0.2.7", "", True),
        ("http", "10.0.0.1", "https", True),
        ("http", "10.0.0.1", "http, https", True),
        ("http", "10.0.0.1", "https, http", False),
        ("http", "10.0.0.1", "", False),
        ("http", "192.0.2.7", "https", False),
        ("http", "", "https", False),
    ]
    async with running(tmp_path, trusted_proxies="10.0.0.0/8", **LOCKED) as asked:
        for scheme, client, proto, secure in told:
            scope: dict[str, Any] = {"type": "http", "scheme": scheme, "client": (client, 1)}
            request = Request({**scope, "headers": [(b"x-forwarded-proto", proto.encode())]})
            for change in (asked.parts.dashboard.doors.give, asked.parts.dashboard.doors.take):
                response = Response()
                change(request, response)
                assert ("secure" in response.headers["set-cookie"].lower()) is secure


def test_tokens__that_differ__are_an_error_that_shows_neither(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="COMPORTA_DASHBOARD_TOKEN must say the same") as wrong:
        config(tmp_path, dashboard_token=f"another-{TOKEN}", **LOCKED)
    assert "for-tests" not in str(wrong.value)
    same = config(tmp_path, dashboard_token=TOKEN, **LOCKED)
    assert same.dashboard_token == TOKEN
    told = {one.name: (one.value, one.where) for one in config(tmp_path, **LOCKED).explained()}
    assert told["service.dashboard_token"] == ("***", "COMPORTA_DASHBOARD_TOKEN")


def test_seal__of_a_token__is_always_the_same_and_no_other_token_has_it() -> None:
    assert seal(TOKEN) == seal(TOKEN) != seal(TOKEN + "2")
    assert len(seal(TOKEN)) == 64
