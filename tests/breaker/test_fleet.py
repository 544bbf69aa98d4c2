"""Real processes and a real server: tripping together, probing once, and what dying does to both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.breaker.jobs import NAME, hits
from tests.processes.fleet import Worker, new_name, remove, shared_url, started, together
from tests.support import hold_to

from comporta import CircuitBreaker
from comporta.stores.urls import forget_stores
from comporta.testing import Server
from comporta.testing.servers import wait_until

MARGIN_SECONDS = 2.0
"""What a busy machine may add to a promise about processes that were only just scheduled."""


@pytest.fixture(params=["shared", "server"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give an empty state; its deadline is not what is tested here."""
    if request.param == "server":
        with Server() as server:
            yield f"{server.url}?timeout=5"
            forget_stores()
    else:
        name = new_name()
        yield shared_url(name)
        forget_stores()
        remove(name)


@pytest.fixture
def backend(tmp_path: Path) -> str:
    return str(tmp_path / "backend")


def tripped(url: str, **config: Any) -> CircuitBreaker:
    """Open a circuit from this process."""
    breaker = CircuitBreaker(NAME, state=url, **config)
    while not breaker.is_degraded:
        breaker.sync.record_failure("down")
    return breaker


@pytest.mark.parametrize("job", ["trip_blocking", "trip_awaiting"])
def test_fleet__eight_processes_trip_together__reach_the_backend_at_most_once_more_each(
    url: str, backend: str, job: str
) -> None:
    config = {"threshold": 5, "cooldown_seconds": 600}
    with started(8, job, url=url, backend=backend, config=config) as workers:
        together(workers)
    assert 5 <= hits(backend) <= 5 + 7


def test_fleet__half_open_with_a_hundred_callers_in_each_of_four__lets_exactly_the_probes_through(
    url: str, backend: str
) -> None:
    probes = 3
    config = {"threshold": 1, "cooldown_seconds": 0.2, "probes": probes, "probe_seconds": 300}
    breaker = tripped(url, **config)
    wait_until(lambda: breaker.sync.get_state().phase == "half_open", "half-open", 60)
    with started(4, "crowd", url=url, backend=backend, config=config, callers=100) as workers:
        admitted = together(workers)
        assert sum(admitted) == probes
        assert hits(backend) == probes
        for worker in workers:
            worker.go()
        assert {worker.answer() for worker in workers} <= {"closed", "half_open"}
    assert breaker.sync.get_state().phase == "closed"


def test_fleet__prober_is_killed_under_steady_traffic__recovers_at_its_deadline(
    url: str, backend: str
) -> None:
    config = {"threshold": 1, "cooldown_seconds": 0.2, "probe_seconds": 2.0}
    tripped(url, **config)
    told = {"url": url, "backend": backend, "config": config}
    with (
        started(2, "call_until_well", **told) as callers,
        Worker("hang_in_probe", number=9, url=url, config=config) as prober,
    ):
        prober.ready()
        granted_ns = prober.answer()
        prober.kill()
        for caller in callers:
            caller.go()
        well = min((caller.answer() - granted_ns) / 1e9 for caller in callers)
    assert well >= 2.0
    hold_to(well, 2.0 + 1.0 + MARGIN_SECONDS, "recovery")


@pytest.mark.parametrize(("how", "awaiting"), [("kill", True), ("freeze", False), ("freeze", True)])
def test_fleet__server_dies_while_open__nobody_reaches_the_backend_and_no_call_takes_long(
    backend: str, how: str, awaiting: bool
) -> None:
    config = {"threshold": 1, "cooldown_seconds": 600}
    told = {"backend": backend, "config": config, "seconds": 1.0, "awaiting": awaiting}
    with Server() as server:
        tripped(f"{server.url}?timeout=5", **config)
        forget_stores()
        with started(3, "call_steadily", url=server.url, **told) as workers:
            getattr(server, how)()
            answers = together(workers)
        if how == "freeze":
            server.thaw()
    assert all(answer["alone"] and answer["refused"] for answer in answers)
    assert hits(backend) == 0
    hold_to(max(float(answer["slowest"]) for answer in answers), 0.25, "a call")


def test_fleet__forked_child_opens_the_circuit__the_parent_learns_of_it(url: str) -> None:
    config = {"threshold": 1, "cooldown_seconds": 600}
    with started(1, "fork_and_trip", url=url, config=config) as workers:
        [told] = together(workers)
    assert told == {"status": 0, "why": "in the child"}
