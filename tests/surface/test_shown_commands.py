"""Commands in the documentation exist: make targets, commands, options, extras and variables."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from comporta.cli.root_command import comporta
from comporta.cli.serve import serve
from comporta.service.config import ServiceConfig, check_exposure
from comporta.settings import load_settings, service_variable

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`((?:make|comporta|pip install) [^`\n]+)`(?!`)")
_ASSIGNMENT = re.compile(r"^([A-Z_]+)=(.*)$")


def shown_commands(text: str) -> Iterator[str]:
    """Yield the commands in the code blocks of a page; in a console block, only lines with a ``$``."""
    for kind, block in _BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if kind == "sh" or line.startswith("$ "):
                yield line.removeprefix("$ ")


BLOCK_COMMANDS = [
    pytest.param(line, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, line in enumerate(shown_commands(page.read_text(encoding="utf-8")))
]
INLINE_COMMANDS = sorted(
    {span for page in PAGES for span in _INLINE.findall(page.read_text(encoding="utf-8"))},
)


def check(line: str) -> None:
    """Raise if a command does not exist as written. Commands of other programs are not checked."""
    words = without_redirections(shlex.split(line, comments=True))
    environ = {}
    while words and (assignment := _ASSIGNMENT.match(words[0])):
        environ[assignment[1]] = assignment[2]
        words = words[1:]
    load_settings(environ=environ, service=True)
    match words:
        case ["make", *rest]:
            _check_targets(rest)
        case ["pip", "install", *rest]:
            _check_extras(rest)
        case ["comporta", *rest]:
            _check_command(rest)
            _check_exposure(rest, environ)
        case _:
            return


def without_redirections(words: list[str]) -> list[str]:
    """Return a command without what the shell takes from its end: ``> file 2>&1 &``."""
    while words and words[-1] in {"&", "2>&1"}:
        words = words[:-1]
    return words[:-2] if words[-2:-1] == [">"] else words


def _check_targets(words: list[str]) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for word in words:
        assignment = _ASSIGNMENT.match(word)
        assert assignment or word in targets, f"make has no target {word}"
        if assignment and assignment[1] == "ARGS" and "demo" in words:
            _check_command(["demo", *shlex.split(assignment[2])])


def _check_extras(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"comporta\[([\w,]+)\]", " ".join(words)):
        unknown = set(extras.split(",")) - set(project["optional-dependencies"])
        assert not unknown, f"comporta has no extras {unknown}"


def _check_command(words: list[str]) -> None:
    command: click.Command = comporta
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        subcommand = command.get_command(click.Context(command), words[0])
        assert subcommand is not None, f"comporta has no command {words[0]}"
        command, words = subcommand, words[1:]
    context = click.Context(command, help_option_names=["-h", "--help"])
    command.make_parser(context).parse_args(words)  # raises for an unknown option


def _check_exposure(words: list[str], environ: dict[str, str]) -> None:
    """Raise if ``comporta serve`` refuses the host that the command names."""
    if words[:1] != ["serve"] or "--help" in words:
        return
    options = serve.make_context("serve", words[1:]).params
    shown = {"host": options["host"] or "127.0.0.1", "open": str(options["is_open"]).lower()}
    variables = {service_variable(name): value for name, value in shown.items()}
    check_exposure(ServiceConfig.load(environ={**variables, **environ}))


@pytest.mark.parametrize("line", BLOCK_COMMANDS)
def test_code_block__command__exists(line: str) -> None:
    check(line)


def test_prose__inline_commands__exist() -> None:
    """``comporta cache list|show`` means both commands; an ellipsis means any arguments."""
    assert len(INLINE_COMMANDS) > 10
    for span in INLINE_COMMANDS:
        for command in _alternatives(span.replace("…", "")):
            check(command)


def _alternatives(span: str) -> Iterator[str]:
    alternatives = re.search(r"\S*[a-z]\|[a-z]\S*", span)
    if not alternatives:
        yield span
        return
    for one in alternatives[0].split("|"):
        yield span.replace(alternatives[0], one)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("make nonsense", "no target nonsense"),
        ("pip install 'comporta[nonsense]'", "no extras"),
        ("comporta nonsense", "no command nonsense"),
        ("comporta serve --nonsense", "No such option"),
        ("COMPORTA_SERVICE_NONSENSE=1 comporta serve", "COMPORTA_SERVICE_NONSENSE"),
        ("comporta serve --host 0.0.0.0", "host 0.0.0.0 is reachable from other machines"),
    ],
)
def test_check__command_that_does_not_exist__raises(line: str, message: str) -> None:
    with pytest.raises((AssertionError, ValueError, click.UsageError), match=message):
        check(line)
