"""Database URLs: what they open, and the errors for invalid ones."""

from __future__ import annotations

import builtins
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from comporta.database.base import Statement
from comporta.database.postgres import PostgresDatabase
from comporta.database.sqlite import SqliteDatabase
from comporta.database.urls import default_path, open_database, sqlite_path
from comporta.errors import DatabaseUnavailableError

ONE = Statement("SELECT 1")


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("DATABASE_URL", raising=False)


def test_open__no_url__is_a_file_in_the_user_data_folder(tmp_path: Path) -> None:
    database = open_database()
    assert isinstance(database, SqliteDatabase)
    assert database.path == tmp_path / "data" / "comporta" / "comporta.db"
    assert not database.path.parent.exists()
    assert database.read(ONE, {}) == [(1,)]
    database.close()
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("data_home", ["", "relative"])
def test_default_path__no_xdg_data_home__is_below_home(
    monkeypatch: pytest.MonkeyPatch, data_home: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", data_home)
    monkeypatch.setenv("HOME", "/somewhere")
    assert default_path() == Path("/somewhere/.local/share/comporta/comporta.db")


def test_open__data_folder_not_creatable__raises_unavailable(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    database = open_database()
    with pytest.raises(DatabaseUnavailableError, match="Not a directory"):
        database.read(ONE, {})
    database.close()


def test_open__database_url_set__uses_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/own%20name.db?timeout=2.5")
    database = open_database()
    assert isinstance(database, SqliteDatabase)
    assert (database.path, database.timeout) == (tmp_path / "own name.db", 2.5)


def test_open__relative_path__is_relative_to_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    database = open_database("sqlite:///x.db")
    assert isinstance(database, SqliteDatabase)
    assert database.path == tmp_path / "x.db"


def test_open__server__takes_its_options_and_passes_on_the_rest() -> None:
    database = open_database("postgresql://me:secret@db:5433/app?sslmode=disable&timeout=1&connections=2")
    assert isinstance(database, PostgresDatabase)
    assert database.address == "postgresql://db:5433/app"
    assert database.timeout == 1
    assert "sslmode=disable" in database._connector._conninfo
    assert open_database("postgres://me@/").address == "postgresql://localhost/me"
    assert open_database("postgresql://").address == "postgresql://localhost/"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://me:secret@db/app", "must start with sqlite:/// or postgresql://, got 'mysql'"),
        ("mysql://db/app?password=secret", "must start with sqlite:/// or postgresql://, got 'mysql'"),
        ("postgresql+psycopg://me:secret@db/app", "or postgresql://, got 'postgresql+psycopg'"),
        ("host=db password=secret", "must start with sqlite:/// or postgresql://, got 'none'"),
        ("file.db", "must start with sqlite:/// or postgresql://, got 'none'"),
        ("sqlite://", "must name a file: sqlite:///file.db"),
        ("sqlite:///x%00.db", "must name a file"),
        ("sqlite:///", "must name a file"),
        ("sqlite://file.db", "must name a file"),
        ("sqlite:///x.db?connections=3", "sqlite:// takes only the option timeout, got 'connections'"),
        ("sqlite:///x.db?timeout=soon", "timeout must be a number, got 'soon'"),
        ("sqlite:///x.db?timeout=0", "timeout must be 0.001 to 3600 seconds, got 0.0"),
        ("postgresql://db/app?timeout=nan", "timeout must be 0.001 to 3600 seconds, got nan"),
        ("postgresql://db/app?connections=0", "connections must be 1 to 100, got 0"),
        (
            "postgresql://me:sec/ret@db/app",
            "a valid PostgreSQL URL: the port must be a number",
        ),
        ("postgresql://me:1/secret@db/app", "database is not a valid PostgreSQL URL"),
        ("postgresql://me:1@secret@db/app", "database is not a valid PostgreSQL URL"),
        ("postgresql://me:secret@db/app?nonsense=1", "database is not a valid PostgreSQL URL"),
    ],
)
def test_open__invalid_url__raises_without_showing_a_password(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        open_database(url)
    assert "sec" not in str(caught.value).replace("seconds", "")


def test_open__not_a_string__raises_type_error() -> None:
    with pytest.raises(TypeError, match="database must be a URL or a database, got bytes") as caught:
        open_database(b"postgresql://me:secret@db/app")  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("missing", ["psycopg", "another"])
def test_open__driver_missing__names_the_extra(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "comporta.database.postgres":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    message = r"comporta\[postgres\]" if missing == "psycopg" else "No module named 'another'"
    with pytest.raises(ImportError, match=message):
        open_database("postgresql://db/app")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///a%20b.db?timeout=1", Path("a b.db")),
        ("sqlite:////srv/x.db", Path("/srv/x.db")),
        ("sqlite:///", None),
        ("sqlite:///a%00b", None),
        ("postgresql://me:a%20password@db/name", None),
        ("postgresql://db/name?options=-csearch_path%3Dours", None),
    ],
)
def test_sqlite_path__any_url__is_the_file_or_none(url: str, path: Path | None) -> None:
    assert sqlite_path(url) == path
