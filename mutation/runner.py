"""Tries mutants: each in a fork of a process that has collected all tests.

A fork replaces the code of one function, and runs the tests that execute the changed line until one fails. It
ends with an exit code; the parent kills it when its time is up.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import FunctionType

import pytest

from mutation.in_process import InProcessPlugin, pytest_arguments, refuse_processes
from mutation.line_coverage import LineCoverage
from mutation.mutants import CodeKey, Mutant, path_of, replace_code
from mutation.results import KILLED, SURVIVED, TIMED_OUT, UNCOVERED, Result, identity

SECONDS_OF_TESTS_MAX = 3.0
"""Tests of a mutant are chosen until together they take this long."""

COMPARISONS = "tests/differential/"
"""Tests that compare Python with Lua, on random examples."""

CPU_SECONDS = 5
CPU_FACTOR = 3
"""A mutant may use this much CPU, plus this many times what its tests take without it."""

WALL_FACTOR = 15
"""A mutant may take this many times as long by the clock, because it may wait, or the machine may be busy."""

IDLE_SECONDS = 6.0
"""A fork that uses no CPU for this long waits for something that its mutant prevents."""

PAUSE_SECONDS = 1.0
"""While a fork has used no CPU for this long, another one runs alongside it."""

PAUSED_MAX = 6
"""How many forks may wait in addition to those that run."""

WAIT_SECONDS = 0.05
"""How often to check whether a fork has ended or its time is up."""

_SURVIVED_CODE, _DOES_NOT_FIT_CODE, _KILLED_CODE = 0, 3, 4


@dataclass(frozen=True)
class Task:
    """A mutant and the tests to try it with, in this order."""

    mutant: Mutant
    tests: list[str]
    digest: str


def chosen_tests(mutant: Mutant, recorded: LineCoverage) -> list[str]:
    """Return the tests that execute the changed statement.

    Those of its own folder come first, then those that compare with Lua, and the fastest first. Comparisons
    find what other tests may not, so all of them are chosen; of the others, only as many as there is time
    for.
    """
    folder = mutant.module.split("/")[0].removesuffix(".py")
    near = (f"tests/{folder}/", f"tests/test_{folder}.py")

    def order(test: str) -> tuple[bool, bool, float, str]:
        return not test.startswith(near), not test.startswith(COMPARISONS), recorded.seconds(test), test

    chosen: list[str] = []
    seconds = 0.0
    for test in sorted(recorded.covering(mutant.module, mutant.place.lines), key=order):
        if not test.startswith(COMPARISONS):
            seconds += recorded.seconds(test)
            if chosen and seconds > SECONDS_OF_TESTS_MAX:
                continue
        chosen.append(test)
    return chosen


Reporter = Callable[[Task, Result | None], None]
"""Receives the result of each mutant, or None if the changed code does not fit its function."""


def run(
    tasks: Iterator[Task], modules: list[str], recorded: LineCoverage, jobs: int, report: Reporter
) -> int:
    """Try each mutant of these modules and return the exit code of pytest."""
    plugin = _Runner(tasks, recorded, jobs, report)
    files = recorded.files_covering(modules)
    return int(pytest.main(pytest_arguments(files), plugins=[InProcessPlugin(), plugin]))


@dataclass
class _Fork:
    """A process that tries a mutant, or the same tests without it."""

    pid: int
    output: int
    tests: list[str]
    began: float
    deadline: float
    cpu_ticks: int = -1
    idle_deadline: float = 0.0

    def has_ended(self) -> bool:
        """Return whether the process has ended, or its time is up."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None or time.monotonic() > self.deadline or self._is_idle()

    def _is_idle(self) -> bool:
        """Return whether the process has used no CPU for a while, and none of its threads could."""
        is_waiting, cpu_ticks = _activity(self.pid)
        if cpu_ticks != self.cpu_ticks or not is_waiting:
            self.cpu_ticks = cpu_ticks
            self.idle_deadline = time.monotonic() + IDLE_SECONDS
        return time.monotonic() > self.idle_deadline

    def is_busy(self) -> bool:
        """Return whether the process has used CPU lately, so that no other process can use it."""
        return time.monotonic() < self.idle_deadline - IDLE_SECONDS + PAUSE_SECONDS

    def end(self) -> tuple[int | None, str]:
        """Kill its processes; return the exit code (None if its time was up), and the test that failed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # the process is not reaped yet, so this is its group
        _, status = os.waitpid(self.pid, 0)
        failed = os.read(self.output, 4096).decode()
        os.close(self.output)
        code = os.waitstatus_to_exitcode(status)
        return (None if code in {-signal.SIGKILL, -signal.SIGXCPU} else code), failed


def _wait_for_end(forks: list[_Fork]) -> None:
    """Wait briefly for a fork to close its end; time in which all of them are stopped does not count."""
    began = time.monotonic()
    select.select([fork.output for fork in forks], [], [], WAIT_SECONDS)
    stopped = time.monotonic() - began - WAIT_SECONDS
    for fork in forks:
        fork.deadline += max(0.0, stopped)
        fork.idle_deadline += max(0.0, stopped)


def _activity(pid: int) -> tuple[bool, int]:
    """Return whether all threads of a process are waiting, and how many ticks of CPU they have used."""
    try:
        threads = [file.read_text("ascii") for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has ended meanwhile
        return False, 0
    fields = [text.rpartition(")")[2].split() for text in threads]
    ticks = sum(int(each[11]) + int(each[12]) for each in fields)
    return bool(fields) and all(each[0] == "S" for each in fields), ticks


class _Runner:
    """pytest plugin: instead of running the collected tests, runs some of them for each mutant."""

    def __init__(self, tasks: Iterator[Task], recorded: LineCoverage, jobs: int, report: Reporter) -> None:
        self._tasks = tasks
        self._recorded = recorded
        self._jobs = jobs
        self._report = report
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, CodeKey], list[FunctionType]] = {}
        self._forks: dict[int, tuple[_Fork, Task]] = {}
        self._kills: Counter[str] = Counter()
        self._reliable: set[str] = set()
        self._unreliable: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _live_functions()
        factory = session.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
        factory.getbasetemp()  # one folder for all forks
        try:
            for task in self._tasks:
                while self._is_full():
                    self._wait()
                self._start(task)
            while self._forks:
                self._wait()
        finally:
            for fork, _ in self._forks.values():
                fork.end()
        return True

    def _is_full(self) -> bool:
        busy = sum(fork.is_busy() for fork, _ in self._forks.values())
        return busy >= self._jobs or len(self._forks) >= self._jobs + PAUSED_MAX

    def _start(self, task: Task) -> None:
        tests = self._usable(task)
        if not tests:
            self._report(task, Result(identity(task.mutant), UNCOVERED, task.digest, 0.0))
            return
        fork = self._fork(tests, task.mutant)
        self._forks[fork.pid] = (fork, task)

    def _usable(self, task: Task) -> list[str]:
        """Return the tests that can be used; those that killed most mutants so far come first."""
        usable = [test for test in task.tests if test in self._items and test not in self._unreliable]
        return sorted(usable, key=lambda test: -self._kills[test])

    def _fork(self, tests: list[str], mutant: Mutant | None) -> _Fork:
        reader, writer = os.pipe()
        cpu_seconds = CPU_SECONDS + ceil(CPU_FACTOR * sum(map(self._recorded.seconds, tests)))
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            code = _KILLED_CODE
            try:
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
                code = self._try(tests, mutant, writer)
            finally:
                os._exit(code)
        os.close(writer)
        deadline = began + WALL_FACTOR * cpu_seconds
        return _Fork(pid, reader, tests, began, deadline, idle_deadline=began + IDLE_SECONDS)

    def _try(self, tests: list[str], mutant: Mutant | None, writer: int) -> int:
        """Run the tests in this fork, on the mutant, until one fails."""
        devnull = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(devnull, stream)
        if mutant is not None and not self._apply(mutant):
            return _DOES_NOT_FIT_CODE
        refuse_processes()
        watch = _Failures()
        items = [self._items[test] for test in tests]
        items[0].config.pluginmanager.register(watch)
        items[0].config.option.tbstyle = "value"  # a traceback would take longer than most tests
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if watch.failed:
                os.write(writer, item.nodeid.encode())
                return _KILLED_CODE
        return _SURVIVED_CODE

    def _apply(self, mutant: Mutant) -> bool:
        place = (mutant.place.function, mutant.place.first_line)
        functions = self._functions.get((path_of(mutant.module), place), [])
        code = mutant.code
        return code is not None and bool(functions) and replace_code(functions, code)

    def _wait(self) -> None:
        """Wait a moment for forks, and report those that have ended or whose time is up."""
        for fork, task in list(self._forks.values()):
            if fork.has_ended():
                del self._forks[fork.pid]
                self._conclude(fork, task)
                return
        _wait_for_end([fork for fork, _ in self._forks.values()])

    def _conclude(self, fork: _Fork, task: Task) -> None:
        code, failed = fork.end()
        if code == _DOES_NOT_FIT_CODE:
            self._report(task, None)
        elif failed and not self._is_reliable(failed, fork.tests):
            self._start(task)
        else:
            self._kills[failed] += 1
            status = {None: TIMED_OUT, _SURVIVED_CODE: SURVIVED}.get(code, KILLED)
            seconds = round(time.monotonic() - fork.began, 2)
            self._report(task, Result(identity(task.mutant), status, task.digest, seconds, failed))

    def _is_reliable(self, failed: str, tests: list[str]) -> bool:
        """Return whether the tests up to the one that failed pass without a mutant; each is checked once."""
        if failed not in self._reliable:
            control = self._fork(tests[: tests.index(failed) + 1], None)
            while not control.has_ended():
                _wait_for_end([control])
            code, culprit = control.end()
            if code != _SURVIVED_CODE:
                self._unreliable.add(culprit or failed)
                return False
            self._reliable.add(failed)
        return True


class _Failures:
    """pytest plugin: notices failed tests, except for missed deadlines: the machine may be busy."""

    def __init__(self) -> None:
        self.failed = False
        self._is_late = False

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        self._is_late = call.excinfo is not None and call.excinfo.typename == "Late"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.outcome == "failed" and not self._is_late)


def _live_functions() -> dict[tuple[str, CodeKey], list[FunctionType]]:
    """Return all functions of this process, by the file and the position of their code."""
    gc.unfreeze()  # what is frozen is not listed
    found: dict[tuple[str, CodeKey], list[FunctionType]] = {}
    for candidate in gc.get_objects():
        if isinstance(candidate, FunctionType):
            code = candidate.__code__
            key = (code.co_filename, (code.co_qualname, code.co_firstlineno))
            found.setdefault(key, []).append(candidate)
    gc.freeze()
    return found
