"""Opens the database that a URL names.

======================================  ==========================================
``sqlite:///file.db``                   a file, relative to the working directory
``sqlite:////var/lib/app/file.db``      a file
``postgresql://user:password@host/db``  a server; other libpq options are passed on
======================================  ==========================================

Both accept ``?timeout=`` (seconds that a call may take); a server also accepts ``?connections=`` (the most
connections for each event loop, and for all blocking callers together).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from comporta.database.base import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from comporta.database.base import Database

T = TypeVar("T")

_OPTION_NAMES = ("timeout", "connections")


def default_url() -> str:
    """Return the URL of the default database: ``DATABASE_URL``, or a SQLite file in the data folder."""
    return os.environ.get("DATABASE_URL") or f"sqlite:///{default_path()}"


def default_path() -> Path:
    """Return the path of the SQLite file in the user's data folder; it may not exist."""
    base = os.environ.get("XDG_DATA_HOME") or ""
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share"
    return folder / "comporta" / "comporta.db"


def sqlite_path(url: str) -> Path | None:
    """Return the file that a URL names; ``None`` if it names a server, or no file."""
    rest, _ = _split_options(url)
    if not rest.startswith("sqlite:///"):
        return None
    name = unquote(rest.removeprefix("sqlite:///"))
    return None if not name or "\0" in name else Path(name)


def without_options(url: str) -> str:
    """Return a URL without the options ``timeout`` and ``connections``."""
    return _split_options(url)[0]


def open_database(url: str | None = None, timeout: float = TIMEOUT_SECONDS) -> Database:
    """Return the database that a URL names; it connects on first use.

    A call may take ``timeout`` seconds, unless the URL says otherwise.
    """
    if url is None:
        url = default_url()
    if not isinstance(url, str):
        raise TypeError(f"database must be a URL or a database, got {type(url).__name__}")
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        return _sqlite(url, timeout)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, timeout)
    raise ValueError(
        f"database must start with sqlite:/// or postgresql://, got {_printable_scheme(scheme)!r}"
    )


def _sqlite(url: str, timeout: float) -> Database:
    from comporta.database.sqlite import SqliteDatabase  # noqa: PLC0415 - costs 5 ms

    path, (_, options) = sqlite_path(url), _split_options(url)
    if path is None:
        raise ValueError(
            "database must name a file: sqlite:///file.db, or sqlite:////path/to/file.db for an absolute path"
        )
    if "connections" in options:
        raise ValueError("sqlite:// takes only the option timeout, got 'connections'")
    timeout = _parse_number(options, "timeout", float, timeout)
    return SqliteDatabase(path, timeout, create_folder=path == default_path())


def _postgres(url: str, timeout: float) -> Database:
    try:
        from comporta.database.postgres import CONNECTIONS, PostgresDatabase  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ImportError("postgresql:// needs psycopg: pip install 'comporta[postgres]'") from None
    rest, options = _split_options(url)
    timeout = _parse_number(options, "timeout", float, timeout)
    return PostgresDatabase(rest, timeout, _parse_number(options, "connections", int, CONNECTIONS))


def _split_options(url: str) -> tuple[str, dict[str, str]]:
    """Split ``timeout`` and ``connections`` off a URL; the rest stays unchanged."""
    rest, _, query = url.partition("?")
    options = [option.partition("=") for option in query.split("&") if option]
    own = {name: unquote(value) for name, _, value in options if name in _OPTION_NAMES}
    passed_on = "&".join(f"{name}{sign}{value}" for name, sign, value in options if name not in _OPTION_NAMES)
    return (f"{rest}?{passed_on}" if passed_on else rest), own


def _parse_number(options: dict[str, str], name: str, kind: Callable[[str], T], default: T) -> T:
    try:
        return kind(options[name]) if name in options else default
    except ValueError:
        raise ValueError(f"{name} must be a number, got {options[name]!r:.50}") from None


def _printable_scheme(scheme: str) -> str:
    """Return the scheme of a URL for an error message, without anything that could be a password.

    The text may not be a URL at all: libpq also accepts ``host=db password=secret``.
    """
    return scheme[:30] if scheme.replace("+", "").isalnum() else "none"
