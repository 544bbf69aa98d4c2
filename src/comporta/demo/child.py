"""The processes of the demo from the inside: each is held by its standard input, and ends when that does.

So nothing is left when whoever started them is killed, for the system closes what a dead process held.

    python -m comporta.demo.child <role> <arguments as JSON>
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

from comporta.threads import Run

END_SECONDS: Final = 0.45
"""How long a process may take to end in good order once it was let go."""


def said(**what: Any) -> None:
    """Tell whoever started this process one thing, as a line of JSON."""
    with suppress(BrokenPipeError):  # whoever wanted to know is gone
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def words() -> Iterator[str]:
    """Return what this process is told, line by line; when that ends it has been let go."""
    for line in sys.stdin:
        yield line.strip()


def hold(end: Callable[[], None]) -> None:
    """From now on have this process end when it is let go: by ``end``, and if that takes long, at once."""

    def wait() -> None:
        for _ in words():
            pass
        end()
        time.sleep(END_SECONDS)
        os._exit(1)

    Run().start(wait, name="leash")


def terminate() -> None:
    """End as if told by SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


def portals(port: int, rates: dict[str, float], latency: float, leave: list[str]) -> None:
    """Be the portals; and if nobody else is left to do so, remove the folders in ``leave``."""
    from comporta.testing.procurement import ProcurementServer  # noqa: PLC0415 - each role its own imports

    server = ProcurementServer(port=port, latency=latency, pncp_rate=rates["pncp"], pcp_rate=rates["pcp"])
    with server:
        said(url=server.url)
        if "end" in words():
            return
    time.sleep(2 * END_SECONDS)
    for folder in leave:
        shutil.rmtree(folder, ignore_errors=True)


def worker(socket_number: int) -> None:
    """Be a worker of the service, on a socket that was opened for all of them."""
    hold(terminate)  # first: what follows takes a while
    import socket  # noqa: PLC0415 - each role its own imports

    import uvicorn  # noqa: PLC0415 - likewise

    from comporta.service.config import ServiceConfig  # noqa: PLC0415 - likewise
    from comporta.service.serving import settings_of  # noqa: PLC0415 - likewise

    settings = settings_of(ServiceConfig.load(), "comporta.demo.worker:create")
    uvicorn.Server(settings).run([socket.socket(fileno=socket_number)])


def state() -> None:
    """Be the keeper of a real server: it dies and comes back at a word."""
    from comporta.testing.servers import Server  # noqa: PLC0415 - each role its own imports

    with Server() as server:
        said(url=server.url, program=os.path.basename(server.program))  # noqa: PTH119 - only its name
        for word in words():
            if word == "kill":
                server.kill()
            else:
                server.start()
            said(done=word)


def load(address: str) -> None:
    """Be the users."""
    hold(terminate)  # first: what follows takes a while
    from comporta.demo.load import run  # noqa: PLC0415 - each role its own imports

    run(address)


ROLES: Final[dict[str, Callable[..., None]]] = {
    "portals": portals,
    "worker": worker,
    "state": state,
    "load": load,
}


def main() -> None:
    """Play a role until let go."""
    role, arguments = sys.argv[1:3]
    ROLES[role](**json.loads(arguments))


if __name__ == "__main__":
    main()
