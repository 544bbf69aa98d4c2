"""The argument STATE of commands, and a store to inspect without becoming one of its workers.

A command uses the primary store directly, so it never starts the heartbeat that would register this process
as a worker. It never creates a state. A wrong URL is a usage error, and no message shows a password.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast
from urllib.parse import parse_qsl, urlsplit

import click

from comporta.cli.completion import complete_state
from comporta.errors import StateError
from comporta.state_schemes import REDIS_SCHEMES
from comporta.stores.base import Store
from comporta.stores.redis.store import RedisStore
from comporta.stores.registry import APP_DEFAULT, check_url, close_stores, default_url, open_store
from comporta.stores.shared.directory import directory_path
from comporta.stores.shared.layout import MEMORY_MB_DEFAULT, table_geometry
from comporta.stores.shared.store import SharedStore, check_name

DIAGNOSTIC_TIMEOUT_SECONDS = 2.0
"""How long a command waits for a server: longer than a decision may."""

STATE_HELP = (
    "STATE is a URL such as redis://host:6379/0 or shared://my-app. Without it, the command uses "
    "COMPORTA_STATE, or else REDIS_URL, or else shared://."
)


state_argument = click.argument("state", required=False, shell_complete=complete_state)


class InspectedStore(NamedTuple):
    """A store to inspect, and the time-out in seconds that workers have for a decision on it."""

    store: Store
    deadline: float


class SharedUrl(NamedTuple):
    """The parts of a ``shared://`` URL."""

    name: str
    memory_mb: int

    @property
    def path(self) -> str:
        """The directory of this state, which may not exist yet."""
        return directory_path(self.name)


def state_url(argument: str | None) -> str:
    """Return the URL from the argument or the default one; raise a usage error if it is invalid."""
    url = argument or default_url(distributed=True)
    if url.startswith(("http://", "https://")):
        expected = "the URL of a store, such as redis://host:6379/0 or shared://my-app, not of a web page"
        raise _usage_error(ValueError(f"state must be {expected}, got {display_url(url)!r}"))
    try:
        check_url(url)
    except ValueError as error:
        raise _usage_error(error) from None
    return url


def display_url(url: str) -> str:
    """Return a URL without its user, its password and its options."""
    parts = urlsplit(url)
    if parts.scheme == "shared":
        return f"shared://{parts.netloc or os.environ.get('COMPORTA_APP') or APP_DEFAULT}"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def doctor_command(url: str) -> str:
    """Return the command that checks this state, with a placeholder if the URL may hold a password."""
    return f"comporta doctor {url}" if display_url(url) == url else "comporta doctor STATE"


def is_single_server(url: str) -> bool:
    """Whether one Redis or Valkey server holds the state: neither a cluster nor another engine."""
    return url.partition("://")[0] in REDIS_SCHEMES


def shared_url(url: str) -> SharedUrl | None:
    """Parse a ``shared://`` URL without opening it; return ``None`` for another scheme."""
    parts = urlsplit(url)
    if parts.scheme != "shared":
        return None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = parts.netloc + parts.path or os.environ.get("COMPORTA_APP") or APP_DEFAULT
    unknown = options.keys() - {"memory", "lock_timeout"}
    memory = options.get("memory", str(MEMORY_MB_DEFAULT))
    try:
        check_name(name)
        if unknown:
            raise ValueError(f"shared:// has the options memory and lock_timeout, got {min(unknown)!r}")
        if not memory.isdecimal():
            raise ValueError(f"memory must be a whole number of MB, got {memory!r:.50}")
        table_geometry(int(memory))
    except ValueError as error:
        raise _usage_error(error) from None
    return SharedUrl(name, int(memory))


@contextmanager
def inspect_store(url: str) -> Iterator[InspectedStore]:
    """Open the primary store of a state; report every error in one sentence."""
    logging.getLogger("comporta").addHandler(_NULL_HANDLER)  # the command itself reports errors
    try:
        primary = open_store(url).primary
        inspected = _with_diagnostic_timeout(url, primary)
    except ValueError as error:
        raise _usage_error(error) from None
    except StateError as error:
        raise click.ClickException(str(error)) from None
    try:
        yield inspected
    finally:
        if inspected.store is not primary:
            inspected.store.close()
        close_stores()


_NULL_HANDLER = logging.NullHandler()


def _with_diagnostic_timeout(url: str, store: Store) -> InspectedStore:
    """Return the store with a longer time-out if it is a server; locks have a time-out of their own."""
    if is_single_server(url):
        return _inspect_server(url, cast(RedisStore, store))
    if url.startswith("shared://"):
        return InspectedStore(store, cast(SharedStore, store).lock_timeout)
    return InspectedStore(store, DIAGNOSTIC_TIMEOUT_SECONDS)


def _inspect_server(url: str, store: RedisStore) -> InspectedStore:
    from comporta.cli.redis_connection import DiagnosticConnection  # noqa: PLC0415 - an extra
    from comporta.stores.redis.sentinel import SentinelRoute  # noqa: PLC0415 - an extra

    has_sentinels = "+sentinel://" in url
    primary_url = (
        cast(SentinelRoute, store.route).primary_url(DIAGNOSTIC_TIMEOUT_SECONDS)
        if has_sentinels
        else store.url
    )
    try:
        DiagnosticConnection(primary_url, DIAGNOSTIC_TIMEOUT_SECONDS)
    except TypeError as error:  # redis-py treats every URL option as a keyword argument
        option = str(error).rpartition(" ")[2]
        raise ValueError(
            f"the URL has the option {option}, which comporta and redis-py do not know"
        ) from None
    return InspectedStore(RedisStore(primary_url, DIAGNOSTIC_TIMEOUT_SECONDS), store.timeout)


def _usage_error(error: Exception) -> click.BadParameter:
    return click.BadParameter(str(error), param_hint="STATE")
