"""Shrinks a failing scenario: removes the steps of its fault script that the failure does not need.

Each candidate is simulated again, at most :data:`RUNS_MAX` times in all, and kept if the same invariant still
fails. Steps are removed first; then faults are shortened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from comporta.simulation.faults import Fault
from comporta.simulation.scenario import FleetScenario

RUNS_MAX: Final = 200
"""How many candidates are tried, at most."""

_SHORTEST_SECONDS = 0.05

Fails = Callable[[FleetScenario], bool]


def shrink(scenario: FleetScenario, fails: Fails) -> FleetScenario:
    """Return a scenario with as few faults as possible for which ``fails`` is still true."""
    attempts = _Attempts(fails)
    smaller = _drop_faults(scenario, attempts)
    return _shorten_faults(smaller, attempts)


class _Attempts:
    """Tries candidates, up to the bound on their number."""

    def __init__(self, fails: Fails) -> None:
        self._fails = fails
        self.left = RUNS_MAX

    def fails(self, scenario: FleetScenario) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        return self._fails(scenario)


def _drop_faults(scenario: FleetScenario, attempts: _Attempts) -> FleetScenario:
    size = len(scenario.faults)
    while size:
        start = 0
        while start < len(scenario.faults):
            faults = scenario.faults[:start] + scenario.faults[start + size :]
            candidate = scenario.with_faults(faults)
            if attempts.fails(candidate):
                scenario = candidate
            else:
                start += size
        size //= 2
    return scenario


def _shorten_faults(scenario: FleetScenario, attempts: _Attempts) -> FleetScenario:
    for index in range(len(scenario.faults)):
        while scenario.faults[index].seconds > 2 * _SHORTEST_SECONDS:
            fault = scenario.faults[index]
            shorter = fault._replace(seconds=round(fault.seconds / 2, 2))
            candidate = scenario.with_faults(_replace_fault(scenario.faults, index, shorter))
            if not attempts.fails(candidate):
                break
            scenario = candidate
    return scenario


def _replace_fault(faults: tuple[Fault, ...], index: int, fault: Fault) -> tuple[Fault, ...]:
    return (*faults[:index], fault, *faults[index + 1 :])
