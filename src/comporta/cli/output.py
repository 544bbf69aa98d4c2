"""How commands print: one look for all tables, JSON for scripts, a sign of life while something takes long.

What scripts read goes to standard output and nothing else does; what only people want goes to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from comporta.cli.completion import databases

_WIDTH_IN_FILES_CHARS = 1000
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
database_option = click.option(
    "--database", metavar="URL", shell_complete=databases, help="Where the tables are."
)


def table_of(*headings: str, right: tuple[str, ...] = (), shortened: tuple[str, ...] = ()) -> Table:
    """Return a table with these headings: some to the right, as numbers are, some shortened to fit a line."""
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
    """Print a table: as wide as the terminal, or on whole lines for whoever searches them."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_IN_FILES_CHARS)
    elif any(column.ratio for column in table.columns):
        table.expand = True  # what is shortened gets what the others leave
    print_drawn(console, table)


def print_drawn(console: Console, drawn: RenderableType) -> None:
    """Print something drawn; where nobody sees them, without empty lines around it and spaces behind."""
    if console.is_terminal:
        console.print(drawn)
        return
    with console.capture() as captured:
        console.print(drawn)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    click.echo("\n".join(lines).strip("\n"))


def print_json(value: Any) -> None:
    """Print what scripts read."""
    click.echo(json.dumps(value, indent=2, default=str))


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show people at a terminal what is being done, for as long as it is; nobody else sees anything."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(f"{text} ..."):
        yield


def plain(text: str) -> Text:
    """Return a text that others wrote as it can be shown: a terminal would obey what cannot be printed."""
    return Text(printable(text))


def printable(text: str) -> str:
    """Return a text with a sign in place of whatever cannot be printed."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def rough(seconds: float) -> str:
    """Say a length of time in its largest unit; less than none is another machine's clock."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "0 s"
