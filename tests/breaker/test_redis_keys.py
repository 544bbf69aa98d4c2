"""What operators see and do with redis-cli (A12, A14), and values in the state that make no sense."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import redis
from tests.breaker.faces import Face
from tests.support import redis_store

from comporta import CircuitBreaker, StateTypeError
from comporta.stores.failover import FailoverStore
from comporta.stores.redis import RedisStore
from comporta.stores.slots import slot_of
from comporta.testing import ManualClock, Server

FAILURES, MARK = "circuit_breaker:pncp:failures", "circuit_breaker:pncp:degraded_until"
HALF_OPEN, CALLS = "circuit_breaker:pncp:half_open", "circuit_breaker:pncp:calls"
CHANGE = "circuit_breaker_change:pncp"
NOW = 1_800_000_000

POISON = [
    *("garbage", "nan", "-nan", "inf", "1e300", "-5", "", "0x10", "9" * 400, "1e17", "9007199254740993", "0"),
    *(f"{NOW + 10**9}", f"{NOW * 10**6 + 10**13}", "1 2 3", "9 9999999999999999 x", "1:2:3:4", "\0\xff,,,"),
]


@pytest.fixture
def store(server: Server, clock: ManualClock) -> Iterator[RedisStore]:
    with redis_store(server, clock) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=True) as made:
        yield made


@pytest.fixture
def face(store: RedisStore) -> Face:
    return Face(CircuitBreaker("pncp", 3, 30, state=store), None)


def test_keys__three_failures__are_as_the_seed_names_them(face: Face, client: redis.Redis) -> None:
    face.fails(2)
    assert client.get(FAILURES) == "2"
    assert client.get(MARK) is None
    assert client.exists(HALF_OPEN) == 0
    face.fails()
    assert client.get(FAILURES) == "3"
    assert client.get(MARK) == f"{NOW + 30}.000000"
    assert client.hget(HALF_OPEN, "why") == "OSError: no route"


def test_keys__all__live_no_longer_than_they_mean_something(
    face: Face, client: redis.Redis, clock: ManualClock
) -> None:
    face.fails(3)
    assert 29_000 < client.pttl(MARK) <= 30_000
    for key in (FAILURES, HALF_OPEN, CALLS):
        assert 290_000 < client.pttl(key) <= 300_000
    clock.advance(30)
    assert face.refused() is None
    assert client.exists(FAILURES, MARK, HALF_OPEN) == 0
    assert 290_000 < client.pttl(CALLS) <= 300_000


def test_keys__long_cooldown__are_remembered_until_it_is_over(store: RedisStore, client: redis.Redis) -> None:
    Face(CircuitBreaker("pncp", 1, 3600, state=store), None).fails()
    assert 3_600_000 < client.pttl(HALF_OPEN) <= 3_660_000


def test_keys__long_probe__are_remembered_until_it_is_over(store: RedisStore, client: redis.Redis) -> None:
    Face(CircuitBreaker("pncp", 1, 1, state=store, probe_seconds=3600), None).fails()
    assert 3_600_000 < client.pttl(HALF_OPEN) <= 3_660_000


def test_keys__half_open__are_renewed_by_grants_and_not_by_refusals(
    face: Face, client: redis.Redis, clock: ManualClock
) -> None:
    face.fails(3)
    clock.advance(30)
    for key in (HALF_OPEN, CALLS):
        client.pexpire(key, 100_000)
    assert face.allow()
    assert client.pttl(HALF_OPEN) > 200_000
    for key in (HALF_OPEN, CALLS):
        client.pexpire(key, 100_000)
    for _ in range(5):
        clock.advance(1)
        assert not face.allow()
    assert client.pttl(HALF_OPEN) <= 100_000


def test_keys__closed_and_never_failed__are_not_there(face: Face, client: redis.Redis) -> None:
    assert face.refused() is None
    assert client.keys("circuit_breaker*") == []


def test_operator__sets_failures__everybody_sees_them_and_nothing_opens(
    face: Face, client: redis.Redis
) -> None:
    client.set(FAILURES, 30)
    state = face.get_state()
    assert (state.failures, state.degraded, state.degraded_until) == (30, False, None)
    assert client.get(FAILURES) == "30"


def test_operator__sets_the_mark__it_is_open_till_then_but_never_longer_than_a_cooldown(
    face: Face, client: redis.Redis, clock: ManualClock
) -> None:
    client.set(MARK, f"{NOW + 10}")
    error = face.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(10)
    clock.advance(10)
    assert face.refused() is None
    client.set(MARK, f"{NOW + 10_000}")
    clock.advance(1)
    assert face.get_state().degraded
    clock.advance(30)
    assert not face.get_state().degraded


def test_operator__deletes_the_mark__it_is_half_open(face: Face, client: redis.Redis) -> None:
    face.fails(3)
    client.delete(MARK)
    assert face.get_state().phase == "half_open"
    client.delete(HALF_OPEN)
    assert face.get_state().phase == "closed"


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_clock__of_the_server_jumps__nobody_is_locked_out_for_longer_than_configured(
    face: Face, clock: ManualClock, jump: float
) -> None:
    face.fails(3)
    clock.advance(jump)
    face.get_state()
    clock.advance(30)
    probe = face.allow()
    assert probe.probe
    clock.advance(jump)
    face.get_state()
    clock.advance(30)
    assert face.get_state().probes == ()
    assert face.refused() is None


@pytest.mark.parametrize("key", [FAILURES, MARK])
@pytest.mark.parametrize("value", POISON)
def test_poison__in_a_string__never_breaks_nor_locks(
    face: Face, client: redis.Redis, clock: ManualClock, key: str, value: str
) -> None:
    client.set(key, value)
    face.get_state()
    clock.advance(31)
    assert face.refused() is None
    _works_as_ever(face, clock)


@pytest.mark.parametrize(
    ("key", "field"),
    [
        *product([HALF_OPEN], ["since", "successes", "ramp", "probes"]),
        *product([CALLS], ["generation", "last", "run", "slices", "failing"]),
    ],
)
def test_poison__in_a_hash__never_breaks_nor_locks(
    store: RedisStore, client: redis.Redis, clock: ManualClock, key: str, field: str
) -> None:
    face = Face(CircuitBreaker("pncp", 3, 30, state=store, failure_ratio=1.0, minimum_calls=3), None)
    for value in POISON:
        face.reset()
        face.fails(3)
        client.hset(key, field, value)
        clock.advance(31)
        face.get_state()
        clock.advance(31)
        assert face.refused() is None
        _works_as_ever(face, clock)


@pytest.mark.parametrize("value", ["", "maybe", "open", "closed", "OPEN x", "\0"])
def test_poison__in_an_operators_word__says_nothing_unless_it_is_one(
    face: Face, client: redis.Redis, value: str
) -> None:
    client.set(CHANGE, value)
    assert face.get_state().forced == (value if value in ("open", "closed") else None)
    client.delete(CHANGE)
    client.lpush(CHANGE, value)
    assert face.get_state().forced is None


def _works_as_ever(face: Face, clock: ManualClock) -> None:
    face.reset()
    face.fails(3)
    assert face.breaker.is_degraded is True
    clock.advance(30)
    assert face.refused() is None
    assert face.breaker.phase == "closed"


@pytest.mark.parametrize("key", [FAILURES, MARK, HALF_OPEN, CALLS])
def test_wrong_type__at_a_key__is_named_left_as_it_is_and_lived_with_alone(
    store: RedisStore, client: redis.Redis, key: str
) -> None:
    client.lpush(key, "mine")
    with pytest.raises(StateTypeError, match="'circuit_breaker:pncp'"):
        CircuitBreaker("pncp", 3, 30, state=store).sync.allow()
    guarded = FailoverStore.of(store, "redis://test")
    face = Face(CircuitBreaker("pncp", 3, 30, state=guarded), None)
    face.fails(3)
    assert face.refused() is not None
    guarded.keeper.stop()
    assert client.lrange(key, 0, -1) == ["mine"]


def test_cluster__all_keys_of_a_breaker__live_in_one_slot(face: Face) -> None:
    for name in ("plain", "api.search", "a-b"):
        breaker = CircuitBreaker(name, state=face.breaker.store)
        slot_of(breaker.view.step("look"))
