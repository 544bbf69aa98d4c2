"""A worker publishes to the store, and no failure of the store affects the worker."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

import pytest
from tests.stores.manual_heartbeat import FailingStore, manual_failover, run_heartbeat
from tests.support import shared_store, wait_until, wait_until_async

from comporta import Upstream, events
from comporta.breaker.admission import worker_name
from comporta.breaker.config import BreakerConfig
from comporta.errors import StateFullError, StateUnavailableError
from comporta.fleet import FleetCounters, FleetPublisher, fleet_history_flow, fleet_status_flow, status_writer
from comporta.fleet.event_journal import encode_event
from comporta.fleet.reader import (
    FLEET,
    LEASES,
    NAMES,
    SUMMARIES,
    TURNS,
    WAITING,
    encode_summary,
    turn_key,
    worker_key,
)
from comporta.fleet.series import UPSTREAM_LAYOUT
from comporta.fleet.status_writer import COUNTS_MAX, EVENTS_MAX, EventBuffer, FleetStatusWriter
from comporta.flow import run
from comporta.limits.config import LimitConfig
from comporta.limits.limiter import BaseLimiter
from comporta.stores.base import Store
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import RecordHeartbeat, Worker
from comporta.stores.history import ReadHistory
from comporta.stores.journal import ReadJournal
from comporta.stores.memory import MemoryStore
from comporta.stores.records import DeleteRecord, ReadRecord, WriteRecord
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server
from comporta.threads import BackgroundThread


def make_calls(upstream: Upstream, times: int = 1) -> None:
    for _ in range(times):
        upstream.sync.call(lambda: "fine")


def published_calls(store: Store, name: str = "pncp") -> int:
    slots = store.apply(ReadHistory(f"upstream.{name}")).slots
    return sum(slot.numbers[UPSTREAM_LAYOUT.sums.index("calls")] for slot in slots)


def journal(store: Store) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in store.apply(ReadJournal("events"))]


def record_events(publisher: FleetPublisher, *texts: str) -> None:
    for text in texts:
        publisher._writer.events.record(events.Event(1.0, "kind", "source", text, "info"))


def test_publish__calls_made__publishes_counts_and_summary(
    store: Store, clock: ManualClock, counters: FleetCounters
) -> None:
    pncp = Upstream("pncp", "10/s", max_concurrent=5, state=store)
    publisher = FleetPublisher(store, {"pncp": pncp}, counters)
    make_calls(pncp, 3)
    publisher.publish()
    clock.advance(2)
    store.apply(DeleteRecord(TURNS, turn_key(["pncp"])))  # on a server it expires by the server's clock
    make_calls(pncp, 2)
    publisher.publish()
    [slot] = store.apply(ReadHistory("upstream.pncp")).slots
    assert slot.numbers[:2] == (5, 5)
    first = UPSTREAM_LAYOUT.first_gauge
    assert slot.numbers[first : first + 5] == (10_001, 9, 1, 1, 1), (
        "gauges are stored plus one, phases as bits"
    )
    record = store.apply(ReadRecord(SUMMARIES, "pncp"))
    assert record is not None
    summary = json.loads(record)
    assert (summary["name"], summary["tokens"], summary["in_flight"], summary["in_flight_max"]) == (
        "pncp",
        8,
        0,
        5,
    )
    assert summary["minute"] == {}, "readers get the last minute from the history"


def test_publish__several_workers__one_publishes_the_summary(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    pncp = Upstream("pncp", "10/s", state=store)
    publishers = [FleetPublisher(store, {"pncp": pncp}, FleetCounters()) for _ in range(3)]
    for publisher in publishers:
        publisher.publish()
    assert len(store.apply(ReadHistory("upstream.pncp")).slots) == 1
    store.apply(WriteRecord(SUMMARIES, "pncp", b"{}", 30))
    for publisher in publishers:
        publisher.publish()
    assert store.apply(ReadRecord(SUMMARIES, "pncp")) == b"{}", "the turn has not ended"
    clock.advance(1.6)
    publishers[2].publish()
    assert store.apply(ReadRecord(SUMMARIES, "pncp")) != b"{}"
    assert store.apply(ReadRecord(TURNS, turn_key(["pncp"]))) is not None


def test_publish__publishing_stopped__summary_expires_and_name_stays(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    FleetPublisher(store, {"pncp": Upstream("pncp", "10/s", state=store)}, FleetCounters()).publish()
    clock.advance(31)
    status = run(fleet_status_flow(store))
    assert status["upstreams"] == []
    assert (store.apply(ReadRecord(FLEET, NAMES)) or b"").endswith(b" pncp")


def test_publish__events__are_in_the_journal_with_their_worker(store: Store, counters: FleetCounters) -> None:
    publisher = FleetPublisher(store, {}, counters)
    record_events(publisher, *(f"number {number}" for number in range(120)))
    publisher.publish()
    status = journal(store)
    assert [event["text"] for event in status] == [f"number {number}" for number in range(119, -1, -1)]
    assert status[0]["worker"].endswith(f":{os.getpid()}")
    assert status[0].keys() == {"at", "kind", "source", "text", "severity", "worker"}
    publisher.publish()
    assert len(journal(store)) == 120, "no event is sent twice"


def test_publish__more_events_than_the_buffer__reports_how_many_were_dropped(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    publisher = FleetPublisher(store, {}, FleetCounters())
    record_events(publisher, *(f"number {number}" for number in range(EVENTS_MAX + 7)))
    publisher.publish()
    notice, last, *_ = journal(store)
    assert notice["text"] == "7 events of this worker were dropped: more than 200 were waiting"
    assert (notice["kind"], last["text"]) == ("events_dropped", f"number {EVENTS_MAX + 6}")
    publisher.publish()
    assert journal(store)[0] == notice, "the notice is sent once"


@pytest.mark.parametrize("text", ["é" * 1000, "x" * 1000, '"' * 1000])
def test_encode_event__too_long__is_truncated(text: str) -> None:
    event = events.Event(1.5, "kind" * 100, "source" * 100, text, "info")
    entry = encode_event(event)
    assert len(entry) <= 1000
    assert json.loads(entry)["severity"] == "info"


def failover_store() -> tuple[FailoverStore, FailingStore, ManualClock, Upstream]:
    clock = ManualClock(1_800_000_000)
    store, primary = manual_failover(clock)
    return store, primary, clock, Upstream("pncp", "1000/s", state=store)


def recover(store: FailoverStore) -> None:
    for _ in range(5):
        run_heartbeat(store)
    assert store.fallback is None


def test_publish__store_down_briefly__skips_it_and_publishes_on_recovery(counters: FleetCounters) -> None:
    store, primary, clock, pncp = failover_store()
    publisher = FleetPublisher(store, {"pncp": pncp}, counters)
    primary.error = StateUnavailableError("no route")
    publisher.publish()
    assert store.fallback is not None
    calls_before = primary.calls
    make_calls(pncp, 4)
    record_events(publisher, "during it")
    for _ in range(10):
        publisher.publish()
        clock.advance(2)
    assert primary.calls == calls_before
    primary.error = None
    recover(store)
    publisher.publish()
    assert published_calls(store) == 4
    assert [event["text"] for event in journal(store)] == ["during it"]


def test_publish__store_fails_while_sending_events__sends_them_on_recovery(counters: FleetCounters) -> None:
    store, primary, _, _ = failover_store()
    publisher = FleetPublisher(store, {}, counters)
    for number in range(3):
        record_events(publisher, f"{number}")
    primary.error = StateUnavailableError("no route")
    publisher.publish()
    assert store.fallback is not None
    primary.error = None
    recover(store)
    publisher.publish()
    assert [event["text"] for event in journal(store)] == ["2", "1", "0"]
    assert not publisher._writer.events.dropped


def test_publish__unsent_events_exceed_the_buffer__counts_dropped_events(
    counters: FleetCounters,
) -> None:
    buffer = EventBuffer()
    for number in range(EVENTS_MAX - 1):
        buffer.record(events.Event(float(number), "k", "s", "t", "info"))
    unsent = [events.Event(float(number), "k", "s", "t", "info") for number in range(5)]
    buffer.put_back(unsent)
    assert (buffer.snapshot()[0], len(buffer.snapshot()), buffer.dropped) == (unsent[-1], EVENTS_MAX, 4)
    buffer.put_back(unsent)
    assert (buffer.snapshot()[0], buffer.dropped) == (unsent[-1], 9)


def test_publish__bug_with_one_upstream__publishes_the_others(
    counters: FleetCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    upstreams = {name: Upstream(name, "10/s", state=store) for name in ("a", "b")}

    def fail_for_a(summary: Mapping[str, Any]) -> bytes:
        if summary["name"] == "a":
            raise ValueError("a summary that is too long")
        return encode_summary(summary)

    monkeypatch.setattr(status_writer, "encode_summary", fail_for_a)
    make_calls(upstreams["a"])
    FleetPublisher(store, upstreams, counters).publish()
    assert store.apply(ReadRecord(SUMMARIES, "b")) is not None
    assert store.apply(ReadHistory("upstream.a")).slots[0].numbers[0] == 1


def test_publish__store_down_over_a_minute__drops_old_counts(counters: FleetCounters) -> None:
    store, primary, clock, pncp = failover_store()
    publisher = FleetPublisher(store, {"pncp": pncp}, counters)
    primary.error = StateUnavailableError("no route")
    publisher.publish()
    make_calls(pncp, 4)
    clock.advance(61)
    publisher.publish()
    make_calls(pncp, 1)
    clock.advance(10)
    publisher.publish()
    primary.error = None
    recover(store)
    publisher.publish()
    assert published_calls(store) == 1


def test_publish__store_fails_while_reading_health__publishes_no_summary(counters: FleetCounters) -> None:
    store, primary, _, pncp = failover_store()

    summaries: list[object] = []

    class FailingWriter(FleetStatusWriter):
        def _take_turn(self, names: Iterable[str]) -> bool:
            has_turn = super()._take_turn(names)
            primary.error = StateUnavailableError("no route")
            return has_turn

        def _publish_summary(self, name: str, upstream: Upstream) -> dict[str, Any] | None:
            summaries.append(super()._publish_summary(name, upstream))
            return None

    make_calls(pncp)
    FailingWriter(store, {"pncp": pncp}, counters._pending, 2.0).publish()
    primary.error = None
    assert summaries == [None]
    assert counters._pending.series() == ["upstream.pncp", "latency.pncp"], "unsent counts are kept"
    assert primary.apply(ReadRecord(SUMMARIES, "pncp")) is None


@pytest.mark.parametrize("guarded", [False, True])
def test_publish__more_upstreams_than_the_table_holds__publishes_the_first(
    counters: FleetCounters, guarded: bool
) -> None:
    with shared_store(memory=5) as shared:
        store: Store = FailoverStore.wrap(shared, "shared://") if guarded else shared
        upstreams = {name: Upstream(name, "10/s", state=store) for name in "edcba"}
        publisher = FleetPublisher(store, upstreams, counters)
        counters.counter("cache_answers", 1, outcome="hit")
        publisher.publish()
        assert shared.large_states_max == 5
        status = {name: len(store.apply(ReadHistory(f"upstream.{name}")).slots) for name in "abcde"}
        assert status == {"a": 1, "b": 1, "c": 1, "d": 0, "e": 0}
        assert len(store.apply(ReadHistory("cache")).slots) == 1
        assert all(store.apply(ReadRecord(SUMMARIES, name)) for name in "abcde"), (
            "summaries are published anyway"
        )
        reports = {event.source: event.text for event in events.latest_events()}
        assert reports["upstream.e"] == "its history is not stored: the table has room for 5 histories"
        if isinstance(store, FailoverStore):
            store.heartbeat.stop()


class FullStore(MemoryStore):
    """A store in memory without room for keys of one space."""

    full = "comporta_history"

    def apply(self, operation: Any) -> Any:
        if any(key.space.startswith(self.full) for key in operation.state_keys):
            raise StateFullError("no room")
        return super().apply(operation)


@pytest.mark.parametrize("guarded", [False, True])
def test_publish__no_room_for_one_record__publishes_the_rest_and_one_event(
    clock: ManualClock, counters: FleetCounters, guarded: bool
) -> None:
    full = FullStore(clock)
    store: Store = FailoverStore.wrap(full, "full://") if guarded else full
    publisher = FleetPublisher(store, {}, counters)
    counters.counter("cache_answers", 1, outcome="hit")
    record_events(publisher, "published anyway")
    publisher.publish()
    counters.counter("cache_answers", 1, outcome="hit")
    publisher.publish()
    assert [event["text"] for event in journal(full)] == ["published anyway"]
    reports = [event for event in events.latest_events() if event.kind == "fleet_publish_failed"]
    assert [(event.source, event.text) for event in reports] == [
        ("cache", "the fleet status is incomplete: no room")
    ]
    store.close()


def test_publish__too_many_upstream_names__publishes_an_event(
    clock: ManualClock, counters: FleetCounters
) -> None:
    store = MemoryStore(clock)
    many = "\n".join(f"{time.time():.0f} {'x' * 90}{number}" for number in range(39))
    store.apply(WriteRecord(FLEET, NAMES, many.encode(), 60))
    pncp = Upstream("p" * 100, "10/s", state=store)
    FleetPublisher(store, {pncp.name: pncp}, counters).publish()
    [report] = [event for event in events.latest_events() if event.kind == "fleet_publish_failed"]
    assert report.text.startswith("too many upstream names: the fleet status will not show ppp")


@pytest.mark.parametrize("interval", [0.001, 11])
def test_publisher__invalid_interval__raises(interval: float) -> None:
    with pytest.raises(ValueError, match=f"interval must be 0.01 to 10 seconds, got {interval}"):
        FleetPublisher(MemoryStore(), {}, FleetCounters(), interval=interval)


def test_publisher__started__publishes_periodically_and_once_on_close(counters: FleetCounters) -> None:
    store = MemoryStore()
    pncp = Upstream("pncp", "1000/s", breaker=BreakerConfig(2, 60), retry=False, state=store)
    publisher = FleetPublisher(store, {"pncp": pncp}, counters, interval=0.02)
    publisher.start()
    publisher.start()
    make_calls(pncp, 2)
    wait_until(lambda: published_calls(store) == 2)
    for _ in range(2):
        with suppress(OSError):
            pncp.sync.call(_fails)
    FleetPublisher(store, {}, FleetCounters()).close()
    publisher.close()
    assert published_calls(store) == 4
    kinds = [event["kind"] for event in journal(store) if not event["kind"].startswith("state_")]
    assert kinds == ["breaker_opened"]  # stores that other tests left open may report, too
    publisher.close()
    with suppress(Exception):
        make_calls(pncp)
    assert published_calls(store) == 4, "a closed publisher sends nothing"


def test_publisher__closed_during_a_run__publishes_later_counts_too(counters: FleetCounters) -> None:
    store = MemoryStore()
    pncp = Upstream("pncp", "1000/s", state=store)
    has_run, may_return = Lock(), Lock()
    may_return.acquire()
    publisher = FleetPublisher(store, {"pncp": pncp}, counters, interval=0.01)
    publish = publisher._writer.publish

    def publish_and_wait() -> None:
        publish()
        if has_run.acquire(blocking=False):
            may_return.acquire()

    publisher._writer.publish = publish_and_wait  # type: ignore[method-assign]  # stops within a run
    publisher.start()
    wait_until(has_run.locked)
    make_calls(pncp, 3)
    thread = publisher._loop.thread
    assert thread is not None
    thread.publishes_rest = thread.stop_requested = True  # the first step of close()
    may_return.release()
    publisher.close()
    assert published_calls(store) == 3


def _fails() -> None:
    raise OSError("gone")


def test_publisher__bug__publishes_one_event_and_the_thread_continues(counters: FleetCounters) -> None:
    store = MemoryStore()
    runs: list[int] = []

    def fail() -> None:
        runs.append(1)
        raise ZeroDivisionError("oops")

    publisher = FleetPublisher(store, {}, counters, interval=0.01)
    publisher._writer.publish = fail  # type: ignore[method-assign]  # stands for a bug
    publisher.start()
    wait_until(lambda: len(runs) > 3)
    publisher.close()
    reports = [event.text for event in events.latest_events() if event.kind == "fleet_publish_failed"]
    assert reports == ["ZeroDivisionError('oops')"]


def test_publisher__garbage_collected__thread_ends_and_listener_is_inert(counters: FleetCounters) -> None:
    publisher = FleetPublisher(MemoryStore(), {}, counters, interval=0.01)
    publisher.start()
    thread, unsubscribe = publisher._loop.thread, publisher._unsubscribe
    assert thread is not None
    assert unsubscribe is not None
    del publisher
    wait_until(lambda: bool(gc.collect()) or not thread.is_alive())
    wait_until(lambda: not thread.is_alive())
    events.publish("kind", "source", "no listener is left", "info")
    counters.counter("cache_answers", 1, outcome="hit")
    unsubscribe()


def test_publisher__no_thread_available__retries_with_the_next_count(
    counters: FleetCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    publisher = FleetPublisher(store, {}, counters, interval=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundThread, "start", lambda *_, **__: False)
        publisher.start()
    assert publisher._loop.thread is None
    counters.counter("cache_answers", 1, outcome="hit")
    wait_until(lambda: bool(store.apply(ReadHistory("cache")).slots))
    publisher.close()


def test_publisher__another_thread_started_it_meanwhile__starts_no_second_thread(
    counters: FleetCounters,
) -> None:
    loop = FleetPublisher(MemoryStore(), {}, counters)._loop
    answers = iter([False, True])
    loop._is_running = lambda: next(answers)  # type: ignore[method-assign]  # before and inside the lock
    loop.start()
    assert loop.thread is None


def test_publisher__fork__parent_resumes_and_child_starts_with_its_first_count() -> None:
    with shared_store() as store:
        counters = FleetCounters()
        publisher = FleetPublisher(store, {}, counters, interval=0.02)
        idle = FleetPublisher(store, {}, FleetCounters())
        publisher.start()
        counters.counter("cache_answers", 1, outcome="hit")
        wait_until(lambda: bool(store.apply(ReadHistory("cache")).slots))
        publisher._writer.events.record(events.Event(1.0, "kind", "source", "of the parent", "info"))
        child = os.fork()
        if not child:  # pragma: no cover - coverage does not see the child
            code = 1
            with suppress(BaseException):
                assert not _is_running(publisher)
                counters.counter("cache_answers", 0, outcome="stale")
                assert _is_running(publisher)
                counters.counter("cache_answers", 10, outcome="hit")
                publisher.close()
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        counters.counter("cache_answers", 1, outcome="hit")
        wait_until(lambda: _hits(store) == 12)
        publisher.close()
        texts = [event["text"] for event in journal(store) if event["source"] == "source"]
        assert texts == ["of the parent"]  # and maybe events of stores that other tests left open
        assert idle._loop.thread is None


def _is_running(publisher: FleetPublisher) -> bool:
    return publisher._loop.thread is not None


def _hits(store: Store) -> int:
    return sum(slot.numbers[0] for slot in store.apply(ReadHistory("cache")).slots)


def test_publisher__in_a_forked_child__has_no_thread_and_nothing_to_publish(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    publisher = FleetPublisher(store, {}, FleetCounters())
    record_events(publisher, *["of the parent"] * (EVENTS_MAX + 1))
    publisher._writer.events.after_fork()
    publisher._loop.after_fork()
    publisher.publish()
    assert journal(store) == []


def test_publish__unused_breaker__is_read_without_polling(counters: FleetCounters) -> None:
    store, _, _, pncp = failover_store()
    FleetPublisher(store, {"pncp": pncp}, counters).publish()
    assert pncp.breaker is not None
    view = pncp.breaker._flows.view
    assert view.state.reply is not None
    assert view.poller.heartbeat_operation() is None, "the heartbeat does not poll an unused breaker"
    make_calls(pncp)
    assert view.poller.heartbeat_operation() is not None


def test_publisher__server_killed_and_back__publishes_counts_from_the_outage(counters: FleetCounters) -> None:
    with Server() as server:
        store = FailoverStore.wrap(RedisStore(server.url, timeout=5, connect_timeout=5), server.url)
        pncp = Upstream("pncp", "1000/s", state=store)
        publisher = FleetPublisher(store, {"pncp": pncp}, counters, interval=0.02)
        publisher.start()
        make_calls(pncp)
        wait_until(lambda: published_calls(store) == 1)
        server.kill()
        wait_until(lambda: store.fallback is not None)
        make_calls(pncp, 3)
        server.start()
        wait_until(lambda: store.fallback is None)
        wait_until(lambda: published_calls(store) >= 3)
        wait_until(lambda: any(event["kind"] == "state_recovered" for event in journal(store)))
        publisher.close()
        assert {event["kind"] for event in journal(store)} >= {"state_fallback", "state_recovered"}
        store.close()


def test_publish__units_on_lease__are_published_until_returned() -> None:
    store = MemoryStore()  # leases need a clock that moves on its own
    limiter = BaseLimiter(LimitConfig(100, 100, lease=10), store, "pncp")
    elsewhere = BaseLimiter(LimitConfig(100, 100, lease=10), MemoryStore(), "pcp")
    publisher, worker = FleetPublisher(store, {}, FleetCounters()), Worker.new()

    def published_leases() -> dict[str, int]:
        publisher.publish()
        store.apply(RecordHeartbeat(worker))
        [listed] = run(fleet_status_flow(store))["workers"]
        leases: dict[str, int] = listed["leases"]
        return leases

    def has_leases() -> bool:
        return all(one.sync.acquire() for one in (limiter, elsewhere)) and published_leases() != {}

    assert published_leases() == {}
    assert store.apply(ReadRecord(FLEET, LEASES)) is None, "no record without leases"
    wait_until(has_leases)
    assert store.apply(ReadRecord(FLEET, LEASES)) is not None
    assert limiter._flows.lease_client is not None
    limiter._flows.lease_client.return_all()
    assert published_leases() == {}
    assert json.loads(store.apply(ReadRecord(FLEET, worker_key(LEASES, worker_name()))) or b"") == {}


def test_publish__callers_wait__counts_them_by_upstream_and_class() -> None:
    store = MemoryStore()
    upstream = Upstream("well", limit="1/minute", max_wait=600, state=store)
    publisher = FleetPublisher(store, {"well": upstream}, FleetCounters())

    def waiting() -> dict[str, int]:
        publisher.publish()
        [summary] = run(fleet_status_flow(store))["upstreams"]
        counts: dict[str, int] = summary["waiting"]
        return counts

    async def call(priority: str) -> None:
        await upstream.options(priority=priority).call(asyncio.sleep, 0)

    async def all_wait() -> bool:
        return sum(upstream._policies.waiting_by_class().values()) == 3

    async def scenario() -> None:
        await call("normal")
        assert waiting() == {}
        assert store.apply(ReadRecord(FLEET, WAITING)) is None, "no record if no caller waits"
        names = ("batch", "interactive", "interactive")
        tasks = [asyncio.create_task(call(name)) for name in names]
        await wait_until_async(all_wait)
        assert list(waiting().items()) == [("interactive", 2), ("batch", 1)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert waiting() == {}

    asyncio.run(scenario())


def test_publish__more_leased_limits_than_the_bound__publishes_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = {f"limit-{number}": 1 + number for number in range(COUNTS_MAX + 1)}
    monkeypatch.setattr(status_writer, "leased_units", lambda _: many)
    store = MemoryStore()
    FleetPublisher(store, {}, FleetCounters()).publish()
    leases = json.loads(store.apply(ReadRecord(FLEET, worker_key(LEASES, worker_name()))) or b"")
    assert leases.keys() == many.keys() - {"limit-0"}


def test_publish__circuit_opened_and_closed_between_runs__is_in_the_history(
    clock: ManualClock,
) -> None:
    store = MemoryStore(clock)
    pncp = Upstream("pncp", "10/s", breaker=BreakerConfig(threshold=3), state=store)
    publisher = FleetPublisher(store, {"pncp": pncp}, FleetCounters())
    now = time.time()
    for at, kind, source in (
        (now, "breaker_opened", "pncp"),
        (now - 60, "breaker_half_open", "pncp"),
        (now, "breaker_opened", "another"),
        (now, "deployed", "pncp"),
    ):
        publisher._writer.events.record(events.Event(at, kind, source, "", "info"))
    publisher.publish()
    publisher.publish()
    status = run(fleet_history_flow(store))["series"]
    assert status["pncp"]["phases"] == [[2, 0]]
    assert status["pncp"]["phase"] == [2], "the worst phase"
    assert "another" not in status


def test_publisher__no_reader__publishes_less_often(clock: ManualClock, counters: FleetCounters) -> None:
    store, _ = manual_failover(clock)
    publisher = FleetPublisher(store, {}, counters, interval=2)
    loop = publisher._loop
    assert loop.next_interval() == 2, "until it knows"
    run_heartbeat(store)
    assert loop.next_interval() == 10
    run(fleet_status_flow(store))
    run_heartbeat(store)
    assert loop.next_interval() == 2


def test_publisher__reader_comes__publishes_at_once(counters: FleetCounters) -> None:
    store, _ = manual_failover()
    publisher = FleetPublisher(store, {}, counters, interval=10)
    publisher.start()
    loop, runs = publisher._loop, []
    loop.on_watched(None)
    loop.writer.publish = lambda: runs.append(1)  # type: ignore[method-assign]
    loop.on_watched(b"1")
    wait_until(lambda: runs)
    publisher.close()
    loop.on_watched(None)
    loop.on_watched(b"1")
    assert loop.thread is None


def test_publish__store_fails_while_events_are_sent__sends_them_later(counters: FleetCounters) -> None:
    store = MemoryStore(ManualClock())
    publisher = FleetPublisher(store, {}, counters)
    record_events(publisher, "kept")
    writer = publisher._writer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_append_events", _refuse_events)
        with pytest.raises(StateUnavailableError):
            writer._publish_events()
    assert journal(store) == []
    writer._publish_events()
    assert [event["text"] for event in journal(store)] == ["kept"]


def _refuse_events(batch: object) -> None:
    raise StateUnavailableError("the server is gone")
