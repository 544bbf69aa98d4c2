"""``comporta completion``: what a shell reads to complete commands, options and values.

The scripts are click's own. They ask the program itself, so that what is offered is what there is: a state
that is in use on this machine, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from comporta.cli.commands import COMPLETING
from comporta.stores.folder import path_of

SHELLS = ("bash", "zsh", "fish")
STATES = (
    *("shared://", "redis://", "rediss://", "valkey://", "valkeys://", "unix://"),
    *("redis+sentinel://", "redis+cluster://", "memory://"),
)
DATABASES = ("sqlite:///", "postgresql://")
NAMES_MAX = 50
_ADDED = "COMPREPLY+=($value)"


@add_completion_class
class Bash(BashComplete):
    """Bash takes words apart at colons, and puts a space behind whatever is complete: not so in a URL."""

    source_template = BashComplete.source_template.replace(
        _ADDED, f"{_ADDED}; [[ $value == *// ]] && compopt -o nospace"
    )
    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Put together again what was taken apart."""
        args, last = super().get_completion_args()
        *args, whole = _joined([*args, last])
        self._before = whole.removesuffix("" if last == ":" else last)
        return args, whole

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return only what comes after the last colon typed: that is what bash replaces."""
        return f"{item.type},{item.value.removeprefix(self._before)}"


def _joined(words: list[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        if found and (word == ":" or found[-1].endswith(":")):
            found[-1] += word
        else:
            found.append(word)
    return found


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what a shell needs to complete `comporta`.

    To try it at once: eval "$(comporta completion bash)", or zsh, or comporta completion fish | source.
    """
    root = context.find_root().command
    click.echo(_SCRIPTS[shell](root, {}, "comporta", COMPLETING).source())


_SCRIPTS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}


def states(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return what a state could be called: those of this machine by name, of others how they begin."""
    named = [url for url in (f"shared://{name}" for name in _names()) if url.startswith(incomplete)]
    begun = [url for url in STATES if url.startswith(incomplete)]
    return [CompletionItem(url) for url in (*named[:NAMES_MAX], *begun)]


def databases(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return how the URL of a database begins."""
    return [CompletionItem(url) for url in DATABASES if url.startswith(incomplete)]


def _names() -> list[str]:
    """Return the names under which processes of this machine share something."""
    example = Path(path_of("NAME"))
    before, after = example.name.split("NAME")
    pattern = re.compile(f"{re.escape(before)}(.+){re.escape(after)}")
    matches = (pattern.fullmatch(path.name) for path in example.parent.glob(f"{before}*{after}"))
    return sorted(match[1] for match in matches if match)
