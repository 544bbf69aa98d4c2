"""The demo judges by the limit in force, and not by steps that an operator interfered with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.demo.test_scenarios import snapshot

from comporta.demo.config import LIMITS, PIPED_PACE, PortalLimit
from comporta.demo.poller import DemoPoller
from comporta.demo.runner import DemoOptions, DemoRunner
from comporta.demo.scenarios import HEALTHY
from comporta.demo.snapshot import EMPTY_SNAPSHOT, DemoSnapshot
from comporta.service.listener import open_listener

OPTIONS = DemoOptions(None, 3, None, replace(PIPED_PACE, step_timeout=0.01), run_forever=False)


@pytest.fixture
def runner() -> Iterator[DemoRunner]:
    with open_listener("127.0.0.1", 0) as listener:
        yield DemoRunner(OPTIONS, listener)


def busy_snapshot(busiest: int = 70, too_many: int = 0, **source: Any) -> DemoSnapshot:
    """Return a snapshot in which an operator may have changed PCP."""
    plain = snapshot()
    sources = {**plain.health["sources"], "pcp": {**plain.health["sources"]["pcp"], **source}}
    portals = {**plain.portals, "pcp": {"mode": "ok", "busiest": busiest, "too_many": too_many}}
    return replace(plain, health={**plain.health, "sources": sources}, portals=portals)


def poller(runner: DemoRunner, *snapshots: DemoSnapshot) -> DemoPoller:
    made = DemoPoller(runner._processes)
    for each in snapshots:
        made.snapshot = each
        made._record_limits()
    return made


def finish(runner: DemoRunner, made: DemoPoller) -> int:
    runner._last_snapshot, runner._highest_limits = made.snapshot, made.highest_limits
    return runner._print_summary(0.1)


def test_summary__limit_raised_by_an_operator__is_judged_by_that_limit(
    runner: DemoRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    raised = busy_snapshot(150, 40, limit="20/s", configured_limit="5/s burst 3")
    back = busy_snapshot(150, 40, limit="5/s burst 3", configured_limit="5/s burst 3")
    made = poller(runner, raised, back)
    assert made.highest_limits["pcp"] == PortalLimit(20, 20)
    assert made.overridden == {"pcp"}
    assert finish(runner, made) == 0
    assert "An operator raised the limit of PCP to 20/s burst 20" in capsys.readouterr().out


@pytest.mark.parametrize(("busiest", "too_many", "status"), [(70, 0, 1), (60, 1, 1), (60, 0, 0)])
def test_summary__no_operator__is_judged_by_the_configured_limit(
    runner: DemoRunner, busiest: int, too_many: int, status: int
) -> None:
    made = poller(runner, busy_snapshot(busiest, too_many))
    assert made.highest_limits == LIMITS
    assert finish(runner, made) == status


@pytest.mark.parametrize(("forced", "status"), [(None, 1), ("closed", 0)])
def test_step__times_out__counts_unless_an_operator_changed_a_portal(
    runner: DemoRunner, forced: str | None, status: int
) -> None:
    made = runner._poller = poller(runner, busy_snapshot(60, forced=forced))
    text = asyncio.run(runner._run_step(HEALTHY))
    assert ("An operator changed PCP, so this does not count." in text) is (forced is not None)
    assert finish(runner, made) == status


def test_snapshot__before_the_first_poll__has_the_configured_limits() -> None:
    assert EMPTY_SNAPSHOT.original_limit("pcp") == 5.0
    assert not EMPTY_SNAPSHOT.is_overridden("pcp")
