"""``comporta db``: shows and runs the migrations of a database.

``status`` changes nothing: it does not create a missing database file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.table import Table
from rich.text import Text

from comporta.cli.console import json_option, new_table, print_rows, show_spinner, utc_time
from comporta.cli.database_option import DATABASE_HELP, database_argument
from comporta.database import migrations
from comporta.database.base import Database
from comporta.database.migrations import Migration, MigrationStatus
from comporta.database.urls import open_database
from comporta.errors import DatabaseError, DatabaseUnavailableError
from comporta.service.migrations import MIGRATIONS


@click.group()
def db() -> None:
    """Create and update the tables of a database."""


@db.command(epilog=DATABASE_HELP)
@database_argument
@json_option
def migrate(database: str | None, as_json: bool) -> None:
    """Run the pending migrations in order.

    Several processes may run this at the same time.
    """
    with connect_database(database) as connection:
        completed = {each.number for each in MIGRATIONS if _run_migration(connection, each)}
        rows = [each for each in migrations.status(connection, MIGRATIONS) if each.number in completed]
    _print_migrations(rows, f"Nothing to do: {connection.address} is up to date.", as_json=as_json)


@db.command(epilog=DATABASE_HELP)
@database_argument
@json_option
def status(database: str | None, as_json: bool) -> None:
    """Show which migrations have run.

    The command exits with 1 if a migration is pending.
    """
    with connect_database(database) as connection:
        rows = _all_pending() if is_missing(connection) else migrations.status(connection, MIGRATIONS)
    _print_migrations(rows, as_json=as_json)
    pending = sum(each.applied_at is None for each in rows)
    if not as_json:
        click.echo(f"{pending} pending. To run them: `comporta db migrate`." if pending else "Up to date.")
    if pending:
        sys.exit(1)


def _run_migration(database: Database, migration: Migration) -> bool:
    """Run a migration if it is pending, with a spinner: a large table may take minutes."""
    with show_spinner(f"Migration {migration.number}, {migration.name}"):
        return bool(migrations.migrate(database, [migration]))


@contextmanager
def connect_database(url: str | None) -> Iterator[Database]:
    """Open the database at a URL, or the default one; report every error in one sentence."""
    try:
        database = open_database(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="DATABASE") from None
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    try:
        yield database
    except DatabaseUnavailableError as error:
        message = str(error).rstrip(".")
        has_hint = message.endswith("?")  # PostgreSQL's messages already ask whether the server runs
        hint = "" if has_hint else ". Check that the server is running and that the URL is right."
        raise click.ClickException(f"{message}{hint}") from None
    except DatabaseError as error:
        raise click.ClickException(str(error)) from None
    finally:
        database.close()


@contextmanager
def connect_existing(url: str | None) -> Iterator[Database]:
    """Open a database for a command that must not create it: a mistyped path is an error."""
    with connect_database(url) as database:
        if is_missing(database):
            raise click.ClickException(
                f"{database.address} does not exist. Check the path, or create it with `comporta db migrate`."
            )
        yield database


def is_missing(database: Database) -> bool:
    """Whether the database is a file that does not exist, which opening would create."""
    return database.path is not None and not database.path.exists()


def _all_pending() -> list[MigrationStatus]:
    return [MigrationStatus(each.number, each.name, None) for each in MIGRATIONS]


def _print_migrations(rows: Sequence[MigrationStatus], empty_message: str = "", *, as_json: bool) -> None:
    print_rows([row._asdict() for row in rows], lambda: _table(rows), empty_message, as_json=as_json)


def _table(rows: Sequence[MigrationStatus]) -> Table:
    table = new_table("number", "migration", "run", right=("number",))
    for row in rows:
        table.add_row(str(row.number), Text(row.name), _applied_time(row.applied_at))
    return table


def _applied_time(at: float | None) -> str:
    return "pending" if at is None else utc_time(at)
