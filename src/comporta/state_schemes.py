"""The URL schemes of state engines: built-in, registered, and provided by installed packages.

This module knows scheme names and functions that open a URL, but no engine, so that a settings file can be
checked without loading one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

StoreOpener = Callable[[str], Any]
"""Opens the :class:`comporta.stores.Store` of a URL."""

ENTRY_POINT_GROUP: Final = "comporta.stores"
"""The entry-point group in which an installed package names its schemes."""

_SERVER_SCHEMES: Final = ("redis", "rediss", "valkey", "valkeys")

REDIS_SCHEMES: Final = (*_SERVER_SCHEMES, "unix", *(f"{scheme}+sentinel" for scheme in _SERVER_SCHEMES))
CLUSTER_SCHEMES: Final = tuple(f"{scheme}+cluster" for scheme in _SERVER_SCHEMES)
BUILT_IN_SCHEMES: Final = ("memory", "shared", *REDIS_SCHEMES, *CLUSTER_SCHEMES)

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")

_registered: dict[str, StoreOpener] = {}


def register_scheme(name: str, open: StoreOpener) -> None:  # noqa: A002 - the documented name
    """Let ``open`` open the state URLs that start with ``name://``.

    ``open`` receives the whole URL and returns a :class:`comporta.stores.Store`. It raises ``ValueError`` for
    a URL that it cannot parse.
    """
    if not _SCHEME.fullmatch(name):
        raise ValueError(f"scheme must be of a-z 0-9 + . - and start with a letter, got {name!r:.50}")
    if not callable(open):
        raise TypeError(f"open must be a function from a URL to a store, got {open!r:.100}")
    if name in BUILT_IN_SCHEMES:
        raise ValueError(f"scheme {name!r} is built in: choose another name")
    if _registered.setdefault(name, open) is not open:
        raise ValueError(f"scheme {name!r} is already registered, with {_registered[name]!r:.100}")


def find_opener(url: str) -> StoreOpener:
    """Return the function that opens a URL whose scheme is not built in; load the package that provides it.

    Raises ``ValueError`` if no engine has the scheme.
    """
    check_scheme(url)
    name = url.partition("://")[0]
    if name not in _registered:
        providers = {point.value: point for point in _entry_points(name)}
        if len(providers) > 1:
            names = ", ".join(sorted(providers))
            raise ValueError(f"several installed packages provide {name}://: {names}; keep one of them")
        [(_, entry_point)] = providers.items()
        register_scheme(name, entry_point.load())
    return _registered[name]


def scheme_names() -> list[str]:
    """Return all schemes that a state URL may have, the built-in ones first."""
    others = {*_registered, *(point.name for point in _entry_points())} - set(BUILT_IN_SCHEMES)
    return [*BUILT_IN_SCHEMES, *sorted(others)]


def check_scheme(url: str) -> None:
    """Raise ``ValueError`` for a state URL whose scheme no engine has; the message names the known ones."""
    scheme, separator, _ = url.partition("://")
    if not separator or not (scheme in BUILT_IN_SCHEMES or scheme in _registered or _entry_points(scheme)):
        known = ", ".join(f"{name}://" for name in scheme_names())
        shown = url.rpartition("@")[2].partition("?")[0]  # show nothing that could be a password
        raise ValueError(f"state must start with one of {known}, got {shown[:100]!r}")


def _entry_points(name: str | None = None) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - only for schemes that are not built in

    selected = entry_points(group=ENTRY_POINT_GROUP)
    return [point for point in selected if name is None or point.name == name]
