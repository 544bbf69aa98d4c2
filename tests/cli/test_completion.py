"""Shell completion in real shells: bash, zsh and fish, which Debian has as packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from tests.cli.cli_runner import run
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.debian import install_package
from tests.processes.fleet import remove_shared_state

from comporta.cli import completion
from comporta.stores.shared.store import SharedStore

Completions = Callable[..., list[str]]

PROGRAM = f"""#!/bin/sh
exec {sys.executable} -m comporta.cli "$@"
"""
COMPLETION_SCRIPT = """
compopt() { echo "option $2"; }
source "$1"; shift
COMP_WORDS=(comporta "$@"); COMP_CWORD=$#
_comporta_completion comporta
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH_SCRIPT = "source $argv[1]; complete --do-complete $argv[2]"
ZSH_SETUP = """\
setopt no_prompt_sp; autoload -Uz compinit; compinit -u -d {folder}/dump; source {script}; PS1='pro''mpt> '
"""


def find_shell(name: str) -> str:
    """Return the path of a shell, which is installed if necessary; a missing one fails the test."""
    path = shutil.which(name) or (shutil.which(name) if install_package(name) else None)
    return path or pytest.fail(f"no {name}: install the package {name}")


@pytest.fixture
def search_path(tmp_path: Path) -> str:
    """Return a PATH on which this program is ``comporta``."""
    program = tmp_path / "comporta"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def write_script(folder: Path, shell: str) -> Path:
    """Write the completion script of a shell into a folder."""
    script = folder / f"script.{shell}"
    script.write_text(run("completion", shell).stdout)
    return script


def run_shell(search_path: str, *command: str) -> list[str]:
    """Run a shell and return its lines; it must not complain."""
    environ = {**os.environ, "PATH": search_path}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stderr == ""
    return ran.stdout.split("\n")[:-1]


@pytest.fixture
def completions(tmp_path: Path, search_path: str) -> Completions:
    """Return a function that completes words in bash, the last of them unfinished."""
    script = write_script(tmp_path, "bash")

    def complete(*words: str) -> list[str]:
        command = ("bash", "--norc", "-c", COMPLETION_SCRIPT, "bash", str(script), *words)
        return run_shell(search_path, *command)

    return complete


@pytest.fixture
def fish_completions(tmp_path: Path, search_path: str) -> Completions:
    """Return a function that completes a command line in fish: values, a tab and their descriptions."""
    fish, script = find_shell("fish"), write_script(tmp_path, "fish")

    def complete(line: str) -> list[str]:
        return run_shell(search_path, fish, "--no-config", "-c", FISH_SCRIPT, str(script), line)

    return complete


@pytest.fixture
def zsh(tmp_path: Path, search_path: str) -> Iterator[PseudoTerminal]:
    """Yield a zsh on a terminal, with completion."""
    script = write_script(tmp_path, "zsh")
    program = (find_shell("zsh"), "-f", "-i")
    with PseudoTerminal(program=program, PATH=search_path, HOME=str(tmp_path)) as terminal:
        terminal.type(ZSH_SETUP.format(folder=tmp_path, script=script).encode())
        terminal.wait_for("prompt> ")
        yield terminal


def press_tab(terminal: PseudoTerminal, typed: str, expected: str) -> None:
    """Type an unfinished line and TAB, wait for the completed line, and delete it."""
    terminal.type(f"{typed}\t".encode())
    terminal.wait_for(expected)
    terminal.type(b"\x15")


def test_bash__commands_and_files__are_completed(completions: Completions) -> None:
    assert completions("wor") == ["workers"]
    assert completions("serve", "--config", "") == ["option default", ""]


