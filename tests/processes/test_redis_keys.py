"""Keys in Redis and Valkey: what an operator finds there and may change, and that garbage is harmless.

Covers A12, A14 and A15.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from comporta import BaseLimiter, LimitConfig, LimitKey, LimitStrategy, StateTypeError
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

HOURLY = LimitConfig(10 / 3600, 10, 3600)
KEY = "rate_limiter:pncp:k"

# Values that made a naive script refuse every caller, or admit all of them, and some more.
GARBAGE = [
    "garbage",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-5",
    "",
    "1e17",
    "-1e17",
    "0x10",
    " 7 ",
    "9" * 400,
    "\0",
]
GARBAGE += ["99999999999", "-99999999999", "9999999999999999:3", "0:-3"]


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    """Provide the client of an operator."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def store(redis_server: Server) -> Iterator[RedisStore]:
    store = RedisStore(redis_server.url, timeout=5)
    yield store
    store.close()


@contextmanager
def on_clock(server: Server, clock: ManualClock) -> Iterator[RedisStore]:
    store = RedisStore(server.url, timeout=5, clock=clock)
    yield store
    store.close()


def grant_count(limiter: BaseLimiter, tries: int = 12) -> int:
    return sum(limiter.sync.acquire("k") for _ in range(tries))


# keys -------------------------------------------------------------------------------------------------------


