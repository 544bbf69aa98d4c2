"""Limiters: names, stores, groups."""

from __future__ import annotations

import asyncio
import gc
import uuid

import pytest
from tests.support import command, memory_store, shared_store

from comporta import (
    BaseLimiter,
    FixedWindowLimiter,
    LeakyBucketLimiter,
    LimitConfig,
    LimitGroup,
    LimitStrategy,
    RedisLimiter,
    SlidingWindowLimiter,
    TokenBucketLimiter,
)
from comporta.limits import wait_queue
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.redis.store import RedisStore
from comporta.stores.registry import close_stores, default_url, open_store
from comporta.stores.shared.store import SharedStore
from comporta.testing import ManualClock, Server


@pytest.mark.parametrize(
    ("limiter", "strategy"),
    [
        (TokenBucketLimiter, LimitStrategy.TOKEN_BUCKET),
        (FixedWindowLimiter, LimitStrategy.FIXED_WINDOW),
        (SlidingWindowLimiter, LimitStrategy.SLIDING_WINDOW),
        (LeakyBucketLimiter, LimitStrategy.LEAKY_BUCKET),
    ],
)
def test_limiter__class_of_a_strategy__uses_it(limiter: type[BaseLimiter], strategy: LimitStrategy) -> None:
    assert limiter("10/s").strategy is strategy
    assert limiter(LimitConfig(10, 10, 1)).strategy is strategy


def test_limiter__without_a_name__shares_only_with_equal_numbers() -> None:
    with memory_store() as store:
        one, same = TokenBucketLimiter("1/hour", store), TokenBucketLimiter("1/hour", store)
        other, window = TokenBucketLimiter("1/day", store), FixedWindowLimiter("1/hour", store)
        assert one.sync.acquire("k") is True
        assert same.sync.acquire("k") is False
        assert other.sync.acquire("k") is True
        assert window.sync.acquire("k") is True


def test_limiter__same_name_other_config__is_refused_while_the_first_exists() -> None:
    with memory_store() as store:
        first = TokenBucketLimiter("1/s", store, "pncp")
        with pytest.raises(ValueError, match="name 'pncp' is in use on this store for 1/s burst 1"):
            TokenBucketLimiter("2/s", store, "pncp")
        assert TokenBucketLimiter("1/s", store, "pncp").config == first.config
        del first
        gc.collect()
        TokenBucketLimiter("2/s", store, "pncp")


@pytest.mark.parametrize("name", ["", "a:b", "a b", "{a}", "x" * 101, "a\n"])
def test_limiter__illegal_name__is_refused_showing_it(name: str) -> None:
    with pytest.raises(ValueError, match="name must be 1 to 100 of"):
        TokenBucketLimiter("1/s", name=name)


def test_limiter__without_a_state__is_not_shared() -> None:
    one, other = TokenBucketLimiter("1/hour"), TokenBucketLimiter("1/hour")
    assert one.sync.acquire("k") is True
    assert other.sync.acquire("k") is True


def test_state__distributed__is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMPORTA_STATE", "REDIS_URL", "COMPORTA_APP"):
        monkeypatch.delenv(name, raising=False)
    assert default_url(distributed=False) == "memory://"
    assert default_url(distributed=True) == "shared://"
    monkeypatch.setenv("REDIS_URL", "redis://r")
    assert default_url(distributed=True) == "redis://r"
    monkeypatch.setenv("COMPORTA_STATE", "memory://all")
    assert default_url(distributed=True) == "memory://all"
    config = LimitConfig(1, 1, distributed=True)
    one, other = TokenBucketLimiter(config), TokenBucketLimiter(config)
    assert [one.sync.acquire(), other.sync.acquire()] == [True, False]
    close_stores()


def test_state__shared_without_a_name__uses_the_app_name(monkeypatch: pytest.MonkeyPatch) -> None:
    app = f"app-{uuid.uuid4().hex}"
    monkeypatch.setenv("COMPORTA_APP", app)
    store = open_store("shared://?memory=8&lock_timeout=0.2")
    assert isinstance(store, FailoverStore)
    shared = store.primary
    assert isinstance(shared, SharedStore)
    assert app in shared.path
    assert shared.lock_timeout == 0.2
    assert open_store("shared://?memory=8&lock_timeout=0.2") is store
    close_stores()
    import shutil  # noqa: PLC0415

    shutil.rmtree(shared.path)


