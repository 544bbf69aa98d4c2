"""Mutants in a running process, and what their results mean."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from mutation.accepted import FILE, Accepted, load_accepted
from mutation.in_process import AbsentServer, ProcessNotAllowed, lua_store
from mutation.line_coverage import LineCoverage, RecordedTest, load, save
from mutation.mutants import Mutant, Place, functions_of, path_of, replace_code
from mutation.report import killed_percent, verdict
from mutation.results import KILLED, SURVIVED, TIMED_OUT, Result, Results, digest_of_tests, identity
from mutation.runner import (
    IDLE_SECONDS,
    WAIT_SECONDS,
    Task,
    _activity,
    _Failures,
    _Fork,
    _Runner,
    _wait_for_end,
    chosen_tests,
)
from mutation.targets import TARGETS, chosen_modules
from tests.support import Late

from comporta import LimitConfig
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.testing import ManualClock

SOURCE = """class A:
    @property
    def two(self):
        return 1 + 1

    @staticmethod
    def f():
        return 2
"""
CHANGED = SOURCE.replace("1 + 1", "1 - 1")
MUTANT = Mutant("retry/backoff.py", Place("A.two", 2, range(4, 5)), SOURCE, CHANGED)
OTHER = Mutant(
    "retry/backoff.py", Place("A.f", 6, range(8, 9)), SOURCE, SOURCE.replace("return 2", "return 3")
)
ACCEPTED = Accepted("retry/backoff.py", "A.two", "return 1 + 1", "return 1 - 1", "equivalent: never called")


def make_coverage(**tests: RecordedTest) -> LineCoverage:
    named = {f"tests/{name.replace('__', '/')}.py::test": test for name, test in tests.items()}
    files = {name.partition("::")[0]: {name: test} for name, test in named.items()}
    return LineCoverage("base", dict.fromkeys(files, "1"), files)


def test_targets__all__are_modules_of_the_package() -> None:
    modules = chosen_modules([])
    assert len(modules) == len(set(modules)) > 40
    assert [module for module in modules if not Path(path_of(module)).is_file()] == []


def test_chosen_modules__group_or_part_of_a_path__are_found() -> None:
    assert chosen_modules(["retry"]) == list(TARGETS["retry"])
    assert chosen_modules(["ramp.py", "leaky"]) == ["limits/strategies/leaky_bucket.py", "ramp.py"]
    with pytest.raises(ValueError, match="unknown module: nothing"):
        chosen_modules(["nothing"])


def test_mutant__in_a_live_class__replaces_the_code_of_its_function() -> None:
    namespace: dict[str, type] = {}
    exec(compile(SOURCE, "sample", "exec"), namespace)  # noqa: S102 - the source above
    live = namespace["A"]
    code = MUTANT.code
    assert code is not None
    assert replace_code([vars(live)["two"].fget], code)
    assert (live().two, live.f()) == (0, 2)  # type: ignore[attr-defined]


def test_removed_and_added__line_with_a_comment__is_without_it() -> None:
    original = "if a > 1:  # nearly always\n"
    mutant = Mutant("x.py", MUTANT.place, original, original.replace(">", ">="))
    assert mutant.removed_and_added == ("if a > 1:", "if a >= 1:")


def test_functions_of__class_with_decorators__are_known_by_name_and_first_line() -> None:
    assert list(functions_of(compile(SOURCE, "sample", "exec"))) == [("A.two", 2), ("A.f", 6)]


def test_mutant__that_is_no_python__has_no_code() -> None:
    assert Mutant("x.py", MUTANT.place, SOURCE, "class").code is None


def test_replace_code__other_free_variables__does_not_fit() -> None:
    def outer() -> object:
        value = 1
        return lambda: value

    inner = outer()
    assert not replace_code([inner], MUTANT.code)  # type: ignore[list-item, arg-type]


def test_chosen_tests__many__are_near_ones_first_then_the_fastest() -> None:
    lines = {"retry/backoff.py": [4]}
    coverage = make_coverage(
        upstream__test_a=RecordedTest(0.01, lines),
        retry__test_b=RecordedTest(0.2, lines),
        retry__test_c=RecordedTest(0.1, lines),
        retry__test_d=RecordedTest(0.1, {"retry/backoff.py": [5]}),
        retry__test_e=RecordedTest(60, lines),
    )
    near = ["tests/retry/test_c.py::test", "tests/retry/test_b.py::test"]
    assert chosen_tests(MUTANT, coverage) == near
    assert chosen_tests(MUTANT, coverage.below(["tests/upstream"])) == ["tests/upstream/test_a.py::test"]
    assert coverage.files_covering(["retry/backoff.py"]) == list(coverage.tests)


def test_chosen_tests__comparisons_with_lua__are_all_chosen_after_the_near_ones() -> None:
    lines = {"retry/backoff.py": [4]}
    coverage = make_coverage(
        differential__test_a=RecordedTest(2, lines),
        differential__test_b=RecordedTest(1, lines),
        retry__test_c=RecordedTest(4, lines),
        upstream__test_d=RecordedTest(2, lines),
    )
    expected = ["retry/test_c", "differential/test_b", "differential/test_a"]
    assert chosen_tests(MUTANT, coverage) == [f"tests/{name}.py::test" for name in expected]


def test_usable_tests__some_killed_mutants_before__come_first() -> None:
    names = [f"tests/retry/test_{letter}.py::test" for letter in "abc"]
    runner = _Runner(iter(()), LineCoverage(), 1, lambda task, result: None)
    runner._items = dict.fromkeys(names)  # type: ignore[assignment]
    runner._kills[names[2]] += 1
    assert runner._usable(Task(MUTANT, [*names, "tests/gone.py::test"], "")) == [names[2], *names[:2]]


def test_fork__stopped_with_the_whole_run__has_as_much_time_left_as_before() -> None:
    reader, writer = os.pipe()
    fork = _Fork(0, reader, [], 0.0, deadline=100.0, idle_deadline=60.0)

    def stop_this_process(*_: object) -> tuple[list[int], list[int], list[int]]:
        now[0] += 900.0
        return [], [], []

    now = [50.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mutation.runner.time.monotonic", lambda: now[0])
        patch.setattr("mutation.runner.select.select", stop_this_process)
        _wait_for_end([fork])
    assert fork.deadline == 1000.0 - WAIT_SECONDS
    assert fork.idle_deadline == 960.0 - WAIT_SECONDS
    os.close(reader)
    os.close(writer)


def test_fork__all_threads_wait__has_ended_after_a_while() -> None:
    fork = _Fork(0, 0, [], 0.0, deadline=1000.0)
    now, activity = [50.0], (True, 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mutation.runner.time.monotonic", lambda: now[0])
        patch.setattr("mutation.runner.os.waitid", lambda *_: None)
        patch.setattr("mutation.runner._activity", lambda _: activity)
        assert not fork.has_ended()
        assert fork.is_busy()
        now[0] += IDLE_SECONDS
        assert not fork.has_ended()
        assert not fork.is_busy(), "another one runs beside it"
        for busy in ((True, 8), (False, 8)):
            now[0] += 1.0
            activity = busy
            assert not fork.has_ended()
        activity = (True, 8)
        now[0] += IDLE_SECONDS + 1.0
        assert fork.has_ended()


def test_activity__process_that_runs__does_not_wait() -> None:
    is_waiting, ticks = _activity(os.getpid())
    assert not is_waiting
    assert ticks > 0
    assert _activity(2**30) == (False, 0)


@pytest.mark.parametrize(("error", "failed"), [(AssertionError, True), (Late, False)])
def test_failures__missed_deadline__is_no_kill(error: type[Exception], failed: bool) -> None:
    def fail() -> None:
        raise error("x")

    watch = _Failures()
    watch.pytest_runtest_makereport(pytest.CallInfo.from_call(fail, "call"))
    report = pytest.TestReport("x", ("x", 1, "x"), {}, "failed", None, "call")
    watch.pytest_runtest_logreport(report)
    assert watch.failed is failed


def test_lua_store__clock_of_the_test_moves__scripts_use_its_time() -> None:
    clock = ManualClock(1_800_000_000)
    acquire = AcquireOperation(LimitDefinition(LimitConfig.parse("1/s").build_strategy(), "n"), "k", 1)
    for _ in range(2):  # each store is empty
        with lua_store(AbsentServer(), clock) as store:
            assert store.apply_many([acquire, acquire]) == [0, 1_000_000]
            clock.advance(1)
            assert store.apply(acquire) == 0


def test_absent_server__used__ends_the_test() -> None:
    with AbsentServer() as server, pytest.raises(ProcessNotAllowed, match="needs a server, for its port"):
        server.port  # noqa: B018 - it raises


def test_line_coverage__saved__is_loaded_again(tmp_path: Path) -> None:
    coverage = make_coverage(retry__test_b=RecordedTest(0.2, {"ramp.py": [1, 2]}))
    save(coverage, tmp_path / "new" / "coverage.json")
    assert load(tmp_path / "new" / "coverage.json") == coverage
    assert load(tmp_path / "absent") == LineCoverage()


def test_results__resumed__are_valid_while_module_and_tests_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    results = Results(file)
    results.add(Result(identity(MUTANT), KILLED, "a", 0.1, "tests/x.py::test"))
    results.add(Result(identity(OTHER), SURVIVED, "a", 0.1))
    file.write_text(file.read_text() + '{"mutant": "cut')
    again = Results(file)
    killed = again.known(MUTANT, "b", lambda test: test == "tests/x.py::test")
    assert killed is not None
    assert killed.status == KILLED
    assert again.known(MUTANT, "a", lambda test: False) is None
    assert again.known(OTHER, "a", lambda test: True) == Result(identity(OTHER), SURVIVED, "a", 0.1)
    assert again.known(OTHER, "b", lambda test: True) is None
    again.add(Result(identity(OTHER), TIMED_OUT, "a", 60.0))
    assert again.known(OTHER, "b", lambda test: True) is not None, "it would take long, and end the same way"
    assert json.loads(file.read_text().splitlines()[0])["status"] == KILLED


def test_digest_of_tests__file_changed__is_another() -> None:
    names = ["tests/x.py::test"]
    assert digest_of_tests(names, {"tests/x.py": "1"}) != digest_of_tests(names, {"tests/x.py": "2"})


def test_killed_percent__time_outs__count_for_neither() -> None:
    assert killed_percent(Counter({KILLED: 3, SURVIVED: 1, TIMED_OUT: 6})) == 75
    assert killed_percent(Counter()) == 100


def test_verdict__unlisted_survivor__fails_and_shows_its_diff() -> None:
    found = verdict([(MUTANT, SURVIVED), *[(OTHER, KILLED)] * 99], [])
    assert not found.passes
    assert "-        return 1 + 1\n+        return 1 - 1" in found.text
    assert "1 survivors are not in" in found.text


def test_verdict__survivors_accepted__passes_from_96_percent() -> None:
    assert verdict([*[(MUTANT, SURVIVED)] * 4, *[(OTHER, KILLED)] * 96], [ACCEPTED]).passes
    found = verdict([*[(MUTANT, SURVIVED)] * 5, *[(OTHER, KILLED)] * 95], [ACCEPTED])
    assert not found.passes
    assert "95.0 % were killed; at least 96 % are required" in found.text


def test_verdict__accepted_mutant_that_is_killed__fails() -> None:
    assert not verdict([(MUTANT, KILLED)], [ACCEPTED]).passes
    elsewhere = Mutant("ramp.py", MUTANT.place, SOURCE, CHANGED)
    assert verdict([(elsewhere, KILLED)], [ACCEPTED]).passes


def test_accepted__file_of_the_repository__has_a_reason_for_each() -> None:
    accepted = load_accepted(FILE)
    assert {each.module for each in accepted} <= set(chosen_modules([]))


def test_accepted__reason_of_another_kind__is_refused(tmp_path: Path) -> None:
    file = tmp_path / "accepted.toml"
    file.write_text('[["ramp.py"]]\nfunction = "f"\nremoved = "a"\nadded = "b"\nreason = "hard to test"\n')
    with pytest.raises(ValueError, match="must begin with 'equivalent: ' or 'accepted: '"):
        load_accepted(file)
