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
        config = written(
            tmp_path,
            server,
            state=state,
            threshold=len(UFS),
            service="client_limit = false",
            search="fresh = 3",
        )
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
        server.pncp.set(mode="dead")
        asked(second, ",".join(UFS[1:]))  # 5 failures of pcp through the first, at least 4 through the second
        for url in (second, first):
            eventually(lambda url=url: asked(url, "RO")[1]["sources"]["pcp"]["why"] == "its circuit is open")
            assert health(url)["pcp_circuit_breaker"]["degraded"] is True

        eventually(lambda: asked(second)[1].get("freshness") == "stale")
        status, stale = asked(second)
        assert (status, stale["total"]) == (200, whole["total"])
        assert any("its circuit is open" in said for said in stale["warnings"])
        status, problem = asked(first, "RO,AP")
        assert (status, problem["status"]) == (503, 503)
        assert problem["retry_after"] >= 1

        server.pncp.set(mode="ok")
        server.pcp.set(mode="ok")
        for url in (first, second):
            eventually(lambda url=url: asked(url, "SE")[0] == 200)


def health(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/v1/health", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())


def eventually(what: Any) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.1)
