"""The command-line page shows every ``--help``; the stores page the permissions a user needs."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from tests.cli import pages

import comporta as comporta_package
from comporta.cli.doctor_redis import command_trials
from comporta.cli.root_command import COMMAND_NAMES, SECTIONS, comporta

PAGE = pages.PAGE.read_text(encoding="utf-8")
COMMANDS = sorted(pages.commands())


def test_page__help_texts__cover_every_command() -> None:
    assert sorted(pages.help_texts(PAGE)) == COMMANDS


@pytest.mark.parametrize("words", COMMANDS)
def test_page__help_text_of_a_command__is_current(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # restores the variable afterwards
    assert pages.help_texts(PAGE)[words] == pages.current_help(words), "run `make pages`"


def test_with_current_help__outdated_help_text__is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    old = "before\n```console\n$ comporta workers --help\nUsage: long ago\n```\nafter\n"
    new = pages.with_current_help(old)
    assert "Usage: comporta workers" in new
    assert (new[:6], new[-6:]) == (old[:6], old[-6:])
    assert pages.with_current_help(new) == new


def test_sections__summary_of_a_command__is_that_of_its_help() -> None:
    """The root command lists the summaries without importing the commands."""
    context = click.Context(comporta)
    for commands in SECTIONS.values():
        for name, summary in commands.items():
            command = comporta.get_command(context, name)
            assert command is not None
            assert command.get_short_help_str(limit=80) == summary
    assert comporta.get_command(context, "nonsense") is None


def test_sections__every_module_with_a_command__is_listed() -> None:
    directory = Path(comporta_package.__file__).parent / "cli"
    definition = re.compile(r"^@click\.(?:command|group)\(.*?^def (\w+)\(", re.DOTALL | re.MULTILINE)
    names = {name for path in directory.glob("*.py") for name in definition.findall(path.read_text("utf-8"))}
    assert names == {*COMMAND_NAMES, "comporta"}


def test_command_trials__commands_of_the_scripts__are_included() -> None:
    """A user with the documented rights must not be denied a command on a rare path."""
    source = Path(comporta_package.__file__).parent
    texts = [path.read_text("utf-8") for path in source.rglob("*") if path.suffix in (".lua", ".py")]
    called = {word for text in texts for word in re.findall(r"\bp?call\('([A-Z]+)'", text)}
    assert called
    assert called <= {words[0] for words in command_trials("x")}


def test_stores_page__acl_of_a_user__has_the_tried_commands_and_those_to_connect() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "stores.md").read_text(encoding="utf-8")
    [rights] = re.findall(r"^ACL SETUSER comporta (.*?)```", page, re.MULTILINE | re.DOTALL)
    tried = {str(words[0]).lower() for words in command_trials("x")}
    assert set(re.findall(r"\+(\w+)", rights)) == {*tried, "hello", "select"}
