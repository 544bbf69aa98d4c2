"""``comporta batch``: allows, denies and lists users and teams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.cli_runner import run, run_json, run_process

from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.service.batch.whitelist import Whitelist
from comporta.service.migrations import MIGRATIONS


@pytest.fixture
def url(empty_database_url: str) -> str:
    database = open_database(empty_database_url)
    migrate(database, MIGRATIONS)
    database.close()
    return empty_database_url


def batch_output(*words: str, url: str) -> str:
    ran = run("batch", *words, "--database", url)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def is_allowed(user: str, url: str) -> bool:
    database = open_database(url)
    try:
        return Whitelist(database).is_digital(user)
    finally:
        database.close()


def test_batch__users_and_teams__have_the_permission_that_was_set(url: str) -> None:
    assert batch_output("list", url=url).startswith("No user may configure sheets yet. ")
    assert run_json("batch", "list", "--database", url) == []
    assert batch_output("allow", "ana", url=url).startswith("Allowed: ana may configure sheets. ")
    assert is_allowed("ana", url)
    joined = json.loads(batch_output("join", "eva", "blue", "--json", url=url))
    assert joined == {"kind": "user", "name": "eva", "team": "blue", "digital": False}
    assert not is_allowed("eva", url)
    allowed = json.loads(batch_output("allow", "blue", "--team", "--json", url=url))
    assert allowed == {"kind": "team", "name": "blue", "digital": True}
    assert is_allowed("eva", url)
    assert batch_output("deny", "eva", url=url).startswith("Denied: eva may not configure sheets. ")
    assert not is_allowed("eva", url)
    rows = run_json("batch", "list", "--database", url)
    assert rows == [
        {"kind": "team", "name": "blue", "team": None, "digital": True},
        {"kind": "user", "name": "ana", "team": None, "digital": True},
        {"kind": "user", "name": "eva", "team": "blue", "digital": False},
    ]
    batch_output("allow", "eva", url=url)
    assert batch_output("deny", "blue", "--team", url=url).startswith("Denied: team blue ")
    assert is_allowed("eva", url)
    assert batch_output("join", "eva", "blue", url=url).startswith(
        "Joined: the permission of team blue applies to eva"
    )
    assert not is_allowed("eva", url)
    assert len(run_json("batch", "list", "--database", url, "--limit", "1")) == 1


def test_list__without_json__is_a_table(url: str) -> None:
    batch_output("allow", "[b]ana", url=url)
    table = batch_output("list", url=url)
    assert "[b]ana" in table
    assert "yes" in table


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["allow", ""], "user must be 1 to 200 printable characters, got ''"),
        (["deny", "x" * 201, "--team"], "team must be 1 to 200 printable characters, got 'xxx"),
        (["join", "ana", "a\nb"], "team must be 1 to 200 printable characters, got 'a"),
    ],
)
def test_batch__invalid_name__fails_with_one_sentence(tmp_path: Path, words: list[str], problem: str) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    run("db", "migrate", url)
    ran = run("batch", *words, "--database", url)
    assert ran.exit_code == 2
    assert problem in ran.output


def test_batch__tables_missing__recommends_the_migration(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    ran = run_process("batch", "allow", "ana", "--database", f"sqlite:///{tmp_path}/x.db")
    assert ran.returncode == 1
    assert "comporta db migrate" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "words", [["batch", "list"], ["batch", "allow", "ana"], ["cache", "list"], ["tokens", "list"]]
)
def test_command__mistyped_sqlite_path__fails_and_creates_no_file(tmp_path: Path, words: list[str]) -> None:
    ran = run(*words, "--database", f"sqlite:///{tmp_path}/typo.db")
    assert ran.exit_code == 1
    assert f"sqlite:///{tmp_path}/typo.db does not exist. Check the path, or create it with" in ran.stderr
    assert list(tmp_path.iterdir()) == []
