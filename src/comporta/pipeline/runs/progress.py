"""How far a run is, for people who watch: a line on a terminal, or whatever a program makes of the figures.

rich is brought in only where there is a terminal to draw on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from comporta.pipeline.runs.report import Report

Progress = Callable[[Report], None]
"""What is told how far a run is, four times a second: quickly, and without waiting."""


class Terminal:
    """A line that moves, on standard error; ``more`` says what only others know, such as the limit now."""

    def __init__(self, more: Callable[[], str] | None = None) -> None:
        self._more = more
        self._drawn: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        from rich.console import Console  # noqa: PLC0415 - only for whoever watches
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - see above

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        self._drawn = Progress(*columns, console=Console(stderr=True))
        self._task = self._drawn.add_task("", total=None, figures="")
        self._drawn.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._drawn.stop()

    def __call__(self, report: Report) -> None:
        """Draw how far it is."""
        self._drawn.update(
            self._task,
            description=report.name,
            total=report.total,
            completed=report.skipped + report.done,
            figures=shown(report, self._more() if self._more else ""),
        )


def progress_of(given: Progress | bool | None) -> AbstractContextManager[Progress]:
    """Return what shows progress; ``True`` is a terminal, where there is one."""
    if given is True and sys.stderr.isatty():
        return Terminal()
    if not callable(given):
        return nullcontext(unseen)
    return given if isinstance(given, Terminal) else nullcontext(given)


def unseen(report: Report) -> None:
    """Show nothing."""


def shown(report: Report, more: str = "") -> str:
    """Return the figures of a run in one line."""
    parts = [str(report)]
    if more:
        parts.append(more)
    if report.seconds_left is not None:
        parts.append(f"{duration(report.seconds_left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Return a length of time as people read it: ``2:46:40``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
