"""The pure state machine of a circuit: every field after a request, and when each group expires."""

from __future__ import annotations

import pytest

from comporta.breaker.codec import CIRCUIT
from comporta.breaker.normalization import normalize, ttl_us
from comporta.breaker.result_counts import (
    count_failures,
    exceeds_ratio,
    reaches_threshold,
    window_counts,
)
from comporta.breaker.state import (
    CHANGE_CLOSED,
    CHANGE_NONE,
    CHANGE_OPENED,
    CHANGE_RAMP,
    EMPTY_CIRCUIT,
    FAIL,
    FORCED_CLOSED,
    NOT_FORCED,
    READ,
    REPORT_FAILURES,
    REPORT_OPEN,
    SUCCEED,
    Circuit,
    CircuitReply,
    CircuitRequest,
    CircuitRules,
    FailingWorker,
    ForcedState,
    Probe,
    WindowSlice,
)
from comporta.breaker.state_machine import step
from comporta.breaker.transitions import _phase_event

SECOND = 1_000_000
NOW = 10**15
SLICE = 10**8
"""The number of the newest slice at ``NOW``."""

RULES = CircuitRules(
    threshold=3,
    cooldown_us=10 * SECOND,
    cooldown_permille=2000,
    cooldown_max_us=60 * SECOND,
    failure_ppm=500_000,
    slow_ppm=0,
    window_us=100 * SECOND,
    minimum_calls=4,
    quorum=1,
    probes=2,
    probes_at_once=2,
    probe_us=5 * SECOND,
    ramp_steps=4,
    ramp_step_us=SECOND,
)
TTL = 300 * SECOND
FULL = Circuit(
    failures=2,
    failures_ends_us=NOW + 1,
    open_until_us=NOW + 1,
    tripped=True,
    opened_us=NOW - 5,
    reason="r",
    successes=1,
    probes=(Probe(7, NOW + 1, "a:1"), Probe(8, NOW + 1, "a:2")),
    cooldown_us=7,
    trip_ends_us=NOW + 1,
    generation=9,
    last_failure_us=NOW - 3,
    streak_start_us=NOW - 4,
    slices=(WindowSlice(SLICE, 4, 2, 0),),
    failing_workers=(FailingWorker("a:1", NOW - 3, 2),),
    calls_ends_us=NOW + 1,
)
HALF_OPEN = FULL._replace(open_until_us=0)
CLOSED = HALF_OPEN._replace(
    tripped=False, opened_us=0, reason="", successes=0, probes=(), cooldown_us=0, trip_ends_us=0
)


def after(
    circuit: Circuit,
    request: CircuitRequest,
    *,
    rules: CircuitRules = RULES,
    forced: int = NOT_FORCED,
    now_us: int = NOW,
) -> tuple[Circuit, CircuitReply]:
    return step(circuit, rules, request, now_us, ForcedState(forced))


def test_normalize__nothing_expired__changes_nothing() -> None:
    assert normalize(FULL, RULES, NOW) == FULL


def test_normalize__every_group_expires_now__is_empty() -> None:
    expired = FULL._replace(
        failures_ends_us=NOW, open_until_us=NOW, trip_ends_us=NOW, calls_ends_us=NOW, ramp_start_us=NOW
    )
    assert normalize(expired, RULES, NOW) == EMPTY_CIRCUIT


def test_normalize__clock_set_back__cuts_every_time_to_the_latest_allowed() -> None:
    far = NOW + 10**12
    ahead = FULL._replace(
        failures_ends_us=far,
        open_until_us=far,
        opened_us=far,
        ramp_start_us=far,
        probes=(Probe(7, far, "a:1"),),
        cooldown_us=far,
        trip_ends_us=far,
        last_failure_us=far,
        streak_start_us=far,
        slices=(
            WindowSlice(SLICE + 1, 4, 2, 0),
            WindowSlice(SLICE - 9, 1, 1, 0),
            WindowSlice(SLICE - 10, 1, 1, 0),
        ),
        failing_workers=(FailingWorker("a:1", far, 2),),
        calls_ends_us=far,
    )
    assert normalize(ahead, RULES, NOW) == Circuit(
        failures=2,
        failures_ends_us=NOW + TTL,
        open_until_us=NOW + 60 * SECOND,
        tripped=True,
        opened_us=NOW,
        reason="r",
        successes=1,
        ramp_start_us=NOW,
        probes=(Probe(7, NOW + 5 * SECOND, "a:1"),),
        cooldown_us=60 * SECOND,
        trip_ends_us=NOW + TTL,
        generation=9,
        last_failure_us=NOW,
        streak_start_us=NOW,
        slices=(WindowSlice(SLICE - 9, 1, 1, 0),),
        failing_workers=(FailingWorker("a:1", NOW, 2),),
        calls_ends_us=NOW + TTL,
    )


