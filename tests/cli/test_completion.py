"""Shell completion: what a real bash is offered; for the others, the scripts and what they would ask."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from tests.cli.running import run
from tests.processes.fleet import remove

from comporta.cli import completion
from comporta.stores.shared import SharedStore

Offered = Callable[..., list[str]]

PROGRAM = f"""#!/bin/sh
exec {sys.executable} -m comporta.cli "$@"
"""
COMPLETES = """
compopt() { echo "option $2"; }
source "$1"; shift
COMP_WORDS=(comporta "$@"); COMP_CWORD=$#
_comporta_completion comporta
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(tmp_path: Path) -> Offered:
    """Give what bash would show for words, the last of them unfinished; the program is found on PATH."""
    program = tmp_path / "comporta"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(run("completion", "bash").stdout)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def offer(*words: str) -> list[str]:
        command = ["bash", "--norc", "-c", COMPLETES, "bash", str(script), *words]
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
        assert ran.stderr == ""
        return ran.stdout.split("\n")[:-1]

    return offer


def test_bash__commands_and_files__are_completed(offered: Offered) -> None:
    assert offered("wor") == ["workers"]
    assert offered("serve", "--config", "") == ["option default", ""]


def test_bash__state__is_completed_though_bash_breaks_words_at_colons(
    offered: Offered, shared_name: str
) -> None:
    SharedStore(shared_name, keys=128).close()
    assert offered("workers", "rediss") == ["option nospace", "rediss://"]
    assert offered("workers", "shared", ":", f"//{shared_name[:-1]}") == [f"//{shared_name}"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("db ''", ["migrate", "status"]),
        ("doctor --j", ["--json"]),
        ("run --method P", ["POST", "PUT", "PATCH"]),
        ("completion z", ["zsh"]),
        ("cache ls --database post", ["postgresql://"]),
        ("db status sq", ["sqlite:///"]),
        ("top redis+", ["redis+sentinel://", "redis+cluster://"]),
        ("top unix :", ["//"]),
    ],
)
def test_program__asked_by_bash__completes(
    words: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"comporta {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    monkeypatch.setenv("_COMPORTA_COMPLETE", "bash_complete")
    assert run().stdout.split() == [f"plain,{word}" for word in found]


def test_states__more_on_this_machine_than_are_offered__the_one_begun_is(
    shared_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "NAMES_MAX", 0)
    assert _begun(f"shared://{shared_name[:-1]}") == []
    monkeypatch.setattr(completion, "NAMES_MAX", 1)
    for name in (f"0-{shared_name}", shared_name):
        SharedStore(name, keys=128).close()
    assert _begun(f"shared://{shared_name[:-1]}") == [f"shared://{shared_name}"]
    remove(f"0-{shared_name}")


def _begun(incomplete: str) -> list[str]:
    command = click.Command("any")
    found = completion.states(click.Context(command), click.Option(["--any"]), incomplete)
    return [item.value for item in found]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion__script__asks_the_program(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("completion", shell)
    assert ran.exit_code == 0
    assert f"_COMPORTA_COMPLETE={shell}_complete" in ran.stdout
    monkeypatch.setenv("COMP_WORDS", "comporta wor")
    monkeypatch.setenv("COMP_CWORD", "1" if shell != "fish" else "wor")
    monkeypatch.setenv("_COMPORTA_COMPLETE", f"{shell}_complete")
    assert "workers" in run().stdout


def test_completion__a_shell_nobody_knows__is_a_usage_error() -> None:
    ran = run("completion", "tcsh")
    assert ran.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in ran.stderr
