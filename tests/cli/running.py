"""Running the command line: in this process, or as users do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from comporta.cli.commands import comporta


def run(*arguments: str) -> Result:
    """Run a command in this process; a traceback fails the test."""
    ran = CliRunner().invoke(comporta, arguments, prog_name="comporta")
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran


def listed(*arguments: str) -> list[dict[str, Any]]:
    """Return what a command prints with ``--json``."""
    found: list[dict[str, Any]] = json.loads(run(*arguments, "--json").stdout)
    return found


def run_for_real(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, warnings being errors."""
    command = [sys.executable, "-W", "error", "-m", "comporta.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
