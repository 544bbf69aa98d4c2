"""``comporta batch``: manages which users may configure sheets for their batch jobs.

A user's own record decides; without one, that of the user's team does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.table import Table

from comporta.cli.console import (
    json_option,
    limit_option,
    new_table,
    print_json,
    print_rows,
    printable_text,
)
from comporta.cli.database_option import DATABASE_OPTION_HELP, database_option
from comporta.cli.db import connect_existing
from comporta.database.migrations import check_applied
from comporta.service.batch.migrations import MIGRATIONS
from comporta.service.batch.whitelist import Whitelist, WhitelistEntry

_DELAY_NOTE = "Workers cache this permission for up to 5 minutes."

_team_option = click.option("--team", "is_team", is_flag=True, help="Treat NAME as a team of users.")


@click.group()
def batch() -> None:
    """Manage which users may configure sheets for their batch jobs."""


@batch.command(epilog=DATABASE_OPTION_HELP)
@click.argument("name")
@_team_option
@database_option
@json_option
def allow(name: str, is_team: bool, database: str | None, as_json: bool) -> None:
    """Allow a user or a team to configure sheets."""
    _set_permission(name, database, is_team=is_team, digital=True, as_json=as_json)


@batch.command(epilog=DATABASE_OPTION_HELP)
@click.argument("name")
@_team_option
@database_option
@json_option
def deny(name: str, is_team: bool, database: str | None, as_json: bool) -> None:
    """Stop allowing a user or a team to configure sheets.

    Sheets that are already configured continue to receive rows.
    """
    _set_permission(name, database, is_team=is_team, digital=False, as_json=as_json)


@batch.command(epilog=DATABASE_OPTION_HELP)
@click.argument("user")
@click.argument("team")
@database_option
@json_option
def join(user: str, team: str, database: str | None, as_json: bool) -> None:
    """Add a user to a team, whose permission then applies to the user.

    This deletes a permission that was given to the user directly.
    """
    with _open_whitelist(database) as whitelist:
        whitelist.set_user(user, team=team)
        digital = whitelist.is_digital(user)
    if as_json:
        print_json({"kind": "user", "name": user, "team": team, "digital": digital})
    else:
        click.echo(f"Joined: the permission of team {team} applies to {user}. {_DELAY_NOTE}")


@batch.command("list", epilog=DATABASE_OPTION_HELP)
@database_option
@limit_option
@json_option
def list_permissions(database: str | None, limit: int, as_json: bool) -> None:
    """List users and teams with their permissions."""
    with _open_whitelist(database) as whitelist:
        rows = whitelist.list_entries(limit)
    empty_message = "No user may configure sheets yet. To allow one, run `comporta batch allow USER`."
    print_rows([row._asdict() for row in rows], lambda: _table(rows), empty_message, as_json=as_json)


def _set_permission(name: str, database: str | None, *, is_team: bool, digital: bool, as_json: bool) -> None:
    with _open_whitelist(database) as whitelist:
        if is_team:
            whitelist.set_team(name, digital=digital)
        else:
            whitelist.set_user_digital(name, digital=digital)
    if as_json:
        print_json({"kind": "team" if is_team else "user", "name": name, "digital": digital})
        return
    subject = f"team {name}" if is_team else name
    result = f"Allowed: {subject} may" if digital else f"Denied: {subject} may not"
    click.echo(f"{result} configure sheets. {_DELAY_NOTE}")


@contextmanager
def _open_whitelist(url: str | None) -> Iterator[Whitelist]:
    with connect_existing(url) as database:
        check_applied(database, MIGRATIONS)
        try:
            yield Whitelist(database)
        except ValueError as error:
            raise click.UsageError(str(error)) from None


def _table(rows: Sequence[WhitelistEntry]) -> Table:
    table = new_table("kind", "name", "team", "sheets")
    for row in rows:
        table.add_row(
            row.kind,
            printable_text(row.name),
            printable_text(row.team or "-"),
            "yes" if row.digital else "no",
        )
    return table
