"""Command line of ``make mutants``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mutation.accepted import load_accepted
from mutation.generation import mutants_of
from mutation.line_coverage import LineCoverage, up_to_date
from mutation.mutants import Mutant
from mutation.report import verdict
from mutation.results import Result, Results, digest_of_tests
from mutation.runner import Task, chosen_tests, run
from mutation.targets import ROOT, TARGETS, chosen_modules

FOLDER = ROOT / "build" / "mutants"


def main() -> int:
    """Try the mutants of the chosen modules, print the report, and return the exit code."""
    options = _options()
    try:
        modules = chosen_modules(options.modules)
    except ValueError as error:
        sys.exit(f"comporta: {error}")
    _say("Recording which tests execute which lines (only what has changed) ...")
    recorded = up_to_date(options.folder / "coverage.json", options.jobs).below(options.tests)
    if options.fresh:
        (options.folder / "results.jsonl").unlink(missing_ok=True)
    session = _Session(modules, recorded, Results(options.folder / "results.jsonl"))
    try:
        run(session.tasks(), modules, recorded, options.jobs, session.report)
    except KeyboardInterrupt:
        _say("\nInterrupted. Run the same command to resume.")
        return 130
    found = verdict(session.outcomes, load_accepted())
    sys.stdout.write(found.text + "\n")
    return 0 if found.passes else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make mutants ARGS='...'; python -m mutation",
        description="Try the tests on mutants of the modules that decide. Results are kept in build/mutants:"
        " an interrupted run is resumed, and a later run tries only what has changed. Fails if fewer than"
        " 96 percent are killed, or if a survivor is not in mutation/accepted.toml.",
    )
    names = f"a group ({', '.join(TARGETS)}) or part of the path of a module; without any, all modules"
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=names)
    quick = "use only tests below this path, for a quick look (such as tests/limits; may be repeated)"
    parser.add_argument("--tests", action="append", default=[], metavar="PATH", help=quick)
    parser.add_argument("--jobs", type=int, default=2, help="try this many mutants at a time (default: 2)")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="keep results here (default: build/mutants)"
    )
    return parser.parse_args()


class _Session:
    """Makes the tasks of a run, and collects their results with those of earlier runs."""

    def __init__(self, modules: list[str], recorded: LineCoverage, results: Results) -> None:
        self.outcomes: list[tuple[Mutant, str]] = []
        self._modules = modules
        self._recorded = recorded
        self._results = results
        self._began = time.monotonic()

    def tasks(self) -> Iterator[Task]:
        """Yield each mutant whose result is not known yet."""
        for number, module in enumerate(self._modules, 1):
            mutants = list(mutants_of(module))
            passed = time.monotonic() - self._began
            _say(
                f"{passed:6.0f} s  {module}: {len(mutants)} mutants (module {number} of {len(self._modules)})"
            )
            tests_of_lines: dict[range, list[str]] = {}
            for mutant in mutants:
                lines = mutant.place.lines
                if lines not in tests_of_lines:
                    tests_of_lines[lines] = chosen_tests(mutant, self._recorded)
                tests = tests_of_lines[lines]
                task = Task(mutant, tests, digest_of_tests(tests, self._recorded.digests))
                known = self._results.known(mutant, task.digest, self._is_current)
                if known is None:
                    yield task
                else:
                    self.outcomes.append((mutant, known.status))

    def report(self, task: Task, result: Result | None) -> None:
        """Record a result. A mutant whose code does not fit its function counts for nothing."""
        if result is not None:
            self._results.add(result)
            self.outcomes.append((task.mutant, result.status))

    def _is_current(self, test: str) -> bool:
        return not test or test in self._recorded.tests.get(test.partition("::")[0], {})


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
