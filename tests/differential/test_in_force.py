"""What is in force is the same on a server and here, whatever is done to it and whenever.

Changes of all kinds and decisions by turns, at random times, on a clock that is set to and fro.
"""

from __future__ import annotations

from typing import Any, cast

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import examples, redis_store

from comporta.limits.adjust import Climb, Drop, DropTo, Look, Pause, Resume, Revoke, SetByHand
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.lease import LeaseOperation, Lender
from comporta.limits.operation import CHANGES, SPACE, LimitOperation, Question
from comporta.limits.rule import Lending, Numbers, Rule
from comporta.limits.take import Asked, Take
from comporta.stores.base import Operation, Part
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Delete, Read, Write
from comporta.stores.redis import RedisStore
from comporta.testing import ManualClock, Server

NAME = "n"
SLACK_US = 2
"""A level is rounded to another fraction of a token when the unit changes: so much may a wait differ."""

DEGRADED_AND_PAUSED = (
    b"%d %d %d 0 [degraded to %d of %d %d %d 0 ends %d dropped %d climbed %d; paused until %d for %d] x"
)

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
        *[st.sampled_from([0, 1_800_000_000_000_000, 1_800_000_400_000_000])] * 4,
        st.sampled_from([0, 60_000_000, 10**12]),
    ),
).filter(bool)
changes = st.one_of(
    st.tuples(st.just("drop"), st.integers(1, 1_000_000), st.integers(1, 1_000_000)),
    st.tuples(st.just("drop"), st.just(100_000), st.just(100_000)),
    st.tuples(st.just("accept"), st.integers(0, 10**9), st.just(100_000), st.sampled_from([1, 1_000_000])),
    st.tuples(st.just("climb"), st.just(100_000), st.sampled_from([1, 5_000_000])),
    st.tuples(st.just("climb"), st.integers(1, 1_000_000), st.just(5_000_000)),
    st.tuples(st.just("pause"), st.integers(1, 10_000_000)),
    st.tuples(st.just("pause"), st.sampled_from([1, 86_400_000_000])),
    *(st.tuples(st.just(verb)) for verb in ("resume", "revoke", "look")),
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
KINDS = {"drop": Drop, "accept": DropTo, "climb": Climb, "pause": Pause, "resume": Resume, "revoke": Revoke,
         "look": Look}  # fmt: skip


def change_of(numbers: Numbers, verb: str, *told: Any) -> Operation[Any]:
    if verb == "write":
        return Write(CHANGES, NAME, told[0], None, followed=True)
    if verb == "set":
        return SetByHand(NAME, told[0].rule().numbers, f"{told[0]} by hand")
    return cast(Operation[Any], KINDS[verb](NAME, numbers, *told))


def forget_alike(local: MemoryStore, remote: RedisStore) -> bytes | None:
    """Let the server forget what its clock, which is not moved by hand, would have let it forget."""
    text = local.apply(Read(CHANGES, NAME))
    if text is None:
        remote.apply(Delete(CHANGES, NAME))
    return text


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(limit=limits, steps=st.lists(st.tuples(moments, changes), min_size=1, max_size=25))
def test_lua__any_change_any_time__leaves_the_record_that_python_does(
    server: Server, limit: LimitConfig, steps: list[tuple[int, tuple[Any, ...]]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local, numbers = MemoryStore(clock), limit.rule().numbers
    with redis_store(server, clock) as remote:
        for pause_us, change in steps:
            clock.advance(pause_us / 1e6)
            forget_alike(local, remote)
            operation = change_of(numbers, *change)
            assert remote.apply(operation) == local.apply(operation)
            assert remote.apply(Read(CHANGES, NAME)) == local.apply(Read(CHANGES, NAME))


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    limit=limits,
    steps=st.lists(
        st.tuples(moments, st.one_of(st.none(), changes), st.sampled_from(["ask", "take", "lease"])),
        min_size=1,
        max_size=25,
    ),
    amount=st.integers(0, 1),  # what is above a lowered capacity makes a debt, of which a server forgets some
    patience_us=st.sampled_from([0, 0, 500_000, 20_000_000]),
)
def test_lua__decisions_between_changes__answer_as_python_does(
    server: Server,
    limit: LimitConfig,
    steps: list[tuple[int, tuple[Any, ...] | None, str]],
    amount: int,
    patience_us: int,
) -> None:
    """Until one is decided otherwise for a fraction of a token: from there on they are two stories."""
    clock = ManualClock(1_800_000_000)
    local, rule = MemoryStore(clock), limit.rule()
    cost = min(amount, limit.capacity)
    with redis_store(server, clock) as remote:
        for pause_us, change, how in steps:
            # asked for anything, the server's log is anchored to a clock that went back
            slides = limit.strategy is LimitStrategy.SLIDING_WINDOW
            clock.advance((abs(pause_us) if slides else pause_us) / 1e6)
            forget_alike(local, remote)
            if change is not None and change[0] not in ("set", "write"):  # which may change a window's grain
                operation = change_of(rule.numbers, *change)
                assert remote.apply(operation) == local.apply(operation)
            here = rule.revised(local.apply(Read(CHANGES, NAME)))
            if is_over(local, here):
                remote.apply(Delete(f"{SPACE}:{NAME}", "k"))
            verb = "take" if how == "lease" and not limit.lease else how
            near = numbers_of(local.apply(asked(verb, here, cost, patience_us)))
            far = numbers_of(remote.apply(asked(verb, rule, cost, patience_us)))
            if near != far:
                assert all(abs(a - b) <= SLACK_US for a, b in zip(near, far, strict=True)), (near, far)
                return


def is_over(local: MemoryStore, rule: Rule) -> bool:
    """Whether a state has ended, which the server, whose clock is another, does not know."""
    return local._state(Part(f"{SPACE}:{NAME}", "k", rule), local.clock.now_ns() // 1000) is None


def asked(how: str, rule: Any, cost: int, patience_us: int) -> Operation[Any]:
    if how == "take":
        return Take(Asked(rule, NAME), "k", max(1, cost))
    if how == "lease":
        return LeaseOperation(Lender(cast(Lending, rule), Asked(rule, NAME), 25_000), "k", max(1, cost), 5)
    return LimitOperation([Question(rule, NAME, "k", cost)], patience_us)


def numbers_of(reply: Any) -> tuple[int, ...]:
    if isinstance(reply, int):
        return (reply,)
    return tuple(reply[0]) if isinstance(reply, list) else tuple(reply)
