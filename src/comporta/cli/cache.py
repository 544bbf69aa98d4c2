"""``comporta cache``: what is kept, how each key fares, and having one refreshed or removed.

A command has no loader: ``refresh`` marks a key, and whichever worker next calls ``refresh_due`` fetches it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from comporta.cache.changes import Announce
from comporta.cache.level import digest_of
from comporta.cache.params import check_hash, check_user
from comporta.cache.rows import Entry, Listed
from comporta.cache.table import CacheTable
from comporta.cli.db import DATABASE_HELP, opened
from comporta.cli.output import print_table
from comporta.cli.states import opened as opened_state
from comporta.cli.states import shared_url, state_url
from comporta.errors import StateError

ROWS_MAX = 10_000
_UNTOLD = "workers that hold it in memory forget it within level_seconds (a minute)."
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))

_database = click.option("--database", metavar="URL", help="Where the tables are.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
_help = DATABASE_HELP.replace("DATABASE is a URL", "URL is that of a database")


@click.group()
def cache() -> None:
    """See what a cache keeps, and how its keys fare."""


@cache.command(epilog=_help)
@_database
@click.option("--user", metavar="USER", help="Only this user's.")
@click.option("--degraded", is_flag=True, help="Only keys that are left alone for now.")
@click.option("--limit", type=click.IntRange(1, ROWS_MAX), default=100, show_default=True, help="At most.")
@_json
def ls(database: str | None, user: str | None, degraded: bool, limit: int, as_json: bool) -> None:
    """List what is kept, the freshest first."""
    with opened(database) as found:
        rows = _checked(found).rows(limit, user_id=user, degraded=degraded)
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2))
    elif rows:
        print_table(_listing(rows))
    else:
        click.echo("Nothing is left alone." if degraded else "Nothing is kept.")


@cache.command(epilog=_help)
@click.argument("user")
@click.argument("params_hash")
@_database
@click.option("--value", "with_value", is_flag=True, help="Print the value itself, as JSON.")
@_json
def show(user: str, params_hash: str, database: str | None, with_value: bool, as_json: bool) -> None:
    """Show how one key of a user fares."""
    _check(user, params_hash)
    with opened(database) as found:
        entry = _checked(found).read(user, params_hash)
    if entry is None:
        raise click.ClickException(f"nothing is kept for {user} under {params_hash}")
    if with_value:
        click.echo(entry.results.decode())
    elif as_json:
        click.echo(json.dumps(_as_dict(entry), indent=2))
    else:
        print_table(_shown(entry))


@cache.command(epilog=_help)
@click.argument("params_hash")
@_database
@click.option("--user", metavar="USER", help="Only this user's.")
def refresh(params_hash: str, database: str | None, user: str | None) -> None:
    """Have a key fetched anew by the service.

    It is marked; the next worker to call refresh_due fetches it.
    """
    _check(user, params_hash)
    with opened(database) as found:
        marked = _checked(found).mark_due(params_hash, user)
    if not marked:
        raise click.ClickException(f"nothing is kept under {params_hash}")
    click.echo(f"Marked: {marked} to be fetched anew by the next worker that looks for what is due.")


@cache.command(epilog=_help)
@click.argument("user")
@click.argument("params_hash")
@_database
@click.option("--state", metavar="STATE", help="Where the workers hear of changes, as in HealthCache.")
@click.option("--name", default="cache", show_default=True, help="The name of the cache, as in HealthCache.")
def rm(user: str, params_hash: str, database: str | None, state: str | None, name: str) -> None:
    """Remove what is kept for a user under a key.

    The workers are told through the state (left out: COMPORTA_STATE, else REDIS_URL, else shared://).
    """
    _check(user, params_hash)
    with opened(database) as found:
        table = _checked(found)
        removed = table.rm(user, params_hash)
        table.rm(user, params_hash, f"{user}:{params_hash}")  # where users are kept apart
    if not removed:
        raise click.ClickException(f"nothing is kept for {user} under {params_hash}")
    why = _told(state, name, params_hash)
    click.echo(f"Removed. {why or 'Workers that hold it in memory forget it now.'}")


def _told(state: str | None, name: str, params_hash: str) -> str:
    """Tell the workers that a key has changed; returns why they could not be told, if so."""
    url = state_url(state)
    shared = shared_url(url)
    if url.startswith("memory://") or (shared is not None and not os.path.lexists(shared.path)):
        return f"Nobody shares {url}: {_UNTOLD}"
    try:
        with opened_state(url) as (store, _):
            store.apply(Announce(name, digest_of(params_hash)))
    except (StateError, click.ClickException) as error:
        return f"The workers could not be told ({str(error).rstrip('.')}): {_UNTOLD}"
    return ""


def _checked(database: Any) -> CacheTable:
    table = CacheTable(database)
    table.check()
    return table


def _check(user: str | None, params_hash: str) -> None:
    try:
        check_hash(params_hash)
        if user is not None:
            check_user(user)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _listing(rows: Sequence[Listed]) -> Table:
    table = Table()
    for heading in ("user", "key"):
        table.add_column(heading)
    for heading in ("results", "age", "failed", "tried again", "used", "priority"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            Text(row.user_id),
            row.params_hash,
            f"{row.total_results:,}" if row.has_value else "none",
            _rough(row.now - row.fetched_at) if row.has_value else "-",
            str(row.fail_streak),
            _until(row.degraded_until, row.now),
            str(row.access_count),
            row.priority,
        )
    return table


def _shown(entry: Entry) -> Table:
    table = Table(show_header=False)
    for name, value in _as_dict(entry).items():
        table.add_row(name, Text("-" if value is None else _text(name, value, entry.now)))
    return table


def _as_dict(entry: Entry) -> dict[str, Any]:
    """Return a row without its body."""
    fields = entry._asdict()
    del fields["results"]
    fields["search_params"] = json.loads(entry.search_params)
    fields["coverage"] = None if entry.coverage is None else json.loads(entry.coverage)
    fields["size_bytes"] = len(entry.results) if entry.has_value else 0
    return fields


def _text(name: str, value: Any, now: float) -> str:
    if name == "degraded_until":
        return _until(value, now)
    if name.endswith("_at"):
        return f"{_rough(now - value)} ago"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _until(moment: float | None, now: float) -> str:
    return "-" if moment is None or moment <= now else f"in {_rough(moment - now)}"


def _rough(seconds: float) -> str:
    """Say a length of time in its largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "0 s"
