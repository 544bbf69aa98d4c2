"""docs/command-line.md shows every command's ``--help`` as it is, and the rights a user needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.running import run

from comporta.cli.commands import comporta
from comporta.cli.server_checks import trial

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^```console\n\$ comporta (\w+) --help\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def test_page__commands__are_all_there_are() -> None:
    assert SHOWN.keys() == comporta.commands.keys()


@pytest.mark.parametrize("command", comporta.commands)
def test_page__help_of_a_command__is_what_it_says(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert SHOWN[command] == run(command, "--help").stdout


def test_page__rights_of_a_user__are_those_that_are_tried() -> None:
    [rights] = re.findall(r"^ACL SETUSER .*$", PAGE, re.MULTILINE)
    assert re.findall(r"\+(\w+)", rights) == [str(words[0]).lower() for words in trial("x")]
