"""Several workers as processes: whichever is asked shows all of them, and none hangs at its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.rig import past, shown, streaming
from tests.processes.fleet import new_name, remove
from tests.search.rig import DAYS, PATIENT, written
from tests.service.running import CLIENT, Served, served, several_served, wait_for

from comporta.service.search.query import UFS
from comporta.testing import ProcurementServer, Server


@pytest.fixture(params=["shared", "valkey"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "valkey":
        server: Server = request.getfixturevalue("valkey")
        server.command("FLUSHALL")
        yield f"{server.url}?timeout=5"
        return
    name = new_name()
    yield f"shared://{name}"
    remove(name)


def searched(one: Served, uf: str) -> None:
    reply = CLIENT.get(f"{one.address}/v1/search", params={**DAYS, "ufs": uf})
    assert reply.status_code in {200, 503}


def calls(told: dict[str, Any], name: str) -> int:
    return int(sum(one["minute"]["calls"] for one in told["upstreams"] if one["name"] == name))


def pids(told: dict[str, Any]) -> set[int]:
    return {one["pid"] for one in told["workers"]}


def test_fleet__two_workers_and_then_two_others__any_page_shows_all_and_what_was_before(
    state: str, tmp_path: Path
) -> None:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        told = {"threshold": 5, "cooldown": 300, **PATIENT}
        path = written(tmp_path, portals, state=state, **told)
        variables = {"COMPORTA_STATE": state, "DATABASE_URL": f"sqlite:///{tmp_path}/search.db"}
        with several_served(2, tmp_path, "--config", str(path), **variables) as both:
            first, second = both
            searched(first, "SP")
            portals.pcp.set(mode="dead")
            for uf in UFS[:6]:
                searched(first, uf)
            for one in both:  # one of them made all the calls
                wait_for(lambda one=one: calls(shown(one.address), "pncp") >= 7)
                wait_for(lambda one=one: pids(shown(one.address)) == {each.process.pid for each in both})
                found = shown(one.address)
                [pcp] = [card for card in found["upstreams"] if card["name"] == "pcp"]
                assert (pcp["phase"], found["reasons"]) == ("open", ["pcp is open"])
                assert pcp["in_words"].startswith("Open until ")
                wait_for(lambda one=one: "pcp" in {event["source"] for event in shown(one.address)["events"]})
            assert sum(past(second.address)["pncp"]["calls"]) == calls(shown(second.address), "pncp")
            assert [one.end() for one in both] == [0, 0]
        with several_served(2, tmp_path, "--config", str(path), **variables) as others:
            for one in others:
                assert sum(past(one.address)["pncp"]["calls"]) >= 7
                assert "pcp" in {event["source"] for event in shown(one.address)["events"]}
                wait_for(lambda one=one: pids(shown(one.address)) == {each.process.pid for each in others})


def test_serve__sigterm_with_pages_open__ends_their_streams_and_itself(tmp_path: Path) -> None:
    state = new_name()
    with served(tmp_path, COMPORTA_STATE=f"shared://{state}") as one, ExitStack() as stack:
        pages = [stack.enter_context(streaming(one.address)) for _ in range(5)]
        for page in pages:
            assert [next(page)[0], next(page)[0]] == ["history", "document"]
        began = time.monotonic()
        one.process.terminate()
        assert [list(page)[-1] for page in pages] == [("end", {})] * 5
        status = one.process.wait(60)
        seconds = time.monotonic() - began
    remove(state)
    assert (status, "Traceback" in one.errors.read_text()) == (0, False)
    assert seconds < 10
