"""The command line: one file per command. Needs the extra ``cli``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say in one sentence what is missing."""
    try:
        from comporta.cli.commands import comporta  # noqa: PLC0415 - so that a missing extra is one sentence
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"comporta: the command line needs {error.name}: pip install 'comporta[cli]'")
    comporta(prog_name="comporta")
