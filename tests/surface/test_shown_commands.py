"""What the documents tell people to type can be typed: targets, commands, options, extras and variables."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from comporta.cli.commands import comporta
from comporta.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`((?:make|comporta|pip install) [^`\n]+)`(?!`)")
_ASSIGNED = re.compile(r"^([A-Z_]+)=(.*)$")


def typed(text: str) -> Iterator[str]:
    """Yield what is typed in the blocks of a page; in a console, only what stands behind a ``$``."""
    for kind, block in _BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if kind == "sh" or line.startswith("$ "):
                yield line.removeprefix("$ ")


TYPED = [
    pytest.param(line, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, line in enumerate(typed(page.read_text(encoding="utf-8")))
]
SAID = sorted(
    {span for page in PAGES for span in _INLINE.findall(page.read_text(encoding="utf-8"))},
)


def check(line: str) -> None:
    """Raise for what cannot be typed; whatever is not ours is left to its owner."""
    words = shlex.split(line, comments=True)
    environ = {}
    while words and (found := _ASSIGNED.match(words[0])):
        environ[found[1]] = found[2]
        words = words[1:]
    load_settings(environ=environ, service=True)
    match words:
        case ["make", *rest]:
            _check_targets(rest)
        case ["pip", "install", *rest]:
            _check_extras(rest)
        case ["comporta", *rest]:
            _check_command(rest)
        case _:
            return


def _check_targets(words: list[str]) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for word in words:
        assigned = _ASSIGNED.match(word)
        assert assigned or word in targets, f"make has no target {word}"
        if assigned and assigned[1] == "ARGS" and "demo" in words:
            _check_command(["demo", *shlex.split(assigned[2])])


def _check_extras(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"comporta\[([\w,]+)\]", " ".join(words)):
        unknown = set(extras.split(",")) - set(project["optional-dependencies"])
        assert not unknown, f"there are no extras {unknown}"


def _check_command(words: list[str]) -> None:
    command: click.Command = comporta
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"comporta has no command {words[0]}"
        command, words = found, words[1:]
    context = click.Context(command, help_option_names=["-h", "--help"])
    command.make_parser(context).parse_args(words)  # raises for an option that is not there


@pytest.mark.parametrize("line", TYPED)
def test_block__command__can_be_typed(line: str) -> None:
    check(line)


def test_prose__commands__can_be_typed() -> None:
    """``comporta cache ls|show`` stands for each of them; an ellipsis for anything."""
    assert len(SAID) > 10
    for span in SAID:
        for words in _each(span.replace("…", "")):
            check(words)


def _each(span: str) -> Iterator[str]:
    several = re.search(r"\S*[a-z]\|[a-z]\S*", span)
    if not several:
        yield span
        return
    for one in several[0].split("|"):
        yield span.replace(several[0], one)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("make nonsense", "no target nonsense"),
        ("pip install 'comporta[nonsense]'", "no extras"),
        ("comporta nonsense", "no command nonsense"),
        ("comporta serve --nonsense", "No such option"),
        ("COMPORTA_SERVICE_NONSENSE=1 comporta serve", "COMPORTA_SERVICE_NONSENSE"),
    ],
)
def test_check__what_is_not_there__is_found(line: str, said: str) -> None:
    with pytest.raises((AssertionError, ValueError, click.UsageError), match=said):
        check(line)
