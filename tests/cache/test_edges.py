"""What happens seldom: bounds that are reached, forks, turns that are lost, and what others do meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cache.faces import PATIENCE_SECONDS, Face, Source
from tests.support import comes_true

from comporta import CacheUnavailableError, HealthCache, Loaded
from comporta.cache import asking, body, books, chores, flights, loading
from comporta.cache.answers import answer_of, missing_of
from comporta.cache.books import Alone
from comporta.cache.chores import Held
from comporta.cache.figures import Rates
from comporta.cache.params import hashed
from comporta.cache.rows import Answers
from comporta.database.base import Database, Statement
from comporta.errors import DatabaseSchemaError
from comporta.events import latest_events
from comporta.flow import run
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.testing import ManualClock

Q = {"q": 1}
HALF = {"succeeded_ufs": ["SP"], "failed_ufs": ["RJ"], "total_requested": 2}


@pytest.fixture
def face(database: Database, clock: ManualClock) -> Iterator[Face]:
    made = Face(another(database, clock), None)
    yield made
    made.close()


def another(database: Database, clock: ManualClock, **config: Any) -> HealthCache:
    given: dict[str, Any] = {"fresh": 100, "stale": 1000, "refresh_every": 50, "state": "memory://"}
    return HealthCache(database, migrate=False, clock=clock, **given | config)


def test_fetch__another_worker_fetches_for_too_long__is_refused(
    database: Database, clock: ManualClock
) -> None:
    face = Face(another(database, clock, refresh_timeout=3), None)
    name = hashed(Q)[0]
    assert face.cache._asking._table.claim(name, "somebody", 3600).granted
    with pytest.raises(CacheUnavailableError, match="fetching it for too long"):
        face.fetch(Q, Source())
    face.close()


def test_fetch__succeeded_just_now_but_the_row_is_gone__is_fetched(face: Face, source: Source) -> None:
    face.fetch(Q, source)
    face.cache._asking.database.write([Statement("DELETE FROM search_results_cache")], {})
    face.cache.forget_memory()
    assert face.fetch(Q, source).source == "origin"
    assert source.calls == 2


def test_fetch__succeeded_just_now_and_expired__is_fetched(
    database: Database, clock: ManualClock, source: Source
) -> None:
    face = Face(another(database, clock, fresh=0.001, stale=0.01), None)
    face.fetch(Q, source)
    clock.advance(0.05)
    face.cache.forget_memory()
    assert face.fetch(Q, source).source == "origin"
    face.close()


def test_fetch__another_fetched_while_one_looked__is_served_that(
    face: Face, database: Database, clock: ManualClock, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = another(database, clock)
    claiming = books.Books.claiming

    def late(self: books.Books, *given: Any, **named: Any) -> Any:
        with monkeypatch.context() as undone:
            undone.setattr(books.Books, "claiming", claiming)
            other.sync.fetch("bob", Q, lambda: ["other"])
        return claiming(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(books.Books, "claiming", late)
        found = face.fetch(Q, source)
    assert (found.value, source.calls) == (["other"], 0)
    other.sync.close()


def test_fetch__too_large_to_keep__is_served_and_said(
    face: Face, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "VALUE_BYTES_MAX", 3)
    assert face.fetch(Q, source).value == ["a"]
    assert "at most 3 are kept" in latest_events()[-1].text
    assert face.cache._asking._table.read("ana", hashed(Q)[0]) is None


def test_fetch__mapping_in_parts__is_joined(face: Face, clock: ManualClock) -> None:
    def load(missing: list[str] | None = None) -> Any:
        return Loaded({"SP": 1}, HALF) if missing is None else {"RJ": 2}

    face.fetch(Q, load)
    clock.advance(60)
    face.fetch(Q, load)
    face.settle()
    assert face.fetch(Q, load).value == {"SP": 1, "RJ": 2}


def test_fetch__parts_of_more_than_they_hold__totals_are_added(face: Face, clock: ManualClock) -> None:
    def load(missing: list[str] | None = None) -> Any:
        return Loaded([1], HALF, total_results=5000) if missing is None else Loaded([2], total_results=300)

    face.fetch(Q, load)
    clock.advance(60)
    face.fetch(Q, load)
    face.settle()
    found = face.fetch(Q, load)
    assert (found.value, found.total_results) == ([1, 2], 5300)


def test_missing__loader_that_does_not_tell__is_asked_for_all(face: Face) -> None:
    found = face.fetch(Q, lambda: Loaded([], HALF))
    assert missing_of(found, dict.fromkeys) == ()
    assert missing_of(found, type) == ()


def test_fetch__very_many_users__are_checked_anew(
    face: Face, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "USERS_MAX", 2)
    for user in "abcde":
        face.fetch(Q, source, user=user)
    assert len(face.cache._asking.users) <= 2


def test_fetch__stale_and_too_much_under_way__is_served(
    face: Face, source: Source, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    face.fetch(Q, source)
    clock.advance(150)
    monkeypatch.setattr(flights, "FLIGHTS_MAX", 0)
    assert face.fetch(Q, source).freshness == "stale"
    assert source.calls == 1


def test_fetch__ended_again_and_again__is_refused(
    face: Face, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(self: loading.Loads, job: Any, flight: Any) -> Any:
        self.gave_up(job, flight)
        yield from ()

    monkeypatch.setattr(loading.Loads, "load", ended)
    with pytest.raises(CacheUnavailableError, match="again and again"):
        face.fetch(Q, source)


def test_load__thrown_away_half_way__lands_all_the_same(face: Face, source: Source) -> None:
    parts = face.cache._asking
    job = parts._job("ana", hashed(Q)[0], b"{}", source)
    flight, _ = parts.loads.flights.join(job.key)
    assert flight is not None
    flow = parts.loads.load(job, flight)
    effect = next(flow)
    flow.send(effect.block())
    flow.close()
    comes_true(lambda: isinstance(flight.error, loading.AbandonedError))


def test_refresh_due__nothing_can_begin__is_none(
    database: Database, clock: ManualClock, source: Source
) -> None:
    face = Face(another(database, clock, breaker_open=lambda: True), None)
    name = face.fetch(Q, source).params_hash
    face.cache._asking._table.mark_due(name)
    assert face.refresh_due(lambda params: []) == 0
    face.close()


def test_cached__shown__says_what_matters(face: Face, clock: ManualClock) -> None:
    found = face.fetch(Q, lambda: Loaded(["a"], HALF))
    clock.advance(3)
    assert (
        repr(found) == "Cached(['a'], 'fresh', age=3.0, source='origin', coverage='1 of 2', next_retry=None)"
    )
    assert found.total_results == 1
    assert answer_of(5).total_results == 0


def test_books__missing_table_later__is_raised(face: Face, source: Source) -> None:
    face.cache._asking.database.write([Statement("ALTER TABLE search_fetches RENAME TO elsewhere")], {})
    try:
        with pytest.raises(DatabaseSchemaError):
            face.fetch(Q, source)
    finally:
        face.cache._asking.database.write([Statement("ALTER TABLE elsewhere RENAME TO search_fetches")], {})


def test_alone__very_many_keys__the_oldest_is_forgotten(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "KEYS_ALONE_MAX", 2)
    alone = Alone(clock)
    for key in "abc":
        alone.failed(key)
    assert [alone.left(key) for key in "abc"] == [0, 60, 60]
    alone.after_fork()
    alone.forget("b")
    assert alone.left("b") == 0


def test_rates__taken__begin_anew_and_sinks_may_fail() -> None:
    class Failing(InMemoryMetrics):
        def counter(self, name: str, value: float, /, **labels: str) -> None:
            raise OSError(name)

    rates, sink = Rates(), InMemoryMetrics()
    before = use_metrics(sink)
    try:
        rates.count("hit", 3)
        assert sink.value("cache_answers", outcome="hit") == 3
        use_metrics(Failing())
        rates.count("miss")
    finally:
        use_metrics(before)
    assert rates.taken() == Answers(3, 0, 1)
    assert rates.taken() is None
    rates.count("stale")
    rates.after_fork()
    assert rates.taken() is None


def test_chores__turn_is_another_s_by_now__is_not_renewed_again(face: Face) -> None:
    work = face.cache._asking._chores
    table = face.cache._asking._table
    name = hashed(Q)[0]
    token = table.claim(name, "me", 10).token
    work._held[name] = Held(token, 0.0, lambda: True)
    work.turn()
    assert work._held[name].at > 0
    work._held[name] = Held(token - 1, 0.0, lambda: True)
    work.turn()
    assert name not in work._held
    work._renew(name, Held(token, 0.0, lambda: True))
    work.drop(name, token)


def test_chores__bounds__are_kept(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "ROWS_MAX", 1)
    work = face.cache._asking._chores
    for user in "ab":
        work.note(user, "x" * 64)
        work.note(user, "x" * 64)
        work.save(user, "x" * 64, saved=True)
    assert list(work._accesses.values()) == [2]
    assert len(work._saved) == 1
    work.flush()


def test_chores__accesses_are_due__are_written_by_the_thread(
    database: Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "TOUCH_SECONDS", 0.01)
    face = Face(HealthCache(database, migrate=False, state="memory://"), None)
    name = face.fetch(Q, source).params_hash
    face.cache.forget_memory()
    face.fetch(Q, source)
    face.wait_for(lambda: face.row(name).access_count > 0)
    face.close()
    face.cache._asking._chores.start()


def test_chores__something_fails_there__is_said_and_it_goes_on(
    database: Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(self: chores.Chores) -> float:
        failed.set()
        raise OSError("odd")

    monkeypatch.setattr(chores.Chores, "turn", fail)
    face = Face(HealthCache(database, migrate=False, state="memory://"), None)
    face.fetch(Q, source)
    assert failed.wait(PATIENCE_SECONDS)
    face.wait_for(lambda: "cache_chores_failed" in {event.kind for event in latest_events()})
    monkeypatch.undo()
    face.close()


def test_chores__cache_is_gone__the_thread_ends(database: Database) -> None:
    cache = HealthCache(database, migrate=False, state="memory://")
    work = cache._asking._chores
    work.start()
    run = work._run
    assert run is not None
    del cache, work
    deadline = time.monotonic() + PATIENCE_SECONDS
    while run.lives():
        assert time.monotonic() < deadline
        run.wake.set()
        time.sleep(0.01)


def test_cache__after_a_fork__begins_anew(face: Face, source: Source) -> None:
    face.fetch(Q, source)
    parts = face.cache._asking
    parts.loads.admit(3)
    parts.loads.after_fork()
    parts._chores.after_fork()
    assert parts.loads._refreshing == 0
    assert face.fetch(Q, source).source == "memory"


def test_fetch__saved_from_the_first_call_on__is_never_cold(face: Face, source: Source) -> None:
    name = face.fetch(Q, source, saved=True).params_hash
    face.flush()
    assert face.row(name).priority == "warm"


def test_fetch__too_large_for_memory__is_counted_all_the_same(
    database: Database, clock: ManualClock, source: Source
) -> None:
    face = Face(another(database, clock, level_bytes=1), None)
    name = face.fetch(Q, source).params_hash
    assert face.fetch(Q, source).source == "database"
    face.flush()
    assert face.row(name).access_count == 1
    assert face.figures()["last_24_hours"]["hit_rate"] == 0.5
    face.close()


def test_fetch__refused_while_the_database_is_away__gives_nothing_back(
    face: Face, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.error = CacheUnavailableError("another cache", "x", 1.0)
    monkeypatch.setattr(books, "AWAY_NS", 2**62)
    face.cache._asking._books._failed_ns = dict.fromkeys((books.READ, books.WRITE), time.monotonic_ns())
    with pytest.raises(CacheUnavailableError, match="another cache"):
        face.fetch(Q, source)
    assert run(face.cache._asking._books.leased("x")) == 0


def test_body__no_msgspec__says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    body._json.cache_clear()
    try:
        with pytest.raises(ImportError, match="the cache needs msgspec"):
            body.decoded(b"1")
    finally:
        body._json.cache_clear()


def test_call__awaitable_that_cannot_be_closed__is_a_mistake_too() -> None:
    class Odd:
        def __await__(self) -> Any: ...

    with pytest.raises(TypeError, match="loader must be a plain function here"):
        flights.Call(Odd, 5).block()


def test_flights__thread_that_is_over_already__is_not_kept() -> None:
    made, over = flights.Flights(1.0), flights.Flight()
    over.land()
    made.keep(over)
    assert not made._threads
    made.leave("nobody's", over)


def test_flights__tasks_of_a_closed_loop__are_left_alone() -> None:
    made = flights.Flights(1.0)
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    made.keep_task(task)
    loop.run_until_complete(task)
    made._tasks.add(task)
    loop.close()
    made.close(0)


def test_failure__without_a_value_in_hand__leaves_memory_alone(face: Face, source: Source) -> None:
    source.error = OSError("down")
    with pytest.raises(OSError, match="down"):
        face.fetch(Q, source)
    assert len(face.cache._asking.level) == 0


def test_fetch__expired_while_its_refresh_failed__is_not_kept_in_memory(
    face: Face, source: Source, clock: ManualClock
) -> None:
    face.fetch(Q, source)
    clock.advance(150)
    source.error = OSError("down")
    source.go.clear()
    assert face.fetch(Q, source).freshness == "stale"
    assert source.asked.wait(PATIENCE_SECONDS)
    face.wait_for(lambda: source.calls == 2)
    face.cache.forget_memory()
    clock.advance(900)
    source.go.set()
    face.settle()
    assert len(face.cache._asking.level) == 0


def test_aclose__threads_under_way__are_waited_for(database: Database, source: Source) -> None:
    cache = HealthCache(database, migrate=False, state="memory://", fresh=0.001, refresh_every=0)
    cache.sync.save_to_cache("ana", Q, [])
    time.sleep(0.01)
    source.go.clear()
    cache.sync.fetch("ana", Q, source)
    assert source.asked.wait(PATIENCE_SECONDS)
    threading.Timer(0.05, source.go.set).start()
    asyncio.run(cache.aclose())
    assert len(cache._asking.loads.flights) == 0


def test_chores__two_start_at_once__one_thread_runs(face: Face) -> None:
    work = face.cache._asking._chores
    with work._lock:
        threads = [threading.Thread(target=work.start) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)  # both have found that there is none
    for thread in threads:
        thread.join()
    assert work._run is not None
    assert work._run.lives()


def test_chores__closed_before_they_began__begin_no_more(face: Face) -> None:
    work = face.cache._asking._chores
    work.close(0)
    work.hold("key", 1, lambda: True)
    assert work._run is None
