"""The status and the history of the fleet, read from nothing but the store."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.fleet.conftest import DriveFlow
from tests.stores.manual_heartbeat import manual_failover
from tests.support import command, redis_store

from comporta import Upstream
from comporta.breaker.admission import worker_name
from comporta.errors import StateUnavailableError
from comporta.fleet import FleetCounters, FleetPublisher, fleet_history_flow, fleet_status_flow
from comporta.fleet.event_journal import merge_events
from comporta.fleet.reader import (
    FLEET,
    NAMES,
    UNREACHABLE,
    _waiting_by_upstream,
    encode_summary,
    remember_names_flow,
    upstream_summary_flow,
)
from comporta.flow import run
from comporta.limits.concurrency.operation import AcquirePermit
from comporta.limits.concurrency.permits import PermitPool, new_permit
from comporta.stores.base import Store
from comporta.stores.failover.worker_registry import RecordHeartbeat, Worker
from comporta.stores.journal import AppendToJournal
from comporta.stores.memory import MemoryStore
from comporta.stores.records import VALUE_BYTES_MAX, ReadRecord, WriteRecord
from comporta.testing import ManualClock, Server


def publish_calls(store: Store, counters: FleetCounters, *names: str, calls: int = 0) -> dict[str, Upstream]:
    upstreams = {name: Upstream(name, "10/s", max_concurrent=5, state=store) for name in names}
    for upstream in upstreams.values():
        for _ in range(calls):
            upstream.sync.call(lambda: None)
    FleetPublisher(store, upstreams, counters).publish()
    return upstreams


def event(at: float, worker: str = "a:1", **others: Any) -> bytes:
    plain = {"kind": "breaker_opened", "source": "pncp", "text": "open", "severity": "warning", **others}
    return json.dumps({"at": at, "worker": worker, **plain}).encode()


def test_status__nothing_published__is_empty(store: Store, drive: DriveFlow) -> None:
    status = drive(fleet_status_flow(store))
    assert status == {
        "upstreams": [],
        "workers": [],
        "events": [],
        "story": None,
        "reasons": [],
        "recent": {"cache": _no_columns("hits", "stale", "misses"), "service": _no_columns(*_SERVICE)},
        "minutes": {"cache": {"hits": 0, "stale": 0, "misses": 0}, "service": dict.fromkeys(_SERVICE, 0)},
    }


_SERVICE = ("requests", "errors", "refused")


def _no_columns(*names: str) -> dict[str, list[int]]:
    return {name: [] for name in ("starts", "slots", *names)}


def test_status__workers_published__shows_upstreams_and_holders(
    store: Store, drive: DriveFlow, counters: FleetCounters
) -> None:
    worker = Worker.new()
    pcp = Upstream("pcp", "10/s", max_concurrent=5, state=store)
    store.apply(AcquirePermit(PermitPool("pcp", 5, 60_000_000), new_permit()))
    store.apply(RecordHeartbeat(worker))
    store.apply(AppendToJournal("events", event(5.0)))
    store.apply(WriteRecord("comporta_story", "now", b'{"scenario": "outage"}', 600))
    publish_calls(store, counters, "pncp", calls=3)
    FleetPublisher(store, {"pcp": pcp}, counters).publish()
    status = drive(fleet_status_flow(store))
    assert [(summary["name"], summary["minute"]["calls"]) for summary in status["upstreams"]] == [
        ("pcp", 0),
        ("pncp", 3),
    ]
    [listed] = status["workers"]
    assert listed == {
        "name": f"{worker.host}:{worker.pid}",
        "host": worker.host,
        "pid": worker.pid,
        "started": worker.started,
        "last_heartbeat": 0.0,
        "fetches": 0,
        "jobs": 0,
        "probes": [],
        "permits": {"pcp": 1},
        "leases": {},
    }
    assert status["events"][0]["at"] == 5.0
    assert status["story"] == {"scenario": "outage"}
    assert status["recent"]["pncp"]["calls"] == [3]
    assert json.loads(json.dumps(status)) == status


def test_status__summaries_passed_in__take_precedence(clock: ManualClock, counters: FleetCounters) -> None:
    store = MemoryStore(clock)
    upstreams = publish_calls(store, counters, "pncp", "pcp", calls=1)
    own = {**run(upstream_summary_flow(upstreams["pncp"])), "in_words": "own"}
    status = run(fleet_status_flow(store, {"pncp": own}))["upstreams"]
    assert [(summary["name"], summary["in_words"]) for summary in status] == [
        ("pcp", "Closed: calls pass."),
        ("pncp", "own"),
    ]


def test_status__probe_in_flight__is_listed_with_its_worker(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    store.apply(RecordHeartbeat(Worker.new()))
    summary = {"name": "pncp", "probes": [worker_name()], "minute": None}
    [listed] = run(fleet_status_flow(store, {"pncp": summary}))["workers"]
    assert (listed["probes"], listed["permits"]) == (["pncp"], {})


def test_status__store_unreachable__shows_the_rest_with_a_reason(
    drive: DriveFlow, clock: ManualClock
) -> None:
    store, primary = manual_failover(clock)
    primary.error = StateUnavailableError("no route")
    summary = {"name": "pncp", "probes": [], "minute": {"calls": 1}}
    status = drive(fleet_status_flow(store, {"pncp": summary}))
    assert status["upstreams"] == [{**summary, "waiting": {}, "last_failures": []}]
    assert (status["workers"], status["events"], status["story"]) == (None, None, None)
    assert status["reasons"] == [UNREACHABLE]
    assert primary.calls == 1, "an unreachable store is not tried again"
    assert drive(fleet_history_flow(store))["series"] == {}


def test_status__one_key_of_wrong_type__shows_the_rest(valkey: Server, counters: FleetCounters) -> None:
    with redis_store(valkey, ManualClock(1_800_000_000)) as store:
        publish_calls(store, counters, "pncp", calls=2)
        command(valkey, "SET", "comporta_journal:events", "x")
        command(valkey, "SET", "comporta_history:cache", "x")
        status = run(fleet_status_flow(store))
    assert status["events"] is None
    assert status["upstreams"][0]["minute"]["calls"] == 2
    assert [reason.partition(" holds")[0] for reason in status["reasons"]] == [
        "one of 'comporta_history:cache'",
        "one of 'comporta_journal:events'",
    ]


def test_status__records_written_by_hand__are_left_out(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    names = f"{time.time():.0f} pncp\n{time.time():.0f} pcp\nyesterday old\n17\n5 no name\n"
    store.apply(WriteRecord(FLEET, NAMES, names.encode(), 60))
    store.apply(WriteRecord("comporta_upstreams", "pncp", b"no json", 60))
    store.apply(WriteRecord("comporta_upstreams", "pcp", b'["a list"]', 60))
    store.apply(AppendToJournal("events", b"no json", b"{}", event(1.0)))
    status = run(fleet_status_flow(store))
    assert status["upstreams"] == []
    assert len(status["events"]) == 1


def test_history__hour_of_an_upstream__has_every_slot(
    store: Store, drive: DriveFlow, clock: ManualClock, counters: FleetCounters
) -> None:
    upstreams = publish_calls(store, counters, "pncp", calls=2)
    clock.advance(100)
    counters.counter("http_requests", 3, status="200")
    counters.counter("upstream_calls", 1, upstream="pncp", outcome="open")
    FleetPublisher(store, upstreams, counters).publish()
    history = drive(fleet_history_flow(store))
    assert history["slot_seconds"] == 10
    assert list(history["series"]) == ["pncp", "latency.pncp", "cache", "service"]
    assert len(history["series"]["latency.pncp"]["latency_p95"]) == 1
    pncp = history["series"]["pncp"]
    assert (pncp["calls"], pncp["open"], pncp["limit"][0]) == ([2, 1], [0, 1], 10.0)
    assert pncp["starts"][1] - pncp["starts"][0] == pytest.approx(100)
    assert pncp["slots"][1] - pncp["slots"][0] == 10
    assert pncp["starts"][1] == pytest.approx(history["at"], abs=60)
    assert history["series"]["service"]["requests"] == [3]
    assert json.loads(json.dumps(history)) == history


def test_history__upstream_named_cache__has_a_distinct_label(
    clock: ManualClock, counters: FleetCounters
) -> None:
    store = MemoryStore(clock)
    publish_calls(store, counters, "cache", calls=1)
    series = run(fleet_history_flow(store))["series"]
    assert series["upstream.cache"]["calls"] == [1]
    assert series["cache"]["hits"] == []
    [summary] = run(fleet_status_flow(store))["upstreams"]
    assert summary["minute"]["calls"] == 1


def test_merge_events__same_event_from_several_workers__is_one() -> None:
    merged = merge_events(
        [
            event(100.0, "a:1"),
            event(11.0, "c:3"),
            event(10.5, "b:2", text="open for 29.9 s"),
            event(10.0, "a:1", text="open for 30 s"),
            event(10.2, "b:2", kind="breaker_closed"),
        ]
    )
    assert [(one["at"], one["kind"], one["workers"]) for one in merged] == [
        (100.0, "breaker_opened", 1),
        (10.2, "breaker_closed", 1),
        (10.0, "breaker_opened", 3),
    ]
    assert (merged[2]["worker"], merged[2]["text"]) == ("a:1", "open for 30 s")


def test_merge_events__actions_of_operators__are_never_merged() -> None:
    entries = [event(10.0, kind="admin", worker="a:1"), event(10.5, kind="admin", worker="b:2")]
    assert len(merge_events(entries)) == 2


def test_merge_events__twice_from_one_worker__is_two() -> None:
    assert [one["at"] for one in merge_events([event(11.0), event(10.0)])] == [11.0, 10.0]


def test_merge_events__identical_entries__are_one() -> None:
    assert [one["at"] for one in merge_events([event(10.0), event(11.0), event(10.0)])] == [11.0, 10.0]


def test_encode_summary__too_long__drops_the_holders_and_the_limits() -> None:
    summary = {"name": "pncp", "reason": "é" * 1000, "holders": {f"{'h' * 60}:{n}": 1 for n in range(40)}}
    assert len(encode_summary(summary)) <= VALUE_BYTES_MAX
    assert json.loads(encode_summary(summary)) == {**summary, "holders": {}, "limits": []}
    short = {**summary, "reason": ""}
    assert json.loads(encode_summary(short)) == short


def test_remember_names__again_within_a_minute__writes_no_columns(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    now = time.time()
    record = f"{now - 30:.0f} new\n{now - 1000:.0f} old\n{now - 4000:.0f} gone".encode()
    store.apply(WriteRecord(FLEET, NAMES, record, 60))
    assert run(remember_names_flow(store, ["new"])) == []
    assert store.apply(ReadRecord(FLEET, NAMES)) == record
    assert run(remember_names_flow(store, ["new", "old"])) == []
    renewed = store.apply(ReadRecord(FLEET, NAMES)) or b""
    assert {line.split()[1] for line in renewed.decode().splitlines()} == {"new", "old"}


def test_remember_names__more_than_fit__keeps_the_first(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    names = [f"{number:02}{'x' * 98}" for number in range(50)]
    without_room = run(remember_names_flow(store, names))
    record = store.apply(ReadRecord(FLEET, NAMES)) or b""
    assert [line.split()[1] for line in record.decode().splitlines()] + without_room == names
    assert VALUE_BYTES_MAX - 112 < len(record) <= VALUE_BYTES_MAX
    assert run(remember_names_flow(store, names[-1:])) == names[-1:]


def test_status__one_series_of_wrong_type__shows_the_others(
    valkey: Server, clock: ManualClock, counters: FleetCounters
) -> None:
    with redis_store(valkey, clock) as store:
        publish_calls(store, counters, "pncp", "pcp", calls=1)
        command(valkey, "SET", "comporta_history:upstream.pcp", "something else")
        status = run(fleet_status_flow(store))
        assert [summary["minute"].get("calls") for summary in status["upstreams"]] == [None, 1]
        [reason] = status["reasons"]
        assert "comporta_history:upstream.pcp" in reason


def test_merge_events__action_of_an_operator_and_what_workers_notice__is_one() -> None:
    merged = merge_events(
        [
            event(10.0, "a:1", kind="admin"),
            event(10.1, "a:1", kind="breaker_forced"),
            event(10.9, "b:2", kind="breaker_forced"),
            event(20.0, "b:2", kind="breaker_forced"),
        ]
    )
    assert [(one["at"], one["kind"], one["severity"]) for one in merged] == [
        (20.0, "breaker_forced", "warning"),
        (10.0, "admin", "warning"),
    ]


def test_merge_events__closing_of_a_circuit__belongs_to_a_reset_only() -> None:
    closed = event(10.5, "b:2", kind="breaker_closed", severity="info")
    reset = event(10.0, kind="admin", text="reset breaker (by root)", severity="info")
    paused = event(10.0, kind="admin", text="pause for 5 s (by root)", severity="info")
    assert [one["kind"] for one in merge_events([reset, closed])] == ["admin"]
    assert [one["kind"] for one in merge_events([paused, closed])] == ["breaker_closed", "admin"]


def test_waiting_callers__published_with_an_unknown_class__are_not_counted() -> None:
    published = {"one": {"pncp|batch": 1, "pncp|nonsense": 3}, "two": {"pncp|batch": 2, "pcp|normal": 4}}
    assert _waiting_by_upstream(published) == {"pncp": {"batch": 3}, "pcp": {"normal": 4}}
