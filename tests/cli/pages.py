"""The ``--help`` of every command, as docs/command-line.md shows it; ``make pages`` writes it there anew."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from tests.cli.running import run

from comporta.cli.commands import comporta

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
WIDTH_CHARS = 80

_BLOCK = re.compile(r"^(```console\n\$ comporta ([a-z ]*?) ?--help\n)(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(command: click.Command = comporta, name: str = "") -> Iterator[str]:
    """Return the words after `comporta` of every command and group; none are those of `comporta` itself."""
    yield name
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from commands(found, f"{name} {word}".strip())


def shown(page: str) -> dict[str, str]:
    """Return what a page shows, by the words of the command."""
    return {words: text for _, words, text in _BLOCK.findall(page)}


def helped(words: str) -> str:
    """Return what a command says of itself."""
    os.environ["COLUMNS"] = str(WIDTH_CHARS)
    return run(*words.split(), "--help").stdout


def written(page: str) -> str:
    """Return a page with what commands say of themselves today."""
    return _BLOCK.sub(lambda found: f"{found[1]}{helped(found[2])}```", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    missing = set(commands()) - shown(PAGE.read_text(encoding="utf-8")).keys()
    if missing:
        sys.exit(f"{PAGE.name} has no block for: {', '.join(sorted(missing))}")
