"""A limit on state of this machine that cannot be used, or not yet, or no longer (shared://)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stores.switchable import ByHand, moved

from comporta import BaseLimiter, LimitConfig
from comporta.clock import Clock
from comporta.errors import StateError, StateTimeoutError, StateUnavailableError
from comporta.integrations.inbound import Inbound
from comporta.stores import urls
from comporta.stores.failover import FailoverStore, fallback_of
from comporta.stores.folder import path_of
from comporta.stores.shared import SharedStore
from comporta.stores.urls import forget_stores, open_store
from comporta.testing import ManualClock


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    forget_stores()
    path = Path(path_of(name))
    if path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def guarded(name: str, clock: Clock) -> FailoverStore:
    """Return a store whose keeper moves only when told."""
    store = FailoverStore(lambda: SharedStore(name, clock, 1024), f"shared://{name}", clock, local=True)
    store.keeper = ByHand(store)
    return store


def test_shared_state__all_well__decides_here_and_follows_changes(name: str) -> None:
    clock = ManualClock()
    store = guarded(name, clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store)
    assert asyncio.run(limiter.acquire("k"))
    assert limiter.sync.acquire("k")
    assert asyncio.run(limiter.acquire("k"))
    assert limiter.sync.decide("k").remaining == 6
    limiter.sync.change("5/s")
    assert limiter.sync.peek("k").limit == 5
    assert asyncio.run(limiter.decide("k")).limit == 5
    assert limiter.verbs.bound.take("k", 1) == 0
    assert asyncio.run(limiter.verbs.bound.take_async("k", 1)) == 0
    store.close()


@pytest.mark.parametrize("awaiting", [False, True])
@pytest.mark.parametrize("verb", ["acquire", "decide", "take"])
def test_shared_state__fails_in_the_middle__goes_on_with_a_share_of_the_changed_limit(
    name: str, verb: str, awaiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = guarded(name, clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store)
    bound = limiter.verbs.bound
    assert limiter.sync.acquire("k")
    limiter.sync.change("5/s")
    assert limiter.sync.acquire("k")
    shared = store.primary
    assert isinstance(shared, SharedStore)

    def stuck(*_: object) -> None:
        raise StateTimeoutError("a lock was not free")

    monkeypatch.setattr(shared, "attempt", stuck)
    monkeypatch.setattr(bound._bound, "attempt", stuck)  # type: ignore[attr-defined]
    monkeypatch.setattr(bound._bound, "take", stuck)  # type: ignore[attr-defined]
    monkeypatch.setattr(bound._bound, "take_async", stuck)  # type: ignore[attr-defined]
    bound.attempt = bound._hot_path()  # type: ignore[attr-defined,method-assign]
    limiter._attempt = limiter.sync._attempt = bound.attempt

    def ask() -> bool:
        if verb == "take":
            return (asyncio.run(bound.take_async("k", 1)) if awaiting else bound.take("k", 1)) == 0
        if verb == "acquire":
            return asyncio.run(limiter.acquire("k")) if awaiting else limiter.sync.acquire("k")
        return (asyncio.run(limiter.decide("k")) if awaiting else limiter.sync.decide("k")).allowed

    assert not ask()
    assert limiter.fallback is not None
    clock.advance(10)
    assert sum(ask() for _ in range(12)) == 5, (
        "the share of the one worker there is: all of the changed limit"
    )
    monkeypatch.undo()
    moved(store)
    assert fallback_of(store) is None
    store.close()


def test_shared_state__lock_never_free__requests_that_come_in_go_on_with_a_share_of_the_changed_limit(
    name: str,
) -> None:
    clock = ManualClock()
    store = guarded(name, clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store, "n")
    clients = Inbound(limiter, key=None, trusted_proxies=(), cost=1, name=None, on_error="closed")

    def passed(requests: int) -> int:
        verdicts = [asyncio.run(clients.admit({"client": ("192.0.2.1", 1)})) for _ in range(requests)]
        return [verdict.problem for verdict in verdicts].count(None)

    assert passed(12) == 10
    limiter.sync.change("5/s")
    shared = store.primary
    assert isinstance(shared, SharedStore)
    shared.lock_timeout = 0.02
    others = shared._folder.locks()
    for fd in others:
        fcntl.flock(fd, fcntl.LOCK_EX)
    assert passed(1) == 0
    assert fallback_of(store) is not None
    clock.advance(10)
    assert passed(12) == 5, "the share of the one worker there is: all of the changed limit"
    for fd in others:
        os.close(fd)
    shared.lock_timeout = 5
    moved(store)
    assert fallback_of(store) is None
    clock.advance(10)
    assert passed(12) == 5
    store.close()


def test_rule_in_force__asked_of_a_state_that_fails__is_the_last_known(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = guarded(name, ManualClock())
    limiter = BaseLimiter(LimitConfig(10, 10), store)
    bound = limiter.verbs.bound
    shared = store.primary
    assert isinstance(shared, SharedStore)
    limiter.sync.acquire("k")
    shared.table.count_change()

    def stuck(*_: object) -> None:
        raise StateTimeoutError("a lock was not free")

    monkeypatch.setattr(shared, "attempt", stuck)
    assert bound.stepper.codec is limiter.config.rule().codec
    assert fallback_of(store) is not None
    assert asyncio.run(bound.stepper_async()).codec is bound.stepper.codec
    store.alone = None
    assert asyncio.run(bound.stepper_async()).codec is bound.stepper.codec
    assert fallback_of(store) is not None
    store.close()


def test_shared_url__folder_not_ours__works_alone_and_joins_when_it_can(name: str) -> None:
    path = Path(path_of(name))
    path.write_text("in the way")
    limiter = BaseLimiter(LimitConfig(1000, 10), f"shared://{name}")
    assert limiter.sync.acquire("k", timeout=5)
    assert fallback_of(limiter.store) is not None
    assert limiter.verbs.bound.stepper.codec is limiter.config.rule().codec
    assert asyncio.run(limiter.acquire("k", timeout=5))
    path.unlink()
    while fallback_of(limiter.store) is not None:
        limiter.sync.acquire("k")
    assert Path(path).is_dir()


def test_shared_url__on_a_platform_without_it__is_an_error_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(StateUnavailableError, match="needs Linux or macOS"):
        open_store(f"shared://{name}")


def test_urls__errors__are_of_one_family() -> None:
    assert issubclass(StateTimeoutError, StateError)
    assert urls.APP_DEFAULT == "default"