def test_key__of_a_whole_limiter__is_a_readable_hash(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter("10/s", store, "pncp")
    seconds, microseconds = client.time()
    assert all(limiter.sync.acquire() for _ in range(3))
    assert client.keys() == ["rate_limiter:pncp"]
    assert client.type("rate_limiter:pncp") == "hash"
    state = client.hgetall("rate_limiter:pncp")
    assert 7 <= float(state["tokens"]) < 10
    assert 0 <= float(state["last_refill"]) - (seconds + microseconds / 1e6) < 5


@pytest.mark.parametrize(
    ("key", "redis_key"),
    [
        (None, "rate_limiter:pncp"),
        ("k", "rate_limiter:pncp:k"),
        ("a:b", "rate_limiter:pncp:a:b"),
        (LimitKey("ns", "k", "v1"), "rate_limiter:pncp:ns:k:v1"),
        (LimitKey("ns", "a:b"), "rate_limiter:pncp:ns:a%3Ab"),
        ("é 🚪\n{x}", "rate_limiter:pncp:é 🚪\n{x}"),
    ],
)
def test_key__of_a_caller__is_stored_under_the_limiters_name(
    client: Any, store: RedisStore, key: LimitKey | str | None, redis_key: str
) -> None:
    BaseLimiter("10/s", store, "pncp").sync.acquire(key)
    assert client.keys() == [redis_key]


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize(
    ("capacity", "seconds"), [(10, 1), (10, 60), (200, 200), (300, 300), (1000, 3600), (5, 86_400)]
)
def test_ttl__every_strategy__matches_the_limit_and_is_at_least_a_minute(
    client: Any, store: RedisStore, strategy: LimitStrategy, capacity: int, seconds: int
) -> None:
    limiter = BaseLimiter(LimitConfig(capacity / seconds, capacity, seconds, strategy), store, "pncp")
    turn = (
        seconds / capacity if strategy is LimitStrategy.LEAKY_BUCKET else 0
    )  # one passes, and a queue waits behind it
    ttl = max(60, seconds + turn)
    for method in (limiter.sync.acquire, limiter.sync.decide, limiter.sync.release, limiter.sync.acquire):
        method("k")
        ttl_ms = client.pttl(KEY)
        assert (ttl - 5) * 1000 < ttl_ms <= ttl * 1000
        assert ttl_ms <= max(300, ttl) * 1000


def test_ttl__elapsed__leaves_no_key(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter("10/s", store, "pncp")
    limiter.sync.acquire("k")
    client.pexpire(KEY, 1)
    while client.exists(KEY):
        pass
    assert limiter.sync.peek("k").remaining == 10
    assert client.keys() == []


# changes by an operator -------------------------------------------------------------------------------------


def test_operator__sets_tokens_by_hand__takes_effect(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter(HOURLY, store, "pncp")
    limiter.sync.acquire("k")
    client.hset(KEY, "tokens", 3)
    assert grant_count(limiter) == 3
    client.hset(KEY, "tokens", "0")
    assert grant_count(limiter) == 0


def test_operator__sets_tokens_of_a_new_key__takes_effect(client: Any, store: RedisStore) -> None:
    client.hset(KEY, "tokens", 3)
    limiter = BaseLimiter(HOURLY, store, "pncp")
    assert limiter.sync.peek("k").remaining == 3
    assert grant_count(limiter) == 3
    assert client.ttl(KEY) > 0


def test_operator__empties_the_bucket_of_a_new_key__it_refills(redis_server: Server, client: Any) -> None:
    clock = ManualClock(1_700_000_000)
    client.hset(KEY, "tokens", 0)
    with on_clock(redis_server, clock) as store:
        limiter = BaseLimiter(LimitConfig(1, 10), store, "pncp")
        assert grant_count(limiter) == 0
        clock.advance(5)
        assert grant_count(limiter) == 5


def test_operator__deletes_the_key__limit_is_full_again(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter(HOURLY, store, "pncp")
    assert grant_count(limiter) == 10
    client.delete(KEY)
    assert grant_count(limiter) == 10


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize("before", [5, 12])
def test_garbage__in_any_field__neither_blocks_nor_exceeds_the_limit(
    redis_server: Server, client: Any, strategy: LimitStrategy, before: int
) -> None:
    """After at most two more periods the limit works as before: a state may owe one capacity."""
    clock = ManualClock(1_700_000_000)
    config = LimitConfig(1, 10, 10, strategy)
    burst = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 10
    with on_clock(redis_server, clock) as store:
        limiter = BaseLimiter(config, store, "pncp")
        grant_count(limiter, before)
        for field in fields(client):
            for value in GARBAGE:
                grant_count(limiter, before)
                client.hset(KEY, field, value)
                granted = grant_count(limiter)
                assert granted <= burst, (field, value)
                stats = limiter.sync.stats("k")
                assert 0 <= stats.tokens_available <= 10, (field, value)
                clock.advance(21)
                assert grant_count(limiter) == burst, (field, value)
                assert 0 < client.ttl(KEY) <= 60, (field, value)
                clock.advance(11)


def fields(client: Any) -> list[str]:
    """Return the fields of a state, with at most three entries of a log."""
    names = sorted(client.hgetall(KEY))
    entries = [field for field in names if field.isdecimal()]
    return [field for field in names if field not in entries] + entries[:3]


def test_garbage__instead_of_an_override__is_ignored(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter(HOURLY, store, "pncp")
    for value in ["", "garbage", "1 2", "-5 1 1 1", "nan nan nan nan", "inf"]:
        client.set("rate_limiter_change:pncp", value)
        assert grant_count(limiter) == 10
        client.delete(KEY)
    client.delete("rate_limiter_change:pncp")
    client.lpush("rate_limiter_change:pncp", "a")
    assert grant_count(limiter) == 10


# another type at the key ------------------------------------------------------------------------------------


def write_other_types(client: Any) -> None:
    client.set("rate_limiter:pncp:string", "other data")
    client.rpush("rate_limiter:pncp:list", "other data")
    client.sadd("rate_limiter:pncp:set", "other data")


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize("kind", ["string", "list", "set"])
def test_other_type__at_the_key__is_named_and_left_unchanged(
    client: Any, store: RedisStore, strategy: LimitStrategy, kind: str
) -> None:
    write_other_types(client)
    limiter = BaseLimiter(LimitConfig(1, 10, 10, strategy), store, "pncp")
    for method in (limiter.sync.acquire, limiter.sync.decide, limiter.sync.peek, limiter.sync.release):
        with pytest.raises(StateTypeError, match=f"rate_limiter:pncp:{kind}"):
            method(kind)
    assert client.ttl(f"rate_limiter:pncp:{kind}") == -1
    assert client.get("rate_limiter:pncp:string") == "other data"
    assert client.lrange("rate_limiter:pncp:list", 0, -1) == ["other data"]
    assert client.smembers("rate_limiter:pncp:set") == {"other data"}


def test_other_type__at_one_key_of_a_batch__fails_only_its_callers(client: Any, store: RedisStore) -> None:
    async def main() -> list[Any]:
        limiter = BaseLimiter(HOURLY, store, "pncp")
        keys = ["a", "string", "b", "list", "c", "set", "d"]
        try:
            return await asyncio.gather(*map(limiter.acquire, keys), return_exceptions=True)
        finally:
            await limiter.aclose()

    write_other_types(client)
    results = asyncio.run(main())
    assert results[::2] == [True] * 4
    assert [type(result) for result in results[1::2]] == [StateTypeError] * 3
    for kind, error in zip(["string", "list", "set"], results[1::2], strict=True):
        assert f"rate_limiter:pncp:{kind}" in str(error)
    assert client.get("rate_limiter:pncp:string") == "other data"


# the server's clock -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize("hours", [-1, 1, -24 * 400])
def test_servers_clock__jumps__never_blocks_a_key(
    redis_server: Server, strategy: LimitStrategy, hours: int
) -> None:
    clock = ManualClock(1_700_000_000)
    burst = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 10
    with on_clock(redis_server, clock) as store:
        limiter = BaseLimiter(LimitConfig(1, 10, 10, strategy), store, "pncp")
        assert grant_count(limiter) == burst
        clock.advance(3600 * hours)
        assert grant_count(limiter) <= (burst if hours > 0 else 0)
        clock.advance(11)
        assert grant_count(limiter) == burst
