"""``comporta batch``: who may have sheets, by their own record or by that of their team."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.table import Table
from rich.text import Text

from comporta.cli.db import DATABASE_HELP, opened
from comporta.cli.output import print_table
from comporta.database.migrations import check
from comporta.service.batch.migrations import MIGRATIONS
from comporta.service.batch.whitelist import Listed, Whitelist

ROWS_MAX = 10_000
_HEARD = "Workers that asked before hear of it within five minutes."

_database = click.option("--database", metavar="URL", help="Where the tables are.")
_team = click.option("--team", "is_team", is_flag=True, help="NAME is a team: all of its users.")
_help = DATABASE_HELP.replace("DATABASE is a URL", "URL is that of a database")


@click.group()
def batch() -> None:
    """Say which users may have sheets for their batches."""


@batch.command(epilog=_help)
@click.argument("name")
@_team
@_database
def allow(name: str, is_team: bool, database: str | None) -> None:
    """Let a user have sheets."""
    _say(name, database, is_team=is_team, digital=True)
    click.echo(f"Allowed. {_HEARD}")


@batch.command(epilog=_help)
@click.argument("name")
@_team
@_database
def deny(name: str, is_team: bool, database: str | None) -> None:
    """Let a user have no sheets any more.

    Sheets that are there are filled on.
    """
    _say(name, database, is_team=is_team, digital=False)
    click.echo(f"Denied. {_HEARD}")


@batch.command(epilog=_help)
@click.argument("user")
@click.argument("team")
@_database
def join(user: str, team: str, database: str | None) -> None:
    """Let what is said of a team go for a user.

    What was said of the user before is forgotten.
    """
    with _whitelist(database) as whitelist:
        whitelist.set_user(user, team=team)
    click.echo(f"Joined. {_HEARD}")


@batch.command(epilog=_help)
@_database
@click.option("--limit", type=click.IntRange(1, ROWS_MAX), default=100, show_default=True, help="At most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
def ls(database: str | None, limit: int, as_json: bool) -> None:
    """List users and teams, and who may have sheets."""
    with _whitelist(database) as whitelist:
        rows = whitelist.listed(limit)
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2))
    elif rows:
        print_table(_table(rows))
    else:
        click.echo("Nobody may have sheets yet: `comporta batch allow USER` lets a user.")


def _say(name: str, database: str | None, *, is_team: bool, digital: bool) -> None:
    with _whitelist(database) as whitelist:
        if is_team:
            whitelist.set_team(name, digital=digital)
        else:
            whitelist.let_user(name, digital=digital)


@contextmanager
def _whitelist(url: str | None) -> Iterator[Whitelist]:
    with opened(url) as database:
        check(database, MIGRATIONS)
        try:
            yield Whitelist(database)
        except ValueError as error:
            raise click.UsageError(str(error)) from None


def _table(rows: Sequence[Listed]) -> Table:
    table = Table()
    for heading in ("kind", "name", "team", "sheets"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row.kind, Text(row.name), Text(row.team or "-"), "yes" if row.digital else "no")
    return table
