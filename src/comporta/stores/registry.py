"""From a state URL to a store, with failover where the state is shared.

========================================================= ==============================================
``memory://``                                             one limiter
``memory://name``                                         everything in this process that uses the name
``shared://name?memory=256&lock_timeout=0.5``              all processes of this user on this machine
``redis://``, ``rediss://``, ``valkey://``, ``unix://``   a fleet (``?timeout=0.05`` and redis-py's options)
``redis+sentinel://``, ``redis+cluster://``, …            a fleet, on more than one server
``name://``                                               what ``register_scheme("name", open)`` opens
========================================================= ==============================================

It loads an engine only when its URL is opened. ``comporta/state_schemes.py`` lists the schemes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from comporta import fork_safety
from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.runtime import PerProcess
from comporta.state_schemes import CLUSTER_SCHEMES, REDIS_SCHEMES, StoreOpener, find_opener
from comporta.stores.base import Store
from comporta.stores.failover.control import ENGINE_ERRORS
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore

APP_DEFAULT = "default"

_lock = RLock()  # an engine may open another one
_open_stores: PerProcess[dict[str, Store]] = PerProcess(dict)

fork_safety.reinit_lock_after_fork(_lock)


def default_url(*, distributed: bool) -> str:
    """Return the URL of the state if the program names none.

    A limit that is not ``distributed`` uses this process's memory. Otherwise the URL is ``COMPORTA_STATE``,
    else ``REDIS_URL``, else ``shared://`` with the name in ``COMPORTA_APP``.
    """
    if not distributed:
        return "memory://"
    return os.environ.get("COMPORTA_STATE") or os.environ.get("REDIS_URL") or "shared://"


def open_store(url: str) -> Store:
    """Return the store of a URL. Every caller in this process that opens the same URL gets the same store.

    A shared store gets failover: its errors begin an outage and do not reach callers.
    """
    if not isinstance(url, str):
        raise TypeError(f"state must be a URL or a store, got {url!r:.100}")
    if url == "memory://":
        return MemoryStore()
    check_url(url)
    scheme, separator, _ = url.partition("://")
    opener = _OPENERS.get(scheme) if separator else None
    if opener is None:
        opener = partial(_open_registered, find_opener(url))
    key = _canonical_url(url)
    with _lock:
        open_stores = _open_stores.get()
        store = open_stores.get(key)
        if store is None:
            store = open_stores[key] = opener(url)
        return store


def opened_store(address: str) -> Store | None:
    """Return the open store of an address, if there is one."""
    with _lock:
        return next((store for store in _open_stores.get().values() if store.address == address), None)


def _canonical_url(url: str) -> str:
    """Return the same text for URLs that omit a default: the application, or database 0.

    Otherwise one program would have two stores for one place, each counted as a worker, and a name could have
    two configurations.
    """
    parts = urlsplit(url)
    if parts.scheme == "shared" and not parts.netloc + parts.path:
        parts = parts._replace(netloc=_app_name())
    elif parts.scheme in REDIS_SCHEMES and parts.scheme != "unix" and not parts.path.strip("/"):
        parts = parts._replace(path="/0") if "db=" not in parts.query else parts
    return f"{parts.scheme}://{parts.netloc}{parts.path}?{parts.query}"


def _app_name() -> str:
    return os.environ.get("COMPORTA_APP") or APP_DEFAULT


def resolve_store(state: str | Store) -> Store:
    """Return the given store, or the store of a URL; ``TypeError`` for others, such as a Redis client."""
    if isinstance(state, Store):
        return state
    return open_store(state)


def check_url(url: str) -> None:
    """Raise ``ValueError`` for a URL in which part of a password could be taken for something else.

    A character such as ``/`` that is not quoted ends the password early, and the rest would be shown.
    """
    is_readable = True
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:
        is_readable = False
    else:
        is_readable = parts.scheme == "unix" or "@" not in url.partition("://")[2].removeprefix(parts.netloc)
    if not is_readable:
        raise ValueError(
            "state cannot be read: the port must be a number, and in a user or password / is written %2F, "
            "? %3F, # %23, @ %40"
        )


def close_stores() -> None:
    """Close all stores opened by URL. The next ``open_store`` opens them again; for tests and commands."""
    with _lock:
        open_stores = _open_stores.get()
        while open_stores:
            open_stores.popitem()[1].close()


def _open_registered(open_engine: StoreOpener, url: str) -> Store:
    """Open an engine that is not built in. If it is unreachable, the heartbeat's probes open it later."""

    def open_checked() -> Store:
        store = open_engine(url)
        if not isinstance(store, Store):
            scheme = url.partition("://")[0]
            raise TypeError(f"the opener of {scheme}:// must return a Store, got {store!r:.100}")
        return store

    try:
        return _with_failover(open_checked())
    except ENGINE_ERRORS:
        parts = urlsplit(url)
        address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return FailoverStore(open_checked, address, MONOTONIC)


def _with_failover(store: Store) -> Store:
    return FailoverStore.wrap(store, store.address) if store.shared and not store.has_heartbeat else store


def _open_memory(_: str) -> Store:
    return MemoryStore()


def _open_shared(url: str) -> Store:
    from comporta.stores.shared.store import SharedStore, is_supported  # noqa: PLC0415 - not on every platform

    parts = urlsplit(url)
    name = parts.netloc + parts.path
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    memory = _pop_number(options, "memory", int)
    lock_timeout = _pop_number(options, "lock_timeout", float)
    if options:
        raise ValueError(f"shared:// takes memory and lock_timeout, got {min(options)!r}")
    given = {"memory": memory, "lock_timeout": lock_timeout}
    name = name or _app_name()
    open_engine = partial(
        SharedStore,
        name,
        **{option: value for option, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    store = FailoverStore(open_engine, f"shared://{name}", MONOTONIC, SharedStore)
    try:
        _ = store.primary  # so that an error in the URL is raised here
    except StateError:
        if not is_supported():
            raise
    return store  # any other problem begins an outage at the first use


def _open_redis(url: str) -> Store:
    from comporta.stores.redis.store import RedisStore  # noqa: PLC0415 - an extra

    redis_py_url, timeouts = _split_timeouts(url)
    return _with_failover(RedisStore(redis_py_url, **timeouts))


def _open_cluster(url: str) -> Store:
    from comporta.stores.redis.cluster import ClusterStore  # noqa: PLC0415 - an extra

    redis_py_url, timeouts = _split_timeouts(url)
    return _with_failover(ClusterStore(redis_py_url, **timeouts))


def _split_timeouts(url: str) -> tuple[str, dict[str, Any]]:
    """Take comporta's own options out of a URL; redis-py reads the others."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = {
        name: _pop_number(options, name, float) for name in ("timeout", "timeout_max", "connect_timeout")
    }
    timeouts = {name: value for name, value in given.items() if value is not None}
    query = f"?{urlencode(options)}" if options else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}" if timeouts else url, timeouts


def _pop_number(options: dict[str, str], name: str, number_type: type[int] | type[float]) -> float | None:
    text = options.pop(name, None)
    if text is None:
        return None
    try:
        return number_type(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r:.50}") from None


_OPENERS: dict[str, Callable[[str], Store]] = {
    "memory": _open_memory,
    "shared": _open_shared,
    **dict.fromkeys(REDIS_SCHEMES, _open_redis),
    **dict.fromkeys(CLUSTER_SCHEMES, _open_cluster),
}
