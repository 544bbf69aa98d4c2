"""The stories as data, and what they ask of the picture of a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from comporta.cli.demo import demo as command
from comporta.demo.picture import NOTHING, Picture, figures, status
from comporta.demo.plan import IN_FLIGHT, LIMITS, UNWATCHED, WATCHED, Limit, Pace, file_for
from comporta.demo.stories import STORIES, TOUR, Step, Story
from comporta.service.config import ServiceConfig
from comporta.stores.records import VALUE_BYTES_MAX
from comporta.testing import procurement
from comporta.testing.procurement import MODES

ALL = [*STORIES.values(), TOUR]
STEPS = [pytest.param(step, id=f"{story.name}: {step.title}") for story in ALL for step in story.steps]


def seen(
    *,
    phase: str = "closed",
    limit: float = 10.0,
    paused: float = 0.0,
    until: float | None = None,
    alone: int = 0,
    replaced: int = 0,
    **counts: int,
) -> Picture:
    """Return a moment at which PNCP is like that, and PCP is well."""
    limits = {"pncp": limit, "pcp": 5.0}
    health: dict[str, Any] = {
        "sources": {
            "pncp": {"phase": phase, "limit_per_second": limit},
            "pcp": {"phase": "closed", "limit_per_second": 5.0},
        },
        "pncp_circuit_breaker": {"degraded_until": until},
        "rate_limiter": {
            "sources": {
                name: {"paused_seconds": paused, "requests_last_minute": 60, "limit_per_second": limits[name]}
                for name in LIMITS
            }
        },
        "workers": {"alive": 3},
    }
    portals = {name: {"mode": "ok", "recent": 40, "busiest": 70, "too_many": 0} for name in LIMITS}
    return Picture(health, portals, counts, replaced, alone)


BEGUN = seen(fresh=100, limit=6.0, until=1000.0)
COMES_TO_BE = {
    "All is well": seen(fresh=120),
    "PNCP dies": seen(phase="open", until=1000.0),
    "Searches go on": seen(fresh=100, stale=5, phase="open"),
    "A probe": seen(phase="open", until=1012.0),
    "PNCP is mended": seen(phase="half_open"),
    "Closed again": seen(),
    "A worker is killed": seen(replaced=1),
    "PNCP says: too many": seen(limit=9.0),
    "Step by step": seen(limit=7.0, stale=5),
    "PNCP takes requests again": seen(limit=7.0),
    "As before": seen(fresh=120),
    "PNCP is slow": seen(phase="open"),
    "The server of the state is killed": seen(alone=1),
    "Searches go on, the limit holds": seen(fresh=120, stale=10, alone=6),
    "The server is back, empty": seen(),
}


@pytest.mark.parametrize("step", STEPS)
def test_step__before_and_when_it_has_come_to_be__is_told_apart(step: Step) -> None:
    assert step.until(COMES_TO_BE[step.title], BEGUN)
    assert not step.until(NOTHING, BEGUN)
    assert step.then.format_map(figures(COMES_TO_BE[step.title], BEGUN, 1.25))


@pytest.mark.parametrize(
    ("before", "now", "is_so"),
    [("open", "half_open", True), ("half_open", "half_open", False), ("half_open", "ramp", True)],
)
def test_portal_mended__while_a_probe_was_under_way__waits_for_a_later_one(
    before: str, now: str, is_so: bool
) -> None:
    [mended] = [step for step in STORIES["slow"].steps if step.title == "PNCP is mended"]
    assert mended.until(seen(phase=now), seen(phase=before)) is is_so


@pytest.mark.parametrize("step", STEPS)
def test_step__acts__are_what_the_stage_can_do(step: Step) -> None:
    for act in step.acts:
        assert act.kind in ("portal", "state", "kill-worker")
        assert act.kind != "portal" or (act.name in LIMITS and act.switches["mode"] in MODES)
        assert act.kind != "state" or act.name in ("kill", "start")


@pytest.mark.parametrize("story", ALL, ids=lambda story: f"{story.name}-{len(story.steps)}")
def test_story__at_its_end__has_mended_what_it_broke(story: Story) -> None:
    acts = [act for step in story.steps for act in step.acts]
    broken = {act.name: act.switches["mode"] for act in acts if act.kind == "portal"}
    assert set(broken.values()) <= {"ok"}
    assert [act.name for act in acts if act.kind == "state"] in ([], ["kill", "start"])


@pytest.mark.parametrize("step", STEPS)
def test_step__on_the_page__fits_a_record(step: Step) -> None:
    assert len(json.dumps([step.title, step.text, step.then, step.look])) < VALUE_BYTES_MAX / 2


def test_command__scenarios__are_all_there_are() -> None:
    [choice] = [option.type for option in command.params if option.name == "scenario"]
    assert isinstance(choice, click.Choice)
    assert list(choice.choices) == list(STORIES)
    assert command.help is not None
    for story in STORIES.values():
        assert f"{story.name:<12}{story.about}" in command.help


@pytest.mark.parametrize("pace", [WATCHED, UNWATCHED])
def test_file__of_a_pace__is_what_the_service_takes(pace: Pace, tmp_path: Path) -> None:
    file = tmp_path / "comporta.toml"
    file.write_text(file_for("shared://x?keys=64", "http://127.0.0.1:1", str(tmp_path), 3, pace))
    config = ServiceConfig.load(file, environ={})
    assert config.search.fresh == pace.fresh
    for name, limit in LIMITS.items():
        upstream = config.settings.upstreams[name]
        assert upstream.limit is not None
        assert upstream.limit.limit == str(limit) == f"{limit.rate}/s burst {limit.burst}"
        assert config.settings.breakers[name].cooldown_seconds == pace.cooldown


def test_limit__over_ten_seconds__is_rate_and_burst_and_those_in_flight_and_one_for_each_worker() -> None:
    assert Limit(10, 5).most(10, 3) == 100 + 5 + IN_FLIGHT + 3


def test_status__of_a_moment__is_one_line() -> None:
    now = seen(phase="half_open", fresh=7, stale=2, partial=1, over=3, broken=1)
    assert status(now) == (
        "PNCP half-open, 4.0/s of 10, 60 calls in a minute; PCP closed, 4.0/s of 5, 60 calls in a minute; "
        "answers: 7 fresh, 2 stale, 1 partial, 3 over a client's limit, 1 failed"
    )
    assert now.mended()
    assert (now.paused("pncp"), now.too_many("pcp"), procurement.WINDOW_SECONDS) == (0.0, 0, 10.0)
