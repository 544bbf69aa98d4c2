"""From a URL to a store.

========================================================= ==============================================
``memory://``                                             this limiter alone
``memory://name``                                         all who say so in this process
``shared://name?keys=16384&lock_timeout=0.5``             all processes of this user on this machine
``redis://``, ``rediss://``, ``valkey://``, ``unix://``   a fleet (``?timeout=0.05`` and redis-py's)
``redis+sentinel://``, ``redis+cluster://``, …            a fleet, on more than one server
========================================================= ==============================================
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from comporta import forks
from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.stores.failover import FailoverStore
from comporta.stores.memory import MemoryStore

if TYPE_CHECKING:
    from comporta.stores.base import Store

APP_DEFAULT = "default"

_lock = Lock()
_open: dict[str, Store] = {}

forks.renew_after_fork(_lock)


def default_url(*, distributed: bool) -> str:
    """Return where state lives when nobody says: this process, or what the environment says.

    ``COMPORTA_STATE``, then ``REDIS_URL``, then ``shared://`` named after ``COMPORTA_APP``.
    """
    if not distributed:
        return "memory://"
    return os.environ.get("COMPORTA_STATE") or os.environ.get("REDIS_URL") or "shared://"


def open_store(url: str) -> Store:
    """Return the store of a URL. Who opens the same URL in one process gets the same store."""
    if not isinstance(url, str):
        raise TypeError(f"state must be a URL or a store, got {url!r:.100}")
    if url == "memory://":
        return MemoryStore()
    check_url(url)
    opener = _OPENERS.get(url.partition("://")[0]) if "://" in url else None
    if opener is None:
        allowed = ", ".join(f"{scheme}://" for scheme in _OPENERS)
        raise ValueError(f"state must start with one of {allowed}, got {_shown(url)!r}")
    with _lock:
        store = _open.get(url)
        if store is None:
            store = _open[url] = opener(url)
        return store


def store_of(state: str | Store) -> Store:
    """Return the store that was given, or that of a URL; a client of a server's is neither."""
    if not isinstance(state, str) and not hasattr(state, "apply"):
        raise TypeError(f"state must be a URL or a store, got {state!r:.100}")
    return open_store(state) if isinstance(state, str) else state


def check_url(url: str) -> None:
    """Refuse a URL whose password is cut short by a sign that means something: parts of it would be shown."""
    readable = True
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:
        readable = False
    else:
        readable = parts.scheme == "unix" or "@" not in url.partition("://")[2].removeprefix(parts.netloc)
    if not readable:
        raise ValueError(
            "state cannot be read: the port must be a number, and in a user or password / is written %2F, "
            "? %3F, # %23, @ %40"
        )


def forget_stores() -> None:
    """Close all stores opened by URL, and open them anew when next asked for; for tests."""
    with _lock:
        while _open:
            _open.popitem()[1].close()


def _shown(url: str) -> str:
    """Return a URL for an error message: nothing that could be a password."""
    return url.rpartition("@")[2][:100]


def _memory(_: str) -> Store:
    return MemoryStore()


def _shared(url: str) -> Store:
    from comporta.stores.shared import SharedStore, supported  # noqa: PLC0415 - not on every platform

    parts = urlsplit(url)
    name = parts.netloc + parts.path
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    keys = _option(options, "keys", int)
    lock_timeout = _option(options, "lock_timeout", float)
    if options:
        raise ValueError(f"shared:// takes keys and lock_timeout, got {min(options)!r}")
    given = {"keys": keys, "lock_timeout": lock_timeout}
    name = name or os.environ.get("COMPORTA_APP") or APP_DEFAULT
    opens = partial(
        SharedStore,
        name,
        **{option: value for option, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    store = FailoverStore(opens, f"shared://{name}", MONOTONIC, local=True)
    try:
        _ = store.primary  # so that what is wrong with the URL is said here
    except StateError:
        if not supported():
            raise
    return store  # what else is wrong is found, and lived with, by whoever uses it first


def _redis(url: str) -> Store:
    from comporta.stores.redis import RedisStore  # noqa: PLC0415 - an extra

    rest, bounds = _bounds(url)
    store = RedisStore(rest, **bounds)
    return FailoverStore.of(store, store.address)


def _cluster(url: str) -> Store:
    from comporta.stores.cluster import ClusterStore  # noqa: PLC0415 - an extra

    rest, bounds = _bounds(url)
    store = ClusterStore(rest, **bounds)
    return FailoverStore.of(store, store.address)


def _bounds(url: str) -> tuple[str, dict[str, Any]]:
    """Take our own options out of a URL; the others are redis-py's."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    found = {name: _option(options, name, float) for name in ("timeout", "connect_timeout")}
    bounds = {name: value for name, value in found.items() if value is not None}
    query = f"?{urlencode(options)}" if options else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}" if bounds else url, bounds


def _option(options: dict[str, str], name: str, kind: type[int] | type[float]) -> float | None:
    text = options.pop(name, None)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r:.50}") from None


_SERVERS = ("redis", "rediss", "valkey", "valkeys")

_OPENERS: dict[str, Callable[[str], Store]] = {
    "memory": _memory,
    "shared": _shared,
    **dict.fromkeys((*_SERVERS, "unix", *(f"{scheme}+sentinel" for scheme in _SERVERS)), _redis),
    **dict.fromkeys((f"{scheme}+cluster" for scheme in _SERVERS), _cluster),
}
