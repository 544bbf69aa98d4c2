"""``comporta tokens``: adds, lists and revokes the API tokens of the service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import click
from rich.table import Table

from comporta.cli.console import (
    json_option,
    limit_option,
    new_table,
    print_json,
    print_table,
    printable_text,
)
from comporta.cli.database_option import DATABASE_OPTION_HELP, database_option
from comporta.cli.db import connect_existing
from comporta.database.migrations import check_applied
from comporta.service.migrations import SERVICE_MIGRATIONS
from comporta.service.tokens import TokenRecord, TokenTable


@click.group()
def tokens() -> None:
    """Add, list and revoke the API tokens of the service."""


@tokens.command(epilog=DATABASE_OPTION_HELP)
@click.argument("name")
@click.option("--user", metavar="USER", help="Let the token stand for this user.  [default: NAME]")
@click.option("--admin", "is_admin", is_flag=True, help="Open the admin routes to the token.")
@database_option
@json_option
def add(name: str, user: str | None, is_admin: bool, database: str | None, as_json: bool) -> None:
    """Add a token and print it.

    The database stores only a hash, so the token cannot be shown again.
    """
    with _open_table(database) as table:
        token = table.add(name, user or name, is_admin=is_admin)
    if as_json:
        print_json({"name": name, "user": user or name, "admin": is_admin, "token": token})
    else:
        click.echo(token)
        click.echo(f"Added {name} for user {user or name}. Store the token now.", err=True)


@tokens.command("list", epilog=DATABASE_OPTION_HELP)
@database_option
@limit_option
@json_option
def list_tokens(database: str | None, limit: int, as_json: bool) -> None:
    """List tokens without their secrets, including revoked ones."""
    with _open_table(database) as table:
        rows = table.list_tokens(limit)
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(_table(rows))
    else:
        click.echo("There are no tokens. To add one, run `comporta tokens add NAME`.")


@tokens.command(epilog=DATABASE_OPTION_HELP)
@click.argument("name")
@database_option
@json_option
def revoke(name: str, database: str | None, as_json: bool) -> None:
    """Revoke a token. Every worker refuses it within 5 s."""
    with _open_table(database) as table:
        was_valid = table.revoke(name)
    if not was_valid:
        raise click.ClickException(
            f"there is no valid token {name!r:.100}. `comporta tokens list` shows all."
        )
    if as_json:
        print_json({"name": name, "revoked": True})
    else:
        click.echo(f"Revoked {name}. Workers refuse it within 5 s.")


@contextmanager
def _open_table(url: str | None) -> Iterator[TokenTable]:
    with connect_existing(url) as database:
        check_applied(database, SERVICE_MIGRATIONS)
        try:
            yield TokenTable(database)
        except ValueError as error:
            raise click.UsageError(str(error)) from None


def _table(rows: Sequence[TokenRecord]) -> Table:
    table = new_table("name", "user", "admin", "added", "revoked")
    for row in rows:
        table.add_row(
            printable_text(row.name),
            printable_text(row.user),
            "yes" if row.is_admin else "no",
            _date(row.created_at),
            "-" if row.revoked_at is None else _date(row.revoked_at),
        )
    return table


def _date(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