@pytest.mark.parametrize("url", ["", "nonsense", "http://x", "redis:/x", "secret:hunter2@host"])
def test_state__unknown_scheme__is_refused_listing_the_schemes(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"state must start with one of memory://, shared://, redis://"
    ) as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)


def test_state__not_a_url__is_a_type_error() -> None:
    with pytest.raises(TypeError, match="state must be a URL or a store, got 5"):
        open_store(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("shared://x?memory=none", "memory must be a number, got 'none'"),
        ("shared://x?memory=0", "memory must be 4 to"),
        ("shared://x?lock_timeout=0", "lock_timeout must be 0.001 to 60"),
        ("shared://x?colour=red", "shared:// takes memory and lock_timeout, got 'colour'"),
        ("shared://a/b", "name must be 1 to 64"),
        ("redis://127.0.0.1?timeout=soon", "timeout must be a number, got 'soon'"),
        ("redis://127.0.0.1?timeout=100", "timeout must be 0.001 to 60"),
        ("redis://127.0.0.1?connect_timeout=0", "connect_timeout must be 0.001 to 60"),
    ],
)
def test_state__bad_option__is_refused_naming_it(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        open_store(url)


def test_state__server_url__accepts_a_timeout_and_options(valkey: Server) -> None:
    url = valkey.url.replace("redis://", "valkey://")
    store = open_store(f"{url}?timeout=2.5&client_name=tester&connect_timeout=3")
    assert isinstance(store, FailoverStore)
    assert isinstance(store.primary, RedisStore)
    assert (store.primary.timeout, store.primary.connect_timeout) == (2.5, 3)
    assert store.entries("nothing") == {}
    close_stores()


def test_memory_url__same_name__is_one_store_per_process() -> None:
    assert open_store("memory://a") is open_store("memory://a")
    assert open_store("memory://") is not open_store("memory://")
    close_stores()


def test_redis_limiter__any_strategy__has_readable_keys(valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    for strategy in LimitStrategy:
        limiter = RedisLimiter(
            LimitConfig(10, 10, 60, strategy, distributed=True), valkey.url + "?timeout=5", strategy.value
        )
        assert limiter.sync.acquire() is True
        assert limiter.sync.acquire("a:b") is True
    keys = command(valkey, "KEYS", "*").decode()
    for strategy in LimitStrategy:
        assert f"rate_limiter:{strategy.value}\r\n" in keys
        assert f"rate_limiter:{strategy.value}:a:b\r\n" in keys
    close_stores()


def test_group__several_limits__charges_all_or_none() -> None:
    with memory_store() as store:
        total, each = TokenBucketLimiter("3/hour", store), TokenBucketLimiter("2/hour", store)
        group = LimitGroup(total, each)
        assert [group.sync.acquire([None, "a"]) for _ in range(3)] == [True, True, False]
        assert total.sync.peek().remaining == 1
        refused = group.sync.decide([None, "a"])
        assert (refused.allowed, refused.limit, refused.remaining) == (False, 2, 0)
        assert refused.retry_after > 1700
        allowed = group.sync.decide([None, "b"])
        assert (allowed.allowed, allowed.limit, allowed.remaining) == (True, 3, 0)
        group.sync.release([None, "b"])
        assert total.sync.peek().remaining == 1
        assert group.sync.acquire([None, "b"], timeout=0.01) is True


def test_group__with_a_timeout__takes_all_when_all_are_available(clock: ManualClock) -> None:
    async def story() -> list[bool]:
        store = MemoryStore(clock)
        group = LimitGroup(TokenBucketLimiter("100/s burst 1", store), SlidingWindowLimiter("50/s", store))
        answers = await asyncio.gather(*(group.acquire([None, None], timeout=5) for _ in range(4)))
        assert (await group.decide([None, None], 1)).allowed is False
        await group.release([None, None])
        return answers

    assert asyncio.run(story()) == [True] * 4


def test_group__bad_input__is_refused() -> None:
    with memory_store() as store, memory_store() as elsewhere:
        a, b = TokenBucketLimiter("3/s", store), TokenBucketLimiter("2/s", store)
        with pytest.raises(ValueError, match="limiters must share one store"):
            LimitGroup(a, TokenBucketLimiter("1/s", elsewhere))
        with pytest.raises(ValueError, match="limiters must have different names"):
            LimitGroup(a, a)
        with pytest.raises(ValueError, match="limiters must be 1 to 16, got 0"):
            LimitGroup()
        group = LimitGroup(a, b).sync
        for keys in ("ab", [None]):
            with pytest.raises(ValueError, match=r"keys must be a list.* 2"):
                group.acquire(keys)
        with pytest.raises(ValueError, match="cost must be at most the capacity, 2, got 3"):
            group.acquire([None, None], 3)


def test_limiter__closed__works_again(valkey: Server) -> None:
    async def story() -> None:
        limiter = RedisLimiter("10/hour", valkey.url + "?timeout=5", f"n{uuid.uuid4().hex}")
        assert await limiter.acquire() is True
        await limiter.aclose()
        assert await limiter.acquire() is True
        await limiter.aclose()
        await BaseLimiter("10/s").aclose()

    asyncio.run(story())
    close_stores()


def test_shared__whole_limit_and_keys__are_separate() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter("1/hour", store, "n").sync
        assert [limiter.acquire(key) for key in (None, "a", None, "a")] == [True, True, False, False]


def test_limiter__wait_queue_full__refuses_the_next_at_once(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(wait_queue, "WAITERS_MAX", 2)

    async def story() -> list[bool]:
        limiter = TokenBucketLimiter("100/s burst 1", MemoryStore(clock))
        return await asyncio.gather(*(limiter.acquire("k", timeout=5) for _ in range(4)))

    assert asyncio.run(story()) == [True, True, True, False]  # the first does not wait


def test_wait_queue__after_a_fork__is_empty_in_the_child() -> None:
    lines = wait_queue.WaitQueue()
    lines.join("k")
    lines._lock.acquire()
    lines.after_fork()
    assert lines.waiters_by_key == {}
    assert lines.join("k") is not None


def test_wait_for_wake__woken_before_it_waits__does_not_wait() -> None:
    clock, ticket = ManualClock(), wait_queue.Waiter()
    before_ns = clock.now_ns()
    ticket.wake()
    wait_queue.WaitForWake(clock, ticket, 5).block()
    ticket.wake()
    asyncio.run(wait_queue.WaitForWake(clock, ticket, 5).wait())
    assert clock.now_ns() == before_ns
    wait_queue.WaitForWake(clock, ticket, 5).block()
    asyncio.run(wait_queue.WaitForWake(clock, ticket, 5).wait())
    assert clock.now_ns() == before_ns + 10 * 10**9


def test_limiter__with_a_waiter__others_neither_overtake_it_nor_exceed_their_timeout() -> None:
    async def story() -> tuple[bool, bool, bool]:
        limiter = TokenBucketLimiter("2/s burst 1")
        assert await limiter.acquire("k")
        first = asyncio.ensure_future(limiter.acquire("k", timeout=5))
        await asyncio.sleep(0)
        passing = await limiter.acquire("k")
        impatient = await limiter.acquire("k", timeout=0.02)
        return passing, impatient, await first

    assert asyncio.run(story()) == (False, False, True)


def test_open_store__forked_while_locked__is_unlocked_in_the_child() -> None:
    from comporta import fork_safety  # noqa: PLC0415
    from comporta.stores import registry  # noqa: PLC0415

    registry._lock.acquire()
    fork_safety._reset_child()
    assert open_store("memory://forked") is open_store("memory://forked")
    close_stores()


def test_group__raised_limit__grants_the_higher_cost() -> None:
    """A group uses the limit in effect, as single limiters do."""
    store = MemoryStore()
    small, large = BaseLimiter("2/hour", store, "small"), BaseLimiter("100/hour", store, "large")
    group = LimitGroup(small, large)
    with pytest.raises(ValueError, match="cost must be at most the capacity, 2, got 50"):
        group.sync.decide([None, None], cost=50)
    small.sync.set_limit("60/hour")
    assert group.sync.acquire([None, None], cost=50)
