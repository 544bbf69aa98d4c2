"""Entry point of the demo's child processes. Each of them exits when its standard input is closed.

Usage: ``python -m comporta.demo.child_process <role> <arguments as JSON>``
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Final

from comporta.demo.parent_pipe import EXIT_SECONDS, commands, exit_with_parent, send_message, terminate_self


def run_portals(port: int, rates: dict[str, float], latency: float, cleanup_paths: list[str]) -> None:
    """Serve the simulated portals. If the parent dies, remove the directories in ``cleanup_paths``."""
    from comporta.testing.procurement import ProcurementServer  # noqa: PLC0415 - each role has its own imports

    server = ProcurementServer(port=port, latency=latency, pncp_rate=rates["pncp"], pcp_rate=rates["pcp"])
    with server:
        send_message(url=server.url)
        if "end" in commands():
            return
    time.sleep(2 * EXIT_SECONDS)
    for path in cleanup_paths:
        shutil.rmtree(path, ignore_errors=True)


def run_worker(descriptor: int) -> None:
    """Run one worker of the service on the listening socket that all workers share."""
    exit_with_parent(terminate_self)  # first, because the imports below take a while
    import socket  # noqa: PLC0415 - each role has its own imports

    import uvicorn  # noqa: PLC0415 - likewise

    from comporta.service.config import ServiceConfig  # noqa: PLC0415 - likewise
    from comporta.service.server import uvicorn_config  # noqa: PLC0415 - likewise

    settings = uvicorn_config(ServiceConfig.load(), "comporta.demo.app:create")
    uvicorn.Server(settings).run([socket.socket(fileno=descriptor)])


def run_state_server() -> None:
    """Run a Redis or Valkey server, and kill or restart it on command."""
    from comporta.testing.redis_server import Server  # noqa: PLC0415 - each role has its own imports

    with Server() as server:
        send_message(url=server.url, program=os.path.basename(server.program))  # noqa: PTH119 - only its name
        for command in commands():
            if command == "kill":
                server.kill()
            else:
                server.start()
            send_message(done=command)


def run_load(address: str) -> None:
    """Run the simulated users."""
    exit_with_parent(terminate_self)  # first, because the imports below take a while
    from comporta.demo.simulated_users import run_users  # noqa: PLC0415 - each role has its own imports

    run_users(address)


ROLES: Final[dict[str, Callable[..., None]]] = {
    "portals": run_portals,
    "worker": run_worker,
    "state": run_state_server,
    "load": run_load,
}


def main() -> None:
    """Run the role named on the command line."""
    role, arguments = sys.argv[1:3]
    ROLES[role](**json.loads(arguments))


if __name__ == "__main__":
    main()
