"""The Redis keys that operators read and write (A12, A14), and corrupt values in them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import redis
from tests.breaker.drivers import Driver
from tests.support import redis_store

from comporta import CircuitBreaker, StateTypeError
from comporta.stores.failover.store import FailoverStore
from comporta.stores.redis.cluster_slots import operation_slot
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

FAILURES, MARK = "circuit_breaker:pncp:failures", "circuit_breaker:pncp:degraded_until"
HALF_OPEN, CALLS = "circuit_breaker:pncp:half_open", "circuit_breaker:pncp:calls"
FORCED = "circuit_breaker_change:pncp"
NOW = 1_800_000_000

CORRUPT_VALUES = [
    *("garbage", "nan", "-nan", "inf", "1e300", "-5", "", "0x10", "9" * 400, "1e17", "9007199254740993", "0"),
    *(f"{NOW + 10**9}", f"{NOW * 10**6 + 10**13}", "1 2 3", "9 9999999999999999 x", "1:2:3:4", "\0\xff,,,"),
]


@pytest.fixture
def store(server: Server, clock: ManualClock) -> Iterator[RedisStore]:
    with redis_store(server, clock) as opened:
        yield opened


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=True) as opened:
        yield opened


@pytest.fixture
def driver(store: RedisStore) -> Driver:
    return Driver(CircuitBreaker("pncp", 3, 30, state=store), None)


def test_keys__three_failures__have_the_documented_names(driver: Driver, client: redis.Redis) -> None:
    driver.fails(2)
    assert client.get(FAILURES) == "2"
    assert client.get(MARK) is None
    assert client.exists(HALF_OPEN) == 0
    driver.fails()
    assert client.get(FAILURES) == "3"
    assert client.get(MARK) == f"{NOW + 30}.000000"
    assert client.hget(HALF_OPEN, "reason") == "OSError: no route"


def test_keys__all__expire_when_their_state_does(
    driver: Driver, client: redis.Redis, clock: ManualClock
) -> None:
    driver.fails(3)
    assert 29_000 < client.pttl(MARK) <= 30_000
    for key in (FAILURES, HALF_OPEN, CALLS):
        assert 290_000 < client.pttl(key) <= 300_000
    clock.advance(30)
    assert driver.refused() is None
    assert client.exists(FAILURES, MARK, HALF_OPEN) == 0
    assert 290_000 < client.pttl(CALLS) <= 300_000


def test_keys__long_cooldown__live_until_it_ends(store: RedisStore, client: redis.Redis) -> None:
    Driver(CircuitBreaker("pncp", 1, 3600, state=store), None).fails()
    assert 3_600_000 < client.pttl(HALF_OPEN) <= 3_660_000


def test_keys__long_probe__live_until_it_ends(store: RedisStore, client: redis.Redis) -> None:
    Driver(CircuitBreaker("pncp", 1, 1, state=store, probe_seconds=3600), None).fails()
    assert 3_600_000 < client.pttl(HALF_OPEN) <= 3_660_000


def test_keys__half_open__are_renewed_by_grants_and_not_by_refusals(
    driver: Driver, client: redis.Redis, clock: ManualClock
) -> None:
    driver.fails(3)
    clock.advance(30)
    for key in (HALF_OPEN, CALLS):
        client.pexpire(key, 100_000)
    assert driver.allow()
    assert client.pttl(HALF_OPEN) > 200_000
    for key in (HALF_OPEN, CALLS):
        client.pexpire(key, 100_000)
    for _ in range(5):
        clock.advance(1)
        assert not driver.allow()
    assert client.pttl(HALF_OPEN) <= 100_000


def test_keys__closed_and_never_failed__do_not_exist(driver: Driver, client: redis.Redis) -> None:
    assert driver.refused() is None
    assert client.keys("circuit_breaker*") == []


def test_operator__sets_failures__all_workers_see_them_and_nothing_opens(
    driver: Driver, client: redis.Redis
) -> None:
    client.set(FAILURES, 30)
    state = driver.get_state()
    assert (state.failures, state.degraded, state.degraded_until) == (30, False, None)
    assert client.get(FAILURES) == "30"


def test_operator__sets_degraded_until__is_open_until_then_for_at_most_a_cooldown(
    driver: Driver, client: redis.Redis, clock: ManualClock
) -> None:
    client.set(MARK, f"{NOW + 10}")
    error = driver.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(10)
    clock.advance(10)
    assert driver.refused() is None
    client.set(MARK, f"{NOW + 10_000}")
    clock.advance(1)
    assert driver.get_state().degraded
    clock.advance(30)
    assert not driver.get_state().degraded


def test_operator__deletes_degraded_until__is_half_open(driver: Driver, client: redis.Redis) -> None:
    driver.fails(3)
    client.delete(MARK)
    assert driver.get_state().phase == "half_open"
    client.delete(HALF_OPEN)
    assert driver.get_state().phase == "closed"


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_server_clock__jumps__locks_no_call_out_for_longer_than_configured(
    driver: Driver, clock: ManualClock, jump: float
) -> None:
    driver.fails(3)
    clock.advance(jump)
    driver.get_state()
    clock.advance(30)
    probe = driver.allow()
    assert probe.probe
    clock.advance(jump)
    driver.get_state()
    clock.advance(30)
    assert driver.get_state().probes == ()
    assert driver.refused() is None


@pytest.mark.unmeasured
@pytest.mark.parametrize("key", [FAILURES, MARK])
@pytest.mark.parametrize("value", CORRUPT_VALUES)
def test_corrupt_value__in_a_string__neither_raises_nor_locks(
    driver: Driver, client: redis.Redis, clock: ManualClock, key: str, value: str
) -> None:
    client.set(key, value)
    driver.get_state()
    clock.advance(31)
    assert driver.refused() is None
    _assert_opens_and_recovers(driver, clock)


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    ("key", "field"),
    [
        *product([HALF_OPEN], ["since", "successes", "ramp", "probes"]),
        *product([CALLS], ["generation", "last", "run", "slices", "failing"]),
    ],
)
def test_corrupt_value__in_a_hash__neither_raises_nor_locks(
    store: RedisStore, client: redis.Redis, clock: ManualClock, key: str, field: str
) -> None:
    driver = Driver(CircuitBreaker("pncp", 3, 30, state=store, failure_ratio=1.0, minimum_calls=3), None)
    for value in CORRUPT_VALUES:
        driver.reset()
        driver.fails(3)
        client.hset(key, field, value)
        clock.advance(31)
        driver.get_state()
        clock.advance(31)
        assert driver.refused() is None
        _assert_opens_and_recovers(driver, clock)


@pytest.mark.parametrize("value", ["", "maybe", "open", "closed", "OPEN x", "\0"])
def test_operators_record__unknown_word__forces_nothing(
    driver: Driver, client: redis.Redis, value: str
) -> None:
    client.set(FORCED, value)
    assert driver.get_state().forced == (value if value in ("open", "closed") else None)
    client.delete(FORCED)
    client.lpush(FORCED, value)
    assert driver.get_state().forced is None


def _assert_opens_and_recovers(driver: Driver, clock: ManualClock) -> None:
    driver.reset()
    driver.fails(3)
    assert driver.breaker.is_degraded is True
    clock.advance(30)
    assert driver.refused() is None
    assert driver.breaker.phase == "closed"


@pytest.mark.parametrize("key", [FAILURES, MARK, HALF_OPEN, CALLS])
def test_wrong_type__at_a_key__is_named_and_kept_and_the_worker_falls_back(
    store: RedisStore, client: redis.Redis, key: str
) -> None:
    client.lpush(key, "other")
    with pytest.raises(StateTypeError, match="'circuit_breaker:pncp'"):
        CircuitBreaker("pncp", 3, 30, state=store).sync.allow()
    guarded = FailoverStore.wrap(store, "redis://test")
    driver = Driver(CircuitBreaker("pncp", 3, 30, state=guarded), None)
    driver.fails(3)
    assert driver.refused() is not None
    guarded.heartbeat.stop()
    assert client.lrange(key, 0, -1) == ["other"]


def test_cluster__all_keys_of_a_breaker__share_one_slot(driver: Driver) -> None:
    for name in ("plain", "api.search", "a-b"):
        breaker = CircuitBreaker(name, state=driver.breaker.store)
        operation_slot(breaker._view.builder.build("read"))
