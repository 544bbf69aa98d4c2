"""``comporta batch``: users and teams let in, shut out, and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import listed, run, run_for_real

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


def said(*words: str, url: str) -> str:
    ran = run("batch", *words, "--database", url)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def may(user: str, url: str) -> bool:
    database = open_database(url)
    try:
        return Whitelist(database).is_digital(user)
    finally:
        database.close()


def test_batch__users_and_teams__may_have_sheets_as_was_said(url: str) -> None:
    assert said("ls", url=url).startswith("Nobody may have sheets yet")
    assert listed("batch", "ls", "--database", url) == []
    assert said("allow", "ana", url=url).startswith("Allowed: ana may have sheets. ")
    assert may("ana", url)
    joined = json.loads(said("join", "eva", "blue", "--json", url=url))
    assert joined == {"kind": "user", "name": "eva", "team": "blue", "digital": False}
    assert not may("eva", url)
    allowed = json.loads(said("allow", "blue", "--team", "--json", url=url))
    assert allowed == {"kind": "team", "name": "blue", "digital": True}
    assert may("eva", url)
    assert said("deny", "eva", url=url).startswith("Denied: eva may have no sheets. ")
    assert not may("eva", url)
    told = listed("batch", "ls", "--database", url)
    assert told == [
        {"kind": "team", "name": "blue", "team": None, "digital": True},
        {"kind": "user", "name": "ana", "team": None, "digital": True},
        {"kind": "user", "name": "eva", "team": "blue", "digital": False},
    ]
    said("allow", "eva", url=url)
    assert said("deny", "blue", "--team", url=url).startswith("Denied: team blue ")
    assert may("eva", url)
    assert said("join", "eva", "blue", url=url).startswith("Joined: what is said of team blue goes for eva")
    assert not may("eva", url)
    assert len(listed("batch", "ls", "--database", url, "--limit", "1")) == 1


def test_ls__for_people__is_a_table(url: str) -> None:
    said("allow", "[b]ana", url=url)
    table = said("ls", url=url)
    assert "[b]ana" in table
    assert "yes" in table


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["allow", ""], "user must be 1 to 200 characters, got 0"),
        (["deny", "x" * 201, "--team"], "team must be 1 to 200 characters, got 201"),
        (["join", "ana", "a\nb"], "team must be text that can be printed"),
    ],
)
def test_batch__name_that_cannot_be__is_one_sentence(tmp_path: Path, words: list[str], problem: str) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    run("db", "migrate", url)
    ran = run("batch", *words, "--database", url)
    assert ran.exit_code == 2
    assert problem in ran.output


def test_batch__no_tables_yet__says_what_to_do(tmp_path: Path) -> None:
    ran = run_for_real("batch", "allow", "ana", "--database", f"sqlite:///{tmp_path}/x.db")
    assert ran.returncode == 1
    assert "comporta db migrate" in ran.stderr
    assert "Traceback" not in ran.stderr
