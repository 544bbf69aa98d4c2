"""The command line: one file per command. Needs the extra ``cli``."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line, or say in one sentence what is missing."""
    try:
        from comporta.cli.commands import comporta  # noqa: PLC0415 - so that a missing extra is one sentence

        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without our signs
        comporta(prog_name="comporta")
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"comporta: the command line needs {error.name}: pip install 'comporta[cli]'")
    except KeyboardInterrupt:  # before there was a command
        sys.exit(INTERRUPTED)
