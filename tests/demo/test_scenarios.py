"""The scenarios as data, and their conditions on a snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from comporta.cli.demo import demo as command
from comporta.demo.config import (
    CONCURRENT_CALLS_MAX,
    INTERACTIVE_PACE,
    LIMITS,
    PIPED_PACE,
    Pace,
    PortalLimit,
    settings_file,
)
from comporta.demo.scenarios import SCENARIOS, TOUR, Scenario, ScenarioStep
from comporta.demo.snapshot import EMPTY_SNAPSHOT, DemoSnapshot, status_line, template_values
from comporta.service.config import ServiceConfig
from comporta.stores.records import VALUE_BYTES_MAX
from comporta.testing import procurement
from comporta.testing.procurement import MODES

ALL = [*SCENARIOS.values(), TOUR]
STEPS = [
    pytest.param(step, id=f"{scenario.name}: {step.title}") for scenario in ALL for step in scenario.steps
]


def snapshot(
    *,
    phase: str = "closed",
    limit: float = 10.0,
    pause: float = 0.0,
    until: float | None = None,
    fallback: int = 0,
    replaced: int = 0,
    **counts: int,
) -> DemoSnapshot:
    """Return a snapshot with PNCP as given and PCP healthy."""
    limits = {"pncp": limit, "pcp": 5.0}
    health: dict[str, Any] = {
        "sources": {
            "pncp": {"phase": phase, "limit_per_second": limit},
            "pcp": {"phase": "closed", "limit_per_second": 5.0},
        },
        "pncp_circuit_breaker": {"degraded_until": until},
        "rate_limiter": {
            "sources": {
                name: {"paused_seconds": pause, "requests_last_minute": 60, "limit_per_second": limits[name]}
                for name in LIMITS
            }
        },
        "workers": {"alive": 3},
    }
    portals = {name: {"mode": "ok", "recent": 40, "busiest": 70, "too_many": 0} for name in LIMITS}
    return DemoSnapshot(health, portals, counts, replaced, fallback)


BEFORE = snapshot(fresh=100, limit=6.0, until=1000.0)
AFTER = {
    "Everything works": snapshot(fresh=120),
    "PNCP goes down": snapshot(phase="open", until=1000.0),
    "The cache keeps searches working": snapshot(fresh=100, stale=5, phase="open"),
    "A probe fails": snapshot(phase="open", until=1012.0),
    "PNCP works again": snapshot(phase="half_open"),
    "The breaker closes": snapshot(),
    "A worker is killed": snapshot(replaced=1),
    "PNCP rejects requests with 429": snapshot(limit=9.0),
    "The limit goes down step by step": snapshot(limit=7.0, stale=5),
    "PNCP accepts requests again": snapshot(limit=7.0),
    "The limit is restored": snapshot(fresh=120),
    "One shared limit again": snapshot(fresh=120),
    "PNCP is slow": snapshot(phase="open"),
    "The state server is killed": snapshot(fallback=1),
    "Searches continue within the limit": snapshot(fresh=120, stale=10, fallback=6),
    "The state server returns empty": snapshot(),
    "Twelve people search at once": snapshot(answered=12, parts=12),
    "One more person needs a single state": snapshot(single=1, single_ms=1500, waiting=12),
    "Everyone gets the whole answer": snapshot(whole=12),
}


@pytest.mark.parametrize("step", STEPS)
def test_step__condition__holds_after_the_step_and_not_before(step: ScenarioStep) -> None:
    assert step.condition(AFTER[step.title], BEFORE)
    assert not step.condition(EMPTY_SNAPSHOT, BEFORE)
    assert step.result.format_map(template_values(AFTER[step.title], BEFORE, 1.25))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [("open", "half_open", True), ("half_open", "half_open", False), ("half_open", "ramp", True)],
)
def test_recovery__probe_in_flight_when_the_portal_recovers__waits_for_a_later_one(
    before: str, now: str, expected: bool
) -> None:
    [recovery] = [step for step in SCENARIOS["slow"].steps if step.title == "PNCP works again"]
    assert recovery.condition(snapshot(phase=now), snapshot(phase=before)) is expected


@pytest.mark.parametrize("step", STEPS)
def test_step__actions__are_known_to_the_runner(step: ScenarioStep) -> None:
    for action in step.actions:
        assert action.kind in ("portal", "state", "kill-worker", "crowd")
        assert action.kind != "portal" or (action.name in LIMITS and action.switches["mode"] in MODES)
        assert action.kind != "state" or action.name in ("kill", "start")


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: f"{scenario.name}-{len(scenario.steps)}")
def test_scenario__at_its_end__has_repaired_what_it_broke(scenario: Scenario) -> None:
    actions = [action for step in scenario.steps for action in step.actions]
    broken = {action.name: action.switches["mode"] for action in actions if action.kind == "portal"}
    assert set(broken.values()) <= {"ok"}
    assert [action.name for action in actions if action.kind == "state"] in ([], ["kill", "start"])


@pytest.mark.parametrize("step", STEPS)
def test_step__on_the_dashboard__fits_into_one_record(step: ScenarioStep) -> None:
    assert len(json.dumps([step.title, step.text, step.result, step.look_at])) < VALUE_BYTES_MAX / 2


def test_command__scenario_option__lists_all_scenarios() -> None:
    [choice] = [option.type for option in command.params if option.name == "scenario"]
    assert isinstance(choice, click.Choice)
    assert list(choice.choices) == list(SCENARIOS)
    assert command.help is not None
    for scenario in SCENARIOS.values():
        assert f"{scenario.name:<12}{scenario.about}" in command.help


@pytest.mark.parametrize("pace", [INTERACTIVE_PACE, PIPED_PACE])
def test_settings_file__for_each_pace__is_valid_for_the_service(pace: Pace, tmp_path: Path) -> None:
    file = tmp_path / "comporta.toml"
    file.write_text(settings_file("shared://x?memory=8", "http://127.0.0.1:1", str(tmp_path), 3, pace))
    config = ServiceConfig.load(file, environ={})
    assert config.search.fresh == pace.fresh
    for name, limit in LIMITS.items():
        upstream = config.settings.upstreams[name]
        assert upstream.limit is not None
        assert upstream.limit.limit == str(limit) == f"{limit.rate}/s burst {limit.burst}"
        assert config.settings.breakers[name].cooldown_seconds == pace.cooldown


def test_requests_max__10_s__adds_burst_concurrent_calls_and_one_per_worker() -> None:
    assert PortalLimit(10, 5).requests_max(10, 3) == 100 + 5 + CONCURRENT_CALLS_MAX + 3


def test_status_line__snapshot__is_one_line() -> None:
    now = snapshot(phase="half_open", fresh=7, stale=2, partial=1, over=3, broken=1)
    assert status_line(now) == (
        "PNCP half-open, 4.0/s of 10, 60 calls in the last minute; PCP closed, 4.0/s of 5, 60 calls in the "
        "last minute; answers: 7 fresh, 2 stale, 1 partial, 0 pending, 3 over a client's limit, 1 failed"
    )
    assert now.are_portals_healthy()
    assert (now.pause_seconds("pncp"), now.rejected_count("pcp"), procurement.WINDOW_SECONDS) == (
        0.0,
        0,
        10.0,
    )
