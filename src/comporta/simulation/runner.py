"""Runs many seeds, and for each that fails prints what failed and one command that replays it.

The command contains the shrunk fault script, so the replay is as short as the search could make it.
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from comporta.simulation.drawn_scenarios import draw_scenario
from comporta.simulation.faults import format_faults
from comporta.simulation.invariants import check
from comporta.simulation.run_history import FleetHistory
from comporta.simulation.scenario import FleetScenario
from comporta.simulation.shrinker import shrink
from comporta.simulation.simulated_fleet import simulate

_COLLECT_EVERY = 20
_CHUNK = 20


class Failure(NamedTuple):
    """A scenario that broke an invariant, shrunk, and the violations of the shrunk one."""

    scenario: FleetScenario
    violations: list[str]

    @property
    def command(self) -> str:
        """The command that replays the failure."""
        scenario, lua = self.scenario, "--lua " if self.scenario.lua else ""
        faults = shlex.quote(format_faults(scenario.faults))
        return f"python -m comporta.simulation {lua}--seed {scenario.seed} --faults {faults}"


def run_scenario(scenario: FleetScenario) -> tuple[FleetHistory, list[str]]:
    """Simulate a scenario; returns its history and the violations of all invariants."""
    history = simulate(scenario)
    return history, check(history)


def run_seed(seed: int, *, shrinks: bool = True, lua: bool = False) -> Failure | None:
    """Simulate the scenario of a seed; returns what failed, shrunk, or ``None``."""
    scenario = replace(draw_scenario(seed), lua=lua)
    _, violations = run_scenario(scenario)
    if not violations:
        return None
    if not shrinks:
        return Failure(scenario, violations)
    broken = {_name(violation) for violation in violations}

    def fails(candidate: FleetScenario) -> bool:
        return bool(broken & {_name(violation) for violation in run_scenario(candidate)[1]})

    shrunk = shrink(scenario, fails)
    return Failure(shrunk, run_scenario(shrunk)[1])


def run_seeds(
    seeds: Iterable[int], *, jobs: int = 1, shrinks: bool = True, lua: bool = False
) -> Iterator[Failure | None]:
    """Simulate many seeds in ``jobs`` processes; yields for each what failed, or ``None``, in order."""
    chunks, run_chunk = _chunks(seeds), partial(_run_chunk, shrinks=shrinks, lua=lua)
    if jobs == 1:
        for chunk in chunks:
            yield from run_chunk(chunk)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(run_chunk, chunks):
            yield from results


def _run_chunk(seeds: list[int], *, shrinks: bool, lua: bool) -> list[Failure | None]:
    gc.freeze()  # exempts the imported modules: collecting one simulation then takes a millisecond
    results = []
    for index, seed in enumerate(seeds):
        results.append(run_seed(seed, shrinks=shrinks, lua=lua))
        if index % _COLLECT_EVERY == 0:
            gc.collect()
    return results


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    for seed in seeds:
        chunk.append(seed)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _name(violation: str) -> str:
    return violation.partition(":")[0]
