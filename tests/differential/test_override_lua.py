"""The override record is the same on a server and in Python after any changes at any times.

Changes of all kinds alternate with decisions, at random times, on a clock that is set back and forth.
"""

from __future__ import annotations

from typing import Any, cast

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.stores.change_log_store import ChangeLogStore
from tests.support import max_examples, redis_store

from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.leases.operation import LeaseOperation, LeaseSource
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.overrides.operation import (
    LowerByFraction,
    LowerByStep,
    LowerToRate,
    PauseLimit,
    RaiseAlongCurve,
    RaiseByStep,
    ReadOverride,
    ResumeLimit,
    RevokeOverride,
    SetLimit,
)
from comporta.limits.scripts import LIMIT_SPACE, OVERRIDE_SPACE
from comporta.limits.strategies.base import LimitParams, Strategy
from comporta.stores.base import Operation, StateKey
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.memory import MemoryStore
from comporta.stores.records import DeleteRecord, ReadRecord, WriteRecord
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

NAME = "n"
SLACK_US = 2
"""How much a wait may differ, because a level is rounded to another fraction when the unit changes."""

DEGRADED_AND_PAUSED = (
    b"%d %d %d 0 [degraded to %d of %d %d %d 0 ends %d dropped %d climbed %d; paused until %d for %d] x"
)
ON_A_CURVE = b"4 1 100000 0 [degraded to %d of 8 1 100000 0 ends %d dropped %d climbed %d from %d since %d] x"
EXTENDED_PAUSE = b"4 1 100000 0 [paused until %d for %d since %d] x"
WRITTEN_TIMES_US = [0, 1_800_000_000_000_000, 1_800_000_400_000_000]

limits = st.builds(
    LimitConfig,
    rate=st.sampled_from([10.0, 1.0, 0.1, 100 / 60, 1 / 3600, 1e6, 1000.0]),
    capacity=st.integers(1, 30),
    window=st.sampled_from([0.5, 1.0, 60.0]),
    strategy=st.sampled_from(LimitStrategy),
    lease=st.sampled_from([False, False, 0.05]),
)
texts = st.one_of(
    st.binary(max_size=30),
    st.from_regex(rb"[1-9] [0-9]{1,3} [0-9]{1,3} [0-9]{1,6}( \[.{0,20}\])?( .{0,5})?", fullmatch=True),
    st.builds(
        lambda *n: DEGRADED_AND_PAUSED % n,
        *[st.integers(0, 5)] * 3,
        st.integers(0, 1_100_000),
        *[st.integers(0, 5)] * 3,
        *[st.sampled_from(WRITTEN_TIMES_US)] * 4,
        st.sampled_from([0, 60_000_000, 10**12]),
    ),
    st.builds(
        lambda *n: EXTENDED_PAUSE % n,
        st.sampled_from(WRITTEN_TIMES_US),
        st.sampled_from([0, 60_000_000, 10**12]),
        st.sampled_from([*WRITTEN_TIMES_US, 10**20]),
    ),
    st.builds(
        lambda *n: ON_A_CURVE % n,
        st.integers(0, 1_100_000),
        *[st.sampled_from(WRITTEN_TIMES_US)] * 3,
        st.one_of(st.integers(0, 1_100_000), st.just(10**20)),
        st.sampled_from([*WRITTEN_TIMES_US, 1_799_999_997_000_000, 10**20]),
    ),
).filter(bool)
fractions = st.integers(1, 1_000_000)
ages = st.one_of(st.just(0), st.integers(1, 100), st.integers(1, 7_000_000))
round_trips = st.sampled_from([1, 1_000_000])
changes = st.one_of(
    st.tuples(st.just("drop"), fractions, fractions, ages),
    st.tuples(st.just("drop"), st.just(100_000), st.just(100_000)),
    st.tuples(st.just("cut"), fractions, fractions, ages),
    st.tuples(st.just("cut"), st.just(300_000), st.just(100_000), ages),
    st.tuples(st.just("accept"), st.integers(0, 10**9), st.just(100_000), ages, round_trips),
    st.tuples(st.just("curve"), st.just(300_000), st.just(3_000_000), st.just(300_000)),
    st.tuples(st.just("curve"), fractions, st.sampled_from([1, 7, 300_000_000]), st.integers(1, 10**6)),
    st.tuples(st.just("climb"), st.just(100_000), st.sampled_from([1, 5_000_000])),
    st.tuples(st.just("climb"), st.integers(1, 1_000_000), st.just(5_000_000)),
    st.tuples(st.just("pause"), st.integers(1, 10_000_000)),
    st.tuples(st.just("pause"), st.sampled_from([1, 86_400_000_000])),
    *(st.tuples(st.just(command)) for command in ("resume", "revoke", "look")),
    st.tuples(st.just("set"), limits),
    st.tuples(st.just("write"), texts),
)
moments = st.one_of(
    st.just(0),
    st.integers(1, 50),
    st.integers(0, 7_000_000),
    st.integers(0, 400_000_000),
    st.integers(-200_000_000, 0),
)
KINDS = {
    "drop": LowerByStep,
    "cut": LowerByFraction,
    "accept": LowerToRate,
    "climb": RaiseByStep,
    "curve": RaiseAlongCurve,
    "pause": PauseLimit,
    "resume": ResumeLimit,
    "revoke": RevokeOverride,
    "look": ReadOverride,
}


