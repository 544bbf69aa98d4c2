"""docs/command-line.md shows every command's ``--help`` as it is, and the rights a user needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.running import run

import comporta as comporta_package
from comporta.cli.commands import comporta
from comporta.cli.server_checks import trial

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
SHOWN = dict(
    re.findall(r"^```console\n\$ comporta ([\w ]+) --help\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
)


def named(command: click.Command, name: str = "") -> Iterator[str]:
    """Return the words after `comporta` of every command; a group is the commands in it."""
    if isinstance(command, click.Group):
        for word, each in command.commands.items():
            yield from named(each, f"{name} {word}".strip())
    else:
        yield name


COMMANDS = sorted(named(comporta))


def test_page__commands__are_all_there_are() -> None:
    assert sorted(SHOWN) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_page__help_of_a_command__is_what_it_says(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert SHOWN[command] == run(*command.split(), "--help").stdout


def test_rights__commands_of_the_scripts__are_all_tried() -> None:
    """So that nobody with the rights the page shows is denied one on a path that is seldom taken."""
    source = Path(comporta_package.__file__).parent
    texts = [path.read_text("utf-8") for path in source.rglob("*") if path.suffix in (".lua", ".py")]
    called = {word for text in texts for word in re.findall(r"\bp?call\('([A-Z]+)'", text)}
    assert called
    assert called <= {words[0] for words in trial("x")}


def test_page__rights_of_a_user__are_those_that_are_tried() -> None:
    [rights] = re.findall(r"^ACL SETUSER .*$", PAGE, re.MULTILINE)
    assert re.findall(r"\+(\w+)", rights) == [str(words[0]).lower() for words in trial("x")]


def test_page_of_states__rights_of_a_user__are_the_same_and_those_to_connect() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
    [rights] = re.findall(r"^ACL SETUSER comporta (.*?)```", page, re.MULTILINE | re.DOTALL)
    tried = {str(words[0]).lower() for words in trial("x")}
    assert set(re.findall(r"\+(\w+)", rights)) == {*tried, "hello", "select"}
