"""The thread that returns leases before they expire, in real time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support import Late

from comporta import BaseLimiter, LimitConfig, StateError
from comporta.clock import MONOTONIC
from comporta.limits.leases import client
from comporta.limits.leases.client import LeaseClient
from comporta.limits.leases.scheduler import SCHEDULER, LeaseHolder, LeaseScheduler, return_all
from comporta.runtime import RUNTIME
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore

PATIENCE_SECONDS = 20.0
LEASE_SECONDS = 2.0
"""Long enough that the thread, which runs at three quarters of it, is in time on a busy machine too."""


class Watched(MemoryStore):
    """A store that signals when units are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.given_back = threading.Semaphore(0)
        self.broken = False

    def apply(self, operation: Operation[Any]) -> Any:
        try:
            if self.broken:
                raise StateError("broken")
            return super().apply(operation)
        finally:
            if getattr(operation, "needed", 1) == 0:
                self.given_back.release()

    def wait(self) -> None:
        """Wait until units are returned; a stall of half a second lets a lease expire before."""
        if not self.given_back.acquire(timeout=PATIENCE_SECONDS):
            raise Late("the thread did not return the lease before it expired")


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> LeaseScheduler:
    made = LeaseScheduler()
    monkeypatch.setitem(RUNTIME.process_objects(), SCHEDULER, made)
    return made


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def at_work(store: MemoryStore, lease: float) -> BaseLimiter:
    limiter = BaseLimiter(LimitConfig(0.001, 100, lease=lease), store, "tested")
    assert all(limiter.sync.acquire("k") for _ in range(4))
    return limiter


def test_scheduler__lease_not_used__is_returned_before_it_expires(scheduler: LeaseScheduler) -> None:
    store = Watched()
    limiter = at_work(store, LEASE_SECONDS)
    store.wait()
    assert limiter.sync.peek("k").remaining == 96
    assert limiter.sync.acquire("k") is True


def test_scheduler__lease_renewed__is_checked_again(scheduler: LeaseScheduler) -> None:
    store = Watched()
    limiter = at_work(store, 10)
    assert limiter._flows.lease_client is not None
    lease = limiter._flows.lease_client._leases["k"]
    lease.scheduled_ns = 0
    limiter._flows.lease_client._return_if_due(
        lease
    )  # too early: a later lease replaced the one it was scheduled for
    assert lease.scheduled_ns == lease.return_at_ns
    lease.scheduled_ns, lease.return_at_ns = 0, MONOTONIC.now_ns()
    limiter._flows.lease_client._schedule_return(lease)  # before the callbacks scheduled so far
    store.wait()
    assert limiter.sync.peek("k").remaining == 96


def test_scheduler__lease_expired_or_ended__does_nothing(scheduler: LeaseScheduler) -> None:
    store = Watched()
    limiter = at_work(store, 10)
    bound = limiter._flows.lease_client
    assert bound is not None
    bound.drop_key("k")
    lease = bound._leases["k"]
    lease.return_at_ns = 0
    bound._return_if_due(lease)
    assert not store.given_back.acquire(blocking=False)


def test_scheduler__store_failing__continues(scheduler: LeaseScheduler) -> None:
    broken, sound = Watched(), Watched()
    at_work(broken, LEASE_SECONDS)
    broken.broken = True
    broken.wait()
    limiter = at_work(sound, LEASE_SECONDS)
    sound.wait()
    assert limiter.sync.peek("k").remaining == 96


def test_scheduler__program_exits__returns_all_leases(scheduler: LeaseScheduler) -> None:
    stores = [Watched() for _ in range(3)]
    limiters = [at_work(store, 10) for store in stores]
    stores[1].broken = True
    scheduler.return_all()
    stores[1].broken = False
    assert [limiter.sync.peek("k").remaining for limiter in limiters] == [96, 93, 96]


def test_scheduler__holder_raises__returns_the_leases_of_others(scheduler: LeaseScheduler) -> None:
    class Raising(LeaseHolder):
        def held_units(self) -> int:
            return 1

        def return_all(self) -> None:
            raise ValueError("closed")

    raising = Raising()
    scheduler.schedule(MONOTONIC.now_ns() + 10**12, print, raising)
    limiter = at_work(Watched(), 10)
    scheduler.return_all()
    assert limiter.sync.peek("k").remaining == 96


def test_scheduler__forked_child__starts_its_own_thread(
    scheduler: LeaseScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Watched()
    with monkeypatch.context() as patches:  # the child has no thread
        patches.setattr(threading.Thread, "start", no_thread)
        limiter = at_work(store, 10)
    scheduler.after_fork()
    assert isinstance(limiter._flows.bound, LeaseClient)
    limiter._flows.bound.after_fork()
    scheduler.return_all()  # the parent keeps its lease
    assert limiter.sync.peek("k").remaining == 93
    store.close()
    at_work(Watched(), LEASE_SECONDS).store.wait()  # type: ignore[attr-defined]


def test_scheduler__no_thread_available__leaves_leases_to_expire(
    scheduler: LeaseScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    limiter = at_work(Watched(), 10)
    assert limiter.sync.acquire("k") is True


def test_scheduler__fork__stops_and_restarts_the_thread_in_the_parent(scheduler: LeaseScheduler) -> None:
    scheduler.before_fork()
    scheduler.after_fork_in_parent()
    store = Watched()
    limiter = at_work(store, 10)
    first = scheduler._run
    assert first is not None
    scheduler.before_fork()
    assert not first.is_alive()
    scheduler.after_fork_in_parent()
    assert scheduler._run is not first
    scheduler.after_fork_in_parent()  # it already runs
    assert limiter._flows.lease_client is not None
    lease = limiter._flows.lease_client._leases["k"]
    lease.scheduled_ns, lease.return_at_ns = 0, MONOTONIC.now_ns()
    limiter._flows.lease_client._schedule_return(lease)
    store.wait()


def test_return_all__too_many_leases_for_the_time__leaves_the_rest(
    scheduler: LeaseScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = at_work(Watched(), 10)
    monkeypatch.setattr(client, "_RETURN_NS_MAX", -1)
    limiter._flows.lease_client.return_all()  # type: ignore[union-attr]
    assert limiter.sync.peek("k").remaining < 96


def test_exit__units_on_lease__are_returned(scheduler: LeaseScheduler) -> None:
    store = Watched()
    limiter = at_work(store, 10)
    assert scheduler.holders() == [limiter._flows.lease_client]
    return_all()
    assert store.given_back.acquire(blocking=False)
    assert limiter.sync.peek("k").remaining == 96
