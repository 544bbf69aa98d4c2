"""Rare cases: bounds that are reached, forks, lost leases, and what other workers do meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cache.harness import PATIENCE_SECONDS, CacheHarness, FakeSource
from tests.support import wait_until

from comporta import CacheUnavailableError, HealthCache, Loaded
from comporta.cache import core, fetch, maintenance, repository, result_writer, serialization, single_flight
from comporta.cache.loader_result import missing_units, validate_result
from comporta.cache.maintenance import HeldLease
from comporta.cache.params import hash_params
from comporta.cache.repository import LocalBackoff
from comporta.cache.rows import AnswerCounts
from comporta.cache.stats import AnswerCounter
from comporta.database.base import Database, Statement
from comporta.errors import DatabaseSchemaError
from comporta.events import latest_events
from comporta.flow import run
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.testing import ManualClock

Q = {"q": 1}
HALF = {"succeeded_ufs": ["SP"], "failed_ufs": ["RJ"], "total_requested": 2}


@pytest.fixture
def cache(database: Database, clock: ManualClock) -> Iterator[CacheHarness]:
    harness = CacheHarness(new_cache(database, clock), None)
    yield harness
    harness.close()


def new_cache(database: Database, clock: ManualClock, **options: Any) -> HealthCache:
    defaults: dict[str, Any] = {"fresh": 100, "stale": 1000, "refresh_every": 50, "state": "memory://"}
    return HealthCache(database, migrate=False, clock=clock, **defaults | options)


def test_fetch__another_worker_fetches_for_too_long__raises(database: Database, clock: ManualClock) -> None:
    cache = CacheHarness(new_cache(database, clock, refresh_timeout=3), None)
    name = hash_params(Q)[0]
    assert cache.cache._core._tables.claim(name, "another", 3600).granted
    with pytest.raises(CacheUnavailableError, match="fetching it for too long"):
        cache.fetch(Q, FakeSource())
    cache.close()


def test_fetch__recent_success_but_row_removed__loads(cache: CacheHarness, source: FakeSource) -> None:
    cache.fetch(Q, source)
    cache.cache._core.database.write([Statement("DELETE FROM search_results_cache")], {})
    cache.cache.clear_local_cache()
    assert cache.fetch(Q, source).source == "origin"
    assert source.calls == 2


def test_fetch__recent_success_but_expired__loads(
    database: Database, clock: ManualClock, source: FakeSource
) -> None:
    cache = CacheHarness(new_cache(database, clock, fresh=0.001, stale=0.01), None)
    cache.fetch(Q, source)
    clock.advance(0.05)
    cache.cache.clear_local_cache()
    assert cache.fetch(Q, source).source == "origin"
    cache.close()


def test_fetch__another_worker_fetched_meanwhile__serves_that_result(
    cache: CacheHarness,
    database: Database,
    clock: ManualClock,
    source: FakeSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = new_cache(database, clock)
    claim_flow = repository.CacheRepository.claim_flow

    def late_claim_flow(self: repository.CacheRepository, *args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as restored:
            restored.setattr(repository.CacheRepository, "claim_flow", claim_flow)
            other.sync.fetch("bob", Q, lambda: ["other"])
        return claim_flow(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(repository.CacheRepository, "claim_flow", late_claim_flow)
        result = cache.fetch(Q, source)
    assert (result.value, source.calls) == (["other"], 0)
    other.sync.close()


def test_fetch__too_large_to_store__is_served_with_an_event(
    cache: CacheHarness, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_writer, "VALUE_BYTES_MAX", 3)
    assert cache.fetch(Q, source).value == ["a"]
    assert "at most 3 are allowed" in latest_events()[-1].text
    assert cache.cache._core._tables.read("ana", hash_params(Q)[0]) is None


def test_fetch__partial_mapping__is_merged(cache: CacheHarness, clock: ManualClock) -> None:
    def load(missing: list[str] | None = None) -> Any:
        return Loaded({"SP": 1}, HALF) if missing is None else {"RJ": 2}

    cache.fetch(Q, load)
    clock.advance(60)
    cache.fetch(Q, load)
    cache.settle()
    assert cache.fetch(Q, load).value == {"SP": 1, "RJ": 2}


def test_fetch__partial_with_totals__adds_the_totals(cache: CacheHarness, clock: ManualClock) -> None:
    def load(missing: list[str] | None = None) -> Any:
        return Loaded([1], HALF, total_results=5000) if missing is None else Loaded([2], total_results=300)

    cache.fetch(Q, load)
    clock.advance(60)
    cache.fetch(Q, load)
    cache.settle()
    result = cache.fetch(Q, load)
    assert (result.value, result.total_results) == ([1, 2], 5300)


def test_missing_units__loader_without_signature__are_empty(cache: CacheHarness) -> None:
    result = cache.fetch(Q, lambda: Loaded([], HALF))
    assert missing_units(result, dict.fromkeys) == ()
    assert missing_units(result, type) == ()


def test_fetch__very_many_users__validated_ids_stay_bounded(
    cache: CacheHarness, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "VALID_USERS_MAX", 2)
    for user in "abcde":
        cache.fetch(Q, source, user=user)
    assert len(cache.cache._core.valid_users) <= 2


def test_fetch__stale_and_too_many_loads__is_served(
    cache: CacheHarness, source: FakeSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.fetch(Q, source)
    clock.advance(150)
    monkeypatch.setattr(single_flight, "LOADS_MAX", 0)
    assert cache.fetch(Q, source).freshness == "stale"
    assert source.calls == 1


def test_fetch__load_abandoned_repeatedly__raises(
    cache: CacheHarness, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def abandoned_flow(self: fetch.CacheFetcher, job: Any, future: Any) -> Any:
        self.abandon(job, future)
        yield from ()

    monkeypatch.setattr(fetch.CacheFetcher, "load_flow", abandoned_flow)
    with pytest.raises(CacheUnavailableError, match="abandoned repeatedly"):
        cache.fetch(Q, source)


def test_load__flow_closed_half_way__completes_its_future(cache: CacheHarness, source: FakeSource) -> None:
    cache_core = cache.cache._core
    job = cache_core._new_job("ana", hash_params(Q)[0], b"{}", source)
    future, _ = cache_core.fetcher.single_flight.join(job.key)
    assert future is not None
    flow = cache_core.fetcher.load_flow(job, future)
    effect = next(flow)
    flow.send(effect.block())
    flow.close()
    wait_until(lambda: isinstance(future.error, fetch.FetchAbandonedError))


def test_refresh_due__no_refresh_can_start__returns_zero(
    database: Database, clock: ManualClock, source: FakeSource
) -> None:
    cache = CacheHarness(new_cache(database, clock, breaker_open=lambda: True), None)
    name = cache.fetch(Q, source).params_hash
    cache.cache._core._tables.mark_due(name)
    assert cache.refresh_due(lambda params: []) == 0
    cache.close()


def test_cached__repr__shows_the_main_fields(cache: CacheHarness, clock: ManualClock) -> None:
    result = cache.fetch(Q, lambda: Loaded(["a"], HALF))
    clock.advance(3)
    assert (
        repr(result) == "Cached(['a'], 'fresh', age=3.0, source='origin', coverage='1 of 2', next_retry=None)"
    )
    assert result.total_results == 1
    assert validate_result(5).total_results == 0


def test_repository__table_dropped_later__raises(cache: CacheHarness, source: FakeSource) -> None:
    cache.cache._core.database.write([Statement("ALTER TABLE search_fetches RENAME TO elsewhere")], {})
    try:
        with pytest.raises(DatabaseSchemaError):
            cache.fetch(Q, source)
    finally:
        cache.cache._core.database.write([Statement("ALTER TABLE elsewhere RENAME TO search_fetches")], {})


def test_local_backoff__very_many_keys__forgets_the_oldest(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "LOCAL_BACKOFF_KEYS_MAX", 2)
    backoff = LocalBackoff(clock)
    for key in "abc":
        backoff.record_failure(key)
    assert [backoff.remaining(key) for key in "abc"] == [0, 60, 60]
    backoff.after_fork()
    backoff.forget("b")
    assert backoff.remaining("b") == 0


def test_answer_counter__drained__resets_and_ignores_failing_sinks() -> None:
    class Failing(InMemoryMetrics):
        def counter(self, name: str, value: float, /, **labels: str) -> None:
            raise OSError(name)

    counter, sink = AnswerCounter(), InMemoryMetrics()
    before = use_metrics(sink)
    try:
        counter.count("hit", 3)
        assert sink.value("cache_answers", outcome="hit") == 3
        use_metrics(Failing())
        counter.count("miss")
    finally:
        use_metrics(before)
    assert counter.drain() == AnswerCounts(3, 0, 1)
    assert counter.drain() is None
    counter.count("stale")
    counter.after_fork()
    assert counter.drain() is None


def test_maintenance__lease_replaced__is_not_renewed_again(cache: CacheHarness) -> None:
    work = cache.cache._core._maintenance
    table = cache.cache._core._tables
    name = hash_params(Q)[0]
    token = table.claim(name, "me", 10).token
    work._leases[name] = HeldLease(token, 0.0, lambda: True)
    work.run_once()
    assert work._leases[name].renew_at > 0
    work._leases[name] = HeldLease(token - 1, 0.0, lambda: True)
    work.run_once()
    assert name not in work._leases
    work._renew(name, HeldLease(token, 0.0, lambda: True))
    work.drop_lease(name, token)


def test_maintenance__more_rows_than_its_bound__ignores_the_rest(
    cache: CacheHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ACCESSED_ROWS_MAX", 1)
    work = cache.cache._core._maintenance
    for user in "ab":
        work.record_access(user, "x" * 64)
        work.record_access(user, "x" * 64)
        work.record_saved(user, "x" * 64, saved=True)
    assert list(work._accesses.values()) == [2]
    assert len(work._saved) == 1
    work.flush()


def test_maintenance__accesses_pending__are_written_by_the_thread(
    database: Database, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "FLUSH_SECONDS", 0.01)
    cache = CacheHarness(HealthCache(database, migrate=False, state="memory://"), None)
    name = cache.fetch(Q, source).params_hash
    cache.cache.clear_local_cache()
    cache.fetch(Q, source)
    cache.wait_for(lambda: cache.row(name).access_count > 0)
    cache.close()
    cache.cache._core._maintenance.start()


def test_maintenance__a_run_fails__publishes_an_event_and_continues(
    database: Database, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(self: maintenance.CacheMaintenance) -> float:
        failed.set()
        raise OSError("odd")

    monkeypatch.setattr(maintenance.CacheMaintenance, "run_once", fail)
    cache = CacheHarness(HealthCache(database, migrate=False, state="memory://"), None)
    cache.fetch(Q, source)
    assert failed.wait(PATIENCE_SECONDS)
    cache.wait_for(lambda: "cache_maintenance_failed" in {event.kind for event in latest_events()})
    monkeypatch.undo()
    cache.close()


def test_maintenance__cache_collected__thread_ends(database: Database) -> None:
    cache = HealthCache(database, migrate=False, state="memory://")
    work = cache._core._maintenance
    work.start()
    thread = work._thread
    assert thread is not None
    del cache, work
    thread.wake.set()
    wait_until(lambda: not thread.is_alive())


def test_cache__after_a_fork__starts_empty(cache: CacheHarness, source: FakeSource) -> None:
    cache.fetch(Q, source)
    cache_core = cache.cache._core
    cache_core.fetcher.admit_refresh(3)
    cache_core.fetcher.after_fork()
    cache_core._maintenance.after_fork()
    assert cache_core.fetcher._refresh_count == 0
    assert cache.fetch(Q, source).source == "memory"


def test_fetch__saved_on_the_first_call__is_never_cold(cache: CacheHarness, source: FakeSource) -> None:
    name = cache.fetch(Q, source, saved=True).params_hash
    cache.flush()
    assert cache.row(name).priority == "warm"


def test_fetch__too_large_for_the_local_cache__is_still_counted(
    database: Database, clock: ManualClock, source: FakeSource
) -> None:
    cache = CacheHarness(new_cache(database, clock, local_bytes=1), None)
    name = cache.fetch(Q, source).params_hash
    assert cache.fetch(Q, source).source == "database"
    cache.flush()
    assert cache.row(name).access_count == 1
    assert cache.stats()["last_24_hours"]["hit_rate"] == 0.5
    cache.close()


def test_fetch__refused_while_database_unavailable__releases_no_lease(
    cache: CacheHarness, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.error = CacheUnavailableError("another cache", "x", 1.0)
    monkeypatch.setattr(repository, "ERROR_PAUSE_NS", 2**62)
    cache.cache._core._repository._failed_ns = dict.fromkeys(
        (repository.READ, repository.WRITE), time.monotonic_ns()
    )
    with pytest.raises(CacheUnavailableError, match="another cache"):
        cache.fetch(Q, source)
    assert run(cache.cache._core._repository.lease_remaining_flow("x")) == 0


def test_serialization__no_msgspec__names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    serialization._msgspec_json.cache_clear()
    try:
        with pytest.raises(ImportError, match="the cache needs msgspec"):
            serialization.decode_json(b"1")
    finally:
        serialization._msgspec_json.cache_clear()


def test_call_loader__awaitable_without_close__raises() -> None:
    class Odd:
        def __await__(self) -> Any: ...

    with pytest.raises(TypeError, match="loader must be a plain function in cache"):
        single_flight.CallLoader(Odd, 5).block()


def test_single_flight__thread_already_done__is_not_tracked() -> None:
    made, over = single_flight.SingleFlight(1.0), single_flight.SharedFuture()
    over.complete()
    made.track_thread(over)
    assert not made._threads
    made.remove("unknown", over)


def test_single_flight__tasks_of_a_closed_loop__are_ignored() -> None:
    made = single_flight.SingleFlight(1.0)
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    made.track_task(task)
    loop.run_until_complete(task)
    made._tasks.add(task)
    loop.close()
    made.close(0)


def test_record_failure__no_cached_value__leaves_the_local_cache_unchanged(
    cache: CacheHarness, source: FakeSource
) -> None:
    source.error = OSError("down")
    with pytest.raises(OSError, match="down"):
        cache.fetch(Q, source)
    assert len(cache.cache._core.local) == 0


def test_fetch__expired_while_refresh_failed__is_not_stored_locally(
    cache: CacheHarness, source: FakeSource, clock: ManualClock
) -> None:
    cache.fetch(Q, source)
    clock.advance(150)
    source.error = OSError("down")
    source.may_return.clear()
    assert cache.fetch(Q, source).freshness == "stale"
    assert source.called.wait(PATIENCE_SECONDS)
    cache.wait_for(lambda: source.calls == 2)
    cache.cache.clear_local_cache()
    clock.advance(900)
    source.may_return.set()
    cache.settle()
    assert len(cache.cache._core.local) == 0


def test_aclose__loads_running_in_threads__waits_for_them(
    database: Database, clock: ManualClock, source: FakeSource
) -> None:
    cache = HealthCache(database, migrate=False, state="memory://", fresh=1, refresh_every=0, clock=clock)
    cache.sync.save_to_cache("ana", Q, [])
    clock.advance(2)
    source.may_return.clear()
    cache.sync.fetch("ana", Q, source)
    assert source.called.wait(PATIENCE_SECONDS)
    threading.Timer(0.05, source.may_return.set).start()
    asyncio.run(cache.aclose())
    assert len(cache._core.fetcher.single_flight) == 0


class CountingLock:
    """A lock that counts the threads that acquire it or wait for it."""

    def __init__(self) -> None:
        self.acquisitions = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.acquisitions += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_maintenance__started_twice_at_once__runs_one_thread(cache: CacheHarness) -> None:
    work = cache.cache._core._maintenance
    lock = work._lock = CountingLock()  # type: ignore[assignment]  # a lock that counts who acquires it
    with lock:
        threads = [threading.Thread(target=work.start) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: lock.acquisitions == 3)  # both have seen no thread, and wait for the lock
    for thread in threads:
        thread.join()
    assert work._thread is not None
    assert work._thread.is_alive()


def test_maintenance__closed_before_it_started__does_not_start(cache: CacheHarness) -> None:
    work = cache.cache._core._maintenance
    work.close(0)
    work.hold_lease("key", 1, lambda: True)
    assert work._thread is None
