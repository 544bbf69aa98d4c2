"""What an operator finds in Redis and Valkey, may change there, and cannot break (A12, A14, A15)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from comporta import BaseLimiter, LimitConfig, LimitKey, LimitStrategy, StateTypeError
from comporta.stores.redis import RedisStore
from comporta.testing import ManualClock, Server

HOURLY = LimitConfig(10 / 3600, 10, 3600)
KEY = "rate_limiter:pncp:k"

# What was found to lock a naive script's callers out, or to let them through (FAULTS.md), and some more.
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
    """What an operator has: any client, typed or not."""
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


def taken(limiter: BaseLimiter, tries: int = 12) -> int:
    return sum(limiter.sync.acquire("k") for _ in range(tries))


# keys -------------------------------------------------------------------------------------------------------


def test_key__of_a_limiter_as_a_whole__is_a_hash_an_operator_can_read(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter("10/s", store, "pncp")
    seconds, microseconds = client.time()
    assert all(limiter.sync.acquire() for _ in range(3))
    assert client.keys() == ["rate_limiter:pncp"]
    assert client.type("rate_limiter:pncp") == "hash"
    found = client.hgetall("rate_limiter:pncp")
    assert 7 <= float(found["tokens"]) < 10
    assert 0 <= float(found["last_refill"]) - (seconds + microseconds / 1e6) < 5


@pytest.mark.parametrize(
    ("key", "written"),
    [
        (None, "rate_limiter:pncp"),
        ("k", "rate_limiter:pncp:k"),
        ("a:b", "rate_limiter:pncp:a:b"),
        (LimitKey("ns", "k", "v1"), "rate_limiter:pncp:ns:k:v1"),
        (LimitKey("ns", "a:b"), "rate_limiter:pncp:ns:a%3Ab"),
        ("é 🚪\n{x}", "rate_limiter:pncp:é 🚪\n{x}"),
    ],
)
def test_key__as_callers_write_it__is_found_under_the_limiters_name(
    client: Any, store: RedisStore, key: LimitKey | str | None, written: str
) -> None:
    BaseLimiter("10/s", store, "pncp").sync.acquire(key)
    assert client.keys() == [written]


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize(
    ("capacity", "seconds"), [(10, 1), (10, 60), (200, 200), (300, 300), (1000, 3600), (5, 86_400)]
)
def test_ttl__of_every_strategy__is_as_long_as_the_limit_and_a_minute_at_least(
    client: Any, store: RedisStore, strategy: LimitStrategy, capacity: int, seconds: int
) -> None:
    limiter = BaseLimiter(LimitConfig(capacity / seconds, capacity, seconds, strategy), store, "pncp")
    turn = (
        seconds / capacity if strategy is LimitStrategy.LEAKY_BUCKET else 0
    )  # one passes, a queue behind it
    ttl = max(60, seconds + turn)
    for verb in (limiter.sync.acquire, limiter.sync.decide, limiter.sync.release, limiter.sync.acquire):
        verb("k")
        found_ms = client.pttl(KEY)
        assert (ttl - 5) * 1000 < found_ms <= ttl * 1000
        assert found_ms <= max(300, ttl) * 1000


def test_ttl__after_the_longest_life_of_a_key__nothing_is_left(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter("10/s", store, "pncp")
    limiter.sync.acquire("k")
    client.pexpire(KEY, 1)
    while client.exists(KEY):
        pass
    assert limiter.sync.peek("k").remaining == 10
    assert client.keys() == []


# what an operator sets --------------------------------------------------------------------------------------


def test_operator__sets_tokens_by_hand__and_is_obeyed(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter(HOURLY, store, "pncp")
    limiter.sync.acquire("k")
    client.hset(KEY, "tokens", 3)
    assert taken(limiter) == 3
    client.hset(KEY, "tokens", "0")
    assert taken(limiter) == 0


def test_operator__sets_tokens_of_a_new_key__and_is_obeyed(client: Any, store: RedisStore) -> None:
    client.hset(KEY, "tokens", 3)
    limiter = BaseLimiter(HOURLY, store, "pncp")
    assert limiter.sync.peek("k").remaining == 3
    assert taken(limiter) == 3
    assert client.ttl(KEY) > 0


def test_operator__empties_the_bucket_of_a_new_key__and_it_refills(redis_server: Server, client: Any) -> None:
    clock = ManualClock(1_700_000_000)
    client.hset(KEY, "tokens", 0)
    with on_clock(redis_server, clock) as store:
        limiter = BaseLimiter(LimitConfig(1, 10), store, "pncp")
        assert taken(limiter) == 0
        clock.advance(5)
        assert taken(limiter) == 5


def test_operator__deletes_the_key__and_the_limit_starts_anew(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter(HOURLY, store, "pncp")
    assert taken(limiter) == 10
    client.delete(KEY)
    assert taken(limiter) == 10


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize("before", [5, 12])
def test_garbage__in_any_field__locks_nobody_out_and_lets_no_flood_in(
    redis_server: Server, client: Any, strategy: LimitStrategy, before: int
) -> None:
    """After at most one period more the limit works as if nothing had been."""
    clock = ManualClock(1_700_000_000)
    config = LimitConfig(1, 10, 10, strategy)
    at_once = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 10
    with on_clock(redis_server, clock) as store:
        limiter = BaseLimiter(config, store, "pncp")
        taken(limiter, before)
        for field in fields(client):
            for value in GARBAGE:
                taken(limiter, before)
                client.hset(KEY, field, value)
                granted = taken(limiter)
                assert granted <= at_once, (field, value)
                stats = limiter.sync.stats("k")
                assert 0 <= stats.tokens_available <= 10, (field, value)
                clock.advance(11)
                assert taken(limiter) == at_once, (field, value)
                assert 0 < client.ttl(KEY) <= 60, (field, value)
                clock.advance(11)


def fields(client: Any) -> list[str]:
    """Return what a state consists of; of the entries of a log three will do."""
    found = sorted(client.hgetall(KEY))
    entries = [field for field in found if field.isdecimal()]
    return [field for field in found if field not in entries] + entries[:3]


def test_garbage__instead_of_a_change__is_ignored(client: Any, store: RedisStore) -> None:
    limiter = BaseLimiter(HOURLY, store, "pncp")
    for value in ["", "garbage", "1 2", "-5 1 1 1", "nan nan nan nan", "inf"]:
        client.set("rate_limiter_change:pncp", value)
        assert taken(limiter) == 10
        client.delete(KEY)
    client.delete("rate_limiter_change:pncp")
    client.lpush("rate_limiter_change:pncp", "a")
    assert taken(limiter) == 10


# another type at the key ------------------------------------------------------------------------------------


def other_types(client: Any) -> None:
    client.set("rate_limiter:pncp:string", "mine")
    client.rpush("rate_limiter:pncp:list", "mine")
    client.sadd("rate_limiter:pncp:set", "mine")


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize("kind", ["string", "list", "set"])
def test_other_type__at_the_key__is_named_and_left_alone(
    client: Any, store: RedisStore, strategy: LimitStrategy, kind: str
) -> None:
    other_types(client)
    limiter = BaseLimiter(LimitConfig(1, 10, 10, strategy), store, "pncp")
    for verb in (limiter.sync.acquire, limiter.sync.decide, limiter.sync.peek, limiter.sync.release):
        with pytest.raises(StateTypeError, match=f"rate_limiter:pncp:{kind}"):
            verb(kind)
    assert client.ttl(f"rate_limiter:pncp:{kind}") == -1
    assert client.get("rate_limiter:pncp:string") == "mine"
    assert client.lrange("rate_limiter:pncp:list", 0, -1) == ["mine"]
    assert client.smembers("rate_limiter:pncp:set") == {"mine"}


def test_other_type__at_one_key_of_a_batch__is_the_trouble_of_its_own_callers_only(
    client: Any, store: RedisStore
) -> None:
    async def main() -> list[Any]:
        limiter = BaseLimiter(HOURLY, store, "pncp")
        keys = ["a", "string", "b", "list", "c", "set", "d"]
        try:
            return await asyncio.gather(*map(limiter.acquire, keys), return_exceptions=True)
        finally:
            await limiter.aclose()

    other_types(client)
    answers = asyncio.run(main())
    assert answers[::2] == [True] * 4
    assert [type(answer) for answer in answers[1::2]] == [StateTypeError] * 3
    for kind, error in zip(["string", "list", "set"], answers[1::2], strict=True):
        assert f"rate_limiter:pncp:{kind}" in str(error)
    assert client.get("rate_limiter:pncp:string") == "mine"


# the server's clock -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize("hours", [-1, 1, -24 * 400])
def test_servers_clock__jumps__locks_nobody_out(
    redis_server: Server, strategy: LimitStrategy, hours: int
) -> None:
    clock = ManualClock(1_700_000_000)
    at_once = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 10
    with on_clock(redis_server, clock) as store:
        limiter = BaseLimiter(LimitConfig(1, 10, 10, strategy), store, "pncp")
        assert taken(limiter) == at_once
        clock.advance(3600 * hours)
        assert taken(limiter) <= (at_once if hours > 0 else 0)
        clock.advance(11)
        assert taken(limiter) == at_once
