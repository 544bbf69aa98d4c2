"""A search from a healthy day to the worst one and back, against the simulated portals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.search.rig import Rig, rigged

from comporta.testing import ProcurementServer

Story = Callable[[Rig], Coroutine[Any, Any, None]]


@pytest.fixture
def server() -> Iterator[ProcurementServer]:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as started:
        yield started


def told(server: ProcurementServer, folder: Path, story: Story, **config: Any) -> None:
    """Run a story with a service of its own."""

    async def telling() -> None:
        async with rigged(folder, server, **config) as rig:
            await story(rig)

    asyncio.run(telling())


def test_search__healthy__has_every_notice_once_from_both(server: ProcurementServer, tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        answer = await rig.search()
        body = answer.json()
        assert (body["freshness"], body["complete"], body["warnings"]) == ("fresh", True, [])
        assert body["coverage"]["text"] == answer.headers["comporta-coverage"] == "9 of 9 UFs"
        assert answer.headers["cache-status"] == "comporta; fwd=miss; stored; detail=fresh"
        numbers = [notice["id"] for notice in body["notices"]]
        assert len(set(numbers)) == len(numbers) == body["total"] > 100
        assert {tuple(notice["sources"]) for notice in body["notices"]} == {
            ("pncp",),
            ("pcp",),
            ("pncp", "pcp"),
        }
        days = [notice["published_at"] for notice in body["notices"]]
        assert days == sorted(days, reverse=True)
        asked = server.pncp.accepted, server.pcp.accepted
        again = await rig.search(user="bob", terms="UNIFORMES")
        assert again.headers["cache-status"] == "comporta; hit; detail=fresh"
        assert 0 < again.json()["total"] < body["total"]
        assert (server.pncp.accepted, server.pcp.accepted) == asked

    told(server, tmp_path, story)
