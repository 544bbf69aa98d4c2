"""The Lua twins of permits do exactly what the Python does."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import examples, redis_store

from comporta.limits.holding import (
    PERMITS,
    SPACE,
    AwaitPermit,
    GivePermit,
    Holders,
    LastTake,
    Permit,
    PermitOperation,
    RenewPermit,
    Room,
    TakePermit,
)
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Delete
from comporta.stores.redis import RedisStore
from comporta.testing import ManualClock, Server

PERMITS_KNOWN = [Permit(f"{number:016x}", f"host:{number}") for number in range(6)]
verbs = st.sampled_from([TakePermit, AwaitPermit, AwaitPermit, LastTake, GivePermit, RenewPermit])
pauses = st.one_of(
    st.just(0), st.integers(0, 1_000_000), st.integers(0, 120_000_000), st.integers(-400_000_000, 400_000_000)
)
steps = st.lists(
    st.tuples(pauses, verbs, st.sampled_from(PERMITS_KNOWN), st.integers(0, 3)), min_size=1, max_size=50
)

COMPETING = [Permit(f"{number:016x}", f"host:{number % 3}") for number in range(5)]
short_pauses = st.one_of(
    st.sampled_from([0, 0, 1, 1000, 49_999, 50_000, 100_000, 100_001, 150_000]),
    st.sampled_from([0, 30_000, 60_000, 249_999, 250_000, -100_000, -1]),
)
competing = st.lists(
    st.tuples(short_pauses, st.sampled_from([*[AwaitPermit] * 8, TakePermit, LastTake]), st.integers(0, 4)),
    min_size=10,
    max_size=80,
)


class Twins:
    """A state here and one on a server, told the same."""

    def __init__(self, remote: RedisStore, clock: ManualClock, room: Room) -> None:
        self._local = MemoryStore(clock)
        self._remote = remote
        self._clock = clock
        self._room = room

    def agree(self, pause_us: int, operation: PermitOperation) -> bool:
        """Let time pass, ask both, and return whether it was done."""
        self._clock.advance(pause_us / 1e6)
        self._forget_if_ended()
        taken = self._local.apply(operation)
        assert self._remote.apply(operation) == taken
        assert self._remote.apply(Holders(self._room)) == self._local.apply(Holders(self._room))
        return taken.done

    def _forget_if_ended(self) -> None:
        """Forget what has ended: a clock that is set back finds it here, until it is swept out."""
        state = self._local._space(SPACE, PERMITS).table.get("n")
        if state is not None and PERMITS.expires_us(state) <= self._clock.now_ns() // 1000:
            self._local.apply(Delete(SPACE, "n", kind=PERMITS))
            for key in ("n", "n:waiting"):
                self._remote.apply(Delete(SPACE, key))


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(most=st.integers(1, 5), hold_us=st.sampled_from([60_000_000, 90_000_001]), steps=steps)
def test_permits__any_verbs_any_time__the_server_answers_as_python_does(
    server: Server, most: int, hold_us: int, steps: list[tuple[int, type[PermitOperation], Permit, int]]
) -> None:
    room, clock = Room("n", most, hold_us), ManualClock(1_800_000_000)
    with redis_store(server, clock) as remote:
        twins = Twins(remote, clock, room)
        for pause_us, verb, permit, number in steps:
            several = PERMITS_KNOWN[:number] if verb is GivePermit and number else [permit]
            twins.agree(pause_us, verb(room, *several))


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(most=st.integers(1, 2), steps=competing, busy=st.integers(1, 9))
def test_claims__processes_that_compete__the_server_answers_as_python_does(
    server: Server, most: int, steps: list[tuple[int, type[TakePermit], int]], busy: int
) -> None:
    room, clock = Room("n", most, 60_000_000), ManualClock(1_800_000_000)
    held: list[Permit] = []
    with redis_store(server, clock) as remote:
        twins = Twins(remote, clock, room)
        for turn, (pause_us, verb, number) in enumerate(steps):
            if held and turn % busy == 0:
                twins.agree(0, GivePermit(room, held.pop(0)))
            permit = COMPETING[number]
            if permit not in held and twins.agree(pause_us, verb(room, permit)):
                held.append(permit)