def test_normalize__ramp_over__is_closed() -> None:
    for start_us, tripped in ((NOW - 4 * SECOND + 1, True), (NOW - 4 * SECOND, False)):
        assert normalize(HALF_OPEN._replace(ramp_start_us=start_us), RULES, NOW).tripped is tripped


@pytest.mark.parametrize("succeeded_us", [2, NOW])
def test_count_failures__success_after_the_last_failure__starts_a_new_streak(succeeded_us: int) -> None:
    before = Circuit(failures=2, last_failure_us=1, streak_start_us=1)
    request = CircuitRequest(FAIL, generation=5, succeeded_us=succeeded_us, owner="a:1")
    assert count_failures(before, RULES, request, NOW) == Circuit(
        failures=1,
        failures_ends_us=NOW + TTL,
        last_failure_us=NOW,
        streak_start_us=NOW,
        slices=(WindowSlice(SLICE, 1, 1, 0),),
        failing_workers=(FailingWorker("a:1", NOW, 1),),
        calls_ends_us=NOW + TTL,
    )


def test_count_failures__success_before_or_in_the_future__continues_the_streak() -> None:
    before = Circuit(failures=2, last_failure_us=3, streak_start_us=1)
    for succeeded_us in (-1, 3, NOW + 1):
        request = CircuitRequest(FAIL, generation=5, succeeded_us=succeeded_us, owner="a:1")
        found = count_failures(before, RULES, request, NOW)
        assert (found.failures, found.streak_start_us) == (3, 1)


def test_count_failures__none_in_a_row__counts_for_the_window_only() -> None:
    request = CircuitRequest(FAIL, generation=5, owner="a:1")
    found = count_failures(Circuit(last_failure_us=4), RULES, request, NOW, count=2, streak=0)
    assert (found.failures, found.failures_ends_us, found.last_failure_us) == (0, 0, 4)
    assert (found.streak_start_us, found.slices) == (NOW, (WindowSlice(SLICE, 2, 2, 0),))


@pytest.mark.parametrize(
    ("threshold", "failures", "reached"), [(0, 1, False), (0, 2, True), (1, 1, True), (3, 1, False)]
)
def test_reaches_threshold__in_a_ramp__takes_at_most_the_number_of_probes(
    threshold: int, failures: int, reached: bool
) -> None:
    circuit = Circuit(ramp_start_us=1, failures=failures)
    assert reaches_threshold(circuit, RULES._replace(threshold=threshold)) is reached


@pytest.mark.parametrize(
    ("counts", "failure_ppm", "slow_ppm", "exceeds"),
    [
        ((4, 2, 0), 500_000, 0, True),
        ((4, 1, 0), 500_000, 0, False),
        ((4, 1, 0), 1, 0, True),
        ((4, 0, 0), 0, 1_000_000, False),
        ((4, 0, 1), 0, 1_000_000, False),
        ((4, 0, 4), 0, 1_000_000, True),
        ((2_000_001, 1_000_000, 0), 500_000, 0, False),
        ((2_000_001, 0, 1_000_000), 0, 500_000, False),
        ((3, 3, 0), 500_000, 0, False),
    ],
)
def test_exceeds_ratio__counts_of_the_window__are_compared_exactly(
    counts: tuple[int, int, int], failure_ppm: int, slow_ppm: int, exceeds: bool
) -> None:
    circuit = CLOSED._replace(slices=(WindowSlice(SLICE, *counts),))
    rules = RULES._replace(failure_ppm=failure_ppm, slow_ppm=slow_ppm)
    assert exceeds_ratio(circuit, rules, NOW) is exceeds


def test_exceeds_ratio__worker_failed_before_the_window__does_not_count_for_the_quorum() -> None:
    for failed_us, exceeds in ((NOW - 100 * SECOND, False), (NOW - 100 * SECOND + 1, True)):
        circuit = CLOSED._replace(failing_workers=(FailingWorker("a:1", failed_us, 2),))
        assert exceeds_ratio(circuit, RULES, NOW) is exceeds


