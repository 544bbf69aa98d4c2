"""The rules for all commands: exit codes, errors in one sentence, JSON, pipes, colours and extras."""

from __future__ import annotations

import builtins
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli import pages
from tests.cli.cli_runner import run

from comporta.cli import console, serve, workers
from comporta.cli.root_command import SECTIONS, comporta
from comporta.errors import StateError

UNREACHABLE_URL = "redis://127.0.0.1:1/0"
NO_DATA = {"completion", "demo"}
"""Commands that print a script or a narration."""


def command_named(words: str) -> click.Command:
    """Return a command by its words."""
    command: click.Command = comporta
    for word in words.split():
        assert isinstance(command, click.Group)
        subcommand = command.get_command(click.Context(command), word)
        assert subcommand is not None
        command = subcommand
    return command


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["-h"], 0),
        (["workers", "memory://"], 0),
        (["doctor", "memory://"], 0),
        (["workers", UNREACHABLE_URL], 1),
        (["doctor", UNREACHABLE_URL], 1),
        (["top", UNREACHABLE_URL], 1),
        (["db", "status", "sqlite:////absent/x.db"], 1),
        ([], 2),
        (["db"], 2),
        (["nonsense"], 2),
        (["workers", "--nonsense"], 2),
        (["workers", "http://x"], 2),
        (["cache", "list", "--database", "http://x"], 2),
        (["config", "check", "/absent/comporta.toml"], 2),
        (["top", "memory://"], 2),
    ],
)
def test_command__success_or_error__has_the_documented_exit_code(words: list[str], code: int) -> None:
    ran = run(*words)
    assert ran.exit_code == code, ran.output
    if code and words:
        assert re.search(r"^(Error: .+|Usage: .+|.*pending.*)$", ran.output, re.MULTILINE)


def test_page__exit_code_table__lists_all_codes() -> None:
    page = pages.PAGE.read_text(encoding="utf-8")
    [table] = re.findall(r"^\| exit code \|.*?\n\n", page, re.DOTALL | re.MULTILINE)
    codes = {code for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(", ")}
    assert codes == {"0", "1", "2", "3", "129", "130", "143"}


def test_comporta__without_arguments__lists_the_commands_by_purpose() -> None:
    output = run().output
    positions = [output.index(f"{title}:") for title in SECTIONS]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [("wrokers", "workers"), ("docter", "doctor"), ("topp", "top"), ("complete", "completion")],
)
def test_comporta__mistyped_command__suggests_the_most_similar(typed: str, suggestion: str) -> None:
    assert f"No such command {typed!r}. Did you mean {suggestion!r}?" in run(typed).stderr


def test_comporta__unknown_command_like_no_other__suggests_none() -> None:
    assert "No such command 'xyzzy'.\n" in run("xyzzy").stderr


@pytest.mark.parametrize("words", sorted(pages.commands()))
def test_command__that_prints_data__has_json(words: str) -> None:
    command = command_named(words)
    if not isinstance(command, click.Group) and words not in NO_DATA:
        assert "--json" in {option for each in command.params for option in each.opts}


@pytest.mark.parametrize("words", sorted(pages.commands()))
def test_help__command_and_options__are_complete_sentences(words: str) -> None:
    command = command_named(words)
    summary = (command.help or "").splitlines()[0]
    options = [each.help or "" for each in command.params if isinstance(each, click.Option)]
    for text in (summary, *options):
        sentence = text.partition("  [default")[0]
        assert re.fullmatch(r"(?!With )[A-Z][a-z]+[ ,].+\.", sentence), f"comporta {words}: {text!r}"
    assert not re.search(r"(^ *|\. )(Exits|Runs|Starts|Prints|Never) ", command.help or "", re.MULTILINE)


@pytest.mark.parametrize("words", sorted(pages.commands()))
def test_help__list_of_commands__cuts_no_sentence_off(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, *lines = run(*words.split(), "--help").stdout.splitlines()
    assert not [line for line in lines if line.endswith("...")]


def test_command__interrupted__reports_it_and_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(url: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_live_workers", interrupted)
    ran = run("workers", UNREACHABLE_URL)
    assert ran.exit_code == 130
    assert ran.stderr == "\nInterrupted.\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StateError("the state is odd"), "Error: the state is odd\n"),
        (OSError(28, "No space left on device", "/x"), "Error: /x: No space left on device\n"),
        (OSError(28, "No space left on device"), "Error: No space left on device\n"),
    ],
)
def test_command__unexpected_error__is_one_sentence(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(url: str) -> None:
        raise error

    monkeypatch.setattr(workers, "_live_workers", fails)
    ran = run("workers", UNREACHABLE_URL)
    assert (ran.exit_code, ran.stderr) == (1, message)


@pytest.mark.parametrize("words", [["config", "check", "--all"], ["workers", "memory://", "--json"], ["-h"]])
def test_command__output_closed__exits_with_1_and_prints_no_error(words: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-W", "error", "-m", "comporta.cli", *words]
    ran = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writes)
    assert (ran.returncode, ran.stderr) == (1, "")


def test_command__no_color__is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[32m" in run("doctor", "memory://").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in run("doctor", "memory://").stdout


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("redis", ["workers", UNREACHABLE_URL], "redis"),
        ("redis", ["top", UNREACHABLE_URL], "redis"),
        ("httpx2", ["run", "INPUT", "--url", "http://x/{line}", "--output", "OUTPUT"], "httpx2"),
        ("uvicorn", ["serve"], "service"),
    ],
)
def test_command__extra_missing__names_the_extra_to_install(
    package: str, words: list[str], extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *rest, **named)

    for name in [name for name in sys.modules if name in (f"{package}", "comporta.service.supervisor")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "in.txt").write_text("1\n")
    files = {"INPUT": str(tmp_path / "in.txt"), "OUTPUT": str(tmp_path / "out.jsonl")}
    ran = run(*(files.get(word, word) for word in words))
    assert ran.exit_code == 1
    assert f"pip install 'comporta[{extra}]'" in ran.stderr


def test_show_spinner__not_a_terminal__prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with console.show_spinner("Working"):
        pass
    assert capfd.readouterr() == ("", "")


def test_printable_text__control_characters__are_replaced() -> None:
    assert console.printable_text("a\x1b[2Jb\n").plain == "a\ufffd[2Jb\ufffd"
    assert console.printable_text("[b]é").plain == "[b]é"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_rough_duration__seconds__are_in_the_largest_unit(seconds: float, text: str) -> None:
    assert console.rough_duration(seconds) == text


@pytest.mark.parametrize(
    ("as_json", "output"), [(False, "Serving at http://h:1\n"), (True, '{"address": "http://h:1"}\n')]
)
def test_print_address__text_or_json__has_the_address(
    as_json: bool, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.print_address("http://h:1", as_json=as_json)
    assert capsys.readouterr().out == output
