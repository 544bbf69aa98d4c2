"""``comporta cache``: lists the entries of a cache, shows their health, and refreshes or removes them.

A command has no loader: ``refresh`` marks a key, and the next worker that calls ``refresh_due`` fetches it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from comporta.cache.invalidation import PublishInvalidation
from comporta.cache.local import key_digest
from comporta.cache.params import check_hash, check_user
from comporta.cache.queries import decode_column
from comporta.cache.rows import CacheRow, ListedRow
from comporta.cache.tables import CacheTables
from comporta.cli.completion import complete_state
from comporta.cli.console import (
    json_option,
    limit_option,
    new_table,
    print_json,
    print_rows,
    print_table,
    printable_text,
    rough_duration,
)
from comporta.cli.database_option import DATABASE_OPTION_HELP, database_option
from comporta.cli.db import connect_existing
from comporta.cli.state_option import inspect_store, shared_url, state_url
from comporta.errors import StateError

_NOT_NOTIFIED = "workers may serve it from their local cache for up to local_ttl (default: 1 minute)."


@click.group()
def cache() -> None:
    """Inspect, refresh and remove the entries of a cache."""


@cache.command("list", epilog=DATABASE_OPTION_HELP)
@database_option
@click.option("--user", metavar="USER", help="List only the entries of this user.")
@click.option("--degraded", is_flag=True, help="List only degraded keys: they failed and are in backoff.")
@limit_option
@json_option
def list_entries(database: str | None, user: str | None, degraded: bool, limit: int, as_json: bool) -> None:
    """List the entries, the most recently fetched first."""
    with connect_existing(database) as connection:
        rows = _open_table(connection).list_rows(limit, user_id=user, degraded=degraded)
    empty_message = "No key is degraded." if degraded else "The cache is empty."
    print_rows([row._asdict() for row in rows], lambda: _list_table(rows), empty_message, as_json=as_json)


@cache.command(epilog=DATABASE_OPTION_HELP)
@click.argument("user")
@click.argument("params_hash")
@database_option
@click.option("--value", "with_value", is_flag=True, help="Print the cached value as JSON.")
@json_option
def show(user: str, params_hash: str, database: str | None, with_value: bool, as_json: bool) -> None:
    """Show the health of one entry of a user."""
    _check_arguments(user, params_hash)
    with connect_existing(database) as connection:
        entry = _open_table(connection).read(user, params_hash)
    if entry is None:
        raise _not_found(f" for {user}", params_hash)
    if with_value:
        click.echo(entry.results.decode())
    elif as_json:
        print_json(_as_dict(entry))
    else:
        print_table(_entry_table(entry))


@cache.command(epilog=DATABASE_OPTION_HELP)
@click.argument("params_hash")
@database_option
@click.option("--user", metavar="USER", help="Refresh only the entry of this user.")
@json_option
def refresh(params_hash: str, database: str | None, user: str | None, as_json: bool) -> None:
    """Mark a key to be fetched again.

    The next worker that calls refresh_due fetches it.
    """
    _check_arguments(user, params_hash)
    with connect_existing(database) as connection:
        marked = _open_table(connection).mark_due(params_hash, user)
    if not marked:
        raise _not_found("", params_hash)
    if as_json:
        print_json({"params_hash": params_hash, "marked": marked})
    else:
        entries = "1 entry" if marked == 1 else f"{marked} entries"
        click.echo(f"Marked {entries}. The next worker that calls refresh_due fetches the key.")


@cache.command(epilog=DATABASE_OPTION_HELP)
@click.argument("user")
@click.argument("params_hash")
@database_option
@click.option(
    "--state",
    metavar="STATE",
    shell_complete=complete_state,
    help="Notify the workers through this state; use the same as in HealthCache.",
)
@click.option(
    "--name",
    default="cache",
    show_default=True,
    help="Notify the workers of the cache with this name; use the same as in HealthCache.",
)
@json_option
def remove(
    user: str, params_hash: str, *, database: str | None, state: str | None, name: str, as_json: bool
) -> None:
    """Remove the entry of a user, and notify the workers.

    Without --state, the command uses COMPORTA_STATE, or else REDIS_URL, or else shared://.
    """
    _check_arguments(user, params_hash)
    with connect_existing(database) as connection:
        table = _open_table(connection)
        removed = table.remove(user, params_hash)
        table.remove(user, params_hash, f"{user}:{params_hash}")  # the key of a cache that separates users
    if not removed:
        raise _not_found(f" for {user}", params_hash)
    problem = _notify_workers(state, name, params_hash)
    if as_json:
        result = {"user_id": user, "params_hash": params_hash}
        print_json({**result, "notified": not problem, "reason": problem or None})
    else:
        click.echo(f"Removed. {problem or 'The workers were notified.'}")


def _notify_workers(state: str | None, name: str, params_hash: str) -> str:
    """Publish an invalidation of the key; return why that was not possible, or an empty string."""
    url = state_url(state)
    shared = shared_url(url)
    if url.startswith("memory://") or (shared is not None and not os.path.lexists(shared.path)):
        return f"No worker shares {url}: {_NOT_NOTIFIED}"
    try:
        with inspect_store(url) as (store, _):
            store.apply(PublishInvalidation(name, key_digest(params_hash)))
    except (StateError, click.ClickException) as error:
        return f"The workers were not notified ({str(error).rstrip('.')}): {_NOT_NOTIFIED}"
    return ""


def _open_table(database: Any) -> CacheTables:
    table = CacheTables(database)
    table.check()
    return table


def _not_found(of_user: str, params_hash: str) -> click.ClickException:
    return click.ClickException(
        f"there is no entry{of_user} with the key {params_hash}. To list the entries, run "
        "`comporta cache list`."
    )


def _check_arguments(user: str | None, params_hash: str) -> None:
    try:
        check_hash(params_hash)
        if user is not None:
            check_user(user)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _list_table(rows: Sequence[ListedRow]) -> Table:
    right = ("results", "age", "failures", "next try", "reads", "priority")
    table = new_table("user", "key", *right, right=right, shortened=("user", "key"))
    for row in rows:
        table.add_row(
            printable_text(row.user_id),
            row.params_hash,
            f"{row.total_results:,}" if row.has_value else "none",
            rough_duration(row.now - row.fetched_at) if row.has_value else "-",
            str(row.fail_streak),
            _time_left(row.degraded_until, row.now),
            str(row.access_count),
            row.priority,
        )
    return table


def _entry_table(entry: CacheRow) -> Table:
    table = new_table("field", "value")
    for name, value in _as_dict(entry).items():
        if name == "now":  # the table shows times relative to it
            continue
        table.add_row(name, printable_text("-" if value is None else _field_text(name, value, entry.now)))
    return table


def _as_dict(entry: CacheRow) -> dict[str, Any]:
    """Return the fields of an entry without its value."""
    fields = entry._asdict()
    del fields["results"]
    fields["search_params"] = decode_column(entry.search_params)
    fields["coverage"] = decode_column(entry.coverage)
    fields["size_bytes"] = len(entry.results) if entry.has_value else 0
    return fields


def _field_text(name: str, value: Any, now: float) -> str:
    if name == "degraded_until":
        return _time_left(value, now)
    if name.endswith("_at"):
        return f"{rough_duration(now - value)} ago"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time_left(moment: float | None, now: float) -> str:
    return "-" if moment is None or moment <= now else f"in {rough_duration(moment - now)}"
