"""The latest failures of an upstream: recorded by calls, published by every worker, read by all."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

import pytest
from tests.fleet.conftest import DriveFlow

from comporta import BreakerConfig, Outcome, Upstream
from comporta.fleet import FleetCounters, FleetPublisher, fleet_status_flow, upstream_summary_flow
from comporta.fleet.failures import FailurePublisher
from comporta.fleet.reader import FLEET, failures_key
from comporta.flow import run
from comporta.stores.base import Operation, Store
from comporta.stores.memory import MemoryStore
from comporta.stores.records import VALUE_BYTES_MAX, ReadRecord, WriteRecord
from comporta.testing import ManualClock
from comporta.upstream.recent_failures import FAILURES_MAX, RecentFailures


def make_upstream(store: Store, **options: Any) -> Upstream:
    """Return an upstream whose circuit stays closed."""
    breaker = BreakerConfig(threshold=1000)
    return Upstream("pncp", "1000/s", state=store, **{"breaker": breaker, "retry": False, **options})


def fail(upstream: Upstream, *texts: str) -> None:
    """Make one failing call for each text."""

    def raise_error(text: str) -> None:
        raise ConnectionResetError(text)

    for text in texts:
        with suppress(ConnectionResetError):
            upstream.sync.call(raise_error, text)


def shown_texts(store: Store) -> list[str]:
    """Return the texts of the failures that a page would show."""
    [summary] = run(fleet_status_flow(store))["upstreams"]
    return [failure["text"] for failure in summary["last_failures"]]


def test_failures__more_than_the_maximum__the_latest_are_shown_with_time_and_worker(
    store: Store, counters: FleetCounters, drive: DriveFlow
) -> None:
    pncp = make_upstream(store)
    publisher = FleetPublisher(store, {"pncp": pncp}, counters)
    pncp.sync.call(lambda: "ok")
    fail(pncp, *(f"number {number}" for number in range(FAILURES_MAX + 2)))
    publisher.publish()
    failures = drive(upstream_summary_flow(pncp))["last_failures"]
    assert [failure["text"] for failure in failures] == [
        f"ConnectionResetError: number {number}" for number in range(FAILURES_MAX + 1, 1, -1)
    ]
    assert all(failure["worker"].endswith(f":{os.getpid()}") for failure in failures)
    assert failures == run(fleet_status_flow(store))["upstreams"][0]["last_failures"]


def test_failures__of_two_workers__are_merged_by_time(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    workers = [make_upstream(store) for _ in range(2)]
    publishers = [FleetPublisher(store, {"pncp": worker}, FleetCounters()) for worker in workers]
    fail(workers[0], "a")
    fail(workers[1], "b")
    fail(workers[0], "c")
    for publisher in publishers:
        publisher.publish()
    assert [text[-1] for text in shown_texts(store)] == ["c", "b", "a"]
    record = store.apply(ReadRecord(FLEET, failures_key("pncp")))
    publishers[0].publish()
    assert store.apply(ReadRecord(FLEET, failures_key("pncp"))) == record, "nothing is new"


@pytest.mark.parametrize(
    "garbage", [b"{}", b"no JSON", b'{"failures": 3}', b'{"failures": [{"at": "x"}, 7]}']
)
def test_failures__malformed_record__is_replaced(clock: ManualClock, garbage: bytes) -> None:
    store = MemoryStore(clock)
    pncp = make_upstream(store)
    publisher = FleetPublisher(store, {"pncp": pncp}, FleetCounters())
    store.apply(WriteRecord(FLEET, failures_key("pncp"), garbage, 60))
    publisher.publish()
    assert shown_texts(store) == []
    fail(pncp, "a")
    publisher.publish()
    assert shown_texts(store) == ["ConnectionResetError: a"]


def test_failures__long_texts__fit_into_a_record(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    reason = "🙈" * 1000
    pncp = make_upstream(store, classify=lambda result, error: Outcome("failure", reason=reason))
    fail(pncp, *map(str, range(FAILURES_MAX)))
    FleetPublisher(store, {"pncp": pncp}, FleetCounters()).publish()
    record = store.apply(ReadRecord(FLEET, failures_key("pncp")))
    assert record is not None
    assert len(record) <= VALUE_BYTES_MAX
    assert 3 <= len(json.loads(record)["failures"]) < FAILURES_MAX


def test_failures__status_code__is_named_and_refusals_do_not_count(clock: ManualClock) -> None:
    class HttpError(Exception):
        def __init__(self, status: int) -> None:
            super().__init__(f"status {status}")
            self.status_code = status

    def raise_status(status: int) -> None:
        raise HttpError(status)

    store = MemoryStore(clock)
    pncp = make_upstream(store)
    for status in (404, 503, 429):
        with suppress(HttpError):
            pncp.sync.call(raise_status, status)
    FleetPublisher(store, {"pncp": pncp}, FleetCounters()).publish()
    [text] = shown_texts(store)
    assert "503" in text


def test_failures__each_attempt_of_a_call__is_one(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    pncp = make_upstream(store, retry=True)
    fail(pncp, "a")
    assert len(pncp._policies.failures.latest()) == 4, "a call and its 3 retries"


def test_recent_failures__after_a_fork__are_those_of_the_parent_no_more() -> None:
    failures = RecentFailures()
    failures.record("one\nline")
    assert [failure.text for failure in failures.latest()] == ["one line"]
    failures.after_fork()
    assert failures.latest() == []


def test_failures__another_worker_writes_at_the_same_time__are_published_the_next_time() -> None:
    class OvertakenStore(MemoryStore):
        """Another worker writes between the first read of the failures and the write."""

        is_overtaken = True

        def apply(self, operation: Operation[Any]) -> Any:
            reply = super().apply(operation)
            if self.is_overtaken and isinstance(operation, ReadRecord):
                self.is_overtaken = False
                super().apply(WriteRecord(FLEET, failures_key("pncp"), b"[]", 60))
            return reply

    store = OvertakenStore()
    pncp = make_upstream(store)
    fail(pncp, "lost")
    store.is_overtaken = True
    publisher = FailurePublisher(store)
    publisher.publish("pncp", pncp)
    assert store.apply(ReadRecord(FLEET, failures_key("pncp"))) == b"[]"
    publisher.publish("pncp", pncp)
    assert b"lost" in (store.apply(ReadRecord(FLEET, failures_key("pncp"))) or b"")
