"""From a URL to a database, and what is said of one that is wrong."""

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
from comporta.database.urls import default_path, open_database
from comporta.errors import DatabaseUnavailableError

ONE = Statement("SELECT 1")


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("DATABASE_URL", raising=False)


def test_open__nothing_said__is_a_file_in_the_users_data_folder(tmp_path: Path) -> None:
    database = open_database()
    assert isinstance(database, SqliteDatabase)
    assert database.path == tmp_path / "data" / "comporta" / "comporta.db"
    assert not database.path.parent.exists()
    assert database.read(ONE, {}) == [(1,)]
    database.close()
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("said", ["", "relative"])
def test_default__no_data_folder_said__is_below_home(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", said)
    monkeypatch.setenv("HOME", "/somebody")
    assert default_path() == Path("/somebody/.local/share/comporta/comporta.db")


def test_open__data_folder_cannot_be_made__is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    database = open_database()
    with pytest.raises(DatabaseUnavailableError, match="Not a directory"):
        database.read(ONE, {})
    database.close()


def test_open__environment_says__is_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/own%20name.db?timeout=2.5")
    database = open_database()
    assert isinstance(database, SqliteDatabase)
    assert (database.path, database.timeout) == (tmp_path / "own name.db", 2.5)


def test_open__relative_file__is_where_the_program_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    database = open_database("sqlite:///x.db")
    assert isinstance(database, SqliteDatabase)
    assert database.path == tmp_path / "x.db"


def test_open__server__takes_our_options_and_leaves_the_others() -> None:
    database = open_database("postgresql://me:secret@db:5433/app?sslmode=disable&timeout=1&connections=2")
    assert isinstance(database, PostgresDatabase)
    assert database.address == "postgresql://db:5433/app"
    assert database.timeout == 1
    assert "sslmode=disable" in database._conninfo
    assert open_database("postgres://me@/").address == "postgresql://localhost/me"
    assert open_database("postgresql://").address == "postgresql://localhost/"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://me:secret@db/app", "must start with sqlite:/// or postgresql://, got 'mysql'"),
        ("mysql://db/app?password=secret", "must start with sqlite:/// or postgresql://, got 'mysql'"),
        ("postgresql+psycopg://me:secret@db/app", "or postgresql://, got 'postgresql+psycopg'"),
        ("host=db password=secret", "must start with sqlite:/// or postgresql://, got 'none'"),
        ("file.db", "must start with sqlite:/// or postgresql://, got 'none'"),
        ("sqlite://", "must name a file, as in sqlite:///file.db"),
        ("sqlite:///x%00.db", "must name a file"),
        ("sqlite:///", "must name a file"),
        ("sqlite://file.db", "must name a file"),
        ("sqlite:///x.db?connections=3", "sqlite:// takes timeout, got 'connections'"),
        ("sqlite:///x.db?timeout=soon", "timeout must be a number, got 'soon'"),
        ("sqlite:///x.db?timeout=0", "timeout must be 0.001 to 3600 seconds, got 0.0"),
        ("postgresql://db/app?timeout=nan", "timeout must be 0.001 to 3600 seconds, got nan"),
        ("postgresql://db/app?connections=0", "connections must be 1 to 100, got 0"),
        ("postgresql://me:sec/ret@db/app", "database cannot be read: the port must be a number"),
        ("postgresql://me:1/secret@db/app", "database cannot be read"),
        ("postgresql://me:1@secret@db/app", "database cannot be read"),
        ("postgresql://me:secret@db/app?nonsense=1", "database cannot be read"),
    ],
)
def test_open__wrong_url__says_what_and_shows_no_password(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        open_database(url)
    assert "sec" not in str(caught.value).replace("seconds", "")


def test_open__no_text__is_a_type_error() -> None:
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
    said = r"comporta\[postgres\]" if missing == "psycopg" else "No module named 'another'"
    with pytest.raises(ImportError, match=said):
        open_database("postgresql://db/app")
