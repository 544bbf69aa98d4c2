"""Two workers, one truth: whichever answers, sources, breakers and what is kept are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
from tests.processes.fleet import new_name, remove
from tests.search.rig import DAYS, NINE, written

from comporta.testing import ProcurementServer, Server

PATIENCE_SECONDS = 60.0
UFS = NINE.split(",")
SKIPPED = {"status": "skipped", "why": "its circuit is open"}


@contextmanager
def served(config: Path) -> Iterator[str]:
    """Serve in a process of its own; gives its address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPORTA")}
    command = [sys.executable, "-m", "comporta.cli", "serve", "--port", "0"]
    with subprocess.Popen(
        command, env={**environment, "COMPORTA_CONFIG": str(config)}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield next(word for line in process.stdout for word in line.split() if "http://" in word)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)


def asked(url: str, ufs: str = NINE) -> tuple[int, Any]:
    told = urlencode({**DAYS, "ufs": ufs})
    try:
        with urllib.request.urlopen(f"{url}/v1/search?{told}", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - loopback
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.fixture(params=["shared", "redis"])
def state(request: pytest.FixtureRequest, valkey: Server) -> Iterator[str]:
    if request.param == "redis":
        yield f"{valkey.url}?timeout=5"
        return
    name = new_name()
    yield f"shared://{name}"
    remove(name)


def test_workers__two__share_answers_breakers_and_stale_results(state: str, tmp_path: Path) -> None:
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server, ExitStack() as stack:
        told = {"threshold": len(UFS), "cooldown": 300, "search": "fresh = 3"}
        config = written(tmp_path, server, state=state, **told)
        first, second = (stack.enter_context(served(config)) for _ in range(2))
        status, whole = asked(first)
        assert (status, whole["complete"]) == (200, True)
        calls = server.pncp.accepted, server.pcp.accepted
        _, same = asked(second)
        assert [one["id"] for one in same["notices"]] == [one["id"] for one in whole["notices"]]
        assert (server.pncp.accepted, server.pcp.accepted) == calls

        server.pcp.set(mode="dead")
        _, partial = asked(first, ",".join(UFS[:5]))
        assert partial["missing_sources"] == ["pcp"]
        assert health(second)["pcp_circuit_breaker"]["failures"] == 5
        asked(second, ",".join(UFS[1:]))
        for url in (first, second):
            assert health(url)["pcp_circuit_breaker"]["degraded"] is True
            eventually(lambda url=url: asked(url, "RO")[1]["sources"]["pcp"] == SKIPPED)

        server.pncp.set(mode="dead")
        asked(first, "AL,AM,AP,DF,ES,GO,MS,MT,PA")
        eventually(lambda: asked(second)[1]["freshness"] == "stale")
        eventually(lambda: str(asked(second)[1]["warnings"]).count("its circuit is open") == 2)
        status, stale = asked(second)
        assert (status, stale["total"]) == (200, whole["total"])
        status, problem = asked(second, "SE")
        assert (status, problem["status"]) == (503, 503)
        assert problem["sources"]["pncp"] == problem["sources"]["pcp"] == SKIPPED
        assert problem["retry_after"] >= 1


def health(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/v1/health", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())


def eventually(what: Any) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.1)
