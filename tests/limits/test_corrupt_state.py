"""Corrupt values in the state, and clocks that jump: no caller is blocked and no limit exceeded.

An operator's typing error or a bug of another program may put anything into a hash. The next calls still
decide, and at most a second later than the limit itself requires everything works as before. A debt of one
capacity is a valid state (``settle``); only the level of a leaky bucket can look like a full queue and such a
debt, which takes one capacity longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis
from tests.support import redis_store

from comporta import LimitConfig, LimitStrategy
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

pytestmark = pytest.mark.unmeasured  # thousands of decisions, which other tests cover

NOW = 1_800_000_000
RATE = CAPACITY = 10
WINDOW = 1.0
KEY = "rate_limiter:n:k"
STEP = 0.1
AFTER = 3.0

POISON = [
    *(
        "garbage",
        "nan",
        "-nan",
        "inf",
        "-inf",
        "1e400",
        "-1e400",
        "-5",
        "",
        "0x10",
        "9" * 400,
        "-" + "9" * 400,
    ),
    *("1e17", "-1e17", "9007199254740993", "-1", "0", "1e15"),  # near the largest numbers that can be counted
    *(
        f"{NOW + 3600}",
        f"{NOW - 3600}",
        f"{NOW + 10**9}",
        "1",
        f"{NOW}.5",
        f"{NOW + 0.9}",
    ),  # times in the past and the future
    *("5000000", "9999999999999999:3", "0:-3", f"{NOW * 10**6}:4000000000", f"{NOW * 10**6 + 9 * 10**11}:1"),
]


@pytest.fixture(params=LimitStrategy)
def limit(request: pytest.FixtureRequest) -> LimitConfig:
    return LimitConfig(RATE, CAPACITY, WINDOW, request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def store(server: Server, clock: ManualClock) -> Iterator[RedisStore]:
    with redis_store(server, clock) as store:
        yield store


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def drain(store: RedisStore, take: AcquireOperation) -> None:
    for _ in range(CAPACITY):
        store.apply(take)


def record_grants(store: RedisStore, clock: ManualClock, take: AcquireOperation) -> list[float]:
    """Take as much as possible for a while, and return the time of each grant."""
    began_ns = clock.now_ns()
    granted = []
    for _ in range(round(AFTER / STEP)):
        waits = [0]
        while waits[-1] == 0:
            waits = store.apply_many([take, take])
            granted += [(clock.now_ns() - began_ns) / 1e9] * waits.count(0)
            assert len(granted) <= 2 * CAPACITY + RATE * AFTER
        clock.advance(STEP)
    return granted


def check(granted: list[float], limit: LimitConfig, what: object) -> None:
    """Check that the grants exceed the limit by at most one burst, with no gap above a second."""
    assert len(granted) <= CAPACITY + RATE * AFTER, what
    own_wait = WINDOW if "window" in limit.strategy_name else 1 / RATE
    if limit.strategy is LimitStrategy.LEAKY_BUCKET:
        own_wait += CAPACITY / RATE
    moments = [0.0, *granted, AFTER]
    longest = max(later - earlier for earlier, later in pairwise(moments))
    assert longest <= own_wait + 1.0 + STEP / 2, what


@pytest.mark.parametrize("first", [1, 0, -1], ids=["take", "look", "give"])
def test_corrupt_state__any_field__neither_blocks_nor_exceeds_the_limit(
    store: RedisStore, client: Any, clock: ManualClock, limit: LimitConfig, first: int
) -> None:
    take = AcquireOperation(LimitDefinition(limit.build_strategy(), "n"), "k", 1)
    ask = LimitOperation([LimitDemand(limit.build_strategy(), "n", "k", first)])
    drain(store, take)
    sound = client.hgetall(KEY)
    for field in sound:
        for value in [*POISON, None]:
            client.delete(KEY)
            client.hset(KEY, mapping=recent_state(sound, clock))
            client.hdel(KEY, field) if value is None else client.hset(KEY, field, value)
            [seen] = store.apply(ask)
            assert 0 <= seen.remaining <= CAPACITY, (field, value)
            check(record_grants(store, clock, take), limit, (field, value))


def recent_state(sound: dict[str, str], clock: ManualClock) -> dict[str, str]:
    """Return a state as a limiter would have written it just now."""
    now = clock.now_ns() // 1000
    found = dict(sound)
    for field, value in sound.items():
        if field in ("start", "last", "last_refill", "last_leak") and float(value) > 1e9:
            found[field] = f"{now / 1e6:.6f}"
        elif field.isdecimal():
            found[field] = f"{now}:{value.partition(':')[2]}"
    return found


@pytest.mark.parametrize("head", [-5, 0, 1, 2, 11, 4000, 10**12, -(2**52)])
@pytest.mark.parametrize("length", [-1, 0, 1, 9, 10, 11, 300, 4096, 10**6])
def test_corrupt_state__ends_of_the_log__neither_blocks_nor_exceeds_the_limit(
    store: RedisStore, client: Any, clock: ManualClock, head: int, length: int
) -> None:
    limit = LimitConfig(RATE, CAPACITY, WINDOW, LimitStrategy.SLIDING_WINDOW)
    take = AcquireOperation(LimitDefinition(limit.build_strategy(), "n"), "k", 1)
    drain(store, take)
    client.hset(KEY, mapping={"head": head, "tail": head + length - 1})
    check(record_grants(store, clock, take), limit, (head, length))


@pytest.mark.parametrize("hours", [1, -1, 24 * 400, -24 * 400])
def test_server_clock__jumps__neither_blocks_nor_exceeds_the_limit(
    store: RedisStore, clock: ManualClock, limit: LimitConfig, hours: int
) -> None:
    take = AcquireOperation(LimitDefinition(limit.build_strategy(), "n"), "k", 1)
    drain(store, take)
    clock.advance(3600 * hours)
    check(record_grants(store, clock, take), limit, hours)
