"""Two workers share sources, breakers and cached answers."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

from tests.processes.fleet import new_state_name, remove_shared_state, shared_url
from tests.search.rig import DAYS, NINE, PATIENT, Gate, write_config
from tests.service.harness import CLIENT, serve_processes

from comporta.service.search.query import UFS
from comporta.testing import ProcurementServer, Server

PATIENCE_SECONDS = 120.0
SKIPPED = {"status": "skipped", "reason": "its circuit is open"}


def search(url: str, ufs: str = NINE, month: int = 1) -> tuple[int, Any]:
    """Search the first ten days of a month; each month has its own listings."""
    days = {name: day.replace("-01-", f"-{month:02}-") for name, day in DAYS.items()}
    params = urlencode({**days, "ufs": ufs})
    try:
        with urllib.request.urlopen(f"{url}/v1/search?{params}", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - loopback
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_workers__two__share_answers_breakers_and_stale_results(
    state: str, valkey: Server, tmp_path: Path
) -> None:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server, ExitStack() as stack:
        options = {"threshold": 25, "cooldown": 300, "search": "fresh = 4", **PATIENT}
        database = f"sqlite:///{tmp_path}/search.db"
        config = write_config(tmp_path, server, state=state, database=database, **options)
        both = stack.enter_context(
            serve_processes(2, tmp_path, "--config", str(config), COMPORTA_STATE=state, DATABASE_URL=database)
        )
        first, second = (one.address for one in both)
        status, whole = search(first)
        assert (status, whole["complete"]) == (200, True)
        calls = server.pncp.accepted, server.pcp.accepted
        _, same = search(second)
        assert [one["id"] for one in same["notices"]] == [one["id"] for one in whole["notices"]]
        assert (server.pncp.accepted, server.pcp.accepted) == calls

        server.pcp.set(mode="dead")
        _, partial = search(first, ",".join(UFS), month=2)
        assert partial["missing_sources"] == ["pcp"]
        search(first, ",".join(UFS[:3]), month=3)
        for url in (first, second):
            expected = {"failures": 20, "degraded": False, "degraded_until": None}
            wait_until(lambda url=url, expected=expected: health(url)["pcp_circuit_breaker"] == expected)
            wait_until(
                lambda url=url: health(url)["workers"]["alive"] == 2, lambda url=url: health(url)["workers"]
            )
        if state.startswith("redis"):
            valkey.command("SET", "circuit_breaker:pncp:failures", "30")
            for url in (first, second):  # within a second
                wait_until(lambda url=url: health(url)["pncp_circuit_breaker"]["failures"] == 30)
            valkey.command("DEL", "circuit_breaker:pncp:failures")
        search(second, ",".join(UFS[:10]), month=4)
        for url in (first, second):
            wait_until(lambda url=url: health(url)["pcp_circuit_breaker"]["degraded"])
            wait_until(lambda url=url: search(url, "RO", month=5)[1]["sources"]["pcp"] == SKIPPED)

        server.pncp.set(mode="dead")
        search(first, ",".join(UFS[1:]), month=6)
        search(first, ",".join(UFS[:14]), month=7)
        wait_until(lambda: search(second)[1]["freshness"] == "stale")
        wait_until(lambda: str(search(second)[1]["warnings"]).count("its circuit is open") == 2)
        status, stale = search(second)
        assert (status, stale["total"]) == (200, whole["total"])
        status, problem = search(second, "SE", month=8)
        assert (status, problem["status"]) == (503, 503)
        assert problem["sources"]["pncp"] == problem["sources"]["pcp"] == SKIPPED
        assert problem["retry_after"] >= 1


def test_stream__stale_and_refreshed_by_another_worker__is_revalidated(tmp_path: Path) -> None:
    state, database = new_state_name(), f"sqlite:///{tmp_path}/search.db"
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server, ExitStack() as stack:
        config = write_config(tmp_path, server, search="fresh = 1", **PATIENT)
        stack.callback(remove_shared_state, state)
        both = stack.enter_context(
            serve_processes(
                2,
                tmp_path,
                "--config",
                str(config),
                COMPORTA_STATE=shared_url(state),
                DATABASE_URL=database,
            )
        )
        first, second = (one.address for one in both)
        assert search(first, "SP")[1]["complete"]
        gates = [Gate(portal) for portal in server.portals.values()]
        wait_until(lambda: are_all_stale(search(second, "SP")[1]))  # so this worker refreshes both
        wait_until(lambda: [gate.came for gate in gates] == [1, 10])  # one UF, ten days
        events = stack.enter_context(closing(stream_events(first, "SP")))
        kind, stale = next(events)
        assert (kind, stale["freshness"], gates[0].came, gates[1].came) == ("result", "stale", 1, 10)
        for gate in gates:
            gate.open = True
        kind, newer = next(events)
        assert kind == "revalidated"
        assert any(
            newer["sources"][name]["fetched_at"] > stale["sources"][name]["fetched_at"]
            for name in newer["sources"]
        )
        assert [kind for kind, _ in events] == ["end"]


def are_all_stale(body: Any) -> bool:
    return all(source["status"] == "stale" for source in body["sources"].values())


def stream_events(url: str, ufs: str) -> Generator[tuple[str, Any]]:
    """Yield the events of a stream except progress."""
    params = {**DAYS, "ufs": ufs}
    with CLIENT.stream("GET", f"{url}/v1/search/stream", params=params) as answer:
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind != "progress":
                yield kind, json.loads(line.removeprefix("data: "))


def health(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/v1/health", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())


def wait_until(condition: Any, describe: Any = str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold in time: {describe()}"
        time.sleep(0.1)
