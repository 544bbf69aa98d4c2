"""From what was typed to a state to look at, without becoming one of its workers.

A command looks at the store underneath: the keeper, which would announce this process to the others, is never
started. Nothing is made that was not there. Whatever is wrong with a URL is a usage error, and no message
shows a password.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import click

from comporta.cli.completion import states
from comporta.errors import StateError
from comporta.stores.base import Store
from comporta.stores.failover import FailoverStore
from comporta.stores.folder import path_of
from comporta.stores.redis import RedisStore
from comporta.stores.shared import check_name
from comporta.stores.table import KEYS_DEFAULT, geometry
from comporta.stores.urls import APP_DEFAULT, check_url, default_url, forget_stores, open_store

PATIENCE_SECONDS = 2.0
"""How long a command waits for a server: a decision must be quick, a diagnosis need not be."""

STATE_HELP = (
    "STATE is a URL, such as redis://host:6379/0 or shared://my-app; left out, it is COMPORTA_STATE, else "
    "REDIS_URL, else shared://."
)


state_argument = click.argument("state", required=False, shell_complete=states)


class Opened(NamedTuple):
    """A store to look at, and how many seconds a decision may take on it where it is used."""

    store: Store
    deadline: float


class SharedUrl(NamedTuple):
    """What a ``shared://`` URL says."""

    name: str
    keys: int

    @property
    def path(self) -> str:
        """The folder, whether or not there is one."""
        return path_of(self.name)


def state_url(typed: str | None) -> str:
    """Return the URL that is meant; one that cannot be read is a usage error."""
    url = typed or default_url(distributed=True)
    if url.startswith(("http://", "https://")):
        said = "such as redis://host:6379/0 or shared://my-app, not the address of a page"
        raise _bad(ValueError(f"state must be where the workers meet, {said}, got {shown(url)!r}"))
    try:
        check_url(url)
    except ValueError as error:
        raise _bad(error) from None
    return url


def shown(url: str) -> str:
    """Return a URL as people may see it: nothing that could be a password."""
    parts = urlsplit(url)
    if parts.scheme == "shared":
        return f"shared://{parts.netloc or os.environ.get('COMPORTA_APP') or APP_DEFAULT}"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def doctor(url: str) -> str:
    """Return what to type to have this very state looked into; where it has a password, it is not shown."""
    return f"comporta doctor {url}" if shown(url) == url else "comporta doctor STATE"


def shared_url(url: str) -> SharedUrl | None:
    """Read a ``shared://`` URL without opening it; none if it is another kind."""
    parts = urlsplit(url)
    if parts.scheme != "shared":
        return None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = parts.netloc + parts.path or os.environ.get("COMPORTA_APP") or APP_DEFAULT
    unknown = options.keys() - {"keys", "lock_timeout"}
    keys = options.get("keys", str(KEYS_DEFAULT))
    try:
        check_name(name)
        if unknown:
            raise ValueError(f"shared:// takes keys and lock_timeout, got {min(unknown)!r}")
        if not keys.isdecimal():
            raise ValueError(f"keys must be a number, got {keys!r:.50}")
        geometry(int(keys))
    except ValueError as error:
        raise _bad(error) from None
    return SharedUrl(name, int(keys))


@contextmanager
def opened(url: str) -> Iterator[Opened]:
    """Open the store underneath a state; what cannot be used is one sentence."""
    logging.getLogger("comporta").addHandler(_SILENT)  # a command says itself what is wrong
    try:
        store = open_store(url)
        primary = store.primary if isinstance(store, FailoverStore) else store
        found = _patient(primary)
    except ValueError as error:
        raise _bad(error) from None
    except StateError as error:
        raise click.ClickException(str(error)) from None
    try:
        yield found
    finally:
        if found.store is not primary:
            found.store.close()
        forget_stores()


_SILENT = logging.NullHandler()


def _patient(store: Store) -> Opened:
    """Give a server time; a lock has its own bound."""
    if type(store) is not RedisStore:
        return Opened(store, getattr(store, "lock_timeout", PATIENCE_SECONDS))
    from comporta.cli.line import Line  # noqa: PLC0415 - an extra
    from comporta.stores.routes import Watched  # noqa: PLC0415 - an extra

    url = store.route.primary_url(PATIENCE_SECONDS) if isinstance(store.route, Watched) else store.url
    try:
        Line(url, PATIENCE_SECONDS)
    except TypeError as error:  # redis-py takes whatever a URL says for arguments of its own
        option = str(error).rpartition(" ")[2]
        raise ValueError(f"neither comporta nor redis-py knows the option {option} in the URL") from None
    return Opened(RedisStore(url, PATIENCE_SECONDS), store.timeout)


def _bad(error: Exception) -> click.BadParameter:
    return click.BadParameter(str(error), param_hint="STATE")
