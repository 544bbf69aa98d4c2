"""``comporta db``: shows and runs migrations."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cli_runner import run, run_json, run_process

from comporta.cache.tables import CacheTables
from comporta.database.urls import open_database

NUMBERS = [1, 2, 3, 4, 5, 6, 7, 50, 100, 101, 102, 200, 201, 210, 211]


def test_db__empty_database__is_migrated_once(empty_database_url: str) -> None:
    before = run("db", "status", empty_database_url)
    assert before.exit_code == 1
    assert before.stdout.count(" pending\n") == len(NUMBERS)
    assert before.stdout.endswith(f"{len(NUMBERS)} pending. To run them: `comporta db migrate`.\n")
    done = run_json("db", "migrate", empty_database_url)
    assert [each["number"] for each in done] == NUMBERS
    assert done == run_json("db", "status", empty_database_url)
    after = run("db", "status", empty_database_url)
    assert after.exit_code == 0
    assert after.stdout.endswith("Up to date.\n")
    again = run("db", "migrate", empty_database_url)
    assert again.exit_code == 0
    assert again.stdout.startswith("Nothing to do: ")
    assert run_json("db", "migrate", empty_database_url) == []


def test_migrate__without_json__is_a_table(tmp_path: Path) -> None:
    ran = run("db", "migrate", f"sqlite:///{tmp_path}/x.db")
    assert ran.exit_code == 0
    assert "the health of every key" in ran.stdout
    assert "UTC" in ran.stdout


def test_status__missing_file__is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    ran = run("db", "status")
    assert ran.exit_code == 1
    assert [each["applied_at"] for each in run_json("db", "status")] == [None] * len(NUMBERS)
    assert list(tmp_path.iterdir()) == []


def test_migrate__database_url_in_the_environment__is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/x.db")
    ran = run_process("db", "migrate")
    assert ran.returncode == 0, ran.stderr
    database = open_database()
    CacheTables(database).check()
    database.close()


def test_db__unreachable_database__fails_with_one_sentence_without_the_password() -> None:
    ran = run("db", "status", "postgresql://me:secret@127.0.0.1:1/app")
    assert ran.exit_code == 1
    assert ran.output.startswith("Error: postgresql://127.0.0.1:1/app: ")
    assert "secret" not in ran.output


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
