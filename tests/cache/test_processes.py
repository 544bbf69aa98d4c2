"""Caches in real processes: one fetch for all, killed fetchers, answers that change elsewhere."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.breaker.jobs import hits
from tests.cache.cache_jobs import Q
from tests.processes.fleet import Worker, new_name, remove, shared_url, started, together
from tests.support import hold_to

from comporta import HealthCache
from comporta.stores.urls import open_store
from comporta.testing import Server

CALLERS = 200
LEASE_SECONDS = 1.5
NOISE_SECONDS = 5.0
"""What a busy machine may take on top of what is promised."""


@pytest.fixture
def patient(database_url: str) -> str:
    return f"{database_url}{'&' if '?' in database_url else '?'}timeout=30"


@pytest.mark.parametrize("job", ["cache_crowd", "cache_crowd_blocking"])
def test_fetch__many_callers_in_two_processes__one_reaches_the_source(
    patient: str, tmp_path: Path, job: str
) -> None:
    backend = str(tmp_path / "backend")
    callers = CALLERS if job == "cache_crowd" else 40
    told = {"url": patient, "backend": backend, "callers": callers, "seconds": 0.2}
    with started(2, job, **told) as workers:
        assert together(workers) == [["['answer']"]] * 2
    assert hits(backend) == 1


def test_fetch__nothing_and_failing__one_call_of_fifty_in_each_of_two_processes_reaches_the_source(
    patient: str, tmp_path: Path
) -> None:
    backend = str(tmp_path / "backend")
    with started(2, "cache_fail", url=patient, backend=backend, times=50) as workers:
        told = together(workers)
    assert hits(backend) == 1
    assert {name for names in told for name in names} == {"OSError", "CacheUnavailableError"}


def test_fetch__fetcher_is_killed__another_takes_over_when_its_turn_ends(patient: str) -> None:
    with (
        Worker("cache_hang", number=0, url=patient, lease_seconds=LEASE_SECONDS) as first,
        Worker("cache_fetch_once", number=1, url=patient, lease_seconds=LEASE_SECONDS) as second,
    ):
        first.ready()
        second.ready()
        second.go()
        time.sleep(0.3)  # it waits for the first by now, or will: either way it has to
        killed_ns = time.monotonic_ns()
        first.kill()
        value, done_ns = second.answer()
    assert value == ["second"]
    hold_to((done_ns - killed_ns) / 1e9, LEASE_SECONDS + 1 + NOISE_SECONDS, "taking over")


@pytest.mark.parametrize("kind", ["shared", "redis"])
def test_fetch__changed_by_another_worker__is_seen_where_it_was_kept_in_memory(
    tmp_path: Path, kind: str, valkey: Server
) -> None:
    url, name = f"sqlite:///{tmp_path}/x.db?timeout=30", new_name()
    state = shared_url(name) if kind == "shared" else f"{valkey.url}?timeout=5"
    cache = HealthCache(url, state=state)
    try:
        cache.sync.fetch("ana", Q, lambda: ["old"])
        with Worker("cache_follow", number=0, url=url, state=state) as worker:
            worker.ready()
            worker.go()
            cache.sync.fetch("ana", Q, lambda: ["new"], force=True)
            assert worker.answer() == ["new"]
    finally:
        cache.sync.close()
        open_store(state).close()
        remove(name)
