"""The simulated server gives the same history with the Lua scripts as with the Python steps."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from tests.simulation.test_simulation import UPSTREAM

from comporta.simulation import Call, FleetHistory, FleetScenario, draw_scenario, parse_faults, simulate
from comporta.simulation.__main__ import main
from comporta.simulation.drawn_scenarios import TARGETED, TARGETED_OUTAGES
from comporta.simulation.lua_engine import LuaEngine
from comporta.simulation.runner import Failure, run_seeds
from comporta.simulation.server_engine import ServerEngine
from comporta.simulation.step_engine import StepEngine
from comporta.stores.records import WriteRecord

MIXED_SEEDS = range(12)
TARGETED_SEEDS = range(5, 7 * 2 * len(TARGETED), 7)
OUTAGE_SEEDS = range(7, 14 * 2 * len(TARGETED_OUTAGES), 14)


def records(history: FleetHistory) -> str:
    """Return the trace without the line of the scenario."""
    return history.trace().partition("\n")[2]


@pytest.mark.parametrize("seed", sorted({*MIXED_SEEDS, *TARGETED_SEEDS, *OUTAGE_SEEDS}))
def test_lua__drawn_scenario__has_the_history_of_the_python_steps(seed: int) -> None:
    scenario = draw_scenario(seed)
    assert records(simulate(replace(scenario, lua=True))) == records(simulate(scenario))


@pytest.mark.parametrize(
    "faults",
    [
        "crash@3+0.5",
        "crash@3+0.5:empty",
        "crash@4+0.5:old",
        "server_clock@3:-3600; hang@5+1",
        "server_clock@3:3600; exit@4+1:w1",
        "upstream_refuses@3+0.5:1; upstream_errors@5+2",
    ],
)
def test_lua__server_and_upstream_fail__has_the_history_of_the_python_steps(faults: str) -> None:
    scenario = UPSTREAM.with_faults(parse_faults(faults))
    assert records(simulate(replace(scenario, lua=True))) == records(simulate(scenario))


def test_lua__more_waiting_workers_than_claims__has_the_history_of_the_python_steps() -> None:
    scenario = FleetScenario(1, workers=30, seconds=7, workload="wait", load=2, rate=20, max_wait=1.5)
    history = simulate(scenario)
    assert sum(call.result == "granted" for call in history.of(Call)) > 60
    assert records(simulate(replace(scenario, lua=True))) == records(history)


def test_lua__simulated_twice__has_the_same_trace() -> None:
    scenario = replace(draw_scenario(3), lua=True)
    assert simulate(scenario).trace() == simulate(scenario).trace()


@pytest.mark.parametrize("engine_class", [LuaEngine, StepEngine])
def test_entries__records_of_two_spaces__are_the_live_ones_of_one(engine_class: type[ServerEngine]) -> None:
    engine, now_us = engine_class(), 1_700_000_000_000_000
    for space, key, ttl in (("s", "a", None), ("s", "não", None), ("s", "gone", 1.0), ("t", "a", None)):
        engine.apply(WriteRecord(space, key, b"x", ttl), now_us)
    assert engine.entries("s", now_us + 2_000_000) == {"a": b"x", "não": b"x"}
    assert engine.live_permits("none", now_us) == []


def test_command__lua__replays_and_searches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lua", "--seed", "2"]) == 0
    assert "lua True" in capsys.readouterr().out
    assert main(["--lua", "--seeds", "2"]) == 0
    assert "2 seeds, 0 failed" in capsys.readouterr().out


def test_failure__of_the_lua_scripts__is_replayed_with_them() -> None:
    assert " --lua --seed 3 " in Failure(replace(draw_scenario(3), lua=True), ["x: y"]).command
    assert "--lua" not in Failure(draw_scenario(3), ["x: y"]).command


def test_lua__without_lupa__says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lupa.lua51", None)
    text = "Lua scripts need the package lupa: pip install 'comporta[lua]'"
    with pytest.raises(ImportError, match="need the package lupa"):
        simulate(replace(draw_scenario(3), lua=True))
    with pytest.raises(SystemExit):
        main(["--lua", "--seed", "3"])
    assert text in capsys.readouterr().err


def test_lua__not_asked_for__needs_no_lupa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lupa.lua51", None)
    assert next(iter(run_seeds([3]))) is None
