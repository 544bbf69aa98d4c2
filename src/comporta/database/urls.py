"""From a URL to a database.

======================================  ==========================================
``sqlite:///file.db``                   a file, relative to where the program runs
``sqlite:////var/lib/app/file.db``      a file
``postgresql://user:password@host/db``  a server (and whatever else libpq reads)
======================================  ==========================================

Either takes ``?timeout=`` (seconds a call may take), a server ``?connections=`` as well.
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

_OURS = ("timeout", "connections")


def default_url() -> str:
    """Return where the database is when nobody says: ``DATABASE_URL``, or a file of this user's."""
    return os.environ.get("DATABASE_URL") or f"sqlite:///{default_path()}"


def default_path() -> Path:
    """Return the file in the user's data folder; whether there is one is another question."""
    base = os.environ.get("XDG_DATA_HOME") or ""
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share"
    return folder / "comporta" / "comporta.db"


def file_of(url: str) -> Path | None:
    """Return the file that a URL names; nothing if it is a server's, or names none."""
    rest, _ = _options(url)
    name = unquote(rest.removeprefix("sqlite:///"))
    return None if rest == name or not name or "\0" in name else Path(name)


def open_database(url: str | None = None) -> Database:
    """Return the database of a URL; nothing is connected to before it is used."""
    if url is None:
        url = default_url()
    if not isinstance(url, str):
        raise TypeError(f"database must be a URL or a database, got {type(url).__name__}")
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        return _sqlite(url)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    raise ValueError(f"database must start with sqlite:/// or postgresql://, got {_shown(scheme)!r}")


def _sqlite(url: str) -> Database:
    from comporta.database.sqlite import SqliteDatabase  # noqa: PLC0415 - costs 5 ms

    path, (_, options) = file_of(url), _options(url)
    if path is None:
        raise ValueError("database must name a file, as in sqlite:///file.db, or with four / from the root")
    if "connections" in options:
        raise ValueError("sqlite:// takes timeout, got 'connections'")
    timeout = _number(options, "timeout", float, TIMEOUT_SECONDS)
    return SqliteDatabase(path, timeout, own_folder=path == default_path())


def _postgres(url: str) -> Database:
    try:
        from comporta.database.postgres import CONNECTIONS, PostgresDatabase  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ImportError("postgresql:// needs psycopg: pip install 'comporta[postgres]'") from None
    rest, options = _options(url)
    timeout = _number(options, "timeout", float, TIMEOUT_SECONDS)
    return PostgresDatabase(rest, timeout, _number(options, "connections", int, CONNECTIONS))


def _options(url: str) -> tuple[str, dict[str, str]]:
    """Take our own options out of a URL; the rest of it stays as it was written."""
    rest, _, query = url.partition("?")
    words = [word.partition("=") for word in query.split("&") if word]
    ours = {name: unquote(value) for name, _, value in words if name in _OURS}
    theirs = "&".join(f"{name}{sign}{value}" for name, sign, value in words if name not in _OURS)
    return (f"{rest}?{theirs}" if theirs else rest), ours


def _number(options: dict[str, str], name: str, kind: Callable[[str], T], default: T) -> T:
    try:
        return kind(options[name]) if name in options else default
    except ValueError:
        raise ValueError(f"{name} must be a number, got {options[name]!r:.50}") from None


def _shown(scheme: str) -> str:
    """Return the beginning of a URL for an error message: nothing that could be a password.

    It may be none: ``host=db password=secret`` is a way to write it elsewhere.
    """
    return scheme[:30] if scheme.replace("+", "").isalnum() else "none"
