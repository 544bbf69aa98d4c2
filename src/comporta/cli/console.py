"""Output of all commands: tables in one style, JSON for scripts, and a spinner for long operations.

Standard output carries only results. Everything meant only for a person at the terminal goes to standard
error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH_CHARS = 1000
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))

ROWS_MAX = 10_000

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
limit_option = click.option(
    "--limit",
    type=click.IntRange(1, ROWS_MAX),
    default=100,
    show_default=True,
    help="List at most this many rows.",
)


def new_table(*headings: str, right: tuple[str, ...] = (), shortened: tuple[str, ...] = ()) -> Table:
    """Return a table with these headings.

    ``right``: columns aligned to the right. ``shortened``: columns cut off with an ellipsis to fit the line.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            no_wrap=heading in (*right, *shortened),
            overflow="ellipsis" if heading in shortened else "fold",
            ratio=1 if heading in shortened else None,
        )
    return table


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal; in a pipe or a file, print every row on one line."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH_CHARS)
    elif any(column.ratio for column in table.columns):
        table.expand = True  # shortened columns get the width that the others leave
    print_renderable(console, table)


def print_renderable(console: Console, drawn: RenderableType) -> None:
    """Print a rich renderable; off a terminal, without blank lines around it and trailing spaces."""
    if console.is_terminal:
        console.print(drawn)
        return
    with console.capture() as captured:
        console.print(drawn)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    click.echo("\n".join(lines).strip("\n"))


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, indent=2, default=str))


def print_rows(
    records: Sequence[object], table: Callable[[], Table], empty_message: str, *, as_json: bool
) -> None:
    """Print rows as JSON records or as a table, or say why there are none."""
    if as_json:
        print_json(records)
    elif records:
        print_table(table())
    else:
        click.echo(empty_message)


@contextmanager
def show_spinner(text: str) -> Iterator[None]:
    """Show a spinner with this text on standard error while the block runs, if it is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(f"{text} ..."):
        yield


def printable_text(text: str) -> Text:
    """Return text from an untrusted source without control characters, which a terminal would obey."""
    return Text(printable(text))


def printable(text: str) -> str:
    """Return text with every unprintable character replaced."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def rough_duration(seconds: float) -> str:
    """Return a duration in its largest unit; a negative one, from another machine's clock, is ``0 s``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "0 s"


def status_sentence(upstream: Mapping[str, Any], now: float) -> str:
    """Return the sentence about an upstream, with the local time until which its circuit is open."""
    sentence, until = str(upstream.get("in_words") or ""), upstream.get("until")
    if upstream.get("phase") != "open" or not until or upstream.get("forced"):
        return sentence
    reason = sentence.partition(": ")[2]
    opened = f"Open until {clock_time(until)} ({rough_duration(until - now)} left)"
    return f"{opened}: {reason}" if reason else f"{opened}."


def utc_time(at: float) -> str:
    """Return the date and the time of day in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock_time(at: float) -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))
