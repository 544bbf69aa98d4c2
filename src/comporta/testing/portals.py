"""The simulated portals as a process: ``python -m comporta.testing.portals``.

A file of its own, which nothing imports: one that is imported cannot be run without Python warning of it.
"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser
from contextlib import suppress
from typing import Final

from comporta.testing.procurement import ProcurementServer

PORT: Final = 8900


def main(arguments: list[str] | None = None) -> None:
    """Serve until a signal ends it."""
    parser = ArgumentParser(prog="python -m comporta.testing.portals", description=main.__doc__)
    parser.add_argument("--port", type=int, default=PORT, help="the port on loopback (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="what is published (%(default)s)")
    asked = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ended)
    with ProcurementServer(seed=asked.seed, port=asked.port) as server:
        sys.stdout.write(f"pncp {server.pncp.url}\npcp {server.pcp.url}\ncontrol {server.url}/control\n")
        sys.stdout.flush()
        with suppress(SystemExit):
            while True:
                signal.pause()


def _ended(_number: int, _frame: object) -> None:
    raise SystemExit


if __name__ == "__main__":
    main()
