"""Entry point of the demo's child processes. Each of them exits when its standard input is closed.

The operating system closes that pipe when the parent dies, so no process survives a killed demo.

    python -m comporta.demo.child_process <role> <arguments as JSON>
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from comporta.threads import BackgroundThread

EXIT_SECONDS: Final = 0.45
"""How long a process may take to exit by itself once its standard input is closed."""


def send_message(**message: Any) -> None:
    """Send one message to the parent, as a line of JSON."""
    with suppress(BrokenPipeError):  # the parent is gone
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def commands() -> Iterator[str]:
    """Yield the commands of the parent, one per line, until it closes the pipe."""
    for line in sys.stdin:
        yield line.strip()


def exit_with_parent(end: Callable[[], None]) -> None:
    """Call ``end`` when the parent closes the pipe; exit at once if that takes longer than the bound."""

    def wait() -> None:
        for _ in commands():
            pass
        end()
        time.sleep(EXIT_SECONDS)
        os._exit(1)

    BackgroundThread().start(wait, name="parent-watch")


def terminate_self() -> None:
    """Send SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)


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