def test_bash__state_url__is_completed_although_bash_splits_at_colons(
    completions: Completions, shared_name: str
) -> None:
    SharedStore(shared_name, memory=8).close()
    assert completions("workers", "rediss") == ["option nospace", "rediss://"]
    assert completions("workers", "shared", ":", f"//{shared_name[:-1]}") == [f"//{shared_name}"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("comporta wor", ["workers"]),
        ("comporta db ", ["migrate", "status"]),
        ("comporta upstream li", ["limit", "list"]),
        ("comporta run --method P", ["PATCH", "POST", "PUT"]),
        ("comporta top redis+", ["redis+cluster://", "redis+sentinel://"]),
        ("comporta upstream show --st", ["--state"]),
    ],
)
def test_fish__commands_options_and_urls__are_completed(
    fish_completions: Completions, line: str, expected: list[str]
) -> None:
    assert sorted(each.partition("\t")[0] for each in fish_completions(line)) == expected


def test_fish__files_and_descriptions__are_completed(fish_completions: Completions, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").touch()
    assert fish_completions(f"comporta serve --config {tmp_path}/set") == [f"{tmp_path}/settings.toml"]
    [shown] = fish_completions("comporta upstream sho")
    assert shown == "show\tShow one upstream."
    [listed] = fish_completions("comporta upstrea")
    assert listed.startswith("upstream\tShow upstreams, and change")  # a comma ends no description


def test_zsh__commands_options_and_files__are_completed(zsh: PseudoTerminal, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").touch()
    press_tab(zsh, "comporta wor", "comporta workers")
    press_tab(zsh, "comporta upstream show --st", "--state")
    press_tab(zsh, "comporta run --method PA", "--method PATCH")
    press_tab(zsh, f"comporta serve --config {tmp_path}/set", "settings.toml")
    zsh.type(b"comporta db \t")
    zsh.wait_for("Show which migrations")  # the description of one of two


def test_zsh__state_url__is_completed_without_a_space(zsh: PseudoTerminal, shared_name: str) -> None:
    SharedStore(shared_name, memory=8).close()
    press_tab(zsh, f"comporta workers shared://{shared_name[:-1]}", shared_name)
    zsh.type(b"comporta top redis+c\tdb.example")
    zsh.wait_for("redis+cluster://db.example")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("db ''", ["migrate", "status"]),
        ("doctor --j", ["--json"]),
        ("run --method P", ["POST", "PUT", "PATCH"]),
        ("completion z", ["zsh"]),
        ("cache list --database post", ["postgresql://"]),
        ("db status sq", ["sqlite:///"]),
        ("top redis+", ["redis+sentinel://", "redis+cluster://"]),
        ("top unix :", ["//"]),
    ],
)
def test_program__completion_request_of_bash__is_answered(
    words: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"comporta {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    monkeypatch.setenv("_COMPORTA_COMPLETE", "bash_complete")
    assert run().stdout.split() == [f"plain,{word}" for word in expected]


def test_complete_state__more_states_than_the_maximum__includes_the_matching_one(
    shared_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "NAMES_MAX", 0)
    assert _state_completions(f"shared://{shared_name[:-1]}") == []
    monkeypatch.setattr(completion, "NAMES_MAX", 1)
    for name in (f"0-{shared_name}", shared_name):
        SharedStore(name, memory=8).close()
    assert _state_completions(f"shared://{shared_name[:-1]}") == [f"shared://{shared_name}"]
    remove_shared_state(f"0-{shared_name}")


def test_complete_state__registered_scheme__is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "scheme_names", lambda: ["redis", "myengine"])
    assert _state_completions("my") == ["myengine://"]


def _state_completions(incomplete: str) -> list[str]:
    command = click.Command("any")
    items = completion.complete_state(click.Context(command), click.Option(["--any"]), incomplete)
    return [item.value for item in items]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion__script__calls_the_program(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("completion", shell)
    assert ran.exit_code == 0
    assert f"_COMPORTA_COMPLETE={shell}_complete" in ran.stdout
    monkeypatch.setenv("COMP_WORDS", "comporta wor")
    monkeypatch.setenv("COMP_CWORD", "1" if shell != "fish" else "wor")
    monkeypatch.setenv("_COMPORTA_COMPLETE", f"{shell}_complete")
    assert "workers" in run().stdout


def test_completion__unknown_shell__is_a_usage_error() -> None:
    ran = run("completion", "tcsh")
    assert ran.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in ran.stderr
