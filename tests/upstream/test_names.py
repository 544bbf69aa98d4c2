"""One name on one store has one configuration in a program: another one is an error that says so."""

from __future__ import annotations

import gc
import shutil
import uuid
from typing import Any

import pytest

from comporta import (
    BreakerConfig,
    Budget,
    ConcurrencyLimit,
    Retry,
    RetryBudget,
    TokenBucketLimiter,
    Upstream,
)
from comporta.stores.memory import MemoryStore
from comporta.stores.registry import close_stores, open_store
from comporta.stores.shared.directory import directory_path

OPTIONS: dict[str, Any] = {"max_concurrent": 4, "retry": Retry(budget=Budget(ratio=0.1))}


@pytest.mark.parametrize(
    ("limit", "options", "message"),
    [
        (
            "20/s",
            {},
            "for 10/s burst 10 .*, got 20/s burst 20 .*: choose another name, or call",
        ),
        ("10/s", {"breaker": BreakerConfig(9)}, "for a breaker with threshold=50, .* got threshold=9"),
        ("10/s", {"max_concurrent": 5}, "with max_concurrent=4, got an upstream with max_concurrent=5"),
        ("10/s", {"max_concurrent": None}, "with max_concurrent=4, got an upstream with max_concurrent=None"),
        ("10/s", {"timeout": 1}, "for max_concurrent=4 with permit_ttl=45, got .* permit_ttl=16"),
        ("10/s", {"retry": True}, r"for Budget\(ratio=0\.1, .* got Budget\(ratio=0\.2"),
    ],
)
def test_name__other_options__raises_naming_both(limit: str, options: dict[str, Any], message: str) -> None:
    store = MemoryStore()
    first = Upstream("pncp", "10/s", state=store, **OPTIONS)
    with pytest.raises(ValueError, match=f"name 'pncp' is in use on this store .*{message}"):
        Upstream("pncp", limit, state=store, **{**OPTIONS, **options})
    again = Upstream("pncp", "10/s", state=store, **OPTIONS)
    assert again.limiter.config == first.limiter.config


def test_name__options_that_are_not_shared__may_differ() -> None:
    store = MemoryStore()
    upstreams = [
        Upstream("pncp", "10/s", state=store),
        Upstream("pncp", "10/s", state=store, max_wait=1, timeout=3, pause_max=5, count="series"),
        Upstream("pncp", "10/s", state=store, breaker=False, retry=False, degradation=False, on_refusal=None),
    ]
    assert all(upstream.sync.call(lambda: "made") == "made" for upstream in upstreams)


@pytest.mark.parametrize("dropped", [0, 1])
def test_name__one_of_two_users_is_collected__stays_in_use(dropped: int) -> None:
    store = MemoryStore()
    limiters = [TokenBucketLimiter("10/s", store, "pncp") for _ in range(2)]
    permits = [ConcurrencyLimit("pncp", 4, state=store) for _ in range(2)]
    del limiters[dropped], permits[dropped]
    gc.collect()
    with pytest.raises(ValueError, match="name 'pncp' is in use"):
        TokenBucketLimiter("20/s", store, "pncp")
    with pytest.raises(ValueError, match="name 'pncp' is in use"):
        ConcurrencyLimit("pncp", 5, state=store)
    limiters.clear()
    permits.clear()
    gc.collect()
    TokenBucketLimiter("20/s", store, "pncp")
    ConcurrencyLimit("pncp", 5, state=store)


def test_name__limiter_and_upstream__are_the_same_limit() -> None:
    store = MemoryStore()
    limiter = TokenBucketLimiter("10/s", store, "pncp")
    with pytest.raises(ValueError, match="name 'pncp' is in use on this store for 10/s"):
        Upstream("pncp", "20/s", state=store)
    assert limiter.sync.acquire()


def test_budget_name__another_budget__raises() -> None:
    store = MemoryStore()
    budget = RetryBudget("pncp", store, Budget(ratio=0.1))
    with pytest.raises(ValueError, match=r"name 'pncp' is in use on this store for Budget\(ratio=0\.1"):
        Retry(name="pncp", state=store)
    assert Retry(name="pncp", state=store, budget=Budget(ratio=0.1)).budget is not budget
    assert Retry(state=store).budget is not None


def test_name__other_url_of_the_same_place__is_the_same_store(monkeypatch: pytest.MonkeyPatch) -> None:
    app = f"test-{uuid.uuid4().hex}"
    monkeypatch.setenv("COMPORTA_APP", app)
    try:
        first = Upstream("pncp", "10/s", state="shared://")
        with pytest.raises(ValueError, match="name 'pncp' is in use"):
            Upstream("pncp", "20/s", state=f"shared://{app}")
        assert first.store is open_store(f"shared://{app}")
        assert first.store is not open_store(f"shared://{app}?lock_timeout=1")
        for one, other, is_same in (
            ("redis://localhost", "redis://localhost/0", True),
            ("redis://localhost/", "redis://localhost/0", True),
            ("redis://localhost", "redis://localhost/1", False),
            ("redis://localhost?db=1", "redis://localhost/0?db=1", False),
        ):
            assert (open_store(one) is open_store(other)) == is_same
    finally:
        close_stores()
        shutil.rmtree(directory_path(app), ignore_errors=True)
