"""The events and metrics of a circuit that changed, and the values that states and rules derive."""

from __future__ import annotations

from typing import Any

import pytest

from comporta.breaker.state import (
    CHANGE_CLOSED,
    CHANGE_NONE,
    CHANGE_OPENED,
    CHANGE_RAMP,
    CHANGE_RESET,
    CLOSED,
    FORCED_CLOSED,
    FORCED_OPEN,
    HALF_OPEN,
    NOT_FORCED,
    OPEN,
    RAMP,
    Circuit,
    CircuitReply,
    CircuitRules,
    ForcedState,
    parse_forced_state,
)
from comporta.breaker.transitions import BreakerEvent, events_between, publish
from comporta.events import Event, listen
from comporta.metrics import InMemoryMetrics
from comporta.ramp import FULL_SHARE

REPLY = CircuitReply(
    now_us=0,
    phase=CLOSED,
    generation=7,
    remaining_us=0,
    failures=0,
    forced=NOT_FORCED,
    share=FULL_SHARE,
    age_us=-1,
    cooldown_us=0,
    own_failures=0,
    calls=0,
    failed=0,
    slow=0,
    window_age_us=-1,
    reason="",
    probe=0,
    change=CHANGE_NONE,
    probes=(),
)
OPENED = REPLY._replace(phase=OPEN, remaining_us=29_960_000, reason="Timeout")
RULES = CircuitRules(5, 30_000_000, 1000, 30_000_000, 0, 0, 60_000_000, 20, 1, 1, 1, 30_000_000, 0, 5_000_000)


@pytest.mark.parametrize(
    ("previous", "reply", "expected"),
    [
        (None, REPLY, []),
        (REPLY, REPLY, []),
        (REPLY, REPLY._replace(generation=8), []),
        (None, OPENED, [BreakerEvent("breaker_opened", "open for 30.0 s: Timeout", "warning")]),
        (REPLY, OPENED, [BreakerEvent("breaker_opened", "open for 30.0 s: Timeout", "warning")]),
        (
            OPENED,
            OPENED._replace(generation=8, reason=""),
            [BreakerEvent("breaker_opened", "open for 30.0 s", "warning")],
        ),
        (OPENED, OPENED, []),
        (
            OPENED,
            OPENED._replace(phase=HALF_OPEN),
            [BreakerEvent("breaker_half_open", "half-open, waiting for a probe: Timeout", "info")],
        ),
        (
            OPENED,
            OPENED._replace(phase=HALF_OPEN, reason=""),
            [BreakerEvent("breaker_half_open", "half-open, waiting for a probe", "info")],
        ),
        (OPENED, REPLY, [BreakerEvent("breaker_closed", "closed", "info")]),
        (
            OPENED,
            REPLY._replace(phase=RAMP, share=FULL_SHARE // 4),
            [BreakerEvent("breaker_closed", "closing, 25 % admitted", "info")],
        ),
        (
            OPENED,
            OPENED._replace(forced=FORCED_OPEN, reason="maintenance"),
            [BreakerEvent("breaker_forced", "forced open by an operator: maintenance", "warning")],
        ),
        (
            None,
            REPLY._replace(forced=FORCED_CLOSED),
            [BreakerEvent("breaker_forced", "forced closed by an operator", "warning")],
        ),
        (
            OPENED._replace(forced=FORCED_OPEN),
            OPENED,
            [BreakerEvent("breaker_forced", "no longer forced", "warning")],
        ),
    ],
)
def test_events__between_two_replies__describe_the_difference(
    previous: CircuitReply | None, reply: CircuitReply, expected: list[BreakerEvent]
) -> None:
    assert events_between(previous, reply) == expected


@pytest.mark.parametrize(
    ("change", "label"),
    [(CHANGE_OPENED, "open"), (CHANGE_CLOSED, "closed"), (CHANGE_RAMP, "ramp"), (CHANGE_RESET, "closed")],
)
def test_publish__reply_changed_the_circuit__counts_it(
    metrics: InMemoryMetrics, change: int, label: str
) -> None:
    publish("pncp", REPLY._replace(change=change), [])
    assert metrics.value("breaker_transitions", breaker="pncp", to=label) == 1


def test_publish__another_worker_changed_it__publishes_without_counting(metrics: InMemoryMetrics) -> None:
    published: list[Event] = []
    stop = listen(published.append)
    publish("pncp", REPLY, [BreakerEvent("breaker_closed", "closed", "info")])
    stop()
    [event] = published
    assert (event.kind, event.source, event.text, event.severity) == (
        "breaker_closed",
        "pncp",
        "closed",
        "info",
    )
    assert "breaker_transitions" not in str(metrics.snapshot())


@pytest.mark.parametrize(
    ("changed", "ttl_us"),
    [
        ({}, 300_000_000),
        ({"cooldown_us": 400_000_000}, 460_000_000),
        ({"probe_us": 500_000_000}, 560_000_000),
        ({"window_us": 600_000_000}, 600_000_000),
        ({"ramp_steps": 100, "ramp_step_us": 7_000_000}, 700_000_000),
    ],
)
def test_rules__any_long_time__keep_an_unused_circuit_longer(changed: dict[str, int], ttl_us: int) -> None:
    assert RULES._replace(**changed).ttl_us == ttl_us


def test_rules__window__has_ten_slices_of_at_least_a_microsecond() -> None:
    assert RULES.slice_us == 6_000_000
    assert [RULES._replace(window_us=length).slice_us for length in (9, 19, 20)] == [1, 1, 2]
    uses = [
        RULES._replace(failure_ppm=one, slow_ppm=two).uses_window for one, two in ((0, 0), (1, 0), (0, 1))
    ]
    assert uses == [False, True, True]


@pytest.mark.parametrize("field", ["failures_ends_us", "open_until_us", "trip_ends_us", "calls_ends_us"])
def test_circuit__group_that_expires_last__ends_the_state(field: str) -> None:
    changed: Any = {field: 9}
    assert Circuit(**changed).ends_us == 9


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (None, ForcedState(NOT_FORCED, "")),
        (b"", ForcedState(NOT_FORCED, "")),
        (b"opened x", ForcedState(NOT_FORCED, "")),
        (b"OPEN x", ForcedState(NOT_FORCED, "")),
        (b"open", ForcedState(FORCED_OPEN, "")),
        (b" open by hand ", ForcedState(FORCED_OPEN, "by hand")),
        (b"closed by\x1fhand\x7f", ForcedState(FORCED_CLOSED, "by hand")),
        (b"open x\x7fy\x20\x80z", ForcedState(FORCED_OPEN, "x y \ufffdz")),
    ],
)
def test_forced_state__record_of_an_operator__is_a_word_and_a_reason(
    record: bytes | None, expected: ForcedState
) -> None:
    assert parse_forced_state(record) == expected