def change_of(params: LimitParams, command: str, *args: Any) -> Operation[Any]:
    if command == "write":
        return WriteRecord(OVERRIDE_SPACE, NAME, args[0], None, changes_override=True)
    if command == "set":
        return SetLimit(NAME, args[0].build_strategy().params, f"{args[0]} by hand")
    return cast(Operation[Any], KINDS[command](NAME, params, *args))


def forget_alike(local: MemoryStore, remote: RedisStore) -> bytes | None:
    """Delete on the server what its own clock, which the test does not move, has not expired."""
    text = local.apply(ReadRecord(OVERRIDE_SPACE, NAME))
    if text is None:
        remote.apply(DeleteRecord(OVERRIDE_SPACE, NAME))
    return text


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limit=limits, steps=st.lists(st.tuples(moments, changes), min_size=1, max_size=25))
def test_lua__any_override_and_time__writes_the_same_record_as_python(
    server: Server, limit: LimitConfig, steps: list[tuple[int, tuple[Any, ...]]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local, params = ChangeLogStore(clock), limit.build_strategy().params
    with redis_store(server, clock) as remote:
        for pause_us, change in steps:
            clock.advance(pause_us / 1e6)
            forget_alike(local, remote)
            operation = change_of(params, *change)
            assert remote.apply(operation) == local.apply(operation)
            assert remote.apply(ReadChanges(0)) == local.apply(ReadChanges(0))
            assert remote.apply(ReadRecord(OVERRIDE_SPACE, NAME)) == local.apply(
                ReadRecord(OVERRIDE_SPACE, NAME)
            )


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    limit=limits,
    steps=st.lists(
        st.tuples(moments, st.one_of(st.none(), changes), st.sampled_from(["ask", "take", "lease"])),
        min_size=1,
        max_size=25,
    ),
    amount=st.integers(
        0, 1
    ),  # more would leave a debt above a lowered capacity, which a server forgets in part
    max_wait_us=st.sampled_from([0, 0, 500_000, 20_000_000]),
)
def test_lua__decisions_between_overrides__reply_as_python_does(
    server: Server,
    limit: LimitConfig,
    steps: list[tuple[int, tuple[Any, ...] | None, str]],
    amount: int,
    max_wait_us: int,
) -> None:
    """Compare until rounding to a fraction of a token makes the two decide differently."""
    clock = ManualClock(1_800_000_000)
    local, strategy = MemoryStore(clock), limit.build_strategy()
    cost = min(amount, limit.capacity)
    with redis_store(server, clock) as remote:
        for pause_us, change, kind in steps:
            # any amount makes the server move its log to a clock that went back
            slides = limit.strategy is LimitStrategy.SLIDING_WINDOW
            clock.advance((abs(pause_us) if slides else pause_us) / 1e6)
            forget_alike(local, remote)
            if change is not None and change[0] not in ("set", "write"):  # those may change a window's grain
                operation = change_of(strategy.params, *change)
                assert remote.apply(operation) == local.apply(operation)
            overridden = strategy.with_override(local.apply(ReadRecord(OVERRIDE_SPACE, NAME)))
            if is_over(local, overridden):
                remote.apply(DeleteRecord(f"{LIMIT_SPACE}:{NAME}", "k"))
            command = "take" if kind == "lease" and not limit.lease else kind
            near = numbers_of(local.apply(decision(command, overridden, cost, max_wait_us)))
            far = numbers_of(remote.apply(decision(command, strategy, cost, max_wait_us)))
            if near != far:
                assert all(abs(a - b) <= SLACK_US for a, b in zip(near, far, strict=True)), (near, far)
                return


def is_over(local: MemoryStore, strategy: Strategy) -> bool:
    """Whether a state has expired, which the server, with another clock, does not know."""
    return (
        local._state(StateKey(f"{LIMIT_SPACE}:{NAME}", "k", strategy), local.clock.now_ns() // 1000) is None
    )


def decision(kind: str, strategy: Any, cost: int, max_wait_us: int) -> Operation[Any]:
    if kind == "take":
        return AcquireOperation(LimitDefinition(strategy, NAME), "k", max(1, cost))
    if kind == "lease":
        return LeaseOperation(
            LeaseSource(strategy, LimitDefinition(strategy, NAME), 25_000), "k", max(1, cost), 5
        )
    return LimitOperation([LimitDemand(strategy, NAME, "k", cost)], max_wait_us)


def numbers_of(reply: Any) -> tuple[int, ...]:
    if isinstance(reply, int):
        return (reply,)
    return tuple(reply[0]) if isinstance(reply, list) else tuple(reply)
