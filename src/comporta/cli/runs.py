"""``comporta runs``: shows the progress of shared runs, prints their dead letters and removes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.table import Table

from comporta.cli.console import (
    json_option,
    limit_option,
    new_table,
    print_json,
    print_rows,
    print_table,
    printable,
    printable_text,
    utc_time,
)
from comporta.cli.database_option import DATABASE_OPTION_HELP, database_option
from comporta.cli.db import connect_database, is_missing
from comporta.database.base import Database
from comporta.database.command import execute
from comporta.database.migrations import status
from comporta.pipeline.run.progress import format_duration
from comporta.pipeline.run.report import quantity
from comporta.pipeline.shared_run import commands
from comporta.pipeline.shared_run.migrations import MIGRATIONS
from comporta.pipeline.shared_run.models import RunOverview, WorkerOverview
from comporta.pipeline.shared_run.removal import remove_run

DEAD_LETTERS_READ = 1000

_run_argument = click.argument("run")


@click.group()
def runs() -> None:
    """Show the progress of shared runs and remove them.

    RUN is the id of a run, the first characters of it, or the name of its file.
    """


@runs.command("list", epilog=DATABASE_OPTION_HELP)
@database_option
@limit_option
@json_option
def list_runs(database: str | None, limit: int, as_json: bool) -> None:
    """List shared runs, the latest first."""
    with connect_database(database) as connection:
        found = execute(connection, commands.list_runs(limit)) if _has_runs(connection) else []
        address = connection.address
    empty_message = f"No shared run in {address}. To start one, use `comporta run --shared`."
    records = [_run_record(run) for run in found]
    print_rows(records, lambda: _runs_table(found), empty_message, as_json=as_json)


@runs.command(epilog=DATABASE_OPTION_HELP)
@_run_argument
@database_option
@json_option
def show(run: str, database: str | None, as_json: bool) -> None:
    """Show the progress of a run, and what each worker does."""
    with _find_run(run, database) as (connection, overview):
        workers = execute(connection, commands.list_workers(overview.run_id))
    if as_json:
        print_json({**_run_record(overview), "workers": [_worker_record(worker) for worker in workers]})
        return
    for line in _run_lines(overview):
        click.echo(line)
    if workers:
        print_table(_workers_table(workers))


@runs.command(epilog=DATABASE_OPTION_HELP)
@_run_argument
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of JSON lines.")
def dead(run: str, database: str | None, as_json: bool) -> None:
    """Print the dead letters of a run as JSON lines.

    `comporta run` accepts them as INPUT.
    """
    with _find_run(run, database) as (connection, overview):
        letters = _dead_letters(connection, overview.run_id)
        if as_json:
            _print_list(letters)
            return
        for letter in letters:
            click.echo(letter)


@runs.command(epilog=DATABASE_OPTION_HELP)
@_run_argument
@click.option(
    "--force", is_flag=True, help="Remove the run even if processes are working on it; they then exit."
)
@database_option
@json_option
def remove(run: str, force: bool, database: str | None, as_json: bool) -> None:
    """Remove a run, its lines that are not done and its dead letters.

    The rows that it wrote are kept.
    """
    with _find_run(run, database) as (connection, overview):
        if overview.live_workers and not force:
            live = quantity(overview.live_workers, "live process", "live processes")
            raise click.ClickException(
                f"run {overview.run_id} has {live}: stop what works on it, or use --force"
            )
        remove_run(connection, overview.run_id)
    if as_json:
        print_json({"run": overview.run_id, "removed": True})
    else:
        click.echo(f"Removed run {overview.run_id} ({printable(overview.name)}).")


def _dead_letters(database: Database, run_id: str) -> Iterator[str]:
    after = -1
    while letters := execute(database, commands.read_dead_letters(run_id, after, DEAD_LETTERS_READ)):
        for _, letter in letters:
            yield letter
        after = letters[-1][0]


def _print_list(letters: Iterator[str]) -> None:
    """Print JSON values as a list, one at a time: there may be millions."""
    before = "["
    for letter in letters:
        click.echo(before + letter, nl=False)
        before = ",\n"
    click.echo("[]" if before == "[" else "]")


def _has_runs(database: Database) -> bool:
    if is_missing(database):
        return False
    return all(each.applied_at is not None for each in status(database, MIGRATIONS))


@contextmanager
def _find_run(given: str, url: str | None) -> Iterator[tuple[Database, RunOverview]]:
    with connect_database(url) as database:
        found = execute(database, commands.find_run_ids(given)) if _has_runs(database) else []
        if len(found) > 1:
            raise click.BadParameter(
                f"{given!r:.100} names several runs; use an id from `comporta runs list`", param_hint="RUN"
            )
        overview = execute(database, commands.read_run(found[0])) if found else None
        if overview is None:
            raise click.BadParameter(
                f"must name a run in {database.address} (see `comporta runs list`), got {given!r:.100}",
                param_hint="RUN",
            )
        yield database, overview


def _run_record(run: RunOverview) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "name": run.name,
        "status": run.status,
        **run.identity,
        "lines": run.line_count,
        "done": run.counts.done,
        **run.counts._asdict(),
        "workers_live": run.live_workers,
        "rate": round(run.rate, 1),
        "created_at": run.created_at,
        "loaded_at": run.loaded_at,
        "finished_at": run.finished_at,
    }


def _worker_record(worker: WorkerOverview) -> dict[str, Any]:
    return {
        "worker": worker.worker,
        "is_live": worker.is_live,
        **worker.counts._asdict(),
        "rate": round(worker.rate, 1),
        "held": worker.held,
        "first_position": worker.first_position,
        "last_position": worker.last_position,
        "started_at": worker.started_at,
    }


def _runs_table(found: list[RunOverview]) -> Table:
    table = new_table(
        "run",
        "name",
        "status",
        "done",
        "lines",
        "dead",
        "rate",
        "workers",
        "started",
        right=("done", "lines", "dead", "rate", "workers"),
    )
    for run in found:
        table.add_row(
            run.run_id,
            printable_text(run.name),
            run.status,
            f"{run.counts.done:,}",
            f"{run.line_count:,}",
            f"{run.counts.dead:,}",
            f"{run.rate:,.1f}/s",
            f"{run.live_workers:,}",
            utc_time(run.created_at),
        )
    return table


def _run_lines(run: RunOverview) -> list[str]:
    counts = run.counts
    of = f"{run.line_count:,}" if run.loaded_at is not None else f"{run.line_count:,} loaded so far"
    lines = [
        f"{run.run_id}: {printable(run.name)}, {run.status}, started {utc_time(run.created_at)}",
        *(f"{name}: {printable(value)}" for name, value in run.identity.items()),
        (
            f"{counts.done:,} of {of} done: {counts.written:,} with rows, "
            f"{quantity(counts.dead, 'dead letter')}, {counts.without_rows:,} without rows"
        ),
    ]
    if run.finished_at is not None:
        lines.append(f"Finished {utc_time(run.finished_at)}.")
    elif run.rate > 0:
        left = format_duration((run.line_count - counts.done) / run.rate)
        lines.append(f"{run.rate:,.1f}/s, {left} left")
    return lines


def _workers_table(workers: list[WorkerOverview]) -> Table:
    table = new_table(
        "worker",
        "status",
        "rows",
        "dead",
        "rate",
        "holds",
        "from",
        "to",
        right=("rows", "dead", "rate", "holds", "from", "to"),
    )
    for worker in workers:
        table.add_row(
            printable_text(worker.worker),
            "live" if worker.is_live else "ended",
            f"{worker.counts.written:,}",
            f"{worker.counts.dead:,}",
            f"{worker.rate:,.1f}/s",
            f"{worker.held:,}",
            *(
                "-" if position is None else f"{position + 1:,}"
                for position in (worker.first_position, worker.last_position)
            ),
        )
    return table
