"""Several processes share one circuit: tripping, probing, and the death of a worker or of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from tests.breaker.jobs import NAME, hits
from tests.processes.fleet import (
    Worker,
    new_state_name,
    remove_shared_state,
    run_together,
    shared_url,
    start_workers,
)
from tests.support import assert_within

from comporta import CircuitBreaker
from comporta.stores.registry import close_stores
from comporta.testing import Server
from comporta.testing.redis_server import wait_until

MARGIN_SECONDS = 2.0
"""Allowance for processes that a busy machine schedules late."""


@pytest.fixture(params=["shared", "server"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the URL of an empty state with a generous time-out."""
    if request.param == "server":
        with Server() as server:
            yield f"{server.url}?timeout=5"
            close_stores()
    else:
        name = new_state_name()
        yield shared_url(name)
        close_stores()
        remove_shared_state(name)


@pytest.fixture
def backend(tmp_path: Path) -> str:
    return str(tmp_path / "backend")


def open_circuit(url: str, **config: Any) -> CircuitBreaker:
    """Open a circuit from this process."""
    breaker = CircuitBreaker(NAME, state=url, **config)
    while not breaker.is_degraded:
        breaker.sync.record_failure("down")
    return breaker


@pytest.mark.parametrize("job", ["trip_blocking", "trip_async"])
def test_fleet__eight_processes_trip__each_reaches_the_backend_at_most_once_more(
    url: str, backend: str, job: str
) -> None:
    config = {"threshold": 5, "cooldown_seconds": 600}
    with start_workers(8, job, url=url, backend=backend, config=config) as workers:
        run_together(workers)
    assert 5 <= hits(backend) <= 5 + 7


def test_fleet__half_open_with_400_callers_in_four_processes__admits_exactly_the_probes(
    url: str, backend: str
) -> None:
    probes = 3
    config = {"threshold": 1, "cooldown_seconds": 0.2, "probes": probes, "probe_seconds": 300}
    breaker = open_circuit(url, **config)
    wait_until(lambda: breaker.sync.get_state().phase == "half_open", "half-open", 60)
    with start_workers(4, "crowd", url=url, backend=backend, config=config, callers=100) as workers:
        admitted = run_together(workers)
        assert sum(admitted) == probes
        assert hits(backend) == probes
        for worker in workers:
            worker.go()
        assert {worker.result() for worker in workers} <= {"closed", "half_open"}
    assert breaker.sync.get_state().phase == "closed"


def test_fleet__probing_worker_is_killed__recovers_at_the_probes_deadline(url: str, backend: str) -> None:
    config = {"threshold": 1, "cooldown_seconds": 0.2, "probe_seconds": 2.0}
    open_circuit(url, **config)
    arguments = {"url": url, "backend": backend, "config": config}
    with (
        start_workers(2, "call_until_admitted", **arguments) as callers,
        Worker("hang_in_probe", number=9, url=url, config=config) as prober,
    ):
        prober.wait_ready()
        granted_ns = prober.result()
        prober.kill()
        for caller in callers:
            caller.go()
        well = min((caller.result() - granted_ns) / 1e9 for caller in callers)
    assert well >= 2.0
    assert_within(well, 2.0 + 1.0 + MARGIN_SECONDS, "recovery")


@pytest.mark.parametrize(("how", "use_async"), [("kill", True), ("freeze", False), ("freeze", True)])
def test_fleet__server_dies_while_open__no_call_reaches_the_backend_or_takes_long(
    backend: str, how: str, use_async: bool
) -> None:
    config = {"threshold": 1, "cooldown_seconds": 600}
    arguments = {"backend": backend, "config": config, "seconds": 1.0, "use_async": use_async}
    with Server() as server:
        open_circuit(f"{server.url}?timeout=5", **config)
        close_stores()
        with start_workers(3, "call_steadily", url=server.url, **arguments) as workers:
            getattr(server, how)()
            answers = run_together(workers)
        if how == "freeze":
            server.thaw()
    assert all(answer["fallback"] and answer["refused"] for answer in answers)
    assert hits(backend) == 0
    assert_within(max(float(answer["slowest"]) for answer in answers), 0.25, "a call")


def test_fleet__forked_child_opens_the_circuit__the_parent_sees_it(url: str) -> None:
    config = {"threshold": 1, "cooldown_seconds": 600}
    with start_workers(1, "fork_and_trip", url=url, config=config) as workers:
        [arguments] = run_together(workers)
    assert arguments == {"status": 0, "reason": "in the child"}


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("outage_seconds", [0.08, 0.15, 0.3])
def test_fleet__server_pauses_in_the_middle_of_a_streak__opens_and_forgets_nothing(
    backend: str, outage_seconds: float, use_async: bool
) -> None:
    """Workers continue from the three shared failures while the server does not answer."""
    threshold, counted, workers = 5, 3, 4
    config: dict[str, Any] = {"threshold": threshold, "cooldown_seconds": 600}
    arguments = {"backend": backend, "config": config, "workers": workers, "use_async": use_async}
    with Server() as server:
        first = CircuitBreaker(NAME, state=f"{server.url}?timeout=5", **config)
        for _ in range(counted):
            first.sync.record_failure("down")
        with start_workers(workers, "fail_in_an_outage", url=server.url, **arguments) as fleet:
            server.freeze()
            timer = Timer(outage_seconds, server.thaw)
            timer.start()
            run_together(fleet)
            timer.join()
            wait_until(lambda: first.sync.get_state().phase == "open", "open", 15)
        close_stores()
    assert counted + hits(backend) <= threshold + workers - 1


def test_worker__exits_at_the_end_of_an_outage__reports_the_failures_that_it_counted() -> None:
    config: dict[str, Any] = {"threshold": 5, "cooldown_seconds": 600}
    with Server() as server:
        with start_workers(1, "exit_in_an_outage", url=server.url, config=config, failures=3) as [worker]:
            server.freeze()
            assert worker.go().result() == {"fallback": True}
            server.thaw()
            assert worker.wait_ready().go().process.wait() == 0
        other = CircuitBreaker(NAME, state=f"{server.url}?timeout=5", **config)
        assert other.sync.get_state().failures == 3
        close_stores()
