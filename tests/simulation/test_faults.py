"""Fault scripts as text and as values, scenarios of seeds, and the shrinker."""

import pytest

from comporta.simulation import FleetScenario, draw_scenario, format_faults, parse_faults, shrink
from comporta.simulation.faults import KINDS, Fault
from comporta.simulation.scenario import QUIET_SECONDS
from comporta.simulation.shrinker import RUNS_MAX


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang@5.2+1.5", Fault("hang", 5.2, 1.5)),
        ("crash@5+2:old", Fault("crash", 5, 2, (), "old")),
        ("pause@3+0.4:w1,w12", Fault("pause", 3, 0.4, (1, 12))),
        ("server_clock@3:-3600", Fault("server_clock", 3, 0, (), "-3600")),
        ("loss@3+1:w0,0.25", Fault("loss", 3, 1, (0,), "0.25")),
    ],
)
def test_fault_script__one_fault__is_read_and_written(text: str, fault: Fault) -> None:
    assert parse_faults(text) == (fault,)
    assert str(fault) == text


def test_fault_script__several_faults__keep_their_order() -> None:
    faults = parse_faults("hang@5+1; ;kill@7+2:w0;")
    assert [fault.kind for fault in faults] == ["hang", "kill"]
    assert parse_faults(format_faults(faults)) == faults


@pytest.mark.parametrize(
    ("text", "message"),
    [("hang", "fault must look like"), ("explode@5+1", "fault must be one of hang, crash")],
)
def test_fault_script__invalid__names_the_part(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_faults(text)


def test_scenarios__many_seeds__are_reproducible_and_reach_every_fault() -> None:
    scenarios = [draw_scenario(seed) for seed in range(2000)]
    assert scenarios == [draw_scenario(seed) for seed in range(2000)]
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert kinds == set(KINDS)
    for scenario in scenarios:
        assert parse_faults(format_faults(scenario.faults)) == scenario.faults
        assert all(fault.end <= scenario.seconds - QUIET_SECONDS for fault in scenario.faults)


def test_shrink__failure_needs_two_faults__leaves_those_two() -> None:
    scenario = FleetScenario(
        1, faults=parse_faults("hang@1+4; slow@2+1:0.1; crash@3+2; pause@4+1:w0; full@5+1")
    )

    def fails(candidate: FleetScenario) -> bool:
        return {"hang", "pause"} <= {fault.kind for fault in candidate.faults}

    shrunk = shrink(scenario, fails)
    assert [fault.kind for fault in shrunk.faults] == ["hang", "pause"]
    assert all(fault.seconds <= 0.13 for fault in shrunk.faults)


def test_shrink__every_candidate_fails__stops_after_a_bounded_number_of_runs() -> None:
    scenario = FleetScenario(1, faults=tuple(Fault("hang", at, 1) for at in range(300)))
    runs = []

    def fails(candidate: FleetScenario) -> bool:
        runs.append(candidate)
        return len(candidate.faults) == 300

    shrink(scenario, fails)
    assert len(runs) == RUNS_MAX
