"""``comporta completion``: prints a script that makes a shell complete commands, options and values.

The scripts are click's own. They run ``comporta`` at each press of TAB, so the suggestions include the
``shared://`` states in use on this machine.
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

from comporta.cli.root_command import COMPLETION_FLAG
from comporta.state_schemes import BUILT_IN_SCHEMES, scheme_names
from comporta.stores.shared.directory import directory_path

SHELLS = ("bash", "zsh", "fish")
STATE_PREFIXES = (
    *("shared://", "redis://", "rediss://", "valkey://", "valkeys://", "unix://"),
    *("redis+sentinel://", "redis+cluster://", "memory://"),
)
DATABASE_PREFIXES = ("sqlite:///", "postgresql://")
NAMES_MAX = 50
_REPLY_LINE = "COMPREPLY+=($value)"
_ZSH_REPLY_LINE = 'completions+=("$key")'


@add_completion_class
class UrlBashComplete(BashComplete):
    """Completes URLs in bash, which splits words at colons and appends a space to a completed word."""

    source_template = BashComplete.source_template.replace(
        _REPLY_LINE, f"{_REPLY_LINE}; [[ $value == *// ]] && compopt -o nospace"
    )
    _typed_prefix = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words with URLs joined again that bash split at colons."""
        args, last = super().get_completion_args()
        *args, whole = _rejoin_words([*args, last])
        self._typed_prefix = whole.removesuffix("" if last == ":" else last)
        return args, whole

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return the part after the last colon typed, which is what bash replaces."""
        return f"{item.type},{item.value.removeprefix(self._typed_prefix)}"


@add_completion_class
class UrlZshComplete(ZshComplete):
    """Completes URLs in zsh, which appends a space to a completed word."""

    source_template = ZshComplete.source_template.replace(
        _ZSH_REPLY_LINE, f"[[ $key == *// ]] && compadd -U -S '' -- $key || {_ZSH_REPLY_LINE}"
    )


@add_completion_class
class DescribedFishComplete(FishComplete):
    """Completes in fish with whole descriptions, which may contain commas."""

    source_template = FishComplete.source_template.replace('split ","', 'split --max 1 ","')


def _rejoin_words(words: list[str]) -> list[str]:
    joined: list[str] = []
    for word in words:
        if joined and (word == ":" or joined[-1].endswith(":")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    To try it in the current shell, run: eval "$(comporta completion bash)", or the same with zsh, or
    comporta completion fish | source.
    """
    root = context.find_root().command
    click.echo(_SCRIPTS[shell](root, {}, "comporta", COMPLETION_FLAG).source())


_SCRIPTS: dict[str, type[ShellComplete]] = {
    "bash": UrlBashComplete,
    "zsh": UrlZshComplete,
    "fish": DescribedFishComplete,
}


def complete_state(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return URLs of states: those of ``shared://`` in use on this machine, and prefixes of others."""
    in_use = [url for url in (f"shared://{name}" for name in _shared_names()) if url.startswith(incomplete)]
    others = (f"{scheme}://" for scheme in scheme_names() if scheme not in BUILT_IN_SCHEMES)
    prefixes = [url for url in (*STATE_PREFIXES, *others) if url.startswith(incomplete)]
    return [CompletionItem(url) for url in (*in_use[:NAMES_MAX], *prefixes)]


def complete_database(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return the prefixes of database URLs."""
    return [CompletionItem(url) for url in DATABASE_PREFIXES if url.startswith(incomplete)]


def _shared_names() -> list[str]:
    """Return the names of the ``shared://`` states on this machine."""
    example = Path(directory_path("NAME"))
    before, after = example.name.split("NAME")
    pattern = re.compile(f"{re.escape(before)}(.+){re.escape(after)}")
    matches = (pattern.fullmatch(path.name) for path in example.parent.glob(f"{before}*{after}"))
    return sorted(match[1] for match in matches if match)
