"""The background thread that renews permits of open bodies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import pytest
from tests.support import wait_until

from comporta import Upstream
from comporta.errors import StateUnavailableError
from comporta.limits.concurrency.limit import ConcurrencyLimit
from comporta.stores.memory import MemoryStore
from comporta.threads import BackgroundThread
from comporta.upstream.renewal import RENEWER, PermitRenewer

TTL = 0.15


@pytest.fixture
def limit() -> ConcurrencyLimit:
    return ConcurrencyLimit("renewed", 5, permit_ttl=TTL, state=MemoryStore())


@pytest.fixture
def renewer() -> Iterator[PermitRenewer]:
    renewer = PermitRenewer()
    yield renewer
    renewer.before_fork()


def renewals(limit: ConcurrencyLimit, count: int) -> None:
    """Wait until the time to live of the permit in use has grown a number of times."""
    seen: list[float] = []

    def has_grown() -> bool:
        seen.append(limit.sync.holders()[0].seconds_left)
        return sum(later > earlier for earlier, later in pairwise(seen)) >= count

    wait_until(has_grown)


def test_renewer__several_permits__renews_each_until_it_is_discarded(
    limit: ConcurrencyLimit, renewer: PermitRenewer
) -> None:
    permits = [limit.sync.acquire() for _ in range(2)]
    for permit in permits:
        assert permit is not None
        renewer.add(limit, permit)
    renewals(limit, 5)
    assert limit.sync.in_use() == 2
    for permit in permits:
        assert permit is not None
        renewer.discard(permit)
    wait_until(lambda: limit.sync.in_use() == 0)


def test_renewer__permit_with_a_shorter_ttl_is_added__is_renewed_in_time(
    limit: ConcurrencyLimit, renewer: PermitRenewer
) -> None:
    longer = ConcurrencyLimit("longer", 1, permit_ttl=3600, state=limit.store)
    for each in (longer, limit):
        permit = each.sync.acquire()
        assert permit is not None
        renewer.add(each, permit)
    renewals(limit, 3)


def test_renewer__permit_was_released__is_forgotten(limit: ConcurrencyLimit, renewer: PermitRenewer) -> None:
    permit = limit.sync.acquire()
    assert permit is not None
    renewer.add(limit, permit)
    limit.sync.release(permit)
    wait_until(lambda: not renewer._due_ns)


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
    assert permit in renewer._due_ns


def test_renewer__thread_cannot_start__the_next_permit_tries_again(
    limit: ConcurrencyLimit, renewer: PermitRenewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit = limit.sync.acquire()
    assert permit is not None
    with monkeypatch.context() as patched:
        patched.setattr(BackgroundThread, "start", lambda *_, **__: False)
        renewer.add(limit, permit)
    assert renewer._run is None
    renewer.add(limit, permit)
    renewals(limit, 2)


def test_fork__generator_is_open__the_parent_goes_on_renewing_and_the_child_has_none() -> None:
    upstream = Upstream("forked", "1000/s", max_concurrent=2, permit_ttl=TTL, state=MemoryStore())
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
            well = not RENEWER._due_ns and RENEWER._run is None and list(items()) == [1, 2]
        except BaseException:  # the child must end here in any case
            well = False
        os._exit(0 if well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    renewals(upstream.permits, 3)
    assert list(generator) == [2]


def test_fork__renewer_without_a_thread__starts_none(renewer: PermitRenewer, limit: ConcurrencyLimit) -> None:
    renewer.before_fork()
    renewer.after_fork_in_parent()
    permit = limit.sync.acquire()
    assert permit is not None
    renewer.add(limit, permit)
    renewer.after_fork_in_parent()
    renewals(limit, 1)
    renewer.before_fork()
    renewer.after_fork()
    assert (renewer._due_ns, renewer._run) == ({}, None)
