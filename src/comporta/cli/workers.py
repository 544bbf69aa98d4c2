"""``comporta workers``: who shares a state at this moment.

It reads the registry that the workers keep (``stores/workers.py``) and does not enter itself.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import click
from rich.table import Table

from comporta.cli.output import json_option, plain, print_json, print_table, rough, table_of
from comporta.cli.states import STATE_HELP, doctor, opened, shared_url, state_argument, state_url
from comporta.errors import StateError
from comporta.stores.workers import Roll, Sign


class Row(NamedTuple):
    """A worker as it is listed: ``started`` in Unix seconds, the last sign of life in milliseconds ago."""

    host: str
    pid: int
    started: int
    last_sign_ms: int


@click.command(epilog=STATE_HELP)
@state_argument
@json_option
def workers(state: str | None, as_json: bool) -> None:
    """List the live workers of a state."""
    url = state_url(state)
    shared = shared_url(url)
    rows: list[Row] = []
    why = ""
    if shared is not None and not os.path.lexists(shared.path):  # to open it would make it
        why = f": nobody on this machine uses shared://{shared.name}"
    elif url.startswith("memory://"):
        why = ": memory:// is not shared between processes"
    else:
        rows = _listed(url)
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(_table(rows, time.time()))
    else:
        click.echo(f"No workers{why}.")


def _listed(url: str) -> list[Row]:
    with opened(url) as (store, _):
        try:
            signs = store.apply(Roll())
        except StateError as error:
            said = str(error).rstrip(".")
            raise click.ClickException(f"{said}. `{doctor(url)}` tells what to mend.") from None
    return sorted(map(_row, signs))


def _row(sign: Sign) -> Row:
    worker = sign.worker
    return Row(worker.host, worker.pid, worker.started, round(sign.age * 1000))


def _table(rows: list[Row], now: float) -> Table:
    right = ("pid", "started", "last sign of life")
    table = table_of("host", *right, right=right)
    for row in rows:
        age = f"{rough(now - row.started)} ago"
        table.add_row(plain(row.host), str(row.pid), age, f"{row.last_sign_ms:,} ms ago")
    return table
