"""How many workers a worker believes there are."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest
from tests.stores.manual_heartbeat import (
    manual_failover,
)

from comporta.stores.failover.worker_count import WorkerCount
from comporta.stores.failover.worker_count_file import load_worker_count
from comporta.testing import ManualClock


def test_worker_count__count_falls__is_believed_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("comporta.stores.failover.worker_count.MONOTONIC", clock)
    count = WorkerCount(f"test://{time.time_ns()}")
    assert count.value == 1
    count.record(8)
    count.expire()
    count.record(1)  # the registry was lost, or the other workers stopped
    for _ in range(3):  # hardly any time passes
        clock.advance(0.25)
        count.expire()
        assert count.value == 8
    clock.advance(3)
    count.expire()
    assert count.value == 8
    clock.advance(3)
    count.expire()
    assert count.value == 1
    count.expire()


def test_worker_count__worker_starts_during_an_outage__is_the_last_saved_one() -> None:
    address = f"test://{time.time_ns()}"
    count = WorkerCount(address)
    count.record(5)
    count.expire()
    assert load_worker_count(address) == 5
    late = WorkerCount(address)
    assert late.value == 5
    late.record(2)
    assert late.value == 5, "a lower count is believed only after some seconds"


def test_worker_count__set_in_the_environment__is_a_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_WORKERS", "12")
    assert WorkerCount(f"test://{time.time_ns()}").value == 12
    monkeypatch.setenv("COMPORTA_WORKERS", "many")
    with pytest.raises(ValueError, match="COMPORTA_WORKERS must be a whole number, 1 to 1000000, got 'many'"):
        WorkerCount("test://x")
    monkeypatch.delenv("COMPORTA_WORKERS")
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    assert WorkerCount(f"test://{time.time_ns()}").value == 3
    monkeypatch.setenv("WEB_CONCURRENCY", "none of your business")
    assert WorkerCount(f"test://{time.time_ns()}").value == 1


def test_worker_count__zero_recorded__is_ignored() -> None:
    store, _ = manual_failover()
    store.heartbeat.worker_count.record(8)
    store.heartbeat.worker_count.record(0)
    assert store.heartbeat.worker_count._latest == 8


def test_worker_count__observed__is_what_replies_said_not_what_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPORTA_WORKERS", "12")
    count = WorkerCount(f"test://{time.time_ns()}")
    assert count.observed == 12, "before the first reply"
    count.record(3)
    assert (count.observed, count.value) == (3, 12)


def test_worker_count__lower_than_the_saved_one__is_saved_by_a_worker_that_has_just_started() -> None:
    address = f"test://{time.time_ns()}"
    for workers in (5, 1):
        count = WorkerCount(address)
        count.record(workers)
        count.expire()
        assert load_worker_count(address) == workers


def test_worker_count__known_from_replies__no_longer_comes_from_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("comporta.stores.failover.worker_count.MONOTONIC", clock)
    address = f"test://{time.time_ns()}"
    count, other = WorkerCount(address), WorkerCount(address)
    for _ in range(2):
        count.record(2)
        clock.advance(3)
        count.expire()
    other.record(5)
    other.expire()
    assert load_worker_count(address) == 5
    assert count.value == 2


def test_worker_count__unchanged__is_saved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Files:
        saved: ClassVar[list[int]] = []

        def load(self, address: str) -> int:
            return self.saved[-1]

        def save(self, address: str, count: int) -> None:
            self.saved.append(count)

    clock = ManualClock()
    monkeypatch.setattr("comporta.stores.failover.worker_count.MONOTONIC", clock)
    count = WorkerCount("test://x")
    monkeypatch.setattr(count, "_files", Files())
    count.record(3)
    for seconds in (0, 0, 3, 0, 3):
        clock.advance(seconds)
        count.expire()
    assert Files.saved == [3]
