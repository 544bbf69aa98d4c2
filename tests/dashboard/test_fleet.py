"""Several workers as processes: whichever is asked shows all of them, and none hangs at its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.dashboard.rig import past, shown, streaming
from tests.processes.fleet import new_name, remove
from tests.search.rig import DAYS, PATIENT, written
from tests.service.running import CLIENT, PATIENCE_SECONDS, Served, served, several_served, wait_for

from comporta.service.search.query import UFS
from comporta.testing import ProcurementServer


def searched(one: Served, uf: str) -> None:
    reply = CLIENT.get(f"{one.address}/v1/search", params={**DAYS, "ufs": uf})
    assert reply.status_code in {200, 503}


def calls(one: Served) -> int:
    """Return how many calls of the last hour a worker knows of."""
    return int(sum(past(one.address).get("pncp", {"calls": ()})["calls"]))


def sources(told: dict[str, Any]) -> set[str]:
    return {event["source"] for event in told["events"]}


def eventually(one: Served, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a document of which something is true."""
    wait_for(lambda: what(shown(one.address)))
    return shown(one.address)


def sees(all_of_them: list[Served]) -> Callable[[dict[str, Any]], bool]:
    pids = {one.process.pid for one in all_of_them}
    return lambda told: {worker["pid"] for worker in told["workers"]} == pids


def test_fleet__two_workers_and_then_another__any_page_shows_all_and_what_was_before(
    state: str, tmp_path: Path
) -> None:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        told = {"threshold": 5, "cooldown": 3000, **PATIENT}
        path = written(tmp_path, portals, state=state, **told)
        variables = {"COMPORTA_STATE": state, "DATABASE_URL": f"sqlite:///{tmp_path}/search.db"}
        with several_served(2, tmp_path, "--config", str(path), **variables) as both:
            portals.pcp.set(mode="dead")
            for uf in UFS[:7]:
                searched(both[0], uf)
            for one in both:  # though one of them made all the calls
                wait_for(partial(_knows, one))
                eventually(one, lambda told: "pcp" in sources(told))
                found = eventually(one, sees(both))
                [pcp] = [card for card in found["upstreams"] if card["name"] == "pcp"]
                assert (pcp["phase"], found["reasons"]) == ("open", ["pcp is open"])
                assert pcp["in_words"].startswith("Open until ")
            assert [one.end() for one in both] == [0, 0]
        with served(tmp_path, "--config", str(path), **variables) as another:
            assert _knows(another)
            assert "pcp" in sources(eventually(another, sees([another])))


def _knows(one: Served) -> bool:
    return calls(one) >= 7


def test_serve__sigterm_with_pages_open__ends_their_streams_and_itself(tmp_path: Path) -> None:
    state = new_name()
    patient = {"COMPORTA_STATE": f"shared://{state}", "close_seconds": "3600"}
    with served(tmp_path, **patient) as one, ExitStack() as stack:
        pages = [stack.enter_context(streaming(one.address)) for _ in range(5)]
        for page in pages:
            assert [next(page)[0], next(page)[0]] == ["history", "document"]
        one.process.terminate()
        assert [list(page)[-1] for page in pages] == [("end", {})] * 5
        status = one.process.wait(PATIENCE_SECONDS)  # it would wait for an hour for a stream that hangs
    remove(state)
    assert (status, "Traceback" in one.errors.read_text()) == (0, False)
