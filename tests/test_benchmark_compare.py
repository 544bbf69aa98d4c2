"""``make bench ARGS='--compare REVISION'``: two revisions of a small package, side by side in one run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmarks import compare as module
from benchmarks.compare import Comparison, compare

_MEASURE = """
class Effort:
    @classmethod
    def of(cls, *, quick):
        return cls()

class Timings:
    def __init__(self, names):
        self.rates = {name: [] for name in names}

def in_turns(runs, effort):
    raise AssertionError("compare_side replaces this function")
"""

_MAIN = """
from benchmarks import measure
from benchmarks.measure import in_turns
from package import work

def speed(effort):
    print("a section may print")

    def run(count):
        for _ in range(count):
            work()
        return count

    in_turns({NAMES: run}, effort)

SECTIONS = {"speed": speed, "untimed": lambda effort: None, EXTRA: speed}
"""


def commit(repository: Path, *, loops: int, name: str, extra: str) -> None:
    """Commit a package whose ``work`` takes ``loops`` turns, and its benchmarks."""
    files = {
        "src/package.py": f"def work():\n    for _ in range({loops}):\n        pass\n",
        "benchmarks/__init__.py": "",
        "benchmarks/measure.py": _MEASURE,
        "benchmarks/__main__.py": _MAIN.replace("NAMES", repr(name)).replace("EXTRA", repr(extra)),
    }
    for path, text in files.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", name)


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", "-C", str(repository), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a repository with two commits: the second does a tenth of the work of the first."""
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "--quiet")
    commit(path, loops=10_000, name="a call", extra="old section")
    commit(path, loops=1_000, name="a call", extra="new section")
    monkeypatch.setattr(module, "_ROOT", path)
    return path


def test_compare__two_revisions__prints_the_ratio_of_their_cpu_times(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compare("HEAD~1", ["speed"], quick=True, same_benchmarks=False)
    heading, line = capfd.readouterr().out.splitlines()[1:]
    assert heading.startswith("speed: CPU time, new / old")
    name, ratio = line.split()[:2], float(line.split()[2])
    assert name == ["a", "call"]
    assert 0 < ratio < 0.5
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_compare__same_benchmarks__measures_the_old_package_with_the_new_ones(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compare("HEAD~1", ["new section"], quick=True, same_benchmarks=True)
    line = capfd.readouterr().out.splitlines()[2]
    assert 0 < float(line.split()[2]) < 0.5


def test_compare__section_of_one_revision__says_which_one_lacks_it(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compare("HEAD~1", ["old section", "new section", "untimed"], quick=True, same_benchmarks=False)
    printed = capfd.readouterr().out
    assert "the working tree has no such section" in printed
    assert "HEAD~1 has no such section" in printed
    assert "nothing here is timed in turns" in printed


def test_compare__other_names__says_which_revision_measures_what(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commit(repository, loops=10, name="another call", extra="new section")
    compare("HEAD~1", ["speed"], quick=True, same_benchmarks=False)
    printed = capfd.readouterr().out
    assert " ".join(printed.split()).count("a call only in HEAD~1") == 1
    assert "another call only in the working tree" in " ".join(printed.split())


def test_compare__unknown_section__names_the_sections(repository: Path) -> None:
    with pytest.raises(SystemExit, match=r"must be one of speed, untimed, new section, got 'speeed'"):
        compare("HEAD~1", ["speeed"], quick=True, same_benchmarks=False)


def test_compare__benchmarks_cannot_be_imported__names_the_revision(repository: Path) -> None:
    (repository / "src" / "package.py").write_text("raise ImportError('broken')\n")
    with pytest.raises(RuntimeError, match="the benchmarks of the working tree ended with an error"):
        compare("HEAD~1", None, quick=True, same_benchmarks=False)
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_comparison__one_slow_round__shows_the_median_and_the_spread() -> None:
    text = Comparison("a call", [100.0] * 5, [50.0, 50.0, 50.0, 60.0, 900.0]).as_text()
    assert text.split() == ["a", "call", "0.50", "0.50", "to", "4.80", "100", "ns", "50", "ns"]
