"""The background thread that renews permits of open bodies.

The thread runs in real time. The store is on a manual clock, so that no permit expires because the machine is
busy: only the test lets time pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.support import wait_until

from comporta import Upstream
from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.limits.concurrency.limit import ConcurrencyLimit
from comporta.limits.concurrency.operation import RegisterPermits
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock
from comporta.threads import BackgroundThread
from comporta.upstream import renewal
from comporta.upstream.renewal import RENEWER, PermitRenewer

TTL = 0.15


@pytest.fixture
def limit(clock: ManualClock) -> ConcurrencyLimit:
    return ConcurrencyLimit("renewed", 5, permit_ttl=TTL, state=MemoryStore(clock))


@pytest.fixture
def renewer() -> Iterator[PermitRenewer]:
    renewer = PermitRenewer()
    yield renewer
    renewer.before_fork()


def assert_renewed(limit: ConcurrencyLimit, clock: ManualClock, times: int) -> None:
    """Let most of the time to live pass repeatedly; each time, the thread must renew every permit in use."""
    count = limit.sync.in_use()
    for _ in range(times):
        clock.advance(0.9 * TTL)
        wait_until(lambda: all(holder.seconds_left > 0.5 * TTL for holder in limit.sync.holders()))
        assert limit.sync.in_use() == count > 0


def test_renewer__several_permits__renews_each_until_it_is_discarded(
    limit: ConcurrencyLimit, renewer: PermitRenewer, clock: ManualClock
) -> None:
    permits = [limit.sync.acquire() for _ in range(2)]
    for permit in permits:
        assert permit is not None
        renewer.add(limit, permit)
    assert_renewed(limit, clock, 5)
    assert limit.sync.in_use() == 2
    for permit in permits:
        assert permit is not None
        renewer.discard(permit)

    def have_expired() -> bool:
        clock.advance(TTL)  # in a loop: the thread may be renewing one for the last time
        return limit.sync.in_use() == 0

    wait_until(have_expired)


def test_renewer__permit_with_a_shorter_ttl_is_added__is_renewed_in_time(
    limit: ConcurrencyLimit, renewer: PermitRenewer, clock: ManualClock
) -> None:
    longer = ConcurrencyLimit("longer", 1, permit_ttl=3600, state=limit.store)
    for each in (longer, limit):
        permit = each.sync.acquire()
        assert permit is not None
        renewer.add(each, permit)
    assert_renewed(limit, clock, 3)


def test_renewer__permit_added__is_due_after_a_third_of_its_ttl(
    limit: ConcurrencyLimit, renewer: PermitRenewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundThread, "start", lambda *_, **__: False)
    permit = limit.sync.acquire()
    assert permit is not None
    before_ns = MONOTONIC.now_ns()
    renewer.add(limit, permit)
    after_ns = MONOTONIC.now_ns()
    assert before_ns <= renewer._renewals[permit].due_ns - TTL * 1e9 / 3 <= after_ns


def test_renewer__permit_was_released__is_forgotten(limit: ConcurrencyLimit, renewer: PermitRenewer) -> None:
    permit = limit.sync.acquire()
    assert permit is not None
    renewer.add(limit, permit)
    limit.sync.release(permit)
    wait_until(lambda: not renewer._renewals)


def test_renewer__permits_have_expired__registers_those_of_open_bodies_again(
    limit: ConcurrencyLimit, renewer: PermitRenewer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a stop of the process; another worker got all permits meanwhile."""
    monkeypatch.setattr(renewal, "REGISTERED_MAX", 2)
    mine = [limit.sync.acquire() for _ in range(3)]
    clock.advance(2 * TTL)
    others = [limit.sync.acquire() for _ in range(5)]
    for permit in mine:
        assert permit is not None
        renewer.add(limit, permit)
    wait_until(lambda: limit.sync.in_use() == 8)
    assert limit.sync.acquire() is None
    for permit in (*mine, *others):
        assert permit is not None
        renewer.discard(permit)
        limit.sync.release(permit)
    wait_until(lambda: limit.sync.in_use() == 0)


def test_renewer__store_fails_while_it_registers__tries_again(
    limit: ConcurrencyLimit, renewer: PermitRenewer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit, apply, failures = limit.sync.acquire(), limit.store.apply, [1, 2]

    def fail_twice(operation: Operation[object]) -> object:
        if failures and isinstance(operation, RegisterPermits):
            failures.pop()
            raise StateUnavailableError("gone")
        return apply(operation)

    assert permit is not None
    clock.advance(2 * TTL)
    monkeypatch.setattr(limit.store, "apply", fail_twice)
    renewer.add(limit, permit)
    wait_until(lambda: limit.sync.in_use() == 1)
    assert not failures


def test_renewer__store_fails__tries_again(
    limit: ConcurrencyLimit, renewer: PermitRenewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit, apply, failures = limit.sync.acquire(), limit.store.apply, [1, 2]

    def fail_twice(operation: object) -> object:
        if failures:
            failures.pop()
            raise StateUnavailableError("gone")
        return apply(operation)  # type: ignore[arg-type]  # any operation

    assert permit is not None
    monkeypatch.setattr(limit.store, "apply", fail_twice)
    renewer.add(limit, permit)
    wait_until(lambda: not failures)
    assert permit in renewer._renewals


def test_renewer__thread_cannot_start__the_next_permit_tries_again(
    limit: ConcurrencyLimit, renewer: PermitRenewer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit = limit.sync.acquire()
    assert permit is not None
    with monkeypatch.context() as patched:
        patched.setattr(BackgroundThread, "start", lambda *_, **__: False)
        renewer.add(limit, permit)
    assert renewer._run is None
    renewer.add(limit, permit)
    assert_renewed(limit, clock, 2)


def test_fork__generator_is_open__the_parent_goes_on_renewing_and_the_child_has_none(
    clock: ManualClock,
) -> None:
    upstream = Upstream("forked", "1000/s", max_concurrent=2, permit_ttl=TTL, state=MemoryStore(clock))
    assert upstream.permits is not None

    @upstream.guard
    def items() -> Iterator[int]:
        yield 1
        yield 2

    generator = items()
    assert next(generator) == 1
    child = os.fork()
    if not child:
        try:
            renewer = RENEWER.get()
            well = not renewer._renewals and renewer._run is None and list(items()) == [1, 2]
        except BaseException:  # the child must end here in any case
            well = False
        os._exit(0 if well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_renewed(upstream.permits, clock, 3)
    assert list(generator) == [2]


def test_fork__renewer_without_a_thread__starts_none(
    renewer: PermitRenewer, limit: ConcurrencyLimit, clock: ManualClock
) -> None:
    renewer.before_fork()
    renewer.after_fork_in_parent()
    permit = limit.sync.acquire()
    assert permit is not None
    renewer.add(limit, permit)
    renewer.after_fork_in_parent()
    assert_renewed(limit, clock, 1)
    renewer.before_fork()
    renewer.after_fork()
    assert (renewer._renewals, renewer._run) == ({}, None)
