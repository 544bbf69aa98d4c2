"""Format the results of sections: as text for the terminal, as Markdown for the page.

A goal that is not met is marked and does not fail the run, because results vary from day to day.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import Timings

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "benchmarks.md"
_START, _END = "<!-- figures: written by make bench ARGS=--write -->", "<!-- end of figures -->"
TIMES = "\N{MULTIPLICATION SIGN}"
_PACKAGES = (
    *("comporta", "limits", "throttled-py", "pyrate-limiter", "aiolimiter"),
    *("circuitbreaker", "pybreaker", "hyx", "interlock-cb", "pyresilience", "redis", "hiredis"),
    *("cashews", "dogpile.cache", "aiocache", "msgspec", "asyncpg"),
    *("anyio", "janus", "culsans"),
)


@dataclass(frozen=True)
class Goal:
    """A goal and the result."""

    promise: str
    found: str
    met: bool

    @classmethod
    def at_least(
        cls, wanted: float, promise: str, timings: Timings, ours: str, others: Iterable[str]
    ) -> Goal:
        """Return the goal to be ``wanted`` times as fast as the fastest of the others."""
        case, rival = promise.split(": ")
        best = timings.closest(ours, others)
        ratio = timings.ratio(ours, best)
        found = f"{ratio:.2f} {TIMES} {best}"
        return cls(f"{case}: at least {wanted:g} {TIMES} {rival}", found, ratio >= wanted)

    @classmethod
    def at_most(cls, wanted: float, promise: str, timings: Timings, ours: str, others: Iterable[str]) -> Goal:
        """Return the goal to cost at most ``wanted`` times as much as the cheapest of the others."""
        case, rival = promise.split(": ")
        best = timings.closest(ours, others)
        ratio = timings.ratio(best, ours)
        found = f"{ratio:.2f} {TIMES} {best}"
        return cls(f"{case}: at most {wanted:g} {TIMES} the cost of {rival}", found, ratio <= wanted)

    @property
    def mark(self) -> str:
        """The text for the state of the goal."""
        return "met" if self.met else "NOT MET"


@dataclass(frozen=True)
class Table:
    """A table; the first column is a name, the others are numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of_speeds(cls, title: str, timings: Timings, ours: str) -> Table:
        """Return a table of decisions per second, with our speed as a multiple of each."""
        rows = [
            [name, _thousands(timings.speed(name)), f"{timings.ratio(ours, name):.2f}"]
            for name in timings.rates
        ]
        return cls(title, ["", "decisions/s", f"{ours} / this"], rows)

    @classmethod
    def of_costs(cls, title: str, timings: Timings, ours: str) -> Table:
        """Return a table of the cost of a call, with our cost as a multiple of each (below 1: cheaper)."""
        rows = [
            [name, _cost(timings.speed(name)), f"{timings.ratio(name, ours):.2f}"] for name in timings.rates
        ]
        return cls(title, ["", "a call", f"{ours} / this"], rows)


@dataclass
class Section:
    """One subject: a description of the method, tables and goals."""

    title: str
    description: str
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)


def as_text(section: Section) -> str:
    """Return a section as text for the terminal."""
    lines = ["", section.title, "=" * len(section.title), section.description]
    for table in section.tables:
        lines += ["", table.title, *_aligned(table)]
    lines += [""] * bool(section.goals)
    lines += [f"  {goal.mark:7}  {goal.promise}: {goal.found}" for goal in section.goals]
    return "\n".join(lines)


def summary(sections: Sequence[Section]) -> str:
    """Return a summary of all goals."""
    goals = [goal for section in sections for goal in section.goals]
    lines = ["", f"{sum(goal.met for goal in goals)} of {len(goals)} goals met"]
    lines += [f"  NOT MET  {goal.promise}: {goal.found}" for goal in goals if not goal.met]
    return "\n".join(lines)


def write_page(sections: Sequence[Section], server: str) -> None:
    """Write the results between the two markers in ``docs/reference/benchmarks.md``."""
    page = PAGE.read_text("utf-8")
    before, start, rest = page.partition(_START)
    _, end, after = rest.partition(_END)
    if not (start and end):
        raise RuntimeError(f"{PAGE} must contain the lines {_START!r} and {_END!r}")
    PAGE.write_text(before + start + "\n\n" + _as_markdown(sections, server) + "\n" + end + after, "utf-8")


def _as_markdown(sections: Sequence[Section], server: str) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    machine = f"{os.cpu_count()} cores, {_processor()}"
    python = f"Python {platform.python_version()}"
    lines = [
        f"Measured on {datetime.now(UTC):%d %B %Y}: {python}, {server}, {packages}; {machine}.",
        "",
        "## Goals",
        "",
        "| goal | found | |",
        "|---|---|---|",
    ]
    lines += [f"| {goal.promise} | {goal.found} | {goal.mark} |" for s in sections for goal in s.goals]
    for section in sections:
        lines += ["", f"## {section.title}", "", section.description]
        for table in section.tables:
            lines += ["", f"**{table.title}**", "", "| " + " | ".join(table.head) + " |"]
            lines += ["|---" + "|---:" * (len(table.head) - 1) + "|"]
            lines += ["| " + " | ".join(row) + " |" for row in table.rows]
    return "\n".join([*lines, ""])


def _aligned(table: Table) -> list[str]:
    rows = [table.head, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.head))]
    shape = f"  {{:<{widths[0]}}}" + "".join(f"  {{:>{width}}}" for width in widths[1:])
    return [shape.format(*row) for row in rows]


def _thousands(speed: float) -> str:
    return f"{speed / 1000:,.1f} k" if speed < 100_000 else f"{speed / 1000:,.0f} k"


def _cost(speed: float) -> str:
    nanoseconds = 1e9 / speed
    return f"{nanoseconds:,.0f} ns" if nanoseconds < 10_000 else f"{nanoseconds / 1000:,.1f} µs"


def _processor() -> str:
    """Return the name of the processor, if the system reports it."""
    if sys.platform.startswith("linux"):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
