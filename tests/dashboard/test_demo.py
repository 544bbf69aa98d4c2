"""The routes that control the simulated portals of a demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.dashboard.rig import LOCKED, run_service, wait_for_document
from tests.service.harness import async_test

from comporta.service.dashboard.demo_portals import MODES, DemoPortals
from comporta.service.problems import HttpProblem
from comporta.testing import ProcurementServer
from comporta.testing.procurement import MODES as OF_PORTALS

SWITCH = "/v1/demo/upstreams/pcp"


def test_modes__of_the_page__match_the_simulated_portals() -> None:
    assert MODES == OF_PORTALS


@async_test
async def test_demo_routes__not_a_demo__return_404(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        shown = await service.client.get("/v1/demo")
        switched = await service.client.put(SWITCH, json={"mode": "dead"})
        document = await wait_for_document(service, lambda _: True)
    assert (shown.status_code, switched.status_code, document["demo"]) == (404, 404, None)


@async_test
async def test_switch__set__changes_the_portal_and_the_document(tmp_path: Path) -> None:
    with ProcurementServer(seed=5) as portals:
        async with run_service(tmp_path, demo=portals.url) as service:
            before = (await service.client.get("/v1/demo")).json()
            switched = await service.client.put(SWITCH, json={"mode": "dead"})
            document = await wait_for_document(service, lambda each: each["demo"]["modes"]["pcp"] == "dead")
            wrong = await service.client.put(SWITCH, json={"mode": "asleep"})
            unknown = await service.client.put("/v1/demo/upstreams/unknown", json={"mode": "ok"})
        assert portals.pcp.mode == "dead"
    assert before == {"modes": {"pncp": "ok", "pcp": "ok"}, "can": list(MODES)}
    assert switched.json()["modes"] == {"pncp": "ok", "pcp": "dead"} == document["demo"]["modes"]
    assert (wrong.status_code, wrong.json()["field"]) == (422, "mode")
    assert (unknown.status_code, unknown.json()["field"]) == (404, "name")


@async_test
async def test_switch__from_another_site__is_refused(tmp_path: Path) -> None:
    strangers = [{"sec-fetch-site": "cross-site"}, {"origin": "http://elsewhere"}, {"origin": "null"}]
    with ProcurementServer(seed=5) as portals:
        async with run_service(tmp_path, demo=portals.url) as service:
            for headers in strangers:
                reply = await service.client.put(SWITCH, json={"mode": "dead"}, headers=headers)
                assert (reply.status_code, portals.pcp.mode) == (403, "ok")


@async_test
async def test_switch__without_the_dashboard_token__is_refused(tmp_path: Path) -> None:
    with ProcurementServer(seed=5) as portals:
        async with run_service(tmp_path, demo=portals.url, **LOCKED) as service:
            replies = [
                await service.client.get("/v1/demo"),
                await service.client.put(SWITCH, json={"mode": "dead"}),
            ]
        assert portals.pcp.mode == "ok"
    assert [reply.status_code for reply in replies] == [401, 401]


@async_test
async def test_portals__unreachable__return_a_problem_and_the_page_still_works(tmp_path: Path) -> None:
    with ProcurementServer(seed=5) as portals:
        address = portals.url
    async with run_service(tmp_path, demo=address) as service:
        shown = await service.client.get("/v1/demo")
        document = await wait_for_document(service, lambda _: True)
    assert (shown.status_code, shown.headers["retry-after"]) == (503, "1")
    assert (document["demo"], document["status"]) == (None, "ok")


@pytest.mark.parametrize("body", [[], {"pncp": "dead"}, {"pncp": {}}])
@async_test
async def test_portals__other_server_at_their_address__return_a_problem(body: Any) -> None:
    demo = DemoPortals("http://portals")
    await demo.aclose()
    answers = httpx2.MockTransport(lambda _: httpx2.Response(200, json=body))
    demo._client = httpx2.AsyncClient(transport=answers, base_url="http://portals")
    with pytest.raises(HttpProblem, match="do not respond"):
        await demo.modes()
    await demo.aclose()
