"""Compare two revisions in one run: ``python -m benchmarks --compare REVISION``.

Each revision runs in a process of its own, with its own package and its own benchmarks, from a git worktree
in a temporary directory. The two processes measure in turns: a round of the old one, a round of the new one,
in CPU time of the process, so that a busy machine slows both down alike. ``compare_side.py`` is the program
of these processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

_ROOT = Path(__file__).parent.parent
_SIDE = Path(__file__).with_name("compare_side.py")
_NOT_TIMED = "  nothing here is timed in turns: run this section in each revision by itself"


@dataclass(frozen=True)
class Comparison:
    """What one contender cost in both revisions, round by round, in nanoseconds of CPU time for each call."""

    name: str
    old: list[float]
    new: list[float]

    def as_text(self) -> str:
        """Return one line: the ratio new/old, its spread over half of the rounds, and the best costs."""
        ratios = [new / old for old, new in zip(self.old, self.new, strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        best = f"{min(self.old):>10,.0f} ns {min(self.new):>10,.0f} ns"
        return f"  {self.name:<46} {middle:>6.2f}  {low:>5.2f} to {high:<5.2f} {best}"


class Side:
    """One revision: its process, and the conversation with it, one line of JSON at a time."""

    def __init__(self, label: str, benchmarks: Path, package: Path, *, quick: bool) -> None:
        self.label = label
        path = os.pathsep.join((str(package / "src"), str(benchmarks)))
        self._process = subprocess.Popen(
            [sys.executable, str(_SIDE), "quick" if quick else "full"],
            cwd=benchmarks,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.sections: list[str] = self.receive()["sections"]
        except BaseException:
            self.close()
            raise

    def send(self, order: str) -> None:
        """Send an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next message; raise if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the benchmarks of {self.label} ended with an error, see above")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """End the process."""
        with self._process:  # which closes its pipes and waits for it
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()


def compare(revision: str, only: list[str] | None, *, quick: bool, same_benchmarks: bool) -> None:
    """Run the sections of both revisions side by side, and print the ratio of each measurement."""
    with ExitStack() as stack:
        tree = stack.enter_context(_worktree(revision))
        old = Side(revision, _ROOT if same_benchmarks else tree, tree, quick=quick)
        stack.callback(old.close)
        new = Side("the working tree", _ROOT, _ROOT, quick=quick)
        stack.callback(new.close)
        for name in only or ():
            if name not in (*old.sections, *new.sections):
                sys.exit(f"--only must be one of {', '.join(new.sections)}, got {name!r:.100}")
        for section in only or list(dict.fromkeys([*new.sections, *old.sections])):
            print(f"\n{section}: CPU time, new / old, middle half of the rounds, best of each", flush=True)
            for line in _compare_section(section, old, new):
                print(line, flush=True)


def _compare_section(section: str, old: Side, new: Side) -> Iterator[str]:
    """Yield a line for each measurement of a section."""
    for side in (old, new):
        if section not in side.sections:
            yield f"  {side.label} has no such section"
            return
    old.send(section)
    new.send(section)
    before, after = old.receive(), new.receive()
    if "names" not in before and "names" not in after:
        yield _NOT_TIMED
    while "names" in before or "names" in after:
        common = [name for name in after.get("names", ()) if name in before.get("names", ())]
        if common:
            yield from _in_turns(common, old, new, after["rounds"])
        is_old_ahead = not common and "names" in after  # the new one may measure the same names later
        if not is_old_ahead:
            yield from _only_in(old, before, common)
        yield from _only_in(new, after, common)
        if "names" in before and not is_old_ahead:
            old.send("next")
            before = old.receive()
        if "names" in after:
            new.send("next")
            after = new.receive()


def _only_in(side: Side, measured: dict[str, Any], common: list[str]) -> Iterator[str]:
    for name in measured.get("names", ()):
        if name not in common:
            yield f"  {name:<46} only in {side.label}"


def _in_turns(names: list[str], old: Side, new: Side, rounds: int) -> Iterator[str]:
    """Let both sides measure, a round each, and yield a line for each contender."""
    sides = (old, new)
    costs: dict[Side, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 else sides[::-1]:
            side.send(json.dumps(names))
            costs[side].append(side.receive()["costs"])
    for name in names:
        yield Comparison(name, *([cost[name] for cost in costs[side]] for side in sides)).as_text()


@contextmanager
def _worktree(revision: str) -> Iterator[Path]:
    """Yield a directory with the files of a revision."""
    with tempfile.TemporaryDirectory(prefix="comporta-compare-") as directory:
        tree = Path(directory) / "tree"
        _git("worktree", "add", "--detach", "--quiet", str(tree), revision)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(_ROOT), *arguments], check=True)  # noqa: S607 - as on PATH
