"""Progress of a run: a bar on a terminal, or a function of the program.

rich is imported only if there is a terminal to draw on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from comporta.pipeline.run.report import Report, quantity

Progress = Callable[[Report], None]
"""Receives the report of a run four times a second; it must return quickly."""


_BAR_CHARS_MIN = 8
_GAPS_CHARS = 2


class TerminalProgress:
    """A progress bar on standard error; ``extra`` returns text to show, such as the current limit."""

    def __init__(self, extra: Callable[[], str] | None = None) -> None:
        self._extra = extra
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        from rich.console import Console  # noqa: PLC0415 - only for programs that show progress
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - see above
        from rich.table import Column  # noqa: PLC0415 - see above

        figures = TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        bar = BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=_BAR_CHARS_MIN))
        self._bar = Progress(TextColumn("{task.description}"), bar, figures, console=Console(stderr=True))
        self._bar.expand = True  # the bar takes the width that the figures leave
        self._task = self._bar.add_task("", total=None, figures="")
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def __call__(self, report: Report) -> None:
        """Draw the report."""
        width = self._bar.console.width - len(report.name) - _BAR_CHARS_MIN - _GAPS_CHARS
        self._bar.update(
            self._task,
            description=report.name,
            total=report.total,
            completed=report.skipped + report.done,
            figures=progress_line(report, self._extra() if self._extra else "", width),
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


def progress_line(report: Report, extra: str = "", width: int | None = None) -> str:
    """Return a report in one line of at most ``width`` characters; the least important parts are left out."""
    left = report.seconds_left or 0.0
    parts = {
        "done": report.done_text,
        "rate": f"{report.rate:,.1f}/s",
        "retries": quantity(report.retries, "retry", "retries") if report.retries else "",
        "dead": quantity(report.dead, "dead letter") if report.dead else "",
        "extra": extra,
        "left": f"{format_duration(left)} left" if left >= 1 else "",  # the total is approximate
        "draining": "stopping" if report.draining and not report.ended else "",
    }
    for name in ("", "retries", "rate", "left", "dead", "extra"):
        parts.pop(name, None)
        line = ", ".join(filter(None, parts.values()))
        if width is None or len(line) <= width:
            break
    return line


def format_duration(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds: ``2:46:40``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
