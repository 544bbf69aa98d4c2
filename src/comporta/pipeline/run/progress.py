"""Progress of a run: a bar on a terminal, or a function of the program.

rich is imported only if there is a terminal to draw on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from comporta.pipeline.run.report import Report

Progress = Callable[[Report], None]
"""Receives the report of a run four times a second; it must return quickly."""


class TerminalProgress:
    """A progress bar on standard error; ``extra`` returns text to show, such as the current limit."""

    def __init__(self, extra: Callable[[], str] | None = None) -> None:
        self._extra = extra
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        from rich.console import Console  # noqa: PLC0415 - only for programs that show progress
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - see above

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("", total=None, figures="")
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def __call__(self, report: Report) -> None:
        """Draw the report."""
        self._bar.update(
            self._task,
            description=report.name,
            total=report.total,
            completed=report.skipped + report.done,
            figures=progress_line(report, self._extra() if self._extra else ""),
        )


def progress_display(given: Progress | bool | None) -> AbstractContextManager[Progress]:
    """Return the context manager that shows progress; ``True``: a bar, if standard error is a terminal."""
    if given is True and sys.stderr.isatty():
        return TerminalProgress()
    if not callable(given):
        return nullcontext(show_nothing)
    return given if isinstance(given, TerminalProgress) else nullcontext(given)


def show_nothing(report: Report) -> None:
    """Show nothing."""


def progress_line(report: Report, extra: str = "") -> str:
    """Return a report in one line."""
    parts = [str(report)]
    if extra:
        parts.append(extra)
    if report.seconds_left is not None:
        parts.append(f"{format_duration(report.seconds_left)} left")
    return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds: ``2:46:40``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
