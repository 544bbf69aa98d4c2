"""Scenarios that aim at one promise, and the invariants that check it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from comporta.simulation import (
    Call,
    FleetHistory,
    FleetScenario,
    Moment,
    Request,
    draw_scenario,
    parse_faults,
    run_scenario,
    simulate,
)
from comporta.simulation.drawn_scenarios import (
    TARGETED,
    TARGETED_EVERY,
    TARGETED_OUTAGES,
    TARGETED_OUTAGES_EVERY,
    TARGETED_SHARES,
    TARGETED_SHARES_EVERY,
    draw_priorities,
    draw_reservations,
    draw_strategy,
)
from comporta.simulation.faults import Fault
from comporta.simulation.invariants import INVARIANTS
from comporta.simulation.limit_excess import largest_excess
from comporta.simulation.network import seconds_ns
from comporta.simulation.scenario import draw_mixed_scenario


def test_draw__seeds__four_in_fourteen_are_targeted_and_all_kinds_occur() -> None:
    drawn = [draw_scenario(seed) for seed in range(700)]
    targeted = [scenario for scenario in drawn if scenario != draw_mixed_scenario(scenario.seed)]
    every = (TARGETED_EVERY, TARGETED_OUTAGES_EVERY, TARGETED_SHARES_EVERY)
    assert len(targeted) == sum(len(drawn) // each for each in every)
    assert max(scenario.workers for scenario in targeted) == 50
    assert {"priority", "reserve"} <= {scenario.workload for scenario in targeted}
    strategies = {scenario.strategy for scenario in targeted}
    assert strategies == {"token_bucket", "leaky_bucket", "fixed_window", "sliding_window"}


@pytest.mark.parametrize("draw", [*TARGETED, *TARGETED_OUTAGES, *TARGETED_SHARES])
def test_targeted_scenario__a_few_seeds__keeps_every_invariant(draw: object) -> None:
    for seed in range(3):
        scenario = draw(seed, Random(seed))  # type: ignore[operator]
        assert run_scenario(scenario)[1] == [], scenario


FIFTY = FleetScenario(1, workers=50, seconds=12, load=8, callers=2, rate=200, capacity=200)


@pytest.mark.parametrize(
    "faults",
    [
        "hang@3+1.5",
        "hang@2.5+0.4; hang@3.5+0.3; hang@5+1",
        "black_hole@3+2",
        "requests_lost@3+2",
        "crash@3+2",
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_fifty_workers__lose_the_store__keep_the_bound_and_all_rejoin(faults: str, is_async: bool) -> None:
    scenario = replace(FIFTY, is_async=is_async).with_faults(parse_faults(faults))
    history, violations = run_scenario(scenario)
    assert violations == []
    recovered = {moment.worker for moment in history.moments("state_recovered")}
    assert recovered == {f"w{index}" for index in range(50)}
    assert largest_excess(history)[0] <= 50 * len(scenario.faults)


@pytest.mark.parametrize("faults", ["", "hang@3+1.5", "kill@3+1:w1; pause@5+1:w0", "exit@3+1:w2"])
def test_cache__awaiting_callers__loads_each_key_once_at_a_time(faults: str) -> None:
    scenario = FleetScenario(
        1,
        workers=3,
        seconds=14,
        workload="cache",
        load=7,
        callers=4,
        is_async=True,
        faults=parse_faults(faults),
    )
    history, violations = run_scenario(scenario)
    assert violations == []
    assert len(history.moments("load_ended")) > 15
    assert sum(call.result == "granted" for call in history.of(Call)) > 150
    assert simulate(scenario).trace() == history.trace()


def test_scenario__options_of_few__are_in_its_text() -> None:
    assert "threshold" not in str(FleetScenario(1))
    assert ", threshold 2, cooldown 0.3, faults" in str(FleetScenario(1, threshold=2, cooldown=0.3))


def history_of(scenario: FleetScenario, *records: Call | Request | Moment) -> FleetHistory:
    return FleetHistory(scenario, list(records))


def failed_request(began: float, ended: float) -> Request:
    return Request(seconds_ns(began), seconds_ns(ended), "w0", 503, False)


def moment(at: float, kind: str) -> Moment:
    return Moment(seconds_ns(at), "w0", kind, "")


def call(result: str, priority: str = "", cost: int = 1, at: float = 3.0) -> Call:
    at_ns = seconds_ns(at)
    return Call(at_ns, at_ns, at_ns, "w0", result, False, cost, 0, priority, "")


LATE = FleetScenario(1, workload="upstream", threshold=2, faults=(Fault("upstream_late", 3.0, 1.0),))


@pytest.mark.parametrize(
    ("records", "count"),
    [
        ((failed_request(1, 2), failed_request(1, 2), moment(2.1, "circuit_opened")), 0),
        ((failed_request(1, 2), moment(2.1, "circuit_opened")), 1),
        (
            (
                *(failed_request(1, 2), failed_request(1, 2), moment(2.1, "circuit_opened")),
                *(failed_request(3, 3.1), moment(3.1, "circuit_opened"), moment(4, "circuit_closed")),
                *(failed_request(3.5, 5), failed_request(1, 5), moment(5, "circuit_opened")),
            ),
            1,
        ),
    ],
)
def test_circuits_open__results_of_an_earlier_generation__is_a_violation(
    records: tuple[Request | Moment, ...], count: int
) -> None:
    check = INVARIANTS["circuits_open_for_current_results"]
    assert len(check(history_of(LATE, *records))) == count
    hang = LATE.with_faults((Fault("hang", 3.0, 1.0),))
    assert check(history_of(hang, *records)) == []


def test_no_class_starves__lowest_class_gets_nothing__is_a_violation() -> None:
    scenario = draw_priorities(1, Random(1))
    served = [call("granted", "interactive")] * 20 + [call("refused", "batch")] * 40
    [violation] = INVARIANTS["no_class_starves"](history_of(scenario, *served))
    assert violation.startswith("batch: 0 of 40 calls granted")


def test_reservations__used_too_much_or_too_little__is_a_violation() -> None:
    scenario = draw_reservations(1, Random(1))
    check = INVARIANTS["reservations_are_settled"]
    assert check(history_of(scenario, *[call("granted", cost=4)] * 1000))[0].startswith("4000 units used")
    refused = [call("granted", cost=1)] * 3 + [call("refused")] * 30
    assert "are due" in check(history_of(scenario, *refused))[0]
    assert check(history_of(scenario, call("granted", cost=1))) == []


def test_one_load_per_key__two_at_once__is_a_violation() -> None:
    check = INVARIANTS["one_load_per_key"]
    began, ended = Moment(1, "w0", "load_began", "2"), Moment(2, "w0", "load_ended", "2")
    assert check(history_of(CACHE, began, ended, began, ended)) == []
    assert check(history_of(CACHE, began, began)) == ["two loads of key 2 at 0.000 s"]


def test_no_key_is_stuck__fetch_lasts_too_long__is_a_violation() -> None:
    check = INVARIANTS["no_key_is_stuck"]
    slow = call("granted")._replace(ended_ns=seconds_ns(8))
    assert check(history_of(CACHE)) == []
    assert check(history_of(CACHE, slow)) == ["w0 fetched for 5.0 s, allowed 1.0"]
    killed = CACHE.with_faults((Fault("kill", 3.0, 2.0, (0,)), Fault("pause", 3.0, 1.0, (1,))))
    assert check(history_of(killed, slow)) == []


CACHE = FleetScenario(1, workload="cache")


def test_strategy_scenario__any_seed__names_a_burst_that_its_strategy_allows() -> None:
    for seed in range(20):
        scenario = draw_strategy(seed, Random(seed))
        factor = {"leaky_bucket": 1 / scenario.capacity, "fixed_window": 2}.get(scenario.strategy, 1)
        assert scenario.burst == factor * scenario.capacity
