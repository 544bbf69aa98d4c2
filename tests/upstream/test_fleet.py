"""Several processes share one upstream: limit, pause, calls in flight and operators' overrides."""

from __future__ import annotations

import signal
import time
from email.utils import formatdate
from typing import Any

import pytest
from tests.processes.fleet import Worker, flush_server, run_together, start_workers
from tests.support import assert_within, wait_until
from tests.upstream.body_server import WHOLE, BodyServer

from comporta import ConcurrencyLimit, Upstream
from comporta.testing import Server, SimulatedUpstream

CALLS, WORKERS, IDEAL_SECONDS = 20, 4, 8.0


def step(one: Worker) -> Any:
    """Have a worker make one call, and return its result."""
    return one.go().result()


def operator(state: str, **options: Any) -> Upstream:
    """Return the same upstream in this process, as an operator's tool would create it."""
    return Upstream("simulated", options.pop("limit"), state=state, **options)


@pytest.mark.parametrize(("status", "as_date"), [(429, False), (503, True)])
def test_pause__received_by_one_process__pauses_another(
    simulated: SimulatedUpstream, state: str, status: int, as_date: bool
) -> None:
    with start_workers(2, "steps", url=simulated.url, state=state, limit="1000/s") as (one, other):
        assert [step(one)["status"], step(other)["status"]] == [200, 200]
        retry_after = formatdate(time.time() + 100, usegmt=True) if as_date else "100"
        simulated.headers, simulated.next_statuses = {"Retry-After": retry_after}, [status]
        assert step(one)["status"] == status
        refused = step(other)
        assert refused["outcome"] == "limited"
        assert 60 < refused["retry_after"] <= 100
    assert simulated.accepted == 3


def test_refusals__seen_by_one_process__lower_the_limit_of_another(state: str) -> None:
    with (
        SimulatedUpstream(rate=0.0001, burst=1, retry_after=False) as simulated,
        start_workers(1, "steps", url=simulated.url, state=state, limit="1000/s") as [one],
    ):
        assert step(one)["status"] == 200
        assert step(one)["status"] == 429
        state_now = operator(state, limit="1000/s").sync.get_state()
        assert state_now.breaker is not None
        assert state_now.limiter.original == 1000
        # four attempts were refused: those within 50 ms of each other lower it once
        assert 409 <= state_now.limiter.limit <= 800
        assert state_now.breaker.phase == "closed"


def test_max_concurrent__two_processes_with_many_calls__never_exceed_it_together(
    simulated: SimulatedUpstream, state: str
) -> None:
    simulated.delay = 0.005
    options = {"limit": "10000/s", "max_concurrent": 3, "max_wait": 60}
    with start_workers(2, "together", url=simulated.url, state=state, calls=30, **options) as workers:
        answers = run_together(workers)
    assert [answer["statuses"] for answer in answers] == [[200] * 30] * 2
    assert 1 < simulated.max_in_flight <= 3


def test_stream__process_stopped_for_longer_than_permit_ttl__has_its_permit_again_afterwards(
    state: str,
) -> None:
    """Its permit expires, and another worker gets it; no worker gets a third one when the process goes on."""
    options: dict[str, Any] = {"limit": "1000/s", "max_concurrent": 1, "permit_ttl": 0.5, "max_wait": 0}
    permits = ConcurrencyLimit("simulated", 1, permit_ttl=0.5, state=state)
    with BodyServer("stall") as server, Worker("stream", url=server.url, state=state, **options) as one:
        owner = one.result()
        one.wait_ready().send(signal.SIGSTOP)
        one.wait_stopped()
        wait_until(lambda: permits.sync.in_use() == 0)
        with permits.sync.slot():
            one.send(signal.SIGCONT)
            wait_until(lambda: owner in {holder.owner for holder in permits.sync.holders()})
        assert permits.sync.acquire() is None
        server.release()
        assert one.go().result() == len(WHOLE)
        wait_until(lambda: permits.sync.in_use() == 0)


def test_operator__forces_open_and_revokes__the_other_process_follows(
    simulated: SimulatedUpstream, state: str
) -> None:
    operators_upstream = operator(state, limit="1000/s")
    assert operators_upstream.breaker is not None
    with start_workers(1, "steps", url=simulated.url, state=state, limit="1000/s") as [one]:
        assert step(one)["outcome"] == "ok"
        operators_upstream.breaker.sync.force("open", "maintenance")
        assert _until(one, "open")["circuit"] == "open"
        operators_upstream.breaker.sync.force(None)
        assert _until(one, "ok")["circuit"] == "closed"


def test_operator__overrides_the_limit__the_other_process_follows(
    simulated: SimulatedUpstream, state: str
) -> None:
    options: dict[str, Any] = {"limit": "1000/s", "max_wait": 0}
    operators_upstream = operator(state, **options)
    with start_workers(1, "steps", url=simulated.url, state=state, **options) as [one]:
        assert step(one)["outcome"] == "ok"
        operators_upstream.limiter.sync.set_limit("1/hour")
        outcomes = [step(one)["outcome"] for _ in range(3)]
        assert outcomes[-1] == "limited"
        operators_upstream.limiter.sync.set_limit(None)
        assert _until(one, "ok")["status"] == 200


def _until(one: Worker, outcome: str) -> Any:
    """Have a worker make calls until one has this outcome; its view may be 0.25 s old."""
    answers: list[Any] = []

    def has_outcome() -> bool:
        answers.append(step(one))
        return bool(answers[-1]["outcome"] == outcome)

    wait_until(has_outcome)
    return answers[-1]


def test_fleet__upstream_with_its_own_limit__gets_that_rate_and_refuses_hardly_any(
    valkey: Server,
) -> None:
    """All calls succeed, no circuit opens, at most two are refused; it takes at most 1.15 of the ideal."""
    flush_server(valkey.url)
    state = f"{valkey.url}?timeout=5"
    with SimulatedUpstream(rate=10, burst=10) as simulated:
        options = {"limit": "10/s", "max_wait": 60}
        with start_workers(
            WORKERS, "together", url=simulated.url, state=state, calls=CALLS, **options
        ) as workers:
            full = time.monotonic() + WORKERS / 10 + 0.5
            wait_until(lambda: time.monotonic() > full)  # the bucket is full again
            start_ns = time.monotonic_ns()
            answers = run_together(workers)
        assert [answer["statuses"] for answer in answers] == [[200] * CALLS] * WORKERS
        assert [answer["circuits"] for answer in answers] == [["closed"]] * WORKERS
        assert simulated.accepted == WORKERS + CALLS * WORKERS
        assert simulated.refused <= 2
    assert_within((max(answer["ended_ns"] for answer in answers) - start_ns) / 1e9, 1.15 * IDEAL_SECONDS)
