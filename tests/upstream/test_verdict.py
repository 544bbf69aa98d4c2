"""What an attempt says about its upstream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.upstream.faces import Response

from comporta import CircuitOpenError, Verdict
from comporta.errors import StateTimeoutError
from comporta.upstream.attempt import Discard
from comporta.upstream.verdict import described, http_response, judged

NOW = 1_800_000_000.0
DATE = "Fri, 15 Jan 2027 08:00:10 GMT"
"""Ten seconds later."""


class Asking(Exception):  # noqa: N818 - what an upstream says of itself
    retry_after = 7


class LocalProtocolError(Exception):
    """What HTTP clients raise for a request that they cannot send."""


class IllegalHeader(LocalProtocolError):  # noqa: N818 - see above
    """One of them."""


class Silent(Exception):  # noqa: N818 - see above
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Refuses:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class OfStatus(Exception):  # noqa: N818 - see above
    def __init__(self, response: Any) -> None:
        super().__init__("status")
        self.response = response


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (None, Verdict("ok")),
        ("text", Verdict("ok")),
        (Refuses(), Verdict("ok")),
        (SimpleNamespace(status_code="200", headers={}), Verdict("ok")),
        (SimpleNamespace(status_code=500, headers=None), Verdict("ok")),
        (SimpleNamespace(status=502, headers={}), Verdict("failure", True, None, "502")),
        (Response(200), Verdict("ok")),
        (Response(202, retry_after="30"), Verdict("ok")),
        (Response(301, retry_after="30"), Verdict("ok")),
        (Response(404), Verdict("ok")),
        (Response(408), Verdict("ok", True)),
        (Response(200, ratelimit='"day";r=0;t=60'), Verdict("ok", False, 60.0)),
        (Response(200, ratelimit='"day";r=5;t=60'), Verdict("ok")),
        (Response(429), Verdict("refused", True, None, "429")),
        (Response(429, retry_after="3"), Verdict("refused", True, 3.0, "429")),
        (Response(429, retry_after=DATE), Verdict("refused", True, 10.0, "429")),
        (Response(429, retry_after="soon"), Verdict("refused", True, None, "429")),
        (Response(429, ratelimit='"day";r=0;t=60'), Verdict("refused", True, 60.0, "429")),
        (Response(500), Verdict("failure", True, None, "500")),
        (Response(501), Verdict("failure", False, None, "501")),
        (Response(503, retry_after="3"), Verdict("failure", True, 3.0, "503")),
        (Response(503, retry_after=DATE), Verdict("failure", True, 10.0, "503")),
    ],
    ids=repr,
)
def test_result__judged__is_what_it_says(result: Any, verdict: Verdict) -> None:
    assert judged(result, None, NOW) == verdict


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (OSError("no\nroute"), Verdict("failure", True, None, "OSError: no route")),
        (TimeoutError(), Verdict("failure", True, None, "TimeoutError")),
        (Asking(), Verdict("failure", True, 7.0, "Asking")),
        (Silent(), Verdict("failure", True, None, "Silent")),
        (ValueError("text"), Verdict("failure", False, None, "ValueError: text")),
        (KeyError("page"), Verdict("failure", False, None, "KeyError: 'page'")),
        (OfStatus(None), Verdict("failure", True, None, "OfStatus: status")),
        (OfStatus(Response(404)), Verdict("ok")),
        (OfStatus(Response(429, retry_after="2")), Verdict("refused", True, 2.0, "429")),
        (OfStatus(Response(500)), Verdict("failure", True, None, "500")),
        (CircuitOpenError("inner", "x", None, 5.0), Verdict("neither", why="CircuitOpenError: inner: ")),
        (StateTimeoutError("late"), Verdict("neither", why="StateTimeoutError: late")),
    ],
    ids=repr,
)
def test_error__judged__is_what_it_says(error: Exception, verdict: Verdict) -> None:
    found = judged(None, error, NOW)
    assert found[:3] == verdict[:3]
    assert found.why.startswith(verdict.why)


def test_described__long_text__is_cut() -> None:
    assert len(described(OSError("x" * 1000))) < 200


def test_http_response__what_is_none__is_nothing() -> None:
    assert http_response(None) is None
    assert http_response(Response(204)) == (204, {})


def test_discard__what_is_no_response__is_left_alone() -> None:
    closed: list[str] = []
    pool = SimpleNamespace(close=lambda: closed.append("pool"))
    Discard(pool).block()
    assert closed == []


def test_discard__response_that_cannot_be_closed__is_no_trouble() -> None:
    def refuses() -> None:
        raise RuntimeError("closed already")

    Discard(SimpleNamespace(status_code=500, headers={}, close=refuses)).block()


@pytest.mark.parametrize("face", ["plain", "awaitable", "both"])
def test_discard__awaiting__closes_by_whatever_there_is(face: str) -> None:
    import asyncio  # noqa: PLC0415 - nobody else here needs it

    closed: list[str] = []

    async def aclose() -> None:
        closed.append("awaited")

    def close() -> None:
        closed.append("called")

    names: dict[str, dict[str, Any]] = {
        "plain": {"close": close},
        "awaitable": {"close": aclose},
        "both": {"close": close, "aclose": aclose},
    }
    asyncio.run(Discard(SimpleNamespace(status_code=500, headers={}, **names[face])).wait())
    assert closed == ["called" if face == "plain" else "awaited"]


@pytest.mark.parametrize("kind", [LocalProtocolError, IllegalHeader])
def test_judged__request_that_could_not_be_sent__says_nothing_about_the_upstream(
    kind: type[Exception],
) -> None:
    assert judged(None, kind("illegal"), NOW) == Verdict("neither", why=f"{kind.__name__}: illegal")
