"""Many threads of a new process that call at once: a server that answers must not be taken for dead."""

from __future__ import annotations

import pytest
from tests.processes.fleet import Worker
from tests.support import SOAK, Late

from comporta.testing import Server

ROUNDS = 20 if SOAK else 4


@pytest.mark.parametrize("threads", [50, 64])
def test_threads__first_calls_of_a_process_at_once__do_not_fall_back(valkey: Server, threads: int) -> None:
    """Without a fallback every call is answered; a machine that runs neither side for 0.2 s causes one."""
    limit = {"rate": 0.001, "capacity": 100_000}
    for number in range(ROUNDS):
        with Worker("start_cold", number=number, url=valkey.url, limit=limit, threads=threads) as worker:
            report = worker.result()
        if report["fallbacks"]:
            raise Late(f"round {number}: {report}")
        assert report["granted"] == threads
