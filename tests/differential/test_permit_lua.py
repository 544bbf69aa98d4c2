"""The Lua version of permits does exactly what the Python version does."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, example, given, settings
from tests.support import max_examples, redis_store

from comporta import LimitConfig, LimitStrategy
from comporta.limits.concurrency.call import AcquireForCall, ReleaseCall
from comporta.limits.concurrency.operation import (
    AcquirePermit,
    AwaitPermit,
    FinalAcquirePermit,
    ListHolders,
    PermitOperation,
    RegisterPermits,
    ReleasePermits,
    RenewPermit,
)
from comporta.limits.concurrency.permits import PERMIT_SPACE, PERMITS, Permit, PermitPool
from comporta.limits.operation import LimitDemand
from comporta.limits.scripts import call_script
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore
from comporta.stores.records import DeleteRecord
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

PERMITS_KNOWN = [Permit(f"{number:016x}", f"host:{number}") for number in range(6)]
operation_types = st.sampled_from(
    [
        *(AcquirePermit, AwaitPermit, AwaitPermit, FinalAcquirePermit),
        *(ReleasePermits, RenewPermit, RegisterPermits),
    ]
)
pauses = st.one_of(
    st.just(0), st.integers(0, 1_000_000), st.integers(0, 120_000_000), st.integers(-400_000_000, 400_000_000)
)
steps = st.lists(
    st.tuples(pauses, operation_types, st.sampled_from(PERMITS_KNOWN), st.integers(0, 3)),
    min_size=1,
    max_size=50,
)

COMPETING = [Permit(f"{number:016x}", f"host:{number % 3}") for number in range(5)]
short_pauses = st.one_of(
    st.sampled_from([0, 0, 1, 1000, 49_999, 50_000, 100_000, 100_001, 150_000]),
    st.sampled_from([0, 30_000, 60_000, 249_999, 250_000, -100_000, -1]),
)
competing = st.lists(
    st.tuples(
        short_pauses,
        st.sampled_from([*[AwaitPermit] * 8, AcquirePermit, FinalAcquirePermit]),
        st.integers(0, 4),
    ),
    min_size=10,
    max_size=80,
)


calls = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 1000, 60_000, 250_000, 400_000, 1_000_000, 61_000_000]),
        st.sampled_from(["call", "call", "call", "permit", "undo", "wait"]),
        st.integers(0, 4),
        st.lists(st.integers(0, 4), max_size=2, unique=True),
    ),
    min_size=1,
    max_size=50,
)


class StorePair:
    """A local store and a server that receive the same operations."""

    def __init__(self, remote: RedisStore, clock: ManualClock, pool: PermitPool) -> None:
        self._local = MemoryStore(clock)
        self._remote = remote
        self._clock = clock
        self._pool = pool

    def agree(self, pause_us: int, operation: Operation[Any]) -> bool:
        """Advance the clock, apply an operation to both, and return whether it succeeded."""
        self._clock.advance(pause_us / 1e6)
        self._forget_if_ended()
        taken = self._local.apply(operation)
        assert self._remote.apply(operation) == taken
        assert self._remote.apply(ListHolders(self._pool)) == self._local.apply(ListHolders(self._pool))
        return bool(taken[0])

    def _forget_if_ended(self) -> None:
        """Delete what has expired: after the clock is set back the local store would still find it."""
        table = self._local._space(PERMIT_SPACE, PERMITS).table
        state = table.get("n")
        if state is not None and PERMITS.expires_us(state) <= self._clock.now_ns() // 1000:
            del table["n"]  # an operation finds no state that has expired, so none deletes it
            for key in ("n", "n:waiting"):
                self._remote.apply(DeleteRecord(PERMIT_SPACE, key))


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(most=st.integers(1, 5), permit_ttl_us=st.sampled_from([60_000_000, 90_000_001]), steps=steps)
@example(
    most=1,
    permit_ttl_us=60_000_000,
    steps=[
        (0, AcquirePermit, PERMITS_KNOWN[0], 0),
        (-17_000_003, RegisterPermits, PERMITS_KNOWN[0], 2),
        (18_000_002, ReleasePermits, PERMITS_KNOWN[0], 0),
        (-1_000_001, AcquirePermit, PERMITS_KNOWN[0], 0),
    ],
)
def test_lua__any_permit_operations_and_times__replies_as_python_does(
    server: Server, most: int, permit_ttl_us: int, steps: list[tuple[int, type[PermitOperation], Permit, int]]
) -> None:
    pool, clock = PermitPool("n", most, permit_ttl_us), ManualClock(1_800_000_000)
    with redis_store(server, clock) as remote:
        stores = StorePair(remote, clock, pool)
        for pause_us, operation_type, permit, number in steps:
            if operation_type is RegisterPermits:
                # seconds: the server expires the key in real time, which the manual clock does not follow
                left_us = {known: 9_000_001 * place for place, known in enumerate(PERMITS_KNOWN[:number], 1)}
                stores.agree(pause_us, RegisterPermits(pool, left_us))
                continue
            several = PERMITS_KNOWN[:number] if operation_type is ReleasePermits and number else [permit]
            stores.agree(pause_us, operation_type(pool, *several))


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(most=st.integers(1, 2), steps=competing, busy=st.integers(1, 9))
def test_lua__claims_of_competing_processes__replies_as_python_does(
    server: Server, most: int, steps: list[tuple[int, type[AcquirePermit], int]], busy: int
) -> None:
    pool, clock = PermitPool("n", most, 60_000_000), ManualClock(1_800_000_000)
    held: list[Permit] = []
    with redis_store(server, clock) as remote:
        stores = StorePair(remote, clock, pool)
        for turn, (pause_us, operation_type, number) in enumerate(steps):
            if held and turn % busy == 0:
                stores.agree(0, ReleasePermits(pool, held.pop(0)))
            permit = COMPETING[number]
            if permit not in held and stores.agree(pause_us, operation_type(pool, permit)):
                held.append(permit)


@settings(
    max_examples=max_examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    most=st.integers(1, 3),
    limit=st.sampled_from(["3/s", "5/2s"]),
    strategy=st.sampled_from([*LimitStrategy]),
    steps=calls,
)
def test_lua__permits_and_tokens_together__replies_as_python_does(
    server: Server,
    most: int,
    limit: str,
    strategy: LimitStrategy,
    steps: list[tuple[int, str, int, list[int]]],
) -> None:
    pool, clock = PermitPool("n", most, 60_000_000), ManualClock(1_800_000_000)
    algorithm = LimitConfig.parse(limit, strategy).build_strategy()
    script = call_script(algorithm.name, "n", tuple(algorithm.params))
    with redis_store(server, clock) as remote:
        stores = StorePair(remote, clock, pool)
        for pause_us, what, number, ended in steps:
            permit, others = COMPETING[number], [COMPETING[other] for other in ended if other != number]
            amount = {"call": 1, "permit": 0, "undo": -1}.get(what, 0)
            demand = LimitDemand(algorithm, "n", "", amount)
            if what == "wait":
                operation: Operation[Any] = AwaitPermit(pool, permit, *others)
            elif what == "undo":
                operation = ReleaseCall(script, demand, pool, permit, *others)
            else:
                operation = AcquireForCall(script, demand, pool, permit, *others)
            stores.agree(pause_us, operation)
