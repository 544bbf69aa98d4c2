"""Shell completion: in a real bash; for the other shells, the scripts and the answers to them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from tests.cli.cli_runner import run
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


@pytest.fixture
def completions(tmp_path: Path) -> Completions:
    """Return a function that completes words in bash, the last of them unfinished."""
    program = tmp_path / "comporta"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(run("completion", "bash").stdout)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def complete(*words: str) -> list[str]:
        command = ["bash", "--norc", "-c", COMPLETION_SCRIPT, "bash", str(script), *words]
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
        assert ran.stderr == ""
        return ran.stdout.split("\n")[:-1]

    return complete


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