def test_window_counts__empty__has_no_first_slice() -> None:
    assert window_counts(EMPTY_CIRCUIT) == WindowSlice(-1, 0, 0, 0)


def test_succeed__last_probe__starts_the_ramp_with_nothing_counted() -> None:
    circuit, reply = after(HALF_OPEN, CircuitRequest(SUCCEED, generation=9, probe=7))
    assert circuit == Circuit(
        tripped=True,
        opened_us=NOW - 5,
        reason="r",
        ramp_start_us=NOW,
        cooldown_us=7,
        trip_ends_us=NOW + TTL,
        generation=NOW,
        last_failure_us=NOW - 3,
        streak_start_us=NOW - 4,
        calls_ends_us=NOW + TTL,
    )
    assert (reply.change, reply.probe) == (CHANGE_RAMP, 0)


def test_succeed__last_probe_without_a_ramp__closes() -> None:
    request = CircuitRequest(SUCCEED, generation=9, probe=7)
    circuit, reply = after(HALF_OPEN, request, rules=RULES._replace(ramp_steps=0))
    assert circuit == Circuit(
        generation=NOW, last_failure_us=NOW - 3, streak_start_us=NOW - 4, calls_ends_us=NOW + TTL
    )
    assert (reply.change, reply.probe) == (CHANGE_CLOSED, 0)


@pytest.mark.parametrize(
    ("circuit", "request_"),
    [
        (HALF_OPEN, CircuitRequest(SUCCEED, generation=8, probe=7)),
        (HALF_OPEN, CircuitRequest(SUCCEED, generation=9, probe=99)),
        (FULL, CircuitRequest(SUCCEED, generation=9, probe=7)),
        (FULL, CircuitRequest(SUCCEED, generation=9, calls=1)),
        (HALF_OPEN, CircuitRequest(FAIL, generation=9)),
        (HALF_OPEN, CircuitRequest(FAIL, generation=8, probe=7)),
        (CLOSED, CircuitRequest(READ, generation=8, calls=3)),
        (FULL, CircuitRequest(READ, generation=9, calls=3)),
        (CLOSED, CircuitRequest(READ, generation=9)),
        (FULL, CircuitRequest(REPORT_OPEN, remaining_us=5, cooldown_us=5, owner="a:1")),
        (CLOSED, CircuitRequest(REPORT_FAILURES, generation=9, total=2, streak=2, owner="a:1")),
    ],
)
def test_request__that_does_not_apply__changes_nothing(circuit: Circuit, request_: CircuitRequest) -> None:
    new, reply = after(circuit, request_)
    assert new == circuit
    assert (reply.change, reply.probe) == (CHANGE_NONE, 0)


def test_succeed__first_of_two_probes__is_counted() -> None:
    circuit, reply = after(HALF_OPEN._replace(successes=0), CircuitRequest(SUCCEED, generation=9, probe=7))
    assert (circuit.successes, [probe.number for probe in circuit.probes]) == (1, [8])
    assert (reply.change, reply.probe) == (CHANGE_NONE, 0)


def test_succeed__closed__ends_the_streak() -> None:
    circuit, _ = after(CLOSED, CircuitRequest(SUCCEED, generation=9))
    assert circuit == CLOSED._replace(failures=0, failures_ends_us=0)


def test_succeed__forced_closed__does_not_open_by_the_ratio() -> None:
    failed = CLOSED._replace(slices=(WindowSlice(SLICE, 4, 4, 0),))
    for forced, change in ((NOT_FORCED, CHANGE_OPENED), (FORCED_CLOSED, CHANGE_NONE)):
        _, reply = after(failed, CircuitRequest(SUCCEED, generation=9, calls=1), forced=forced)
        assert reply.change == change


def test_fail__probe__opens_again_with_a_longer_cooldown_and_nothing_counted() -> None:
    request = CircuitRequest(FAIL, generation=9, probe=7, owner="a:1", reason="why")
    circuit, reply = after(HALF_OPEN._replace(cooldown_us=15 * SECOND), request)
    assert circuit == Circuit(
        failures=3,
        failures_ends_us=NOW + TTL,
        open_until_us=NOW + 30 * SECOND,
        tripped=True,
        opened_us=NOW - 5,
        reason="why",
        cooldown_us=30 * SECOND,
        trip_ends_us=NOW + TTL,
        generation=NOW,
        last_failure_us=NOW,
        streak_start_us=NOW - 4,
        calls_ends_us=NOW + TTL,
    )
    assert (reply.change, reply.probe) == (CHANGE_OPENED, 0)


