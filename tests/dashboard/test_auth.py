"""Access to the dashboard with a configured token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.dashboard.rig import BEARER, LOCKED, TOKEN, run_service
from tests.service.harness import RunningService, async_test, service_config

from comporta import events
from comporta.service import auth_throttle
from comporta.service.auth_log import EVENT_INTERVAL_SECONDS, AuthFailureLog
from comporta.service.dashboard.auth import COOKIE, FORM_BYTES_MAX, cookie_value
from comporta.service.dashboard.static_files import WRONG_TOKEN_HTML

DATA = ("/v1/dashboard", "/v1/dashboard/history", "/v1/dashboard/stream", "/dashboard/app.js")
HTML = {"accept": "text/html,application/xhtml+xml"}
SEALED = {"cookie": f"{COOKIE}={cookie_value(TOKEN)}"}


async def sign_in(service: RunningService, token: str, **headers: str) -> httpx2.Response:
    return await service.client.post("/dashboard/signin", data={"token": token}, headers=headers)


@async_test
async def test_token__not_sent__returns_neither_page_nor_data(tmp_path: Path) -> None:
    async with run_service(tmp_path, **LOCKED) as service:
        page = await service.client.get("/")
        replies = [await service.client.get(path) for path in DATA]
        unknown = await service.client.get("/dashboard/nothing.js")
        style = await service.client.get("/dashboard/style.css")
    assert (page.status_code, page.headers["www-authenticate"]) == (401, "Bearer")
    assert 'action="/dashboard/signin"' in page.text
    assert "content-security-policy" in page.headers
    for reply in (*replies, unknown):
        assert (reply.status_code, reply.json()["status"]) == (401, 401)
        assert reply.headers["content-type"] == "application/problem+json"
        assert TOKEN not in reply.text
    assert style.status_code == 200  # the sign-in page needs it


@async_test
async def test_token__sent__returns_page_and_data(tmp_path: Path) -> None:
    async with run_service(tmp_path, **LOCKED) as service:
        for headers in (BEARER, {"authorization": f"bearer {TOKEN}"}, SEALED):
            page = await service.client.get("/", headers=headers)
            assert (page.status_code, "signin" in page.text) == (200, False)
            replies = [
                await service.client.get(path, headers=headers) for path in DATA if "stream" not in path
            ]
            assert [reply.status_code for reply in replies] == [200, 200, 200]


@async_test
async def test_token__wrong__is_treated_like_none(tmp_path: Path) -> None:
    async with run_service(tmp_path, **LOCKED) as service:
        for headers in (
            {"authorization": "Bearer something-else-entirely"},
            {"authorization": "Bearer "},
            {"authorization": f"Basic {TOKEN}"},
            {"cookie": f"{COOKIE}={TOKEN}"},
            {"cookie": f"{COOKIE}={cookie_value('something-else-entirely')}"},
            {"cookie": f"other={cookie_value(TOKEN)}"},
        ):
            reply = await service.client.get("/v1/dashboard", headers=headers)
            assert reply.status_code == 401


@async_test
async def test_sign_in__correct_token__sets_a_cookie_valid_at_other_workers(tmp_path: Path) -> None:
    async with run_service(tmp_path, **LOCKED) as service:
        reply = await sign_in(service, TOKEN, **HTML)
        quiet = await sign_in(service, TOKEN)
    flags = {part.strip().lower() for part in reply.headers["set-cookie"].split(";")[1:]}
    assert (reply.status_code, reply.headers["location"], quiet.status_code) == (303, "/", 204)
    assert flags == {"httponly", "samesite=strict", "path=/"}
    assert TOKEN not in reply.headers["set-cookie"]
    cookie = reply.headers["set-cookie"].partition(";")[0]
    (tmp_path / "other").mkdir()
    async with run_service(tmp_path / "other", **LOCKED) as other:
        page = await other.client.get("/", headers={"cookie": cookie})
        out = await other.client.post("/dashboard/signout", headers={"cookie": cookie})
    assert page.status_code == 200
    assert (out.status_code, f'{COOKIE}=""' in out.headers["set-cookie"]) == (204, True)


@async_test
async def test_sign_in__wrong_token__shows_an_error_and_publishes_an_event(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with run_service(tmp_path, **LOCKED) as service:
        page = await sign_in(service, "not-the-token-at-all", **HTML)
        plain = await sign_in(service, "not-the-token-at-all")
        none = await service.client.post("/dashboard/signin")
        large = await sign_in(service, "x" * FORM_BYTES_MAX)
    assert (page.status_code, WRONG_TOKEN_HTML.decode() in page.text) == (401, True)
    assert "set-cookie" not in page.headers
    assert (plain.status_code, plain.json()["field"], none.status_code) == (401, "token", 401)
    assert large.status_code == 413
    refused = [event for event in events.latest_events() if event.kind == "dashboard_refused"]
    assert [event.text for event in refused] == ["a wrong token for the dashboard"]
    assert "not-the-token" not in "".join(capfd.readouterr())


@async_test
async def test_sign_in__no_token_configured__redirects_to_the_page(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        reply = await sign_in(service, "anything", **HTML)
    assert (reply.status_code, reply.headers["location"]) == (303, "/")


@async_test
async def test_attempts__too_many__are_refused_in_header_cookie_and_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_throttle, "OWN_LIMIT", "1/hour")
    monkeypatch.setattr(auth_throttle, "CLIENT_LIMIT", "4/hour")
    async with run_service(tmp_path, **LOCKED) as service:
        statuses = [(await sign_in(service, f"guess-number-{n}-of-many")).status_code for n in range(7)]
        bearer = await service.client.get("/v1/dashboard", headers=BEARER)
        cookie = await service.client.get("/", headers=SEALED)
        nothing = await service.client.get("/")
    assert statuses == [401] * 5 + [429] * 2
    assert (bearer.status_code, cookie.status_code, nothing.status_code) == (429, 429, 401)
    assert int(bearer.headers["retry-after"]) > 60


def test_events__flood_of_wrong_tokens__are_few() -> None:
    log = AuthFailureLog("dashboard_refused", "the dashboard")
    for second in (0.0, 1.0, 2.0, EVENT_INTERVAL_SECONDS, EVENT_INTERVAL_SECONDS + 1):
        log.record("192.0.2.1", second)
    texts = [event.text for event in events.latest_events() if event.kind == "dashboard_refused"]
    assert texts == ["a wrong token for the dashboard", "3 wrong tokens, the last for the dashboard"]


@async_test
async def test_events__flood_of_wrong_admin_tokens__leave_room_for_others(tmp_path: Path) -> None:
    async with run_service(tmp_path, admin_token=TOKEN, client_limit="false") as service:
        wrong = {"authorization": "Bearer not-the-token-at-all"}
        for _ in range(30):
            reply = await service.client.get("/v1/admin/whoami", headers=wrong)
            assert reply.status_code in {401, 429}
    texts = [event.text for event in events.latest_events() if event.kind == "admin_refused"]
    assert texts == ["a wrong token for an admin route"]


@async_test
async def test_sign_in_and_out__from_another_site__are_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, str], int]] = [
        ({"sec-fetch-site": "same-origin", "origin": "null"}, 204),
        ({"sec-fetch-site": "none"}, 204),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://service"}, 204),
        ({"origin": "http://elsewhere"}, 403),
        ({"origin": "null"}, 403),
    ]
    async with run_service(tmp_path, **LOCKED) as service:
        for headers, status in cases:
            into = await sign_in(service, TOKEN, **headers)
            out = await service.client.post("/dashboard/signout", headers=headers)
            assert (into.status_code, out.status_code) == (status, status)


@async_test
async def test_cookie__request_over_https__is_secure(tmp_path: Path) -> None:
    cases = [
        ("https", "192.0.2.7", "", True),
        ("http", "10.0.0.1", "https", True),
        ("http", "10.0.0.1", "http, https", True),
        ("http", "10.0.0.1", "https, http", False),
        ("http", "10.0.0.1", "", False),
        ("http", "192.0.2.7", "https", False),
        ("http", "", "https", False),
    ]
    async with run_service(tmp_path, trusted_proxies="10.0.0.0/8", **LOCKED) as service:
        for scheme, client, proto, secure in cases:
            scope: dict[str, Any] = {"type": "http", "scheme": scheme, "client": (client, 1)}
            request = Request({**scope, "headers": [(b"x-forwarded-proto", proto.encode())]})
            for change in (
                service.container.dashboard.auth.set_cookie,
                service.container.dashboard.auth.delete_cookie,
            ):
                response = Response()
                change(request, response)
                assert ("secure" in response.headers["set-cookie"].lower()) is secure


def test_tokens__two_variables_differ__error_shows_neither(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="COMPORTA_DASHBOARD_TOKEN must have the same value") as wrong:
        service_config(tmp_path, dashboard_token=f"another-{TOKEN}", **LOCKED)
    assert "for-tests" not in str(wrong.value)
    same = service_config(tmp_path, dashboard_token=TOKEN, **LOCKED)
    assert same.dashboard_token == TOKEN
    settings = {one.name: (one.value, one.where) for one in service_config(tmp_path, **LOCKED).explain()}
    assert settings["service.dashboard_token"] == ("***", "COMPORTA_DASHBOARD_TOKEN")


def test_cookie_value__of_a_token__is_stable_and_unique() -> None:
    assert cookie_value(TOKEN) == cookie_value(TOKEN) != cookie_value(TOKEN + "2")
    assert len(cookie_value(TOKEN)) == 64
