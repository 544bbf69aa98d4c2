"""The Lua twins of permits do exactly what the Python does."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import redis_store

from comporta.limits.holding import (
    PERMITS,
    SPACE,
    GivePermit,
    Holders,
    Permit,
    PermitOperation,
    RenewPermit,
    Room,
    TakePermit,
)
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Delete
from comporta.testing import ManualClock, Server

PERMITS_KNOWN = [Permit(f"{number:016x}", f"host:{number}") for number in range(6)]
verbs = st.sampled_from([TakePermit, TakePermit, GivePermit, RenewPermit])
pauses = st.one_of(
    st.just(0), st.integers(0, 1_000_000), st.integers(0, 120_000_000), st.integers(-400_000_000, 400_000_000)
)
steps = st.lists(
    st.tuples(pauses, verbs, st.sampled_from(PERMITS_KNOWN), st.integers(0, 3)), min_size=1, max_size=50
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(most=st.integers(1, 5), hold_us=st.sampled_from([60_000_000, 90_000_001]), steps=steps)
def test_permits__any_verbs_any_time__the_server_answers_as_python_does(
    server: Server, most: int, hold_us: int, steps: list[tuple[int, type[PermitOperation], Permit, int]]
) -> None:
    room = Room("n", most, hold_us)
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for pause_us, verb, permit, number in steps:
            clock.advance(pause_us / 1e6)
            state = local._space(SPACE, PERMITS).table.get("n")
            if state is not None and PERMITS.expires_us(state) <= clock.now_ns() // 1000:
                remote.apply(Delete(SPACE, "n"))
            several = PERMITS_KNOWN[:number] if verb is GivePermit and number else [permit]
            operation = verb(room, *several)
            assert remote.apply(operation) == local.apply(operation)
            assert remote.apply(Holders(room)) == local.apply(Holders(room))
