"""docs/command-line.md shows every command's ``--help`` as it is; docs/state.md the rights a user needs."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from tests.cli import pages

import comporta as comporta_package
from comporta.cli.commands import NAMES, SECTIONS, comporta
from comporta.cli.server_checks import trial

PAGE = pages.PAGE.read_text(encoding="utf-8")
COMMANDS = sorted(pages.commands())


def test_page__commands__are_all_there_are() -> None:
    assert sorted(pages.shown(PAGE)) == COMMANDS


@pytest.mark.parametrize("words", COMMANDS)
def test_page__help_of_a_command__is_what_it_says(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # so that it is put back
    assert pages.shown(PAGE)[words] == pages.helped(words), "`make pages` writes it anew"


def test_pages__help_that_has_changed__is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    old = "before\n```console\n$ comporta workers --help\nUsage: long ago\n```\nafter\n"
    new = pages.written(old)
    assert "Usage: comporta workers" in new
    assert (new[:6], new[-6:]) == (old[:6], old[-6:])
    assert pages.written(new) == new


def test_help__line_of_a_command__is_that_of_its_own_page() -> None:
    """They are listed without being brought in."""
    context = click.Context(comporta)
    for commands in SECTIONS.values():
        for name, said in commands.items():
            command = comporta.get_command(context, name)
            assert command is not None
            assert command.get_short_help_str(limit=80) == said
    assert comporta.get_command(context, "nonsense") is None


def test_files_of_commands__all__are_listed() -> None:
    """So that none can be written and left out."""
    folder = Path(comporta_package.__file__).parent / "cli"
    made = re.compile(r"^@click\.(?:command|group)\(.*?^def (\w+)\(", re.DOTALL | re.MULTILINE)
    found = {name for path in folder.glob("*.py") for name in made.findall(path.read_text("utf-8"))}
    assert found == {*NAMES, "comporta"}


def test_rights__commands_of_the_scripts__are_all_tried() -> None:
    """So that nobody with the rights the page shows is denied one on a path that is seldom taken."""
    source = Path(comporta_package.__file__).parent
    texts = [path.read_text("utf-8") for path in source.rglob("*") if path.suffix in (".lua", ".py")]
    called = {word for text in texts for word in re.findall(r"\bp?call\('([A-Z]+)'", text)}
    assert called
    assert called <= {words[0] for words in trial("x")}


def test_page_of_states__rights_of_a_user__are_those_that_are_tried_and_those_to_connect() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
    [rights] = re.findall(r"^ACL SETUSER comporta (.*?)```", page, re.MULTILINE | re.DOTALL)
    tried = {str(words[0]).lower() for words in trial("x")}
    assert set(re.findall(r"\+(\w+)", rights)) == {*tried, "hello", "select"}
