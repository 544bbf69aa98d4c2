"""Several processes, one upstream: limit, pause, calls in flight and operators' words are for all of them."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import pytest
from tests.processes import fleet
from tests.processes.fleet import Worker, flushed, started, together
from tests.support import hold_to
from tests.upstream import worker

from comporta import Upstream
from comporta.testing import Server, SimulatedUpstream

CALLS, WORKERS, IDEAL_SECONDS = 20, 4, 8.0


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PROGRAM", worker.__name__)


def step(one: Worker) -> Any:
    """Have a worker make one call, and return how it went."""
    return one.go().answer()


def operator(state: str, **options: Any) -> Upstream:
    """Return the same upstream in this process, as an operator's tool would have it."""
    return Upstream("simulated", options.pop("limit"), state=state, **options)


@pytest.mark.parametrize(("status", "as_date"), [(429, False), (503, True)])
def test_pause__told_to_one_process__keeps_another_away(
    simulated: SimulatedUpstream, state: str, status: int, as_date: bool
) -> None:
    with started(2, "steps", url=simulated.url, state=state, limit="1000/s") as (one, other):
        assert [step(one)["status"], step(other)["status"]] == [200, 200]
        told = formatdate(time.time() + 100, usegmt=True) if as_date else "100"
        simulated.headers, simulated.upcoming = {"Retry-After": told}, [status]
        assert step(one)["status"] == status
        refused = step(other)
        assert refused["outcome"] == "limited"
        assert 60 < refused["retry_after"] <= 100
    assert simulated.accepted == 3


def test_refusals__seen_by_one_process__lower_the_limit_of_another(state: str) -> None:
    with (
        SimulatedUpstream(rate=0.0001, burst=1, retry_after=False) as simulated,
        started(1, "steps", url=simulated.url, state=state, limit="1000/s") as [one],
    ):
        assert step(one)["status"] == 200
        assert step(one)["status"] == 429
        standing = operator(state, limit="1000/s").sync.get_state()
        assert standing.breaker is not None
        assert (standing.limiter.limit, standing.limiter.original) == (600, 1000)  # it was tried four times
        assert standing.breaker.phase == "closed"


def test_max_concurrent__two_processes_with_many_calls__are_never_more_together(
    simulated: SimulatedUpstream, state: str
) -> None:
    simulated.delay = 0.005
    options = {"limit": "10000/s", "max_concurrent": 3, "max_wait": 60}
    with started(2, "together", url=simulated.url, state=state, calls=30, **options) as workers:
        answers = together(workers)
    assert [answer["statuses"] for answer in answers] == [[200] * 30] * 2
    assert 1 < simulated.most <= 3


def test_operator__opens_by_hand_and_revokes__the_other_process_obeys(
    simulated: SimulatedUpstream, state: str
) -> None:
    mine = operator(state, limit="1000/s")
    assert mine.breaker is not None
    with started(1, "steps", url=simulated.url, state=state, limit="1000/s") as [one]:
        assert step(one)["outcome"] == "ok"
        mine.breaker.sync.force("open", "maintenance")
        assert _until(one, "open")["circuit"] == "open"
        mine.breaker.sync.force(None)
        assert _until(one, "ok")["circuit"] == "closed"


def test_operator__changes_the_limit__the_other_process_obeys(
    simulated: SimulatedUpstream, state: str
) -> None:
    options: dict[str, Any] = {"limit": "1000/s", "max_wait": 0}
    mine = operator(state, **options)
    with started(1, "steps", url=simulated.url, state=state, **options) as [one]:
        assert step(one)["outcome"] == "ok"
        mine.limiter.sync.change("1/hour")
        outcomes = [step(one)["outcome"] for _ in range(3)]
        assert outcomes[-1] == "limited"
        mine.limiter.sync.change(None)
        assert _until(one, "ok")["status"] == 200


def _until(one: Worker, outcome: str) -> Any:
    """Have a worker make calls until one ends so; what it knows may be a quarter of a second old."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = step(one)
        if answer["outcome"] == outcome:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"it never ended with {outcome}: {answer}")


def test_fleet__upstream_that_enforces_ten_a_second__gets_just_that_and_refuses_hardly_anybody(
    valkey: Server,
) -> None:
    """All calls succeed, no circuit opens, at most two are refused; it takes 1.15 of the ideal, or less."""
    flushed(valkey.url)
    state = f"{valkey.url}?timeout=5"
    with SimulatedUpstream(rate=10, burst=10) as simulated:
        options = {"limit": "10/s", "max_wait": 60}
        with started(WORKERS, "together", url=simulated.url, state=state, calls=CALLS, **options) as workers:
            time.sleep(WORKERS / 10 + 0.5)  # until what the workers asked beforehand has been filled up
            began_ns = time.monotonic_ns()
            answers = together(workers)
        assert [answer["statuses"] for answer in answers] == [[200] * CALLS] * WORKERS
        assert [answer["circuits"] for answer in answers] == [["closed"]] * WORKERS
        assert simulated.accepted == WORKERS + CALLS * WORKERS
        assert simulated.refused <= 2
    hold_to((max(answer["ended_ns"] for answer in answers) - began_ns) / 1e9, 1.15 * IDEAL_SECONDS)
