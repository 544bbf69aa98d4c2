"""``comporta batch``: who may have sheets, by their own record or by that of their team."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.table import Table

from comporta.cli.db import DATABASE_HELP, opened
from comporta.cli.output import database_option, json_option, plain, print_json, print_table, table_of
from comporta.database.migrations import check
from comporta.service.batch.migrations import MIGRATIONS
from comporta.service.batch.whitelist import Listed, Whitelist

ROWS_MAX = 10_000
_HEARD = "Workers that asked before hear of it within five minutes."

_team = click.option("--team", "is_team", is_flag=True, help="NAME is a team: all of its users.")
_help = DATABASE_HELP.replace("DATABASE is a URL", "URL is that of a database")


@click.group()
def batch() -> None:
    """Say which users may have sheets for their batches."""


@batch.command(epilog=_help)
@click.argument("name")
@_team
@database_option
@json_option
def allow(name: str, is_team: bool, database: str | None, as_json: bool) -> None:
    """Let a user have sheets."""
    _say(name, database, is_team=is_team, digital=True, as_json=as_json)


@batch.command(epilog=_help)
@click.argument("name")
@_team
@database_option
@json_option
def deny(name: str, is_team: bool, database: str | None, as_json: bool) -> None:
    """Let a user have no sheets any more.

    Sheets that are there are filled on.
    """
    _say(name, database, is_team=is_team, digital=False, as_json=as_json)


@batch.command(epilog=_help)
@click.argument("user")
@click.argument("team")
@database_option
@json_option
def join(user: str, team: str, database: str | None, as_json: bool) -> None:
    """Let what is said of a team go for a user.

    What was said of the user before is forgotten.
    """
    with _whitelist(database) as whitelist:
        whitelist.set_user(user, team=team)
        digital = whitelist.is_digital(user)
    if as_json:
        print_json({"kind": "user", "name": user, "team": team, "digital": digital})
    else:
        click.echo(f"Joined: what is said of team {team} goes for {user}. {_HEARD}")


@batch.command(epilog=_help)
@database_option
@click.option("--limit", type=click.IntRange(1, ROWS_MAX), default=100, show_default=True, help="At most.")
@json_option
def ls(database: str | None, limit: int, as_json: bool) -> None:
    """List users and teams, and who may have sheets."""
    with _whitelist(database) as whitelist:
        rows = whitelist.listed(limit)
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(_table(rows))
    else:
        click.echo("Nobody may have sheets yet: `comporta batch allow USER` lets a user.")


def _say(name: str, database: str | None, *, is_team: bool, digital: bool, as_json: bool) -> None:
    with _whitelist(database) as whitelist:
        if is_team:
            whitelist.set_team(name, digital=digital)
        else:
            whitelist.let_user(name, digital=digital)
    if as_json:
        print_json({"kind": "team" if is_team else "user", "name": name, "digital": digital})
        return
    who = f"team {name}" if is_team else name
    said = f"Allowed: {who} may have sheets." if digital else f"Denied: {who} may have no sheets."
    click.echo(f"{said} {_HEARD}")


@contextmanager
def _whitelist(url: str | None) -> Iterator[Whitelist]:
    with opened(url) as database:
        check(database, MIGRATIONS)
        try:
            yield Whitelist(database)
        except ValueError as error:
            raise click.UsageError(str(error)) from None


def _table(rows: Sequence[Listed]) -> Table:
    table = table_of("kind", "name", "team", "sheets")
    for row in rows:
        table.add_row(row.kind, plain(row.name), plain(row.team or "-"), "yes" if row.digital else "no")
    return table
