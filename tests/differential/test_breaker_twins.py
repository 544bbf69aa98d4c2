"""The Lua twin of the circuit does exactly what the Python does.

The same random steps, at the same random times, under the same random rules, go to a store in memory and to a
real server; every reply must be equal, field by field.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support import examples, redis_store

from comporta.breaker.config import BreakerConfig
from comporta.breaker.operation import CHANGES, SPACE, Known, Step
from comporta.breaker.state import BARE, EMPTY, VERBS, Asked, Circuit, Forced, Reply
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Delete, Write
from comporta.stores.redis import RedisStore
from comporta.testing import ManualClock, Server

ratios = st.one_of(st.none(), st.sampled_from([0.000001, 0.3, 0.5, 1.0]))
configs = st.builds(
    lambda slow_ratio, **others: BreakerConfig(
        slow_ratio=slow_ratio, slow_seconds=None if slow_ratio is None else 1.0, **others
    ),
    threshold=st.integers(1, 4),
    cooldown_seconds=st.sampled_from(
        [20.0, 30.0, 1000.0]
    ),  # no less: the server lets a mark expire by itself
    failure_ratio=ratios,
    slow_ratio=ratios,
    window_seconds=st.sampled_from([0.001, 1.0, 60.0, 777.77]),
    minimum_calls=st.integers(1, 6),
    quorum=st.integers(1, 3),
    probes=st.integers(1, 3),
    probe_seconds=st.sampled_from([0.5, 30.0, 700.0]),
    ramp_steps=st.integers(0, 3),
    ramp_seconds=st.sampled_from([0.3, 5.0]),
)
pauses = st.one_of(
    st.just(0),
    st.integers(1, 50),
    st.integers(0, 2_000_000),
    st.integers(0, 40_000_000),
    st.integers(-4_000_000_000, 4_000_000_000),  # the server's clock is set by hand, to and fro
)
steps = st.tuples(
    pauses,
    st.sampled_from([*VERBS, "fail", "fail", "fail", "admit", "admit", "succeed"]),
    st.integers(-1, 3),  # of which reply the generation is, or of none
    st.integers(-1, 3),  # which of the probes granted so far
    st.sampled_from([-1, 0, 1, 1000, 1_000_000]),
    st.integers(0, 4),
    st.integers(0, 2),
    st.integers(15_000_000, 40_000_000),
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
        b"closed for ever, yes",
        b"open\n",
        b" closed\tby\nhand \x7f",
    ]
)


def _expire_alike(local: MemoryStore, remote: RedisStore) -> None:
    """Let the server forget what its clock, which is not moved by hand, would have let it forget."""
    now_us = local.clock.now_ns() // 1000
    state = local._spaces[f"{SPACE}:n"].table.get("") if f"{SPACE}:n" in local._spaces else None
    circuit = EMPTY if state is None else Circuit._make(state)
    ends = (circuit.failures_ends_us, circuit.trip_ends_us, circuit.calls_ends_us)
    for ends_us, key in zip(ends, ("failures", "half_open", "calls"), strict=True):
        if ends_us <= now_us:
            remote.apply(Delete(f"{SPACE}:n", key))


def _known() -> Known:
    return Known(EMPTY, Forced())


@settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(config=configs, script=st.lists(st.tuples(steps, words), min_size=1, max_size=40))
def test_lua__any_rules_any_steps_any_time__answers_as_python_does(
    server: Server, config: BreakerConfig, script: list[tuple[tuple[object, ...], bytes | None]]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    replies: list[Reply] = []
    granted: list[int] = []
    with redis_store(server, clock) as remote:
        for number, (told, word) in enumerate(script):
            asked = _asked(clock, told, number, replies, granted)
            for store in (local, remote):
                store.apply(Write(CHANGES, "n", word, None) if word else Delete(CHANGES, "n"))
            _expire_alike(local, remote)
            operation = Step("n", config.rules, asked, _known)
            here = local.apply(operation)
            assert remote.apply(operation) == here
            replies.append(here)
            if here.probe:
                granted.append(here.probe)


def _asked(
    clock: ManualClock, told: tuple[object, ...], number: int, replies: list[Reply], granted: list[int]
) -> Asked:
    pause_us, verb, which, probe, *rest = told
    assert isinstance(pause_us, int)
    assert isinstance(which, int)
    assert isinstance(probe, int)
    clock.advance(pause_us / 1e6)
    generation = replies[-1 - which].generation if 0 <= which < len(replies) else BARE
    known = granted[-1 - probe] if 0 <= probe < len(granted) else 0
    return Asked(verb, generation, 1000 + number if verb == "admit" else known, *rest)  # type: ignore[arg-type]


def test_lua__several_breakers_in_one_call__answers_each_on_its_own(server: Server) -> None:
    clock = ManualClock(1_800_000_000)
    config = BreakerConfig(threshold=2)
    fail, look = Asked("fail", owner="a:1", why="x"), Asked("look")
    with redis_store(server, clock) as remote:
        asked = [("a", fail), ("b", look), ("a", fail), ("c", fail), ("a", look)]
        replies = remote.apply_all([Step(name, config.rules, told, _known) for name, told in asked])
    assert [(reply.phase, reply.failures) for reply in replies] == [(0, 1), (0, 0), (1, 2), (0, 1), (1, 2)]