def test_fail__probe_of_a_forced_circuit__only_ends_the_probe() -> None:
    request = CircuitRequest(FAIL, generation=9, probe=7)
    circuit, reply = after(HALF_OPEN, request, forced=FORCED_CLOSED)
    assert circuit == HALF_OPEN._replace(probes=HALF_OPEN.probes[1:])
    assert (reply.change, reply.probe) == (CHANGE_NONE, 0)


def test_fail__during_the_ramp__ends_it() -> None:
    ramp = HALF_OPEN._replace(ramp_start_us=NOW - SECOND, probes=())
    circuit, reply = after(ramp, CircuitRequest(FAIL, generation=9, owner="a:1"))
    assert (circuit.ramp_start_us, circuit.successes, circuit.opened_us) == (0, 0, NOW - 5)
    assert reply.change == CHANGE_OPENED


def test_read__during_the_ramp__says_when_its_next_step_is() -> None:
    ramp = HALF_OPEN._replace(ramp_start_us=NOW - 1_300_000, probes=())
    remaining_us = after(ramp, CircuitRequest(READ))[1].remaining_us
    assert (remaining_us, type(remaining_us)) == (700_000, int)


def test_read__first_slice_of_all__has_its_age() -> None:
    early = Circuit(slices=(WindowSlice(0, 4, 0, 0),), calls_ends_us=100)
    assert after(early, CircuitRequest(READ), now_us=5)[1].window_age_us == 5


@pytest.mark.parametrize(("remaining_us", "left_us"), [(0, 1), (4, 4), (10**9, 10 * SECOND)])
def test_report_open__rest_of_a_cooldown__opens_for_that_long(remaining_us: int, left_us: int) -> None:
    request = CircuitRequest(REPORT_OPEN, remaining_us=remaining_us, owner="a:1", reason="why")
    circuit, reply = after(CLOSED, request)
    assert (circuit.open_until_us, circuit.opened_us) == (NOW + left_us, NOW)
    assert (circuit.cooldown_us, circuit.reason, reply.change) == (10 * SECOND, "why", CHANGE_OPENED)


def test_report_open__circuit_changed_when_the_cooldown_began__opens() -> None:
    request = CircuitRequest(REPORT_OPEN, remaining_us=10 * SECOND, owner="a:1")
    for generation, change in ((NOW, CHANGE_OPENED), (NOW + 1, CHANGE_NONE)):
        assert after(CLOSED._replace(generation=generation), request)[1].change == change


def test_report_failures__ratio_exceeded_without_a_streak__opens() -> None:
    request = CircuitRequest(REPORT_FAILURES, generation=9, total=6, owner="a:1")
    circuit, reply = after(CLOSED, request)
    assert (circuit.open_until_us, reply.change, reply.probe) == (NOW + 10 * SECOND, CHANGE_OPENED, 0)


def test_ttl__cooldown_that_has_grown__keeps_a_tripped_circuit_longer() -> None:
    rules = RULES._replace(cooldown_max_us=1000 * SECOND)
    grown = Circuit(cooldown_us=900 * SECOND)
    assert ttl_us(grown, rules) == TTL
    assert ttl_us(grown._replace(tripped=True), rules) == 960 * SECOND


@pytest.mark.parametrize(
    ("reason", "stored"), [("a\udcff", "a?"), ("a" + "é" * 150, "a" + "é" * 99 + "\ufffd")]
)
def test_codec__reason_that_is_cut_or_cannot_be_encoded__is_readable(reason: str, stored: str) -> None:
    packed = CIRCUIT.codec.pack(*FULL._replace(reason=reason))
    assert CIRCUIT.codec.unpack_from(packed) == FULL._replace(reason=stored)


def test_transition__ramp__says_which_share_is_admitted() -> None:
    ramp = HALF_OPEN._replace(ramp_start_us=NOW - 3 * SECOND, probes=())
    reply = after(ramp, CircuitRequest(READ))[1]
    assert reply.share == 800_000
    assert _phase_event(reply).text == "closing, 80 % admitted"
