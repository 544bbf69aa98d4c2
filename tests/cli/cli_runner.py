"""Runs the command line in this process, or in a separate one as users do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from comporta.cli.root_command import comporta


def run(*arguments: str) -> Result:
    """Run a command in this process; an unexpected exception fails the test."""
    result = CliRunner().invoke(comporta, arguments, prog_name="comporta")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_json(*arguments: str) -> list[dict[str, Any]]:
    """Run a command with ``--json`` and return the list that it prints."""
    rows: list[dict[str, Any]] = json.loads(run(*arguments, "--json").stdout)
    return rows


def run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process, with warnings as errors."""
    command = [sys.executable, "-W", "error", "-m", "comporta.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
