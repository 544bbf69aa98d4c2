"""What portals answered last, in the health of the service and on the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.service.harness import RunningService, async_test, run_service

from comporta.errors import StateUnavailableError
from comporta.fleet.reader import FLEET
from comporta.service.sources.base import MalformedPageError, PortalStatusError
from comporta.service.sources.last_answers import LastAnswers, read_answers, record_failure, record_page
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.stores.records import WriteRecord
from comporta.testing import ProcurementServer

DAY = {"date_from": "2026-01-01", "date_to": "2026-01-01", "ufs": "SP"}
NOT_FOUND = PortalStatusError("pcp", 404)


async def health_of(service: RunningService) -> Any:
    return (await service.client.get("/v1/health")).json()


@async_test
async def test_health__source_at_a_wrong_address__warns_with_the_reason_until_it_answers(
    tmp_path: Path,
) -> None:
    with ProcurementServer(seed=5) as server:
        variables = {
            "addresses_pncp": server.pncp.url,
            "addresses_pcp": f"{server.url}/elsewhere",
            "allow_private_addresses": "true",
        }
        async with run_service(tmp_path, **variables) as service:
            assert (await health_of(service))["status"] == "ok"  # no search has asked yet
            body = (await service.client.get("/v1/search", params=DAY)).json()
            assert body["sources"]["pcp"]["status"] == "failed"
            health = await health_of(service)
            assert (health["status"], health["reasons"]) == ("warn", ["pcp has not answered yet (HTTP 404)"])
            assert health["sources"]["pcp"]["status"] == "warn"
            assert health["sources"]["pcp"]["last_page_at"] is None
            assert health["sources"]["pncp"]["status"] == "ok"
            assert health["sources"]["pncp"]["last_page_at"] > service.container.started_at
            page = (await service.client.get("/v1/dashboard")).json()
            assert page["status"] == "warn"
            assert "pcp has not answered yet (HTTP 404)" in page["reasons"]
            cards = {card["name"]: card["in_words"] for card in page["upstreams"]}
            assert cards["pcp"] == "Closed: calls pass. The portal has not answered yet (HTTP 404)."
            await record_page(service.container.store, "pcp")
            assert (await health_of(service))["status"] == "ok"


@async_test
async def test_answers__only_4xx_after_pages__are_a_problem_after_three() -> None:
    store = MemoryStore()
    await record_page(store, "pcp")
    for _ in range(2):
        await record_failure(store, "pcp", NOT_FOUND)
        assert (await read_answers(store, "pcp")).problem() is None
    await record_failure(store, "pcp", NOT_FOUND)
    assert (await read_answers(store, "pcp")).problem() == "answers only with errors (HTTP 404)"
    await record_page(store, "pcp")
    assert (await read_answers(store, "pcp")).problem() is None


@async_test
async def test_answers__failures_that_breakers_count__are_a_problem_only_before_the_first_page() -> None:
    store = MemoryStore()
    await record_failure(store, "pcp", MalformedPageError("no page"))
    assert (await read_answers(store, "pcp")).problem() == "has not answered yet (MalformedPageError)"
    await record_failure(store, "pcp", PortalStatusError("pcp", 429))
    assert (await read_answers(store, "pcp")).refusals == 0
    await record_page(store, "pcp")
    for _ in range(5):
        await record_failure(store, "pcp", PortalStatusError("pcp", 503))
    assert (await read_answers(store, "pcp")).problem() is None


@async_test
async def test_answers__record_of_another_program__count_as_none() -> None:
    store = MemoryStore()
    store.apply(WriteRecord(FLEET, "source.pcp", b"no json", None))
    assert await read_answers(store, "pcp") == LastAnswers()


@async_test
async def test_answers__store_unreachable__raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*_: object) -> None:
        raise StateUnavailableError("gone")

    store: Store = MemoryStore()
    monkeypatch.setattr(MemoryStore, "apply_async", unreachable)
    await record_page(store, "pcp")
    await record_failure(store, "pcp", NOT_FOUND)
    assert await read_answers(store, "pcp") == LastAnswers()
