"""Writes the ``--help`` of every command into docs/reference/command-line.md (``make pages``)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from tests.cli.cli_runner import run

from comporta.cli.root_command import comporta

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "command-line.md"
WIDTH_CHARS = 80

_BLOCK = re.compile(r"^(```console\n\$ comporta ([a-z ]*?) ?--help\n)(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(command: click.Command = comporta, name: str = "") -> Iterator[str]:
    """Yield the words after `comporta` of every command and group; an empty string for `comporta` itself."""
    yield name
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            subcommand = command.get_command(context, word)
            assert subcommand is not None
            yield from commands(subcommand, f"{name} {word}".strip())


def help_texts(page: str) -> dict[str, str]:
    """Return the help texts on a page, by the words of the command."""
    return {words: text for _, words, text in _BLOCK.findall(page)}


def current_help(words: str) -> str:
    """Return the current ``--help`` of a command."""
    os.environ["COLUMNS"] = str(WIDTH_CHARS)
    return run(*words.split(), "--help").stdout


def with_current_help(page: str) -> str:
    """Return a page with the current help texts."""
    return _BLOCK.sub(lambda match: f"{match[1]}{current_help(match[2])}```", page)


if __name__ == "__main__":
    PAGE.write_text(with_current_help(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    missing = set(commands()) - help_texts(PAGE.read_text(encoding="utf-8")).keys()
    if missing:
        sys.exit(f"{PAGE.name} has no block for: {', '.join(sorted(missing))}")
