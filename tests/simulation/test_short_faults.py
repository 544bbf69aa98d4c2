"""Faults about as short as a deadline: workers cannot know at once who noticed one, and keep the limit."""

from __future__ import annotations

from random import Random

import pytest

from comporta.simulation import FleetHistory, FleetScenario, parse_faults, run_scenario
from comporta.simulation.drawn_scenarios import draw_short_hang
from comporta.simulation.faults import Fault
from comporta.simulation.limit_excess import largest_excess
from comporta.simulation.network import seconds_ns
from comporta.simulation.run_history import GRANTED, Call

_OWN_FAULT_SECONDS = 0.045
"""Shorter than the deadline: calls that come later are answered, and so is the first probe."""


def draw_own_faults(seed: int) -> FleetScenario:
    """Return a fleet under overload of which some workers lose a few packets, each of them once."""
    random = Random(f"own faults:{seed}")
    workers, rate = random.choice((3, 5, 8, 12)), random.choice((50.0, 200.0, 500.0))
    kinds = ("black_hole", "requests_lost", "replies_lost")
    hit = random.sample(range(workers), random.randint(1, workers // 2))
    faults = [
        Fault(random.choice(kinds), round(random.uniform(2.5, 4), 3), _OWN_FAULT_SECONDS, (index,))
        for index in hit
    ]
    return FleetScenario(
        seed,
        workers=workers,
        seconds=8.5,
        workload=random.choice(("limit", "wait")),
        is_async=random.random() < 0.3,
        load=round(random.choice((2, 4)) * rate / workers, 3),
        callers=random.choice((1, 2)),
        rate=rate,
        capacity=round(rate * random.choice((0.2, 1, 2))),
        max_wait=1.0,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def return_seconds(history: FleetHistory) -> list[float]:
    """Return how long each fallback of each worker lasted."""
    fallbacks = history.intervals("state_fallback", "state_recovered").values()
    return [(end - begin) / 1e9 for intervals in fallbacks for begin, end in intervals]


@pytest.mark.parametrize("seed", range(12))
def test_short_hang__of_an_overloaded_fleet__keeps_every_invariant(seed: int) -> None:
    scenario = draw_short_hang(seed, Random(seed))
    assert run_scenario(scenario)[1] == [], scenario


@pytest.mark.parametrize("seconds", [0.055, 0.07, 0.09, 0.11, 0.13, 0.2, 0.3])
def test_short_hang__some_workers_find_the_store_in_order__none_returns_before_others(
    seconds: float,
) -> None:
    """The workers that called last probe a server that has just resumed, and the others probe again later."""
    scenario = FleetScenario(
        226, workers=8, seconds=8.5, load=75, callers=4, rate=200, capacity=400, jitter=0.001,
        faults=parse_faults(f"hang@2.47+{seconds}"),
    )  # fmt: skip
    history, violations = run_scenario(scenario)
    assert violations == []
    assert largest_excess(history)[0] <= scenario.workers
    recovered = [moment.at_ns for moment in history.moments("state_recovered")]
    assert len(recovered) == len(history.moments("state_fallback"))
    assert max(recovered) - min(recovered) < 60_000_000


@pytest.mark.parametrize(("seconds", "return_seconds_max"), [(0.15, 1.0), (0.28, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("seed", range(1, 5))
def test_short_hang__some_workers_made_no_call__the_others_rejoin_in_time(
    seed: int, seconds: float, return_seconds_max: float
) -> None:
    """Those that did not notice the hang use the whole limit, in addition to what the others grant."""
    scenario = FleetScenario(
        seed, workers=20, seconds=8.5, load=4, rate=40, capacity=20, jitter=0.001,
        faults=parse_faults(f"hang@2.5+{seconds}"),
    )  # fmt: skip
    history, violations = run_scenario(scenario)
    assert violations == []
    noticed = {moment.worker for moment in history.moments("state_fallback")}
    assert 0 < len(noticed) < scenario.workers
    granted = sum(call.cost for call in history.of(Call) if call.is_local and call.result == GRANTED)
    assert largest_excess(history)[0] <= len(noticed) + granted
    ended_ns = seconds_ns(2.5 + seconds)
    recovered_ns = [moment.at_ns for moment in history.moments("state_recovered")]
    assert len(recovered_ns) >= len(noticed)
    assert max(recovered_ns) - ended_ns <= seconds_ns(return_seconds_max)


@pytest.mark.parametrize("seed", [3, 5, 7, 8])
def test_short_loss__some_workers_connect_late__costs_at_most_what_these_grant(seed: int) -> None:
    """All packets are lost for 0.08 s, and what two workers send to connect again for 0.6 s more.

    With the seeds 3 and 8 these two rejoin after the others. With 5 and 7 one worker, whose first probe
    succeeds, rejoins before the other seven.
    """
    scenario = FleetScenario(
        seed, workers=8, seconds=8.5, load=75, callers=4, rate=200, capacity=400, jitter=0.001,
        faults=parse_faults("black_hole@2.5+0.08; requests_lost@2.58+0.6:w0,w1"),
    )  # fmt: skip
    history, violations = run_scenario(scenario)
    assert violations == []
    recovered_ns = {moment.worker: moment.at_ns for moment in history.moments("state_recovered")}
    assert len(recovered_ns) == len(history.moments("state_fallback")) == scenario.workers
    late = {name for name, at_ns in recovered_ns.items() if at_ns > min(recovered_ns.values()) + 200_000_000}
    assert len(late) == (7 if seed in {5, 7} else 2)
    granted = sum(
        call.cost
        for call in history.of(Call)
        if call.worker in late and call.is_local and call.result == GRANTED
    )
    assert scenario.workers < largest_excess(history)[0] <= scenario.workers + granted
    assert all(seconds < 1.25 for seconds in return_seconds(history))


@pytest.mark.parametrize("seed", range(12))
def test_own_fault__of_some_workers__costs_a_token_and_ends_within_a_moment(seed: int) -> None:
    """Their shares would come on top of the limit, which the others use meanwhile."""
    history, violations = run_scenario(scenario := draw_own_faults(seed))
    assert violations == [], scenario
    fallbacks = return_seconds(history)
    assert largest_excess(history)[0] <= 1 + len(fallbacks), scenario
    assert all(seconds < 0.3 for seconds in fallbacks), scenario
