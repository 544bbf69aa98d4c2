"""Two hangs of the server under overload, the second soon after the fleet's return: grants stay in bounds."""

from __future__ import annotations

from random import Random

import pytest

from comporta.simulation import FleetScenario, parse_faults, run_scenario
from comporta.simulation.faults import Fault
from comporta.simulation.limit_excess import largest_excess


def draw_double_hang(seed: int) -> FleetScenario:
    """Return a fleet that wants several times its limit, and a server that hangs twice."""
    random = Random(f"double hang:{seed}")
    workers, rate = random.choice((4, 8, 12, 20, 50)), random.choice((20.0, 50.0, 200.0))
    first, second = round(random.uniform(0.15, 2.5), 2), round(random.uniform(0.15, 2.5), 2)
    again_at = round(2.5 + first + random.uniform(0.1, 2.5), 2)  # the fleet returns within 2 s
    workload = random.choice(("limit", "limit", "wait"))
    return FleetScenario(
        seed,
        workers=workers,
        seconds=again_at + second + 6,
        workload=workload,
        load=round(random.choice((2, 4)) * rate / workers, 3),
        callers=random.choice((1, 4)),
        rate=rate,
        capacity=round(rate * random.choice((0.2, 1, 2))),
        max_wait=1.0 if workload == "wait" else 0.0,
        is_async=random.random() < 0.3,
        faults=(Fault("hang", 2.5, first), Fault("hang", again_at, second)),
    )


@pytest.mark.parametrize("seed", range(12))
def test_double_hang__of_an_overloaded_fleet__keeps_every_invariant(seed: int) -> None:
    scenario = draw_double_hang(seed)
    assert run_scenario(scenario)[1] == [], scenario


def test_short_hang__some_workers_find_the_store_in_order__none_returns_before_the_others() -> None:
    """The workers that called last probe a server that has just gone on, and the others probe again later."""
    scenario = FleetScenario(
        226, workers=8, seconds=8.5, load=75, callers=4, rate=200, capacity=400, jitter=0.001,
        faults=parse_faults("hang@2.47+0.11"),
    )  # fmt: skip
    history, violations = run_scenario(scenario)
    assert violations == []
    assert largest_excess(history)[0] <= scenario.workers
    recovered = [moment.at_ns for moment in history.moments("state_recovered")]
    assert len(recovered) == scenario.workers
    assert max(recovered) - min(recovered) < 50_000_000
