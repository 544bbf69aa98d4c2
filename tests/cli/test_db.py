"""``comporta db``: tables that are missing, made, and there."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import listed, run, run_for_real

from comporta.cache.table import CacheTable
from comporta.database.urls import open_database

NUMBERS = [1, 2, 3, 4, 5, 50, 100, 200]


def test_db__empty_database__is_migrated_once(empty_database_url: str) -> None:
    missing = run("db", "status", empty_database_url)
    assert missing.exit_code == 1
    assert missing.stdout.count(" missing\n") == len(NUMBERS)
    assert missing.stdout.endswith(f"{len(NUMBERS)} missing: `comporta db migrate` runs them.\n")
    done = listed("db", "migrate", empty_database_url)
    assert [each["number"] for each in done] == NUMBERS
    assert done == listed("db", "status", empty_database_url)
    there = run("db", "status", empty_database_url)
    assert there.exit_code == 0
    assert there.stdout.endswith("Up to date.\n")
    again = run("db", "migrate", empty_database_url)
    assert again.exit_code == 0
    assert again.stdout.startswith("Nothing to do: ")
    assert listed("db", "migrate", empty_database_url) == []


def test_migrate__for_people__is_a_table(tmp_path: Path) -> None:
    ran = run("db", "migrate", f"sqlite:///{tmp_path}/x.db")
    assert ran.exit_code == 0
    assert "the health of every key" in ran.stdout
    assert "UTC" in ran.stdout


def test_status__no_file__makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    ran = run("db", "status")
    assert ran.exit_code == 1
    assert [each["applied_at"] for each in listed("db", "status")] == [None] * len(NUMBERS)
    assert list(tmp_path.iterdir()) == []


def test_migrate__environment_says_where__is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/x.db")
    ran = run_for_real("db", "migrate")
    assert ran.returncode == 0, ran.stderr
    database = open_database()
    CacheTable(database).check()
    database.close()


def test_db__database_not_there__is_one_sentence_without_the_password() -> None:
    ran = run("db", "status", "postgresql://me:geheim@127.0.0.1:1/app")
    assert ran.exit_code == 1
    assert ran.output.startswith("Error: postgresql://127.0.0.1:1/app: ")
    assert "geheim" not in ran.output


def test_db__wrong_url__is_a_usage_error() -> None:
    ran = run("db", "migrate", "mysql://db")
    assert ran.exit_code == 2
    assert "database must start with sqlite:/// or postgresql://, got 'mysql'" in ran.output


def test_db__driver_missing__names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "comporta.database.postgres":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    ran = run("db", "status", "postgresql://db/app")
    assert ran.exit_code == 1
    assert "pip install 'comporta[postgres]'" in ran.output
