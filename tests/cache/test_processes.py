"""Caches in real processes: one fetch for all, killed fetchers, results that another worker changes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.breaker.jobs import hits
from tests.cache.cache_jobs import Q
from tests.processes.fleet import (
    Worker,
    new_state_name,
    remove_shared_state,
    run_together,
    shared_url,
    start_workers,
)
from tests.support import assert_within

from comporta import HealthCache
from comporta.stores.registry import open_store
from comporta.testing import Server

CALLERS = 200
LEASE_SECONDS = 1.5
NOISE_SECONDS = 5.0
"""Tolerance for a busy machine."""


@pytest.fixture
def patient(database_url: str) -> str:
    return f"{database_url}{'&' if '?' in database_url else '?'}timeout=30"


@pytest.mark.parametrize("job", ["cache_crowd", "cache_crowd_blocking"])
def test_fetch__many_callers_in_two_processes__calls_the_source_once(
    patient: str, tmp_path: Path, job: str
) -> None:
    backend = str(tmp_path / "backend")
    callers = CALLERS if job == "cache_crowd" else 40
    options = {"url": patient, "backend": backend, "callers": callers, "seconds": 0.2}
    with start_workers(2, job, **options) as workers:
        assert run_together(workers) == [["['answer']"]] * 2
    assert hits(backend) == 1


def test_fetch__empty_and_failing_in_two_processes__calls_the_source_once(
    patient: str, tmp_path: Path
) -> None:
    backend = str(tmp_path / "backend")
    with start_workers(2, "cache_fail", url=patient, backend=backend, times=50) as workers:
        errors = run_together(workers)
    assert hits(backend) == 1
    assert {name for names in errors for name in names} == {"OSError", "CacheUnavailableError"}


def test_fetch__fetcher_is_killed__another_takes_over_after_its_lease(patient: str) -> None:
    with (
        Worker("cache_hang", number=0, url=patient, lease_seconds=LEASE_SECONDS) as first,
        Worker("cache_fetch_once", number=1, url=patient, lease_seconds=LEASE_SECONDS) as second,
    ):
        first.wait_ready()
        second.wait_ready()
        second.go()
        killed_ns = time.monotonic_ns()
        first.kill()
        value, done_ns = second.result()
    assert value == ["second"]
    assert_within((done_ns - killed_ns) / 1e9, LEASE_SECONDS + 1 + NOISE_SECONDS, "the takeover")


@pytest.mark.parametrize("kind", ["shared", "redis"])
def test_fetch__changed_by_another_worker__local_cache_serves_the_new_value(
    tmp_path: Path, kind: str, valkey: Server
) -> None:
    url, name = f"sqlite:///{tmp_path}/x.db?timeout=30", new_state_name()
    state = shared_url(name) if kind == "shared" else f"{valkey.url}?timeout=5"
    cache = HealthCache(url, state=state)
    try:
        cache.sync.fetch("ana", Q, lambda: ["old"])
        with Worker("cache_follow", number=0, url=url, state=state) as worker:
            worker.wait_ready()
            worker.go()
            cache.sync.fetch("ana", Q, lambda: ["new"], force=True)
            assert worker.result() == ["new"]
    finally:
        cache.sync.close()
        open_store(state).close()
        remove_shared_state(name)
