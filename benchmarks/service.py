"""The service: cached searches, compared with an endpoint that only returns the same bytes.

Each server is a process that runs uvicorn in the same way; they take turns. The client sends on all its
connections, then reads from all of them, and costs a fraction of what the servers cost.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.measure import Effort, Run, in_turns
from benchmarks.ours import COMPORTA
from benchmarks.report import Goal, Section, Table
from comporta.testing import ProcurementServer

CONNECTIONS = 16
SEARCH = "/v1/search?date_from=2026-01-01&date_to=2026-01-10&ufs=SP,RJ,MG&limit=20"
BARE = "FastAPI, the same bytes"
OURS = f"{COMPORTA} cached search"
UNLIMITED = f"{OURS}, no limit for clients"

_SLOT_SECONDS = 0.25
_START_SECONDS_MAX = 60.0
_TOML = """
state = "shared://{name}"
[service]
port = 0
database = "sqlite:///{folder}/bench.db"
allow_private_addresses = true
client_limit = {limit}
[service.addresses]
pncp = "{pncp}"
pcp = "{pcp}"
"""


def hits(effort: Effort) -> Section:
    """Compare cached searches a second with the maximum of the framework."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        portals = stack.enter_context(ProcurementServer(seed=1))
        ours = stack.enter_context(serve(Path(folder), "limited", '"1000000/s"', portals)).url
        unlimited = stack.enter_context(serve(Path(folder), "unlimited", "false", portals)).url
        body = fetch(ours + SEARCH)
        body_file = Path(folder) / "body.json"
        body_file.write_bytes(body)
        bare = stack.enter_context(
            start_server([sys.executable, "-m", "benchmarks.service", str(body_file)], {})
        ).url
        assert fetch(f"{bare}/bare") == body
        assert json.loads(fetch(ours + SEARCH))["freshness"] == "fresh"
        fetch(unlimited + SEARCH)
        runs = {
            OURS: stack.enter_context(client(ours + SEARCH)),
            UNLIMITED: stack.enter_context(client(unlimited + SEARCH)),
            BARE: stack.enter_context(client(f"{bare}/bare")),
        }
        timings = in_turns(runs, effort, _SLOT_SECONDS)
    description = (
        f"One worker each, {CONNECTIONS} connections, {len(body) // 1024} KiB per response; comporta with "
        "metrics and headers for every request, and, in one row, without a limit for each client."
    )
    goal = Goal.at_least(0.7, "service, a cached search: a bare endpoint", timings, OURS, [BARE])
    return Section(
        "Service, searches in memory", description, [Table.of_speeds("Requests", timings, OURS)], [goal]
    )


class ServerProcess(NamedTuple):
    """A server in its own process."""

    url: str
    pid: int


@contextmanager
def serve(folder: Path, name: str, limit: str, portals: ProcurementServer) -> Iterator[ServerProcess]:
    """Start ``comporta serve``, yield the process, and end it."""
    config = folder / f"{name}.toml"
    values = {"limit": limit, "pncp": portals.pncp.url, "pcp": portals.pcp.url}
    text = _TOML.format(name=f"bench-{name}-{os.getpid()}", folder=folder, **values)
    config.write_text(text, encoding="utf-8")
    with start_server(
        [sys.executable, "-m", "comporta.cli", "serve"], {"COMPORTA_CONFIG": str(config)}
    ) as process:
        yield process


@contextmanager
def start_server(command: list[str], environment: dict[str, str]) -> Iterator[ServerProcess]:
    """Start a server that prints its URL, yield the process, and end it."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
        _wait_for(url)
        yield ServerProcess(url, _worker_pid(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_START_SECONDS_MAX)


def _worker_pid(pid: int) -> int:
    """Return the process that serves: the worker of a supervisor, or the process itself."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else pid


def _wait_for(url: str) -> None:
    parts = urlsplit(url)
    until = time.monotonic() + _START_SECONDS_MAX
    while True:
        try:
            socket.create_connection((parts.hostname or "", parts.port or 0), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def fetch(url: str) -> bytes:
    """Return the body of a GET request."""
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 - loopback
        content: bytes = response.read()
    return content


@contextmanager
def client(url: str) -> Iterator[Run]:
    """Yield a run that sends the given number of requests, on all connections at once."""
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    request = f"GET {target} HTTP/1.1\r\nhost: {parts.netloc}\r\n\r\n".encode()
    with ExitStack() as stack:

        def connect() -> socket.socket:
            address = (parts.hostname or "", parts.port or 0)
            return stack.enter_context(socket.create_connection(address, 60))

        connections = [connect() for _ in range(CONNECTIONS)]

        def run(count: int) -> int:
            connections[:] = [connection if _is_open(connection) else connect() for connection in connections]
            rounds = max(1, count // CONNECTIONS)
            for _ in range(rounds):
                for connection in connections:
                    connection.sendall(request)
                for connection in connections:
                    _read(connection)
            return rounds * CONNECTIONS

        yield run


def _is_open(connection: socket.socket) -> bool:
    """Return whether a connection is usable: on a busy machine the server may have timed it out.

    A readable connection has nothing but its end to read.
    """
    return not select.select([connection], [], [], 0)[0]


def _read(connection: socket.socket) -> None:
    got = connection.recv(262_144)
    assert got.startswith(b"HTTP/1.1 200"), got[:200]
    head, _, rest = got.partition(b"\r\n\r\n")
    left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) - len(rest)
    while left > 0:
        left -= len(connection.recv(262_144))


def _serve_bare(body: bytes) -> None:
    """Serve an endpoint that only returns these bytes."""
    import uvicorn  # noqa: PLC0415 - only the server process needs it
    from fastapi import FastAPI, Response  # noqa: PLC0415 - see above

    app = FastAPI()

    @app.get("/bare")
    async def bare() -> Response:
        return Response(body, media_type="application/json")

    # With IPPROTO_TCP asyncio disables Nagle's algorithm; otherwise its delay would be measured.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, http="h11", access_log=False, log_level="error", server_header=False)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    _serve_bare(Path(sys.argv[1]).read_bytes())
