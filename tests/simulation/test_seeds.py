"""A few hundred drawn scenarios keep every invariant; ``make sim`` searches many more."""

import pytest

from comporta.simulation import draw_scenario, run_scenario
from comporta.simulation.faults import parse_faults

CHUNK = 20
CHUNKS = 12

KNOWN: dict[int, str] = {}
"""Seeds that fail for a reason that is known and not fixed yet."""


@pytest.mark.parametrize("first", range(0, CHUNK * CHUNKS, CHUNK))
def test_seeds__drawn_scenarios__keep_every_invariant(first: int) -> None:
    failures = {
        seed: violations
        for seed in range(first, first + CHUNK)
        if seed not in KNOWN and (violations := run_scenario(draw_scenario(seed))[1])
    }
    assert failures == {}


FOUND = {
    "workers that come back one after the other": (1206, "replies_lost@3.41+2.85; black_hole@7.56+0.1"),
    "replies lost again while the fleet rejoins": (1616, "replies_lost@3.03+0.19; replies_lost@3.6+0.1"),
    "permits granted to requests that arrive late": (54, "loss@3.31+0.81:0.5"),
    "all permits held by calls in flight of a worker that exits": (101426, "exit@3.33+0.08:w2"),
    "a worker that waits at a barrier loses the store, and the others rejoin without it": (
        102456,
        "requests_lost@2.66+0.65; partition@3.81+2.31; replies_lost@6.46+0.98; hang@7.51+0.16",
    ),
    "a barrier that its members left ends when one of them comes back": (
        200950,
        "full@2.03+1.37; full@3.62+1.37",
    ),
    "one of two workers survives a hang at the barrier, and rejoins alone": (
        202845,
        "crash@2.5+3.62; hang@7.07+0.24; hang@7.4+0.24",
    ),
    "a caller that connects to a server whose round trips are long, and whose deadline is too": (
        1836,
        "hang@3.12+0.12; hang@4.15+0.12; requests_lost@5.19+3.3; loss@9.67+0.07:0.5",
    ),
    "an upstream that recovers although another fault of it has begun": (
        30645,
        "upstream_errors@2.42+3.33; upstream_errors@4.1+3.33",
    ),
    "a permit that is refused one microsecond after the caller's timeout": (
        40979,
        "upstream_slow@2.69+0.15:2",
    ),
    "a pause that the server loses, by 8 ms longer than the pause that the worker itself asked for": (
        61404,
        "upstream_refuses@2.81+1.52:0.5; crash@4.25+0.06:old",
    ),
    "a paused worker's call of an upstream, which is made again after its time-out": (
        7590,
        "pause@3.15+3.32:w2",
    ),
    "a window that is used up for longer than callers are observed": (5255, "black_hole@3.17+2.62"),
}
"""Scenarios that once broke an invariant: a seed, and its shrunk faults."""


@pytest.mark.parametrize("found", FOUND)
def test_seeds__scenario_that_once_failed__keeps_every_invariant(found: str) -> None:
    seed, faults = FOUND[found]
    assert run_scenario(draw_scenario(seed).with_faults(parse_faults(faults)))[1] == []
