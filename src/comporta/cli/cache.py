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

from comporta.cache.changes import Announce
from comporta.cache.level import digest_of
from comporta.cache.params import check_hash, check_user
from comporta.cache.rows import Entry, Listed
from comporta.cache.table import CacheTable
from comporta.cli.completion import states
from comporta.cli.db import DATABASE_HELP, opened
from comporta.cli.output import (
    database_option,
    json_option,
    plain,
    print_json,
    print_table,
    rough,
    table_of,
)
from comporta.cli.states import opened as opened_state
from comporta.cli.states import shared_url, state_url
from comporta.errors import StateError

ROWS_MAX = 10_000
_UNTOLD = "workers that hold it in memory forget it within level_seconds (a minute)."

_help = DATABASE_HELP.replace("DATABASE is a URL", "URL is that of a database")


@click.group()
def cache() -> None:
    """See what a cache keeps, and how its keys fare."""


@cache.command(epilog=_help)
@database_option
@click.option("--user", metavar="USER", help="Only this user's.")
@click.option("--degraded", is_flag=True, help="Only keys that are left alone for now.")
@click.option("--limit", type=click.IntRange(1, ROWS_MAX), default=100, show_default=True, help="At most.")
@json_option
def ls(database: str | None, user: str | None, degraded: bool, limit: int, as_json: bool) -> None:
    """List what is kept, the freshest first."""
    with opened(database) as found:
        rows = _checked(found).rows(limit, user_id=user, degraded=degraded)
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(_listing(rows))
    else:
        click.echo("No key is left alone." if degraded else "Nothing is kept yet.")


@cache.command(epilog=_help)
@click.argument("user")
@click.argument("params_hash")
@database_option
@click.option("--value", "with_value", is_flag=True, help="Print the value itself, as JSON.")
@json_option
def show(user: str, params_hash: str, database: str | None, with_value: bool, as_json: bool) -> None:
    """Show how one key of a user fares."""
    _check(user, params_hash)
    with opened(database) as found:
        entry = _checked(found).read(user, params_hash)
    if entry is None:
        raise _nothing_kept(f" for {user}", params_hash)
    if with_value:
        click.echo(entry.results.decode())
    elif as_json:
        print_json(_as_dict(entry))
    else:
        print_table(_shown(entry))


@cache.command(epilog=_help)
@click.argument("params_hash")
@database_option
@click.option("--user", metavar="USER", help="Only this user's.")
@json_option
def refresh(params_hash: str, database: str | None, user: str | None, as_json: bool) -> None:
    """Have a key fetched anew by the service.

    It is marked; the next worker to call refresh_due fetches it.
    """
    _check(user, params_hash)
    with opened(database) as found:
        marked = _checked(found).mark_due(params_hash, user)
    if not marked:
        raise _nothing_kept("", params_hash)
    if as_json:
        print_json({"params_hash": params_hash, "marked": marked})
    else:
        click.echo(f"Marked: {marked} to be fetched anew by the next worker that looks for what is due.")


@cache.command(epilog=_help)
@click.argument("user")
@click.argument("params_hash")
@database_option
@click.option(
    "--state",
    metavar="STATE",
    shell_complete=states,
    help="Where the workers hear of changes, as in HealthCache.",
)
@click.option("--name", default="cache", show_default=True, help="The name of the cache, as in HealthCache.")
@json_option
def rm(
    user: str, params_hash: str, *, database: str | None, state: str | None, name: str, as_json: bool
) -> None:
    """Remove what is kept for a user under a key.

    The workers are told through the state (left out: COMPORTA_STATE, else REDIS_URL, else shared://).
    """
    _check(user, params_hash)
    with opened(database) as found:
        table = _checked(found)
        removed = table.rm(user, params_hash)
        table.rm(user, params_hash, f"{user}:{params_hash}")  # where users are kept apart
    if not removed:
        raise _nothing_kept(f" for {user}", params_hash)
    why = _told(state, name, params_hash)
    if as_json:
        print_json({"user_id": user, "params_hash": params_hash, "told": not why, "why": why or None})
    else:
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


def _nothing_kept(whose: str, params_hash: str) -> click.ClickException:
    return click.ClickException(
        f"nothing is kept{whose} under {params_hash}. `comporta cache ls` lists what is."
    )


def _check(user: str | None, params_hash: str) -> None:
    try:
        check_hash(params_hash)
        if user is not None:
            check_user(user)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _listing(rows: Sequence[Listed]) -> Table:
    right = ("results", "age", "failed", "tried again", "used", "priority")
    table = table_of("user", "key", *right, right=right, shortened=("user", "key"))
    for row in rows:
        table.add_row(
            plain(row.user_id),
            row.params_hash,
            f"{row.total_results:,}" if row.has_value else "none",
            rough(row.now - row.fetched_at) if row.has_value else "-",
            str(row.fail_streak),
            _until(row.degraded_until, row.now),
            str(row.access_count),
            row.priority,
        )
    return table


def _shown(entry: Entry) -> Table:
    table = table_of("field", "value")
    for name, value in _as_dict(entry).items():
        if name == "now":  # times are said by how long ago they were
            continue
        table.add_row(name, plain("-" if value is None else _text(name, value, entry.now)))
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
        return f"{rough(now - value)} ago"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _until(moment: float | None, now: float) -> str:
    return "-" if moment is None or moment <= now else f"in {rough(moment - now)}"
