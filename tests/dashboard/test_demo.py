"""The switches of a demonstration: passed on where there is one, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.dashboard.rig import LOCKED, documented, running
from tests.service.running import awaited

from comporta.service.dashboard.demo import MODES, Demo
from comporta.service.problems import Problem
from comporta.testing import ProcurementServer
from comporta.testing.procurement import MODES as OF_PORTALS

SWITCH = "/v1/demo/upstreams/pcp"


def test_modes__of_the_page__are_those_of_the_portals() -> None:
    assert MODES == OF_PORTALS


@awaited
async def test_routes__no_demonstration__are_not_there(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        shown = await asked.client.get("/v1/demo")
        switched = await asked.client.put(SWITCH, json={"mode": "dead"})
        told = await documented(asked, lambda _: True)
    assert (shown.status_code, switched.status_code, told["demo"]) == (404, 404, None)


@awaited
async def test_switch__turned__turns_the_portal_and_is_shown(tmp_path: Path) -> None:
    with ProcurementServer(seed=5) as portals:
        async with running(tmp_path, demo=portals.url) as asked:
            before = (await asked.client.get("/v1/demo")).json()
            switched = await asked.client.put(SWITCH, json={"mode": "dead"})
            told = await documented(asked, lambda found: found["demo"]["modes"]["pcp"] == "dead")
            wrong = await asked.client.put(SWITCH, json={"mode": "asleep"})
            nobody = await asked.client.put("/v1/demo/upstreams/nobody", json={"mode": "ok"})
        assert portals.pcp.mode == "dead"
    assert before == {"modes": {"pncp": "ok", "pcp": "ok"}, "can": list(MODES)}
    assert switched.json()["modes"] == {"pncp": "ok", "pcp": "dead"} == told["demo"]["modes"]
    assert (wrong.status_code, wrong.json()["field"]) == (422, "mode")
    assert (nobody.status_code, nobody.json()["field"]) == (404, "name")


@awaited
async def test_switch__from_another_site__is_refused(tmp_path: Path) -> None:
    strangers = [{"sec-fetch-site": "cross-site"}, {"origin": "http://elsewhere"}, {"origin": "null"}]
    with ProcurementServer(seed=5) as portals:
        async with running(tmp_path, demo=portals.url) as asked:
            for headers in strangers:
                reply = await asked.client.put(SWITCH, json={"mode": "dead"}, headers=headers)
                assert (reply.status_code, portals.pcp.mode) == (403, "ok")


@awaited
async def test_switch__without_the_token_of_the_dashboard__is_refused(tmp_path: Path) -> None:
    with ProcurementServer(seed=5) as portals:
        async with running(tmp_path, demo=portals.url, **LOCKED) as asked:
            replies = [
                await asked.client.get("/v1/demo"),
                await asked.client.put(SWITCH, json={"mode": "dead"}),
            ]
        assert portals.pcp.mode == "ok"
    assert [reply.status_code for reply in replies] == [401, 401]


@awaited
async def test_portals__gone__are_a_problem_and_the_page_goes_on(tmp_path: Path) -> None:
    with ProcurementServer(seed=5) as portals:
        address = portals.url
    async with running(tmp_path, demo=address) as asked:
        shown = await asked.client.get("/v1/demo")
        told = await documented(asked, lambda _: True)
    assert (shown.status_code, shown.headers["retry-after"]) == (503, "1")
    assert (told["demo"], told["status"]) == (None, "ok")


@pytest.mark.parametrize("said", [[], {"pncp": "dead"}, {"pncp": {}}])
@awaited
async def test_portals__somebody_else_at_their_address__are_a_problem(said: Any) -> None:
    demo = Demo("http://portals")
    await demo.aclose()
    answers = httpx2.MockTransport(lambda _: httpx2.Response(200, json=said))
    demo._client = httpx2.AsyncClient(transport=answers, base_url="http://portals")
    with pytest.raises(Problem, match="do not answer"):
        await demo.modes()
    await demo.aclose()
