"""Run the simulated procurement portals as a process: ``python -m comporta.testing.portals``.

No module imports this one: Python warns when it runs a module that is already imported.
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
    """Serve two simulated procurement portals until SIGINT or SIGTERM."""
    parser = ArgumentParser(prog="python -m comporta.testing.portals", description=main.__doc__)
    parser.add_argument(
        "--port", type=int, default=PORT, help="Listen on this port on loopback. Default: %(default)s."
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="Generate the tenders from this seed. Default: %(default)s."
    )
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    with suppress(SystemExit), ProcurementServer(seed=options.seed, port=options.port) as server:
        sys.stdout.write(f"pncp {server.pncp.url}\npcp {server.pcp.url}\ncontrol {server.url}/control\n")
        sys.stdout.flush()
        while True:
            signal.pause()


def _exit(_number: int, _frame: object) -> None:
    raise SystemExit


if __name__ == "__main__":
    main()
