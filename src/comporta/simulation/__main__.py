"""Search for failing seeds, or replay one: ``python -m comporta.simulation --seeds 1000``."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from comporta.simulation.drawn_scenarios import draw_scenario
from comporta.simulation.faults import parse_faults
from comporta.simulation.runner import run_scenario, run_seeds


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns 1 if a seed failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return _search(options) if options.seed is None else _replay(options)
    except ImportError as error:
        parser.error(str(error))


def _replay(options: argparse.Namespace) -> int:
    scenario, faults = replace(draw_scenario(options.seed), lua=options.lua), options.faults
    if faults is not None:
        scenario = scenario.with_faults(parse_faults(faults))
    history, violations = run_scenario(scenario)
    sys.stdout.write(history.trace() if options.trace else f"{scenario}\n")
    for violation in violations:
        sys.stdout.write(f"FAILED {violation}\n")
    return 1 if violations else 0


def _search(options: argparse.Namespace) -> int:
    began, failed, done = time.monotonic(), 0, 0
    seeds = range(options.first, options.first + options.seeds)
    for failure in run_seeds(seeds, jobs=options.jobs, shrinks=not options.no_shrink, lua=options.lua):
        done += 1
        if failure is not None:
            failed += 1
            sys.stdout.write(f"\n{failure.scenario}\n")
            for violation in failure.violations:
                sys.stdout.write(f"  {violation}\n")
            sys.stdout.write(f"  replay: {failure.command}\n")
            sys.stdout.flush()
    seconds = time.monotonic() - began
    sys.stdout.write(f"{done} seeds, {failed} failed, {seconds:.1f} s, {done / seconds:.0f} a second\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m comporta.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="Simulate this many seeds.")
    parser.add_argument("--first", type=int, default=0, help="Start with this seed.")
    parser.add_argument("--jobs", type=int, default=1, help="Use this many processes.")
    parser.add_argument("--no-shrink", action="store_true", help="Print failing scenarios as they are.")
    parser.add_argument("--seed", type=int, help="Simulate only this seed and print what failed.")
    parser.add_argument("--faults", help="Replace the fault script of the seed, as 'hang@5+2; hang@8+2'.")
    parser.add_argument("--lua", action="store_true", help="Run the Lua scripts; needs the package lupa.")
    parser.add_argument("--trace", action="store_true", help="Print everything that happened.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
