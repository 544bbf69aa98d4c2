"""The Lua version of the circuit does exactly what the Python version does.

The same random steps, at the same random times, under the same random rules, go to a store in memory and to a
real server; every reply must be equal, field by field, and so must the change log.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.stores.change_log_store import ChangeLogStore
from tests.support import max_examples, redis_store

from comporta.breaker.config import BreakerConfig
from comporta.breaker.operation import FORCED_SPACE, SPACE, BreakerOperation, CircuitSnapshot
from comporta.breaker.state import (
    COMMANDS,
    EMPTY_CIRCUIT,
    NO_ADMISSION,
    Circuit,
    CircuitReply,
    CircuitRequest,
    ForcedState,
)
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.memory import MemoryStore
from comporta.stores.records import DeleteRecord, WriteRecord
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock, Server

ratios = st.one_of(st.none(), st.sampled_from([0.000001, 0.3, 0.5, 1.0]))
configs = st.builds(
    lambda slow_ratio, probes, at_once, **others: BreakerConfig(
        slow_ratio=slow_ratio,
        slow_seconds=None if slow_ratio is None else 1.0,
        probes=probes,
        probes_at_once=min(probes, at_once),
        **others,
    ),
    threshold=st.integers(1, 4),
    cooldown_seconds=st.sampled_from(
        [20.0, 30.0, 1000.0]
    ),  # at least this: the server expires a mark by itself
    failure_ratio=ratios,
    slow_ratio=ratios,
    window_seconds=st.sampled_from([0.001, 1.0, 60.0, 777.77]),
    minimum_calls=st.integers(1, 6),
    quorum=st.integers(1, 3),
    cooldown_factor=st.sampled_from([1.0, 1.5, 1.337, 2.0, 100.0]),
    cooldown_max_seconds=st.sampled_from([None, 1000.0, 86_400.0]),
    probes=st.integers(1, 3),
    at_once=st.integers(1, 3),
    probe_seconds=st.sampled_from([0.5, 30.0, 700.0]),
    ramp_steps=st.integers(0, 3),
    ramp_seconds=st.sampled_from([0.3, 5.0]),
)
pauses = st.one_of(
    st.just(0),
    st.integers(1, 50),
    st.integers(0, 2_000_000),
    st.integers(0, 40_000_000),
    st.integers(-4_000_000_000, 4_000_000_000),  # an operator sets the server's clock back and forth
)
steps = st.tuples(
    pauses,
    st.sampled_from([*COMMANDS, "fail", "fail", "fail", "admit", "admit", "succeed"]),
    st.integers(-1, 3),  # the reply whose generation is used, or none
    st.integers(-1, 3),  # one of the probes granted so far
    st.sampled_from([None, -1000, 0, 1, 1000, 1_000_000]),  # how long ago the worker last succeeded
    st.integers(0, 4),
    st.integers(0, 2),
    st.integers(15_000_000, 40_000_000),
    st.sampled_from([0, 1, 1_000_000]),
    st.sampled_from([0, 20_000_000, 40_000_000, 2_000_000_000]),
    st.integers(0, 6),
    st.integers(0, 6),
    st.sampled_from(["a:1", "b:2", "host.example-1:31337"]),
    st.sampled_from(["", "Timeout", "não: 'quoted'\\ {x}"]),
)
words = st.sampled_from(
    [
        None,
        None,
        None,
        None,
        b"open by hand",
        b"closed",
        b"opened x",
        b"closed forever, yes",
        b"open\n",
        b" closed\tby\nhand \x7f",
    ]
)


def _expire_alike(local: MemoryStore, remote: RedisStore) -> None:
    """Delete on the server what its own clock, which the test does not move, has not expired."""
    now_us = local.clock.now_ns() // 1000
    state = local._spaces[f"{SPACE}:n"].table.get("") if f"{SPACE}:n" in local._spaces else None
    circuit = EMPTY_CIRCUIT if state is None else Circuit._make(state)
    ends = (circuit.failures_ends_us, circuit.trip_ends_us, circuit.calls_ends_us)
    for ends_us, key in zip(ends, ("failures", "half_open", "calls"), strict=True):
        if ends_us <= now_us:
            remote.apply(DeleteRecord(f"{SPACE}:n", key))


def _empty_snapshot() -> CircuitSnapshot:
    return CircuitSnapshot(EMPTY_CIRCUIT, ForcedState())


@settings(
    max_examples=max_examples(120),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(config=configs, script=st.lists(st.tuples(steps, words), min_size=1, max_size=40))
def test_lua__any_rules_steps_and_times__replies_as_python_does(
    server: Server, config: BreakerConfig, script: list[tuple[tuple[object, ...], bytes | None]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = ChangeLogStore(clock)
    replies: list[CircuitReply] = []
    granted: list[int] = []
    with redis_store(server, clock) as remote:
        for number, (request, word) in enumerate(script):
            asked = _make_request(clock, request, number, replies, granted)
            for store in (local, remote):
                store.apply(
                    WriteRecord(FORCED_SPACE, "n", word, None) if word else DeleteRecord(FORCED_SPACE, "n")
                )
            _expire_alike(local, remote)
            operation = BreakerOperation("n", config._rules, asked, _empty_snapshot)
            here = local.apply(operation)
            assert remote.apply(operation) == here
            assert remote.apply(ReadChanges(0)) == local.apply(ReadChanges(0))
            replies.append(here)
            if here.probe:
                granted.append(here.probe)


def _make_request(
    clock: ManualClock,
    request: tuple[object, ...],
    number: int,
    replies: list[CircuitReply],
    granted: list[int],
) -> CircuitRequest:
    pause_us, verb, which, probe, age_us, *rest = request
    assert isinstance(pause_us, int)
    assert isinstance(age_us, int | None)
    assert isinstance(which, int)
    assert isinstance(probe, int)
    clock.advance(pause_us / 1e6)
    generation = replies[-1 - which].generation if 0 <= which < len(replies) else NO_ADMISSION
    known = granted[-1 - probe] if 0 <= probe < len(granted) else 0
    probe = 1000 + number if verb == "admit" else known
    succeeded_us = -1 if age_us is None else clock.now_ns() // 1000 - age_us
    return CircuitRequest(verb, generation, probe, succeeded_us, *rest)  # type: ignore[arg-type]


def test_lua__several_breakers_in_one_call__replies_for_each_separately(server: Server) -> None:
    clock = ManualClock(1_800_000_000)
    config = BreakerConfig(threshold=2)
    fail, look = CircuitRequest("fail", owner="a:1", reason="x"), CircuitRequest("read")
    with redis_store(server, clock) as remote:
        asked = [("a", fail), ("b", look), ("a", fail), ("c", fail), ("a", look)]
        replies = remote.apply_many(
            [BreakerOperation(name, config._rules, request, _empty_snapshot) for name, request in asked]
        )
    assert [(reply.phase, reply.failures) for reply in replies] == [(0, 1), (0, 0), (1, 2), (0, 1), (1, 2)]
