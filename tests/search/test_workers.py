"""Two workers, one truth: whichever answers, sources, breakers and what is kept are the same."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

from tests.processes.fleet import new_name, remove, shared_url
from tests.search.rig import DAYS, NINE, PATIENT, written
from tests.service.running import CLIENT, several_served

from comporta.service.search.query import UFS
from comporta.testing import ProcurementServer, Server
from comporta.testing.procurement import SimulatedPortal

PATIENCE_SECONDS = 120.0
SKIPPED = {"status": "skipped", "why": "its circuit is open"}


def asked(url: str, ufs: str = NINE) -> tuple[int, Any]:
    told = urlencode({**DAYS, "ufs": ufs})
    try:
        with urllib.request.urlopen(f"{url}/v1/search?{told}", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - loopback
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_workers__two__share_answers_breakers_and_stale_results(
    state: str, valkey: Server, tmp_path: Path
) -> None:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server, ExitStack() as stack:
        told = {"threshold": 40, "cooldown": 300, "search": "fresh = 4", **PATIENT}
        database = f"sqlite:///{tmp_path}/search.db"
        config = written(tmp_path, server, state=state, database=database, **told)
        both = stack.enter_context(
            several_served(2, tmp_path, "--config", str(config), COMPORTA_STATE=state, DATABASE_URL=database)
        )
        first, second = (one.address for one in both)
        status, whole = asked(first)
        assert (status, whole["complete"]) == (200, True)
        calls = server.pncp.accepted, server.pcp.accepted
        _, same = asked(second)
        assert [one["id"] for one in same["notices"]] == [one["id"] for one in whole["notices"]]
        assert (server.pncp.accepted, server.pcp.accepted) == calls

        server.pcp.set(mode="dead")
        _, partial = asked(first, ",".join(UFS))
        assert partial["missing_sources"] == ["pcp"]
        asked(first, ",".join(UFS[:3]))
        for url in (first, second):
            said = {"failures": 30, "degraded": False, "degraded_until": None}
            assert health(url)["pcp_circuit_breaker"] == said
            eventually(lambda url=url: health(url)["workers"]["alive"] == 2)
        if state.startswith("redis"):
            valkey.command("SET", "circuit_breaker:pncp:failures", "30")
            assert [health(url)["pncp_circuit_breaker"]["failures"] for url in (first, second)] == [30, 30]
            valkey.command("DEL", "circuit_breaker:pncp:failures")
        asked(second, ",".join(UFS[:10]))
        for url in (first, second):
            assert health(url)["pcp_circuit_breaker"]["degraded"] is True
            eventually(lambda url=url: asked(url, "RO")[1]["sources"]["pcp"] == SKIPPED)

        server.pncp.set(mode="dead")
        asked(first, ",".join(UFS[1:]))
        asked(first, ",".join(UFS[:14]))
        eventually(lambda: asked(second)[1]["freshness"] == "stale")
        eventually(lambda: str(asked(second)[1]["warnings"]).count("its circuit is open") == 2)
        status, stale = asked(second)
        assert (status, stale["total"]) == (200, whole["total"])
        status, problem = asked(second, "SE")
        assert (status, problem["status"]) == (503, 503)
        assert problem["sources"]["pncp"] == problem["sources"]["pcp"] == SKIPPED
        assert problem["retry_after"] >= 1


def test_stream__stale_and_fetched_anew_by_another_worker__is_told_of_it(tmp_path: Path) -> None:
    state, database = new_name(), f"sqlite:///{tmp_path}/search.db"
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server, ExitStack() as stack:
        config = written(tmp_path, server, search="fresh = 1", **PATIENT)
        stack.callback(remove, state)
        both = stack.enter_context(
            several_served(
                2,
                tmp_path,
                "--config",
                str(config),
                COMPORTA_STATE=shared_url(state),
                DATABASE_URL=database,
            )
        )
        first, second = (one.address for one in both)
        assert asked(first, "SP")[1]["complete"]
        gates = [Gate(portal) for portal in server.portals.values()]
        eventually(
            lambda: asked(second, "SP")[1]["freshness"] == "stale"
        )  # and so it is fetched, by this one
        eventually(lambda: all(gate.came for gate in gates))
        events = stack.enter_context(closing(watched(first, "SP")))
        kind, stale = next(events)
        assert (kind, stale["freshness"], [gate.came for gate in gates]) == ("result", "stale", [1, 1])
        for gate in gates:
            gate.open = True
        kind, newer = next(events)
        assert kind == "revalidated"
        assert any(
            newer["sources"][name]["fetched_at"] > stale["sources"][name]["fetched_at"]
            for name in newer["sources"]
        )
        assert [kind for kind, _ in events] == ["end"]


class Gate:
    """Holds up all who come to a portal, until it is opened."""

    def __init__(self, portal: SimulatedPortal) -> None:
        self.open = False
        self.came = 0
        portal._take_time = self._wait  # type: ignore[method-assign]

    async def _wait(self) -> None:
        self.came += 1
        while not self.open:  # noqa: ASYNC110 - it is opened by another thread
            await asyncio.sleep(0.02)


def watched(url: str, ufs: str) -> Generator[tuple[str, Any]]:
    """Give the events of a stream, but for how far it is."""
    told = {**DAYS, "ufs": ufs}
    with CLIENT.stream("GET", f"{url}/v1/search/stream", params=told) as answer:
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind != "progress":
                yield kind, json.loads(line.removeprefix("data: "))


def health(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/v1/health", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())


def eventually(what: Any) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.1)
