"""The systemd unit of the documentation is complete, and starts a command that exists.

Here an own parser reads it, so that no systemd is needed; ``tests/soak/test_unit_file.py`` has systemd itself
verify it.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path

import click

from comporta.cli.root_command import comporta

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "docs" / "operations" / "comporta-run@.service"
GUIDE = ROOT / "docs" / "guides" / "many-machines.md"

KNOWN_OPTIONS = {
    "Unit": {"Description", "Wants", "After"},
    "Service": {
        *("Type", "User", "EnvironmentFile", "WorkingDirectory", "ExecStart", "SuccessExitStatus"),
        *("Restart", "RestartPreventExitStatus", "RestartSec", "TimeoutStopSec"),
    },
    "Install": {"WantedBy"},
}


def parse_unit(text: str) -> dict[str, dict[str, str]]:
    """Return the options of a unit file by section; raises for a line that is neither option nor comment."""
    sections: dict[str, dict[str, str]] = defaultdict(dict)
    section = ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line or line.startswith(("#", ";")):
            continue
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
            continue
        name, sign, value = line.partition("=")
        assert section, line
        assert sign, line
        assert name not in sections[section], line
        sections[section][name] = value
    return sections


def test_unit__options__are_all_known() -> None:
    sections = parse_unit(UNIT.read_text())
    assert {section: set(options) for section, options in sections.items()} == KNOWN_OPTIONS


def test_unit__command__is_a_shared_run() -> None:
    command = shlex.split(parse_unit(UNIT.read_text())["Service"]["ExecStart"])
    assert command[0].startswith("/")
    assert command[1] == "run"
    run = comporta.get_command(click.Context(comporta), "run")
    assert run is not None
    options = run.make_context("run", command[2:], resilient_parsing=False).params
    assert options["shared"] is True
    assert options["output"].startswith("postgresql://")
    assert "%" not in " ".join(command)  # systemd would expand it


def test_unit__exit_statuses__are_those_of_the_command() -> None:
    service = parse_unit(UNIT.read_text())["Service"]
    assert service["SuccessExitStatus"].split() == ["3", "130"]
    assert service["RestartPreventExitStatus"] == "2"


def test_guide__unit__is_shown_as_it_is() -> None:
    [shown] = re.findall(r"^```ini\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert shown == UNIT.read_text()
