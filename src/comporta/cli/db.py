"""``comporta db``: whether the tables are up to date, and bringing them there.

``status`` changes nothing: a file that is not there is not made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from comporta.cli.completion import databases
from comporta.cli.output import busy, json_option, print_json, print_table, table_of
from comporta.database import migrations
from comporta.database.base import Database
from comporta.database.migrations import Applied, Migration
from comporta.database.urls import open_database
from comporta.errors import DatabaseError, DatabaseUnavailableError
from comporta.service.migrations import MIGRATIONS

DATABASE_HELP = (
    "DATABASE is a URL, such as sqlite:///file.db or postgresql://user:password@host/name; left out, it is "
    "DATABASE_URL, else a file in the user's data folder."
)


@click.group()
def db() -> None:
    """Bring the tables of a database up to date."""


@db.command(epilog=DATABASE_HELP)
@click.argument("database", required=False, shell_complete=databases)
@json_option
def migrate(database: str | None, as_json: bool) -> None:
    """Run the migrations that are missing, in order.

    Safe while others do the same.
    """
    with opened(database) as found:
        done = {each.number for each in MIGRATIONS if _ran(found, each)}
        ran = [each for each in migrations.status(found, MIGRATIONS) if each.number in done]
    _show(ran, f"Nothing to do: {found.address} is up to date.", as_json=as_json)


@db.command(epilog=DATABASE_HELP)
@click.argument("database", required=False, shell_complete=databases)
@json_option
def status(database: str | None, as_json: bool) -> None:
    """Show which migrations were run.

    Exits with 1 if one is missing.
    """
    with opened(database) as found:
        rows = _untouched() if _absent(found) else migrations.status(found, MIGRATIONS)
    _show(rows, as_json=as_json)
    missing = sum(each.applied_at is None for each in rows)
    if not as_json:
        click.echo(f"{missing} missing: `comporta db migrate` runs them." if missing else "Up to date.")
    if missing:
        sys.exit(1)


def _ran(database: Database, migration: Migration) -> bool:
    """Run a migration that is missing: a large table may take minutes."""
    with busy(f"Migration {migration.number}, {migration.name}"):
        return bool(migrations.migrate(database, [migration]))


@contextmanager
def opened(url: str | None) -> Iterator[Database]:
    """Open the database that is meant; what is wrong is one sentence."""
    try:
        database = open_database(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="DATABASE") from None
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    try:
        yield database
    except DatabaseUnavailableError as error:
        said = str(error).rstrip(".")
        asked = (
            "" if said.endswith("?") else ". Is it running, and is the URL right?"
        )  # PostgreSQL asks itself
        raise click.ClickException(f"{said}{asked}") from None
    except DatabaseError as error:
        raise click.ClickException(str(error)) from None
    finally:
        database.close()


def _absent(database: Database) -> bool:
    path: Path | None = getattr(database, "path", None)
    return path is not None and not path.exists()


def _untouched() -> list[Applied]:
    return [Applied(each.number, each.name, None) for each in MIGRATIONS]


def _show(rows: Sequence[Applied], otherwise: str = "", *, as_json: bool) -> None:
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(_table(rows))
    else:
        click.echo(otherwise)


def _table(rows: Sequence[Applied]) -> Table:
    table = table_of("number", "migration", "run", right=("number",))
    for row in rows:
        table.add_row(str(row.number), Text(row.name), _moment(row.applied_at))
    return table


def _moment(at: float | None) -> str:
    return "missing" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
