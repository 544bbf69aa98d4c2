"""A limit on ``shared://`` that is unusable, or not usable yet, or no longer."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.stores.manual_heartbeat import ManualHeartbeat, run_heartbeat
from tests.support import fallback_of

from comporta import BaseLimiter, LimitConfig
from comporta.clock import Clock
from comporta.errors import StateError, StateTimeoutError, StateUnavailableError
from comporta.integrations.inbound_limit import InboundLimit
from comporta.stores import registry
from comporta.stores.failover.store import FailoverStore
from comporta.stores.registry import close_stores, open_store
from comporta.stores.shared.directory import directory_path
from comporta.stores.shared.store import SharedStore
from comporta.testing import ManualClock


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    close_stores()
    path = Path(directory_path(name))
    if path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def open_failover_store(name: str, clock: Clock) -> FailoverStore:
    """Return a store whose heartbeat runs only when the test calls it."""
    store = FailoverStore(lambda: SharedStore(name, clock, 1024), f"shared://{name}", clock, SharedStore)
    store.heartbeat = ManualHeartbeat(store)
    return store


def test_shared__reachable__decides_in_process_and_follows_overrides(name: str) -> None:
    clock = ManualClock()
    store = open_failover_store(name, clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store)
    assert asyncio.run(limiter.acquire("k"))
    assert limiter.sync.acquire("k")
    assert asyncio.run(limiter.acquire("k"))
    assert limiter.sync.decide("k").remaining == 6
    limiter.sync.set_limit("5/s")
    assert limiter.sync.peek("k").limit == 5
    assert asyncio.run(limiter.decide("k")).limit == 5
    assert limiter._flows.bound.acquire("k", 1) == 0
    assert asyncio.run(limiter._flows.bound.acquire_async("k", 1)) == 0
    store.close()


@pytest.mark.parametrize("driver", ["blocking", "awaiting"])
def test_shared__engine_fails_during_decide__decides_from_the_local_share(name: str, driver: str) -> None:
    store = open_failover_store(name, ManualClock())
    limiter = BaseLimiter("100/hour", store, "n")

    def remaining() -> int:
        decision = limiter.sync.decide("k") if driver == "blocking" else asyncio.run(limiter.decide("k"))
        return decision.remaining

    assert [remaining() for _ in range(3)] == [99, 98, 97]
    shared = store.primary
    assert isinstance(shared, SharedStore)
    shared._locked._close_locks()
    assert remaining() == 0  # the share of a worker starts empty
    assert fallback_of(store) is not None
    store.close()


@contextmanager
def hold_locks(store: FailoverStore) -> Iterator[None]:
    """Hold all locks of a shared store, as a stopped process would, so that every operation times out."""
    shared = store.primary
    assert isinstance(shared, SharedStore)
    lock_timeout, shared.lock_timeout = shared.lock_timeout, 0.02
    locks = shared._directory.open_locks()
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        for lock in locks:
            os.close(lock)
        shared.lock_timeout = lock_timeout


@pytest.mark.parametrize("awaiting", [False, True])
@pytest.mark.parametrize("method", ["acquire", "decide", "bound"])
def test_shared__fails_while_in_use__falls_back_to_a_share_of_the_overridden_limit(
    name: str, method: str, awaiting: bool
) -> None:
    clock = ManualClock()
    store = open_failover_store(name, clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store)
    bound = limiter._flows.bound
    assert limiter.sync.acquire("k")
    limiter.sync.set_limit("5/s")
    assert limiter.sync.acquire("k")

    def is_granted() -> bool:
        if method == "bound":
            return (asyncio.run(bound.acquire_async("k", 1)) if awaiting else bound.acquire("k", 1)) == 0
        if method == "acquire":
            return asyncio.run(limiter.acquire("k")) if awaiting else limiter.sync.acquire("k")
        return (asyncio.run(limiter.decide("k")) if awaiting else limiter.sync.decide("k")).allowed

    with hold_locks(store):
        assert not is_granted()
        assert limiter.fallback is not None
        clock.advance(10)
        assert sum(is_granted() for _ in range(12)) == 5, (
            "the only worker has a share of the whole overridden limit"
        )
    run_heartbeat(store)
    assert fallback_of(store) is None
    store.close()


def test_shared__lock_never_free__inbound_limits_use_a_share_of_the_overridden_limit(
    name: str,
) -> None:
    clock = ManualClock()
    store = open_failover_store(name, clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store, "n")
    clients = InboundLimit(limiter, key=None, trusted_proxies=(), cost=1, name=None, on_error="closed")

    def passed(requests: int) -> int:
        admissions = [asyncio.run(clients.admit({"client": ("192.0.2.1", 1)})) for _ in range(requests)]
        return [admission.problem for admission in admissions].count(None)

    assert passed(12) == 10
    limiter.sync.set_limit("5/s")
    with hold_locks(store):
        assert passed(1) == 0
        assert fallback_of(store) is not None
        clock.advance(10)
        assert passed(12) == 5, "the only worker has a share of the whole overridden limit"
    run_heartbeat(store)
    assert fallback_of(store) is None
    clock.advance(10)
    assert passed(12) == 5
    store.close()


def test_algorithm__of_a_failed_store__is_the_last_known(name: str) -> None:
    store = open_failover_store(name, ManualClock())
    limiter = BaseLimiter(LimitConfig(10, 10), store)
    bound = limiter._flows.bound
    shared = store.primary
    assert isinstance(shared, SharedStore)
    limiter.sync.acquire("k")
    shared.table.increment_change_count()
    with hold_locks(store):
        assert bound.cached_algorithm.codec is limiter.config.build_strategy().codec
        assert fallback_of(store) is None, "the cached algorithm is read without a lock"
        assert bound.algorithm.codec is limiter.config.build_strategy().codec
        assert fallback_of(store) is not None
        assert asyncio.run(bound.algorithm_async()).codec is bound.algorithm.codec
        store.local_share = None
        assert asyncio.run(bound.algorithm_async()).codec is bound.algorithm.codec
        assert fallback_of(store) is not None
    store.close()


def test_shared_url__directory_unusable__falls_back_and_joins_later(name: str) -> None:
    path = Path(directory_path(name))
    path.write_text("in the way")
    limiter = BaseLimiter(LimitConfig(1000, 10), f"shared://{name}")
    assert limiter.sync.acquire("k", timeout=5)
    assert fallback_of(limiter.store) is not None
    assert limiter._flows.bound.algorithm.codec is limiter.config.build_strategy().codec
    assert asyncio.run(limiter.acquire("k", timeout=5))
    path.unlink()
    while fallback_of(limiter.store) is not None:
        limiter.sync.acquire("k")
    assert Path(path).is_dir()


def test_shared_url__unsupported_platform__raises_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(StateUnavailableError, match="needs Linux or macOS"):
        open_store(f"shared://{name}")


def test_state_timeout_error__is_a_state_error() -> None:
    assert issubclass(StateTimeoutError, StateError)
    assert registry.APP_DEFAULT == "default"
