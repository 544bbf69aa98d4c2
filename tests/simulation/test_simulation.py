"""Whole simulations: the same seed gives the same history, and the history keeps what is promised."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.processes.accounting import most_above_bucket

from comporta.simulation import (
    AppliedReport,
    Call,
    FleetScenario,
    Moment,
    check,
    draw_scenario,
    parse_faults,
    run_scenario,
    run_seed,
    run_seeds,
    simulate,
)
from comporta.simulation.__main__ import main
from comporta.simulation.network import seconds_ns
from comporta.simulation.simulated_fleet import SimulatedFleet, fleet_runtime
from comporta.simulation.workload import NAME, UPSTREAM_TIMEOUT_SECONDS
from comporta.upstream.factory import default_permit_ttl

TRACE = "from comporta.simulation import *; print(*(simulate(draw_scenario(s)).trace() for s in {}))"
SEEDS = (2, 6, 11, 17)

SMALL = FleetScenario(1, workers=3, seconds=10, load=8, rate=10, capacity=10)


def with_faults(text: str, scenario: FleetScenario = SMALL) -> FleetScenario:
    return scenario.with_faults(parse_faults(text))


def test_trace__two_processes_with_other_hash_seeds__is_the_same_byte_for_byte() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACE.format(SEEDS)],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in (1, 2)
    ]
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10_000


def test_trace__after_other_simulations__is_the_same() -> None:
    scenario = draw_scenario(6)
    first = simulate(scenario).trace()
    simulate(draw_scenario(2))
    assert simulate(scenario).trace() == first


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("workload", ["limit", "wait", "lease", "upstream"])
def test_workload__no_faults__is_granted_what_the_limit_allows(workload: str, is_async: bool) -> None:
    max_wait = 1.0 if workload in {"wait", "upstream"} else 0.0
    scenario = FleetScenario(
        3, workers=3, seconds=10, load=8, rate=10, capacity=10, workload=workload, is_async=is_async,
        max_wait=max_wait, max_concurrent=4 if workload == "upstream" else None, callers=2,
    )  # fmt: skip
    history, violations = run_scenario(scenario)
    assert violations == []
    granted = [call for call in history.of(Call) if call.result == "granted"]
    assert len(granted) > 40
    assert not any(call.is_local for call in granted)


def fallbacks(scenario: FleetScenario) -> dict[str, int]:
    """Return when each worker began its first outage, in nanoseconds."""
    moments = simulate(scenario).moments("state_fallback")
    return {moment.worker: moment.at_ns for moment in reversed(moments)}


@pytest.mark.parametrize(
    "fault",
    ["hang", "crash", "partition", "black_hole", "requests_lost", "replies_lost", "full", "read_only"],
)
def test_fault__of_the_whole_fleet__every_worker_falls_back_and_returns(fault: str) -> None:
    scenario = with_faults(f"{fault}@3+1.5")
    history = simulate(scenario)
    began = history.moments("state_fallback")
    recovered = history.moments("state_recovered")
    assert {moment.worker for moment in began} == {"w0", "w1", "w2"}
    assert {moment.worker for moment in recovered} == {"w0", "w1", "w2"}
    assert all(seconds_ns(3) <= moment.at_ns <= seconds_ns(4.5) for moment in began[:3])
    local = [call for call in history.of(Call) if call.is_local]
    assert any(call.result == "granted" for call in local)


@pytest.mark.parametrize("fault", ["partition", "black_hole", "requests_lost", "replies_lost"])
def test_fault__of_one_worker__only_that_worker_falls_back(fault: str) -> None:
    assert set(fallbacks(with_faults(f"{fault}@3+1.5:w1"))) == {"w1"}


@pytest.mark.parametrize(
    ("faults", "least", "most"),
    [
        ("worker_clock@1:w0,-2", -10, 0),
        ("worker_clock@1:w0,-2; pause@4+0.24:w0", -10, 0),
        ("worker_clock@1:w0,-2; hang@4+0.24", -10, 0),
        ("worker_clock@1:w0,-2; black_hole@4+0.24:w0", 150, 500),
        ("black_hole@4+0.24:w0", 150, 500),
    ],
)
def test_fallback__of_one_worker__is_above_the_limit_until_it_is_charged(
    faults: str, least: int, most: int
) -> None:
    scenario = FleetScenario(
        1, workers=2, seconds=10, load=3000, rate=1000, capacity=1000, latency=6e-5, jitter=4e-5
    )
    calls = simulate(with_faults(faults, scenario)).of(Call)
    granted = [(call.began_ns, call.ended_ns) for call in calls if call.result == "granted"]
    assert least <= most_above_bucket(granted, 1000, 1000) <= most
    elapsed = (calls[-1].ended_ns - calls[0].began_ns) / 1e9
    assert 0 <= 1000 + 1000 * elapsed - len(granted) < 20


def test_half_open__idle_connections__are_noticed_by_the_next_call() -> None:
    assert set(fallbacks(with_faults("half_open@3:w2"))) == {"w2"}


@pytest.mark.parametrize("value", ["", "empty", "old"])
def test_crash__restart_with_another_memory__keeps_the_documented_bound(value: str) -> None:
    scenario = with_faults(f"crash@4+0.5:{value}" if value else "crash@4+0.5")
    history, violations = run_scenario(scenario)
    assert violations == []
    assert history.moments("state_recovered")


@pytest.mark.parametrize(
    "fault", ["slow@3+1:0.2", "loss@3+2:0.5", "server_clock@3:-1", "server_clock@3:3600"]
)
def test_fault__other_kinds__keep_the_promises(fault: str) -> None:
    assert run_scenario(with_faults(fault))[1] == []


def test_pause_and_worker_clock__one_worker__keep_the_promises() -> None:
    history, violations = run_scenario(with_faults("pause@3+1:w1; worker_clock@5:w0,-3600"))
    assert violations == []
    kinds = [moment.kind for moment in history.of(Moment) if moment.worker == "w1"]
    assert kinds.index("worker_paused") < kinds.index("worker_resumed")
    paused = [call for call in history.of(Call) if call.worker == "w1"]
    assert not any(seconds_ns(3) < call.ended_ns < seconds_ns(4) for call in paused)


@pytest.mark.parametrize(("fault", "kind"), [("kill", "worker_killed"), ("exit", "worker_exited")])
def test_kill_and_exit__one_worker__starts_again_as_another_process(fault: str, kind: str) -> None:
    history, violations = run_scenario(with_faults(f"{fault}@3+1:w1"))
    assert violations == []
    assert [moment.worker for moment in history.moments(kind)] == ["w1"]
    assert [moment.worker for moment in history.moments("worker_started")][-1] == "w1.1"
    assert not any(call.worker == "w1" and call.began_ns > seconds_ns(3.1) for call in history.of(Call))
    assert any(call.worker == "w1.1" for call in history.of(Call))


@pytest.mark.parametrize(
    "fault", ["pause@2.9+1:w1; exit@3+1:w1", "kill@3+1:w1; exit@3.2+2:w1; pause@3.5+1:w1"]
)
def test_worker_faults__overlapping__leave_one_live_process_per_worker(fault: str) -> None:
    history = simulate(with_faults(fault))
    assert [moment.worker for moment in history.moments("worker_started")][-1].startswith("w1.")


UPSTREAM = FleetScenario(
    5,
    workers=3,
    seconds=14,
    load=8,
    rate=40,
    capacity=40,
    workload="upstream",
    max_wait=0.5,
    max_concurrent=6,
)


@pytest.mark.parametrize(
    ("fault", "event"),
    [
        ("upstream_errors@3+4", "breaker_opened"),
        ("upstream_refuses@3+0.5:1", "pause_stored"),
        ("upstream_slow@3+1:1", ""),
    ],
)
def test_upstream_fault__each_kind__is_met_by_its_policy(fault: str, event: str) -> None:
    history, violations = run_scenario(with_faults(fault, UPSTREAM))
    assert violations == []
    assert not event or history.moments(event)


def test_duplicates__requests_of_a_fleet_that_rejoins__charge_each_report_once() -> None:
    scenario = with_faults("duplicates@2+5:1; hang@3+1.5")
    history, violations = run_scenario(scenario)
    assert violations == []
    reports = history.of(AppliedReport)
    assert sum(report.changed for report in reports) == sum(not report.changed for report in reports) > 0
    assert history.operation_count > 1.2 * simulate(with_faults("hang@3+1.5")).operation_count


def test_permits__of_killed_workers__are_back_by_their_deadline() -> None:
    scenario = replace(UPSTREAM, seconds=24.0, max_concurrent=2)
    faults = "upstream_slow@2.5+1:5; kill@3+1:w0,w1,w2"
    fleet = SimulatedFleet(with_faults(faults, scenario))
    with fleet_runtime(fleet):
        history = fleet.run()
    assert check(history) == []
    deadline_ns = seconds_ns(3 + default_permit_ttl(scenario.max_wait, UPSTREAM_TIMEOUT_SECONDS))
    granted = [call.ended_ns for call in history.of(Call) if call.result == "granted"]
    assert not [at_ns for at_ns in granted if seconds_ns(4) < at_ns < deadline_ns - seconds_ns(1)]
    assert len([at_ns for at_ns in granted if at_ns > deadline_ns]) > 20
    assert fleet.server.live_permits(NAME) == []


def test_thread__ends_by_an_exception__is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.simulation.program.Program._pause", lambda *_: 1 / 0)
    violations = check(simulate(SMALL))
    assert any("a thread ended: ZeroDivisionError" in violation for violation in violations)


def test_environment__worker_count_of_the_real_process__does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = simulate(with_faults("hang@3+1.5")).trace()
    monkeypatch.setenv("COMPORTA_WORKERS", "50")
    assert simulate(with_faults("hang@3+1.5")).trace() == expected
    assert os.environ["COMPORTA_WORKERS"] == "50"


def test_runner__failing_seed__prints_one_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("comporta.simulation.invariants.REJOIN_SECONDS_MAX", 0.0)
    failure = next(each for each in run_seeds(range(200)) if each is not None)
    assert len(failure.scenario.faults) <= 10
    arguments = failure.command.removeprefix("python -m comporta.simulation ")
    seed, _, script = arguments.removeprefix("--seed ").partition(" --faults ")
    assert main(["--seed", seed, "--faults", script.strip("'")]) == 1
    printed = capsys.readouterr().out
    assert all(f"FAILED {violation}" in printed for violation in failure.violations)
    unshrunk = run_seed(failure.scenario.seed, shrinks=False)
    assert unshrunk is not None
    assert len(unshrunk.scenario.faults) >= len(failure.scenario.faults)


def test_command__search_and_trace__print_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--first", "6", "--jobs", "2", "--no-shrink"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, 0 failed")
    assert main(["--seed", "6", "--trace"]) == 0
    assert " operations " in capsys.readouterr().out
