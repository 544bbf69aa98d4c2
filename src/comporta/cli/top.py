"""``comporta top``: the dashboard in a terminal.

``top_source`` and ``top_database`` read the data, ``top_render`` and ``top_upstreams`` lay it out,
``top_screen`` keeps it live.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing

import click
from rich.console import Console

from comporta.cli.console import json_option, print_json, print_renderable
from comporta.cli.database_option import database_option
from comporta.cli.state_option import STATE_HELP, display_url, state_argument, state_url
from comporta.cli.top_render import render
from comporta.cli.top_screen import canvas_for, run_live
from comporta.cli.top_source import FleetSource, empty_document

_PIPED_WIDTH_CHARS = 160


@click.command(epilog=STATE_HELP)
@state_argument
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    help="Wait this many seconds between two refreshes.",
)
@click.option("--once", is_flag=True, help="Print one snapshot and exit, as in a pipe.")
@database_option
@json_option
def top(state: str | None, every: float, once: bool, database: str | None, as_json: bool) -> None:
    """Watch a fleet live: upstreams, workers and events.

    Press q or Ctrl-C to quit, and ? for the keys. Counts are those of the whole fleet in the last minute.
    If --database or the settings of the service name a database, it also shows the cache and the batch jobs.
    """
    url = state_url(state)
    if url.startswith("memory://"):
        raise click.UsageError(
            "top cannot read memory://, which exists only inside one process: use shared:// or a server"
        )
    with closing(FleetSource(url, database)) as source:
        if once or as_json or not _is_interactive():
            _print_once(source, display_url(url), as_json=as_json)
        else:
            run_live(source, every, display_url(url))


def _is_interactive() -> bool:
    """Whether standard input and output are a terminal that can redraw the screen."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not Console().is_dumb_terminal


def _print_once(source: FleetSource, where: str, *, as_json: bool) -> None:
    missing = source.missing_reason()
    if as_json:
        print_json(empty_document(missing, "shared") if missing else source.read().document)
    elif missing:
        click.echo(f"{missing}.")
    else:
        has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
        console = Console(width=None if has_width else _PIPED_WIDTH_CHARS)
        print_renderable(console, render(source.read(), canvas_for(console), where))
