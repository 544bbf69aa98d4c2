"""Several worker processes: each shows all of them, and none hangs at shutdown."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.dashboard.rig import get_document, get_history, open_stream
from tests.processes.fleet import new_state_name, remove_shared_state
from tests.search.rig import DAYS, PATIENT, write_config
from tests.service.harness import (
    CLIENT,
    PATIENCE_SECONDS,
    ServedProcess,
    serve_process,
    serve_processes,
    wait_until,
)

from comporta.service.search.query import UFS
from comporta.testing import ProcurementServer


def search(worker: ServedProcess, uf: str) -> None:
    reply = CLIENT.get(f"{worker.address}/v1/search", params={**DAYS, "ufs": uf})
    assert reply.status_code in {200, 503}


def calls(worker: ServedProcess) -> int:
    """Return how many calls of the last hour a worker shows."""
    return int(sum(get_history(worker.address).get("pncp", {"calls": ()})["calls"]))


def sources(document: dict[str, Any]) -> set[str]:
    return {event["source"] for event in document["events"]}


def wait_for_document(worker: ServedProcess, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a document that meets a condition."""
    wait_until(lambda: condition(get_document(worker.address)))
    return get_document(worker.address)


def shows_workers(all_of_them: list[ServedProcess]) -> Callable[[dict[str, Any]], bool]:
    pids = set().union(*(worker.worker_pids() for worker in all_of_them))
    return lambda document: {each["pid"] for each in document["workers"]} == pids


def test_fleet__third_worker_joins__any_page_shows_all_workers_and_history(
    state: str, tmp_path: Path
) -> None:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        options = {"threshold": 5, "cooldown": 3000, **PATIENT}
        path = write_config(tmp_path, portals, state=state, **options)
        variables = {"COMPORTA_STATE": state, "DATABASE_URL": f"sqlite:///{tmp_path}/search.db"}
        with serve_processes(2, tmp_path, "--config", str(path), **variables) as both:
            portals.pcp.set(mode="dead")
            for uf in UFS[:7]:
                search(both[0], uf)
            for worker in both:  # although only the first made calls
                wait_until(partial(_knows_calls, worker))
                wait_for_document(worker, lambda document: "pcp" in sources(document))
                document = wait_for_document(worker, shows_workers(both))
                [pcp] = [card for card in document["upstreams"] if card["name"] == "pcp"]
                assert (pcp["phase"], document["reasons"]) == ("open", ["pcp is open"])
                assert pcp["in_words"].startswith("Open until ")
            assert [worker.end() for worker in both] == [0, 0]
        with serve_process(tmp_path, "--config", str(path), **variables) as another:
            assert _knows_calls(another)
            assert "pcp" in sources(wait_for_document(another, shows_workers([another])))


def _knows_calls(worker: ServedProcess) -> bool:
    return calls(worker) >= 7


def test_serve__sigterm_with_pages_open__ends_their_streams_and_exits(tmp_path: Path) -> None:
    state = new_state_name()
    patient = {"COMPORTA_STATE": f"shared://{state}", "close_seconds": "3600"}
    with serve_process(tmp_path, **patient) as worker, ExitStack() as stack:
        pages = [stack.enter_context(open_stream(worker.address)) for _ in range(5)]
        for page in pages:
            assert [next(page)[0], next(page)[0]] == ["history", "document"]
        worker.process.terminate()
        assert [list(page)[-1] for page in pages] == [("end", {})] * 5
        status = worker.process.wait(PATIENCE_SECONDS)  # a hanging stream would delay it for an hour
    remove_shared_state(state)
    assert (status, "Traceback" in worker.errors.read_text()) == (0, False)
