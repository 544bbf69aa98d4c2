"""Records which tests execute which lines of the mutated modules, once for each test file.

The record is kept in ``build/mutants/coverage.json``. A file of tests is recorded again when it changes, and
all of them when the package or the helpers of the tests change.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest

from mutation.in_process import InProcessPlugin, pytest_arguments, refuse_processes
from mutation.mutants import path_of
from mutation.targets import ROOT, SOURCE, TESTS, chosen_modules

SECONDS_MAX = 3.0
"""A test that takes longer is not used."""


FILES_AT_ONCE = 12
"""How many files of tests one process records; an interrupted run keeps what finished processes recorded."""


@dataclass
class RecordedTest:
    """A test that passes in this process: its CPU time, and the lines of each module that it executes."""

    seconds: float
    lines: dict[str, list[int]]


@dataclass
class LineCoverage:
    """What is recorded: for each test file its digest, and its tests by their ids."""

    base: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    tests: dict[str, dict[str, RecordedTest]] = field(default_factory=dict)

    def covering(self, module: str, lines: range) -> list[str]:
        """Return the tests that execute one of these lines."""
        wanted = set(lines)
        return [
            name
            for tests in self.tests.values()
            for name, test in tests.items()
            if not wanted.isdisjoint(test.lines.get(module, ()))
        ]

    def below(self, paths: list[str]) -> LineCoverage:
        """Return the record of the tests below these paths; without paths, that of all tests."""
        chosen = {
            file: tests for file, tests in self.tests.items() if not paths or file.startswith(tuple(paths))
        }
        return LineCoverage(self.base, self.digests, chosen)

    def files_covering(self, modules: list[str]) -> list[str]:
        """Return the files with tests that execute these modules."""
        return [
            file
            for file, tests in self.tests.items()
            if any(module in test.lines for test in tests.values() for module in modules)
        ]

    def seconds(self, test: str) -> float:
        """Return how long a test took."""
        return self.tests[test.partition("::")[0]][test].seconds


def load(path: Path) -> LineCoverage:
    """Return what is recorded in a file; nothing if it does not exist."""
    if not path.exists():
        return LineCoverage()
    document = json.loads(path.read_text("utf-8"))
    tests = {
        file: {name: RecordedTest(**test) for name, test in tests.items()}
        for file, tests in document["tests"].items()
    }
    return LineCoverage(document["base"], document["digests"], tests)


def save(recorded: LineCoverage, path: Path) -> None:
    """Write a record to a file."""
    tests = {
        file: {name: vars(test) for name, test in tests.items()} for file, tests in recorded.tests.items()
    }
    document = {"base": recorded.base, "digests": recorded.digests, "tests": tests}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), "utf-8")


def up_to_date(path: Path, jobs: int = 1) -> LineCoverage:
    """Return the record after recording the files of tests that are new or have changed."""
    recorded, base = load(path), digest_of(helpers())
    if recorded.base != base:
        recorded = LineCoverage(base)
    digests = {str(file.relative_to(ROOT)): digest_of([file]) for file in test_files()}
    for gone in recorded.digests.keys() - digests.keys():
        recorded.digests.pop(gone)
        recorded.tests.pop(gone, None)
    stale = [file for file, digest in digests.items() if recorded.digests.get(file) != digest]
    parts = [stale[at : at + FILES_AT_ONCE] for at in range(0, len(stale), FILES_AT_ONCE)]
    paths = [path.with_suffix(f".{number}.new") for number in range(len(parts))]
    with ThreadPoolExecutor(jobs) as pool:
        for files, found in zip(parts, pool.map(_recorded_apart, parts, paths), strict=True):
            recorded.tests |= found.tests
            recorded.digests |= {file: digests[file] for file in files}
            save(recorded, path)
    return recorded


def _recorded_apart(files: list[str], path: Path) -> LineCoverage:
    """Return what the tests of these files execute, recorded by another process."""
    process = multiprocessing.get_context("spawn").Process(target=record, args=(files, path))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the tests could not be recorded (exit code {process.exitcode})")
    found = load(path)
    path.unlink()
    return found


def test_files() -> list[Path]:
    """Return the files of tests that may be used."""
    places = [ROOT / "tests" / name for name in TESTS]
    return [
        file
        for place in places
        for file in ([place] if place.is_file() else sorted(place.rglob("test_*.py")))
    ]


def helpers() -> Iterator[Path]:
    """Yield every file whose change may change what the tests of another file execute."""
    yield from sorted(SOURCE.rglob("*.py"))
    yield ROOT / "mutation" / "in_process.py"
    for name in TESTS:
        place = ROOT / "tests" / name
        yield from sorted(file for file in place.rglob("*.py") if not file.name.startswith("test_"))
    yield from (ROOT / "tests" / name for name in ("conftest.py", "support.py"))


def digest_of(files: Iterator[Path] | list[Path]) -> str:
    """Return a digest of the contents of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def record(files: list[str], path: Path) -> None:
    """Run files of tests and write what their tests execute."""
    plugin = _Recorder()
    code = pytest.main(pytest_arguments(files), plugins=[InProcessPlugin(), plugin])
    plugin.recorder.stop()
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        sys.exit(int(code))
    save(plugin.line_coverage(files), path)


class _Recorder:
    """pytest plugin: measures each test by itself."""

    def __init__(self) -> None:
        modules = {path_of(module): module for module in chosen_modules([])}
        self._modules = modules
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self.recorder = coverage.Coverage(data_file=None, config_file=False, include=list(modules))
        self.recorder.start()

    def pytest_collection_finish(self) -> None:
        refuse_processes()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.recorder.switch_context(item.nodeid)
        began = time.process_time()  # unlike elapsed time, independent of how busy the machine is
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.process_time() - began
            self.recorder.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def line_coverage(self, files: list[str]) -> LineCoverage:
        """Return what was recorded for the tests that passed within the time limit."""
        found = LineCoverage(tests={file: {} for file in files})
        for test, seconds in self._seconds.items():
            if test not in self._failed and seconds <= SECONDS_MAX:
                found.tests[test.partition("::")[0]][test] = RecordedTest(round(seconds, 4), {})
        data = self.recorder.get_data()
        for path in data.measured_files():
            for line, tests in data.contexts_by_lineno(path).items():
                for test in tests:
                    recorded = found.tests.get(test.partition("::")[0], {}).get(test)
                    if recorded is not None:
                        recorded.lines.setdefault(self._modules[path], []).append(line)
        return found
