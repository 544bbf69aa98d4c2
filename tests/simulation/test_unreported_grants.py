"""Workers that die or are stopped in an outage, before they have reported what they granted."""

from __future__ import annotations

import pytest

from comporta.simulation import FleetScenario, parse_faults, run_scenario
from comporta.simulation.limit_excess import largest_excess
from comporta.simulation.network import seconds_ns

WORKERS, RATE, CAPACITY = 4, 200.0, 400
SHARE = CAPACITY / WORKERS


def overloaded_fleet(seed: int, faults: str) -> FleetScenario:
    """Return a fleet that asks for four times its limit, while the server hangs from 2.5 to 4.5 s."""
    return FleetScenario(
        seed, workers=WORKERS, seconds=10, load=RATE, callers=4, rate=RATE, capacity=CAPACITY, jitter=0.001,
        faults=parse_faults(f"hang@2.5+2; {faults}"),
    )  # fmt: skip


@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize("killed", [("w1",), ("w1", "w2")])
def test_kill__between_outage_and_report__costs_a_share_of_the_capacity_each(
    seed: int, killed: tuple[str, ...]
) -> None:
    """The server answers again, and the workers would rejoin 0.1 s later."""
    history, violations = run_scenario(overloaded_fleet(seed, f"kill@4.6+3:{','.join(killed)}"))
    assert violations == []
    excess, _ = largest_excess(history)
    assert WORKERS < excess <= WORKERS + len(killed) * SHARE


@pytest.mark.parametrize("seed", [14, 19, 22])
def test_pause__during_the_rejoin__costs_a_share_until_the_worker_has_rejoined(seed: int) -> None:
    """It runs again from 6.3 s on, when the others have rejoined."""
    history, violations = run_scenario(overloaded_fleet(seed, "pause@4.3+2:w1"))
    assert violations == []
    recovered_ns = {moment.worker: moment.at_ns for moment in history.moments("state_recovered")}
    late_ns = recovered_ns.pop("w1") - seconds_ns(6.3)
    assert max(recovered_ns.values()) < seconds_ns(6.3)
    assert 0 < late_ns < seconds_ns(1)
    excess, _ = largest_excess(history)
    assert WORKERS < excess <= WORKERS + SHARE + RATE / WORKERS * late_ns / 1e9
