"""Responses that the caller will not get are closed, so that their connections can be reused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from comporta.upstream.attempt import CloseResponse


def test_close_response__not_a_response__is_not_closed() -> None:
    closed: list[str] = []
    pool = SimpleNamespace(close=lambda: closed.append("pool"))
    CloseResponse(pool).block()
    assert closed == []


def test_close_response__close_raises__is_ignored() -> None:
    def refuses() -> None:
        raise RuntimeError("closed already")

    CloseResponse(SimpleNamespace(status_code=500, headers={}, close=refuses)).block()


@pytest.mark.parametrize("driver", ["plain", "awaitable", "both"])
def test_close_response__async__uses_aclose_or_close(driver: str) -> None:
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
    asyncio.run(CloseResponse(SimpleNamespace(status_code=500, headers={}, **names[driver])).wait())
    assert closed == ["called" if driver == "plain" else "awaited"]
