"""``comporta workers``: lists the live workers of a state.

It reads the worker registry (``stores/failover/worker_registry.py``) and does not register itself.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import click
from rich.table import Table

from comporta.cli.console import json_option, new_table, print_rows, printable_text, rough_duration
from comporta.cli.state_option import (
    STATE_HELP,
    doctor_command,
    inspect_store,
    shared_url,
    state_argument,
    state_url,
)
from comporta.errors import StateError
from comporta.stores.failover.worker_registry import ListWorkers, LiveWorker


class WorkerRow(NamedTuple):
    """A row of the list: ``started`` in Unix seconds, the age of the last heartbeat in milliseconds."""

    host: str
    pid: int
    started: int
    last_heartbeat_ms: int


@click.command(epilog=STATE_HELP)
@state_argument
@json_option
def workers(state: str | None, as_json: bool) -> None:
    """List the live workers of a state."""
    url = state_url(state)
    shared = shared_url(url)
    rows: list[WorkerRow] = []
    reason = ""
    if shared is not None and not os.path.lexists(shared.path):  # opening it would create it
        reason = f": no process on this machine uses shared://{shared.name}"
    elif url.startswith("memory://"):
        reason = ": processes do not share memory://"
    else:
        rows = _live_workers(url)
    records, empty_message = [row._asdict() for row in rows], f"No live workers{reason}."
    print_rows(records, lambda: _table(rows, time.time()), empty_message, as_json=as_json)


def _live_workers(url: str) -> list[WorkerRow]:
    with inspect_store(url) as (store, _):
        try:
            signs = store.apply(ListWorkers())
        except StateError as error:
            message = str(error).rstrip(".")
            raise click.ClickException(f"{message}. To diagnose it, run `{doctor_command(url)}`.") from None
    return sorted(map(_worker_row, signs))


def _worker_row(sign: LiveWorker) -> WorkerRow:
    worker = sign.worker
    return WorkerRow(worker.host, worker.pid, worker.started, round(sign.age * 1000))


def _table(rows: list[WorkerRow], now: float) -> Table:
    right = ("pid", "started", "last heartbeat")
    table = new_table("host", *right, right=right)
    for row in rows:
        age = f"{rough_duration(now - row.started)} ago"
        table.add_row(printable_text(row.host), str(row.pid), age, f"{row.last_heartbeat_ms:,} ms ago")
    return table
