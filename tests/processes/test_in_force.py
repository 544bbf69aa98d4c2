"""What one process lowers or pauses, another obeys at its next decision."""

from __future__ import annotations

from tests.processes.fleet import opened, started, together
from tests.processes.jobs import limiter_of

from comporta import Degradation

LIMIT = {"rate": 0.001, "capacity": 100}


def patient(url: str) -> str:
    """Return the URL of the same state for who has time."""
    return url if "?" in url else f"{url}?timeout=5"


def test_drops__of_two_processes_at_once__add_up_and_bind_a_third(state: str) -> None:
    with started(2, "report_errors", url=patient(state), limit=LIMIT, errors=4) as workers:
        assert together(workers) == [{"done": True}] * 2
    with opened(state) as store:
        limiter = limiter_of(store, LIMIT)
        assert limiter.sync.stats().limit == 20
        assert [limiter.sync.acquire() for _ in range(21)].count(True) == 20


def test_worker__that_has_decided_already__obeys_a_drop_and_a_pause_of_another(state: str) -> None:
    with opened(state) as store, started(1, "ask_when_told", url=patient(state), limit=LIMIT) as [worker]:
        limiter = limiter_of(store, LIMIT)
        assert worker.go().answer() == {"allowed": True, "limit": 100}
        Degradation(limiter, drop=0.5).sync.record_error()
        assert worker.go().answer() == {"allowed": True, "limit": 50}
        limiter.sync.pause(600)
        assert worker.go().answer() == {"allowed": False, "limit": 50}
        limiter.sync.resume()
        assert worker.go().answer() == {"allowed": True, "limit": 50}


def test_throttle__errors_of_two_processes__lower_one_partition_for_both_and_no_other(state: str) -> None:
    with started(2, "degrade_and_take", url=patient(state), errors=4) as workers:
        assert together(workers) == [{"done": True}] * 2
        for worker in workers:
            worker.ready()
        one, two = together(workers)
    assert one["limit"] == two["limit"] == 20
    assert one["degraded"] + two["degraded"] == 2  # its burst, a tenth of 20
    assert one["other"] + two["other"] == 10
