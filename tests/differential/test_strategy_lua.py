"""The Lua version of every strategy does exactly what the Python version does.

The same random operations, at the same random times, under the same random limits, go to a store in memory
and to a real server; every reply must be equal, number by number.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.support import command, max_examples, redis_store

from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.acquire_up_to import AcquireUpTo
from comporta.limits.budgets.operation import SettleOperation
from comporta.limits.charge import ChargeOperation
from comporta.limits.claim_operation import ClaimOperation
from comporta.limits.claims import CLAIMS, ClaimAttempt
from comporta.limits.concurrency.call import AcquireForCall
from comporta.limits.concurrency.permits import PermitPool, new_permit
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.leases.operation import NO_LEASE, LeaseOperation, LeaseSource
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.overrides.record import OverrideRecord
from comporta.limits.peek import PeekOperation
from comporta.limits.priority import NO_HEADROOM, Headroom
from comporta.limits.scripts import CLAIM_SPACE, call_script, claim_script, settle_script
from comporta.limits.strategies.base import CHARGE, EndedLease, Strategy
from comporta.ramp import FULL_SHARE
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore
from comporta.stores.records import DeleteRecord, WriteRecord
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

rates = st.one_of(
    st.sampled_from([10.0, 1.0, 0.1, 100 / 60, 1 / 3600, 3.0, 1e6, 30 / 7]),
    st.floats(0.001, 1e6, allow_nan=False, allow_infinity=False),
)
limits = st.builds(
    LimitConfig,
    rate=rates,
    capacity=st.one_of(st.integers(1, 20), st.integers(1, 2000)),
    window=st.one_of(st.sampled_from([0.001, 1.0, 60.0, 3600.0]), st.floats(0.001, 5000)),
    strategy=st.sampled_from(LimitStrategy),
    lease=st.sampled_from([False, False, 0.001, 0.05, 1.0, 10.0]),
)
amounts = st.one_of(st.just(1), st.integers(0, 5), st.integers(-3, 30))
pauses = st.one_of(
    st.just(0),
    st.integers(1, 50),
    st.integers(0, 2_000_000),
    st.integers(0, 100_000_000),
    st.integers(-5_000_000_000, 5_000_000_000),  # an operator sets the server's clock back and forth
)
forward = pauses.filter(lambda pause_us: pause_us >= 0)  # after a step back a peek may store the time
max_waits = st.sampled_from([0, 0, 0, 1, 500_000, 10_000_000, CHARGE])


def _apply(
    store: MemoryStore | RedisStore, amounts: list[tuple[LimitConfig, str, int]], max_wait_us: int
) -> list[tuple[int, ...]]:
    if max_wait_us == CHARGE:
        return [
            (int(store.apply(ChargeOperation(limit.build_strategy(), name, "k", max(1, amount)))),)
            for limit, name, amount in amounts
        ]
    demands = [LimitDemand(limit.build_strategy(), name, "k", amount) for limit, name, amount in amounts]
    return [tuple(reply) for reply in store.apply(LimitOperation(demands, max_wait_us))]


def _expire_alike(
    local: MemoryStore, remote: RedisStore, limit: LimitConfig, name: str, in_effect: Strategy | None = None
) -> None:
    """Delete what one store has dropped because it expired, and the other still has.

    The server's own clock, which the test does not move, has expired nothing. Memory keeps what has expired
    until it is written, and would have it again after the clock went back; a real monotonic clock does not.
    """
    now_us, strategy_now = local.clock.now_ns() // 1000, in_effect or limit.build_strategy()
    state = local._space(f"rate_limiter:{name}", strategy_now).table.get("k")
    if state is not None and strategy_now.expires_us(state) <= now_us:
        remote.apply(DeleteRecord(f"rate_limiter:{name}", "k"))
    claims = local._space(f"{CLAIM_SPACE}:{name}", CLAIMS).table
    if "k" in claims and CLAIMS.expires_us(claims["k"]) <= now_us:
        del claims["k"]


@settings(
    max_examples=max_examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limit=limits, steps=st.lists(st.tuples(pauses, amounts, max_waits), min_size=1, max_size=40))
def test_lua__any_limit_and_time__replies_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for pause_us, amount, max_wait_us in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            limit_amounts = [(limit, "n", min(amount, limit.capacity))]
            assert _apply(remote, limit_amounts, max_wait_us) == _apply(local, limit_amounts, max_wait_us)


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limit=limits, steps=st.lists(st.tuples(pauses, st.integers(1, 5)), min_size=1, max_size=40))
def test_lua__acquire_script__replies_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    definition = LimitDefinition(limit.build_strategy(), "n")
    with redis_store(server, clock) as remote:
        for pause_us, amount in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            operation = AcquireOperation(definition, "k", min(amount, limit.capacity))
            assert remote.apply(operation) == local.apply(operation)


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    limit=limits,
    override=st.none() | limits,
    steps=st.lists(st.tuples(forward, st.integers(1, 30), st.booleans()), min_size=1, max_size=40),
)
def test_lua__peek_and_acquire_up_to__reply_as_python_does(
    server: Server, limit: LimitConfig, override: LimitConfig | None, steps: list[tuple[int, int, bool]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local, configured = MemoryStore(clock), limit.build_strategy()
    in_effect: Strategy = configured
    with redis_store(server, clock) as remote:
        if override is not None and limit.strategy is not LimitStrategy.SLIDING_WINDOW:
            params = LimitConfig.coerce(override, limit.strategy).build_strategy().params
            in_effect = configured.with_override(params.record_text("changed"))
            change = params.record_text("changed")
            remote.apply(WriteRecord("rate_limiter_change", "n", change, None, changes_override=True))
        for pause_us, amount, takes in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n", in_effect)
            make: Any = AcquireUpTo if takes else PeekOperation
            near = local.apply(make(LimitDemand(in_effect, "n", "k", amount)))
            assert remote.apply(make(LimitDemand(configured, "n", "k", amount))) == near


@settings(
    max_examples=max_examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    limit=limits,
    steps=st.lists(
        st.tuples(
            st.one_of(pauses, st.integers(0, 60_000)),
            st.integers(0, 3),  # needed; 0: only end a lease
            st.integers(0, 40),  # wanted in addition
            st.integers(-1, 3),  # the lease that ends, counted from the newest; -1: none
            st.floats(0, 1),  # the fraction of it that is not used
            st.integers(-2, 2),  # also taken, peeked at or released
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_lua__leases__reply_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int, int, int, float, int]]
) -> None:
    limit = replace(limit, lease=limit.lease or True)
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    source = LeaseSource(
        limit.build_strategy(),
        LimitDefinition(limit.build_strategy(), "n"),
        limit.lease_us // 2,
    )
    made: list[EndedLease] = []
    with redis_store(server, clock) as remote:
        for pause_us, need, more, which, part, amount in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            ended = made[-1 - which] if 0 <= which < len(made) else NO_LEASE
            ended = ended._replace(unused=int(part * ended.unused))
            need = min(need, limit.capacity)  # noqa: PLW2901 - at most the capacity
            operation = LeaseOperation(source, "k", need, need + more, ended)
            lease = local.apply(operation)
            assert remote.apply(operation) == lease
            made.append(EndedLease(lease.lease_id, max(0, lease.granted - need), lease.granted))
            limit_amounts = [(limit, "n", min(amount, limit.capacity))]
            assert _apply(remote, limit_amounts, 0) == _apply(local, limit_amounts, 0)


ages = st.one_of(
    st.just(0), st.integers(0, 2_000_000), st.integers(0, 100_000_000), st.integers(0, 5_000_000_000)
)


@settings(
    max_examples=max_examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    limit=limits,
    steps=st.lists(
        st.tuples(
            pauses,
            st.integers(-2, 5),  # taken, peeked at or released first
            st.one_of(st.integers(-8, 8), st.integers(-3000, 3000)),  # credited or debited
            ages,
            max_waits,
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_lua__settlements__reply_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int, int, int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    strategy = limit.build_strategy()
    script = settle_script(strategy.name, "n", tuple(strategy.params))
    with redis_store(server, clock) as remote:
        for pause_us, amount, settled, age_us, max_wait_us in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            limit_amounts = [(limit, "n", min(amount, limit.capacity))]
            assert _apply(remote, limit_amounts, max_wait_us) == _apply(local, limit_amounts, max_wait_us)
            demand = LimitDemand(strategy, "n", "k", settled or 1)
            operation = SettleOperation(script, demand, clock.now_ns() // 1000 - age_us, clock)
            assert remote.apply(operation) == local.apply(operation)
            peek = [(limit, "n", 0)]
            assert _apply(remote, peek, 0) == _apply(local, peek, 0)


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    group=st.lists(limits, min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(-2, 4)), min_size=1, max_size=25),
)
def test_lua__group_of_limits__replies_as_python_does(
    server: Server, group: list[LimitConfig], steps: list[tuple[int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    most = min(limit.capacity for limit in group)
    with redis_store(server, clock) as remote:
        for pause_us, amount in steps:
            clock.advance(pause_us / 1e6)
            for i, limit in enumerate(group):
                _expire_alike(local, remote, limit, f"n{i}")
            limit_amounts = [(limit, f"n{i}", min(amount, most)) for i, limit in enumerate(group)]
            assert _apply(remote, limit_amounts, 0) == _apply(local, limit_amounts, 0)


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    strategy=st.sampled_from(
        [LimitStrategy.TOKEN_BUCKET, LimitStrategy.LEAKY_BUCKET, LimitStrategy.FIXED_WINDOW]
    ),
    first=limits,
    second=limits,
    steps=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 4)), min_size=4, max_size=25),
)
@example(  # after the override, the level lies between two fractions of a token
    strategy=LimitStrategy.TOKEN_BUCKET,
    first=LimitConfig(100 / 60, 6),
    second=LimitConfig(10, 5),
    steps=[(0, 1), (273, 1), (0, 1), (0, 1)],
)
def test_lua__limit_overridden_while_running__replies_as_python_does(
    server: Server,
    strategy: LimitStrategy,
    first: LimitConfig,
    second: LimitConfig,
    steps: list[tuple[int, int]],
) -> None:
    first, second = (LimitConfig.coerce(limit, strategy) for limit in (first, second))
    change = second.build_strategy().params.record_text("changed")
    changed = first.build_strategy().with_override(change)
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for number, (pause_us, amount) in enumerate(steps):
            clock.advance(pause_us / 1e6)
            if number == len(steps) // 2:
                remote.apply(WriteRecord("rate_limiter_change", "n", change, None, changes_override=True))
            strategy_now = first.build_strategy() if number < len(steps) // 2 else changed
            cost = min(amount, first.capacity)
            [near] = local.apply(LimitOperation([LimitDemand(strategy_now, "n", "k", cost)]))
            [far] = remote.apply(LimitOperation([LimitDemand(first.build_strategy(), "n", "k", cost)]))
            assert far == near


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_lua__a_key_without_traffic__takes_few_bytes(server: Server, strategy: LimitStrategy) -> None:
    limit = LimitConfig(100, 50, 1, strategy)
    clock = ManualClock(1_800_000_000)
    with redis_store(server, clock) as remote:
        for pause in (0.0, 17, 17, 17, 17, 17):
            clock.advance(pause)
            for _ in range(60):
                _apply(remote, [(limit, "pncp", 1)], 0)
                clock.advance(0.01)
    used = int(command(server, "MEMORY", "USAGE", "rate_limiter:pncp:k")[1:])
    entries = min(limit.capacity, 60) if strategy is LimitStrategy.SLIDING_WINDOW else 0
    assert used < 200 + 75 * entries


headrooms = st.integers(0, 30)


@settings(
    max_examples=max_examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    limit=limits,
    share=st.sampled_from([FULL_SHARE, FULL_SHARE, 500_000, 100_000]),
    steps=st.lists(
        st.tuples(
            pauses, st.integers(1, 5), headrooms, st.sampled_from([0, 0, 1, 500_000]), st.integers(0, 3)
        ),
        min_size=1,
        max_size=30,
    ),
)
@example(  # a level that needs more than 14 digits in tokens
    limit=LimitConfig(1 / 3600, 130),
    share=100_000,
    steps=[(0, 1, 0, 0, 0), (0, 1, 0, 0, 0), (12, 1, 0, 0, 0), (0, 1, 0, 0, 0)],
)
@example(  # a log whose entries hold several grants, under an override for which it would need only one
    limit=LimitConfig(10, 390, 0.001, LimitStrategy.SLIDING_WINDOW),
    share=100_000,
    steps=[(0, 5, 0, 0, 0), (1, 5, 0, 0, 0)] + [(0, 5, 0, 0, 0)] * 6,
)
def test_lua__headroom_of_a_class__replies_as_python_does(
    server: Server, limit: LimitConfig, share: int, steps: list[tuple[int, int, int, int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    strategy = limit.build_strategy()
    ends_us = 1_800_000_000_000_000 + 20_000_000
    record = OverrideRecord(strategy.params, share=share, degraded_until_us=ends_us).encode()
    source = LeaseSource(strategy, LimitDefinition(strategy, "n"), limit.lease_us // 2)
    with redis_store(server, clock) as remote:
        remote.apply(WriteRecord("rate_limiter_change", "n", record, None, changes_override=True))
        for pause_us, amount, units, max_wait_us, leased in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n", strategy.with_override(record))
            cost = min(amount, limit.capacity)
            headroom = Headroom(min(units, limit.capacity), limit.capacity)
            demand = LimitDemand(strategy, "n", "k", cost, headroom=headroom)
            overridden = demand._replace(strategy=strategy.with_override(record))
            [near] = local.apply(LimitOperation([overridden], max_wait_us))
            [far] = remote.apply(LimitOperation([demand], max_wait_us))
            assert far == near
            if limit.lease and leased and share == FULL_SHARE:
                operation = LeaseOperation(source, "k", 1, 1 + leased)
                assert remote.apply(operation) == local.apply(operation)


@settings(
    max_examples=max_examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    limit=limits,
    steps=st.lists(
        st.tuples(
            st.one_of(pauses, st.integers(0, 60_000)),
            st.integers(1, 12),
            headrooms,
            st.integers(1, 20),  # who tries; more of them than there is room for claims
            st.integers(0, 2),  # its class
            st.sampled_from([0, 1, 1000, 5_000_000]),  # how long it has waited
            st.sampled_from([-1, 0, 1000, 10_000_000, 10**13]),  # how long it will wait
        ),
        min_size=1,
        max_size=40,
    ),
)
@example(  # a refusal behind a claim, after the window has passed, and then the clock goes back
    limit=LimitConfig(10, 1, 0.001, LimitStrategy.SLIDING_WINDOW),
    steps=[
        (0, 1, 0, 1, 0, 0, -1),
        (0, 1, 0, 1, 0, 0, 1000),
        (1000, 1, 0, 2, 0, 0, -1),
        (-1, 1, 0, 1, 0, 0, -1),
    ],
)
def test_lua__claims__reply_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int, int, int, int, int, int]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    strategy = limit.build_strategy()
    script = claim_script(strategy.name, "n", tuple(strategy.params))
    with redis_store(server, clock) as remote:
        for pause_us, amount, units, *attempt in steps:
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            cost = min(amount, limit.capacity)
            headroom = Headroom(min(units, limit.capacity), limit.capacity)
            demand = LimitDemand(strategy, "n", "k", cost, headroom=headroom)
            operation = ClaimOperation(script, demand, ClaimAttempt(*attempt))
            assert remote.apply(operation) == local.apply(operation)


def test_lua__more_waiters_than_claims__reply_as_python_does(server: Server) -> None:
    clock, random = ManualClock(1_800_000_000), Random(1)
    local = MemoryStore(clock)
    limit = LimitConfig(200, 20)
    strategy = limit.build_strategy()
    script = claim_script(strategy.name, "n", tuple(strategy.params))
    demand = LimitDemand(strategy, "n", "k", 1, headroom=Headroom(0, limit.capacity))
    since_us = {claimant: random.randrange(2_000_000) for claimant in range(1, 60)}
    with redis_store(server, clock) as remote:
        for step_us in range(0, 2_000_000, 5_000):
            claimant = random.randrange(1, 60)
            attempt = ClaimAttempt(claimant, claimant % 2, 2_000_000 + step_us - since_us[claimant], 10**7)
            operation = ClaimOperation(script, demand, attempt)
            assert remote.apply(operation) == local.apply(operation)
            clock.advance(0.005 * random.randrange(2))


passing_steps = st.tuples(
    st.one_of(forward, st.integers(0, 60_000)),
    st.integers(1, 12),
    headrooms,
    st.integers(0, 2),  # the class
    st.sampled_from(["claim", "acquire", "peek", "up to", "decide", "call", "lease"]),
)


@settings(
    max_examples=max_examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(limit=limits, steps=st.lists(passing_steps, min_size=1, max_size=40))
def test_lua__callers_that_do_not_wait_beside_claims__reply_as_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, int, int, int, str]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    strategy = limit.build_strategy()
    script = claim_script(strategy.name, "n", tuple(strategy.params))
    calls = call_script(strategy.name, "n", tuple(strategy.params))
    definition, pool = LimitDefinition(strategy, "n"), PermitPool("p", 1000, 10**9)
    source = LeaseSource(strategy, definition, 25_000)
    with redis_store(server, clock) as remote:
        for number, (pause_us, amount, units, rank, what) in enumerate(steps):
            clock.advance(pause_us / 1e6)
            _expire_alike(local, remote, limit, "n")
            cost = min(amount, limit.capacity)
            headroom = Headroom(min(units, limit.capacity), limit.capacity)
            demand = LimitDemand(strategy, "n", "k", cost, headroom=headroom, attempt=ClaimAttempt(0, rank))
            operation: Operation[Any]
            if what == "claim":
                operation = ClaimOperation(script, demand, ClaimAttempt(number % 5 + 1, rank, 0, 10**13))
            elif what == "acquire" or (what == "lease" and limit.lease is False):
                operation = AcquireOperation(definition, "k", cost)
            elif what == "peek":
                operation = PeekOperation(demand)
            elif what == "up to":
                operation = AcquireUpTo(demand._replace(amount=amount))
            elif what == "lease":
                operation = LeaseOperation(source, "k", cost, cost + units)
            elif what == "call":
                operation = AcquireForCall(calls, demand._replace(headroom=NO_HEADROOM), pool, new_permit())
            else:
                operation = LimitOperation([demand])
            assert remote.apply(operation) == local.apply(operation), what


@settings(
    max_examples=max_examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    first=limits,
    second=limits,
    steps=st.lists(
        st.tuples(
            st.one_of(forward, st.integers(0, 60_000)),
            st.integers(0, 12),
            st.integers(1, 12),
            st.integers(0, 4),  # who tries; 0 does not wait
            st.integers(0, 2),  # the class
            st.sampled_from([0, 1000, 10_000_000, 10**13]),  # how long it will wait
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_lua__groups_that_leave_claims__reply_as_python_does(
    server: Server, first: LimitConfig, second: LimitConfig, steps: list[tuple[int, ...]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for pause_us, one, other, claimant, rank, left_us in steps:
            clock.advance(pause_us / 1e6)
            demands = []
            for limit, name, amount in ((first, "g.1", one), (second, "g.2", other)):
                _expire_alike(local, remote, limit, name)
                attempt = ClaimAttempt(claimant, rank, 0, left_us if claimant else -1)
                cost = min(amount, limit.capacity)
                demands.append(LimitDemand(limit.build_strategy(), name, "k", cost, attempt=attempt))
            assert remote.apply(LimitOperation(demands)) == local.apply(LimitOperation(demands))
