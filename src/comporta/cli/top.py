"""``comporta top``: the dashboard at a glance, in a terminal.

The parts: ``top_looking.py`` finds out, ``top_drawing.py`` lays out, ``top_screen.py`` keeps it live.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing

import click
from rich.console import Console

from comporta.cli.output import database_option, json_option, print_drawn, print_json
from comporta.cli.states import STATE_HELP, shown, state_argument, state_url
from comporta.cli.top_drawing import drawn
from comporta.cli.top_looking import Looking, empty
from comporta.cli.top_screen import live, paper_of

_WIDTH_IN_FILES_CHARS = 160


@click.command(epilog=STATE_HELP)
@state_argument
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Print one picture and end, as without a terminal.")
@database_option
@json_option
def top(state: str | None, every: float, once: bool, database: str | None, as_json: bool) -> None:
    """Watch a fleet: upstreams, workers, events.

    Live until q or Ctrl-C. Figures are those of the whole fleet in the last minute. With a database
    (left out: DATABASE_URL), what the cache keeps and how batches fare, too.
    """
    url = state_url(state)
    if url.startswith("memory://"):
        raise click.UsageError(
            "memory:// is one process's own and cannot be seen from here: use shared:// or a server"
        )
    with closing(Looking(url, database or os.environ.get("DATABASE_URL"))) as looking:
        if once or as_json or not _is_watched():
            _print(looking, shown(url), as_json=as_json)
        else:
            live(looking, every, shown(url))


def _is_watched() -> bool:
    """Whether there is a terminal on which something can move."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not Console().is_dumb_terminal


def _print(looking: Looking, where: str, *, as_json: bool) -> None:
    nobody = looking.nobody()
    if as_json:
        print_json(empty(nobody, "shared") if nobody else looking.look().document)
    elif nobody:
        click.echo(f"{nobody}.")
    else:
        wide = sys.stdout.isatty() or "COLUMNS" in os.environ
        console = Console(width=None if wide else _WIDTH_IN_FILES_CHARS)
        print_drawn(console, drawn(looking.look(), paper_of(console), where))
