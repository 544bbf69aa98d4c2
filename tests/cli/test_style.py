"""What goes for all commands: exit codes, errors in a sentence, JSON for scripts, pipes, colours, extras."""

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
from tests.cli.running import run

from comporta.cli import output, serve, workers
from comporta.cli.commands import SECTIONS, comporta
from comporta.errors import StateError

NOBODY = "redis://127.0.0.1:1/0"
NO_DATA = {"completion", "demo"}
"""Commands that print a script, or a story."""


def found(words: str) -> click.Command:
    """Return a command by its words."""
    command: click.Command = comporta
    for word in words.split():
        assert isinstance(command, click.Group)
        under = command.get_command(click.Context(command), word)
        assert under is not None
        command = under
    return command


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["-h"], 0),
        (["workers", "memory://"], 0),
        (["doctor", "memory://"], 0),
        (["workers", NOBODY], 1),
        (["doctor", NOBODY], 1),
        (["top", NOBODY], 1),
        (["db", "status", "sqlite:////absent/x.db"], 1),
        ([], 2),
        (["db"], 2),
        (["nonsense"], 2),
        (["workers", "--nonsense"], 2),
        (["workers", "http://x"], 2),
        (["cache", "ls", "--database", "http://x"], 2),
        (["config", "check", "/absent/comporta.toml"], 2),
        (["top", "memory://"], 2),
    ],
)
def test_command__as_it_ends__has_an_exit_code_of_the_table(words: list[str], code: int) -> None:
    ran = run(*words)
    assert ran.exit_code == code, ran.output
    if code and words:
        assert re.search(r"^(Error: .+|Usage: .+|.*missing.*)$", ran.output, re.MULTILINE)


def test_page__exit_codes__are_in_one_table() -> None:
    page = pages.PAGE.read_text(encoding="utf-8")
    [table] = re.findall(r"^\| exit code \|.*?\n\n", page, re.DOTALL | re.MULTILINE)
    codes = {code for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(", ")}
    assert codes == {"0", "1", "2", "3", "129", "130", "143"}


def test_comporta__alone__lists_the_commands_by_what_they_are_for() -> None:
    told = run().output
    places = [told.index(f"{title}:") for title in SECTIONS]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("wrokers", "workers"), ("docter", "doctor"), ("topp", "top"), ("complete", "completion")],
)
def test_comporta__mistyped_command__names_the_nearest(typed: str, meant: str) -> None:
    assert f"No such command {typed!r}. Did you mean {meant!r}?" in run(typed).stderr


def test_comporta__a_command_like_no_other__is_not_guessed() -> None:
    assert "No such command 'xyzzy'.\n" in run("xyzzy").stderr


@pytest.mark.parametrize("words", sorted(pages.commands()))
def test_command__that_prints_data__has_json(words: str) -> None:
    command = found(words)
    if not isinstance(command, click.Group) and words not in NO_DATA:
        assert "--json" in {option for each in command.params for option in each.opts}


def test_command__interrupted__says_so_and_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(url: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_listed", interrupted)
    ran = run("workers", NOBODY)
    assert ran.exit_code == 130
    assert ran.stderr == "\nInterrupted.\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StateError("the state is odd"), "Error: the state is odd\n"),
        (OSError(28, "No space left on device", "/x"), "Error: /x: No space left on device\n"),
        (OSError(28, "No space left on device"), "Error: No space left on device\n"),
    ],
)
def test_command__trouble_that_nobody_foresaw__is_one_sentence(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def troubled(url: str) -> None:
        raise error

    monkeypatch.setattr(workers, "_listed", troubled)
    ran = run("workers", NOBODY)
    assert (ran.exit_code, ran.stderr) == (1, said)


@pytest.mark.parametrize("words", [["config", "check", "--all"], ["workers", "memory://", "--json"], ["-h"]])
def test_command__reader_gone__ends_without_a_word(words: list[str]) -> None:
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
        ("redis", ["workers", NOBODY], "redis"),
        ("redis", ["top", NOBODY], "redis"),
        ("httpx2", ["run", "INPUT", "--url", "http://x/{line}", "--output", "OUTPUT"], "httpx2"),
        ("uvicorn", ["serve"], "service"),
    ],
)
def test_command__extra_missing__names_what_to_install(
    package: str, words: list[str], extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *rest, **named)

    for name in [name for name in sys.modules if name in (f"{package}", "comporta.service.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "in.txt").write_text("1\n")
    files = {"INPUT": str(tmp_path / "in.txt"), "OUTPUT": str(tmp_path / "out.jsonl")}
    ran = run(*(files.get(word, word) for word in words))
    assert ran.exit_code == 1
    assert f"pip install 'comporta[{extra}]'" in ran.stderr


def test_busy__off_a_terminal__shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with output.busy("Working"):
        pass
    assert capfd.readouterr() == ("", "")


def test_plain__what_a_terminal_would_obey__is_shown_as_a_sign() -> None:
    assert output.plain("a\x1b[2Jb\n").plain == "a\ufffd[2Jb\ufffd"
    assert output.plain("[b]é").plain == "[b]é"


@pytest.mark.parametrize(
    ("seconds", "said"), [(-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_rough__length_of_time__is_in_its_largest_unit(seconds: float, said: str) -> None:
    assert output.rough(seconds) == said


@pytest.mark.parametrize(
    ("as_json", "said"), [(False, "Serving at http://h:1\n"), (True, '{"address": "http://h:1"}\n')]
)
def test_serve__address__is_told_to_people_or_scripts(
    as_json: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.tell("http://h:1", as_json=as_json)
    assert capsys.readouterr().out == said
