"""Overrides by one process apply to the next decision of every other process."""

from __future__ import annotations

from tests.processes.fleet import open_state, run_together, start_workers, with_long_timeout
from tests.processes.jobs import make_limiter

from comporta import Degradation

LIMIT = {"rate": 0.001, "capacity": 100}


def test_degradation__by_two_processes__adds_up_and_binds_a_third(state: str) -> None:
    with start_workers(2, "report_errors", url=with_long_timeout(state), limit=LIMIT, errors=4) as workers:
        assert run_together(workers) == [{"done": True}] * 2
    with open_state(state) as store:
        limiter = make_limiter(store, LIMIT)
        assert limiter.sync.stats().limit == 20
        assert [limiter.sync.acquire() for _ in range(21)].count(True) == 20


def test_worker__running__obeys_degradation_and_pause_by_another(state: str) -> None:
    with (
        open_state(state) as store,
        start_workers(1, "acquire_on_demand", url=with_long_timeout(state), limit=LIMIT) as [worker],
    ):
        limiter = make_limiter(store, LIMIT)
        assert worker.go().result() == {"allowed": True, "limit": 100}
        Degradation(limiter, drop=0.5).sync.record_error()
        assert worker.go().result() == {"allowed": True, "limit": 50}
        limiter.sync.pause(600)
        assert worker.go().result() == {"allowed": False, "limit": 50}
        limiter.sync.resume()
        assert worker.go().result() == {"allowed": True, "limit": 50}


def test_throttle__errors_in_two_processes__lower_one_partition_for_both(state: str) -> None:
    with start_workers(2, "degrade_and_acquire", url=with_long_timeout(state), errors=4) as workers:
        assert run_together(workers) == [{"done": True}] * 2
        for worker in workers:
            worker.wait_ready()
        one, two = run_together(workers)
    assert one["limit"] == two["limit"] == 20
    assert one["degraded"] + two["degraded"] == 2  # the burst: a tenth of 20
    assert one["other"] + two["other"] == 10
