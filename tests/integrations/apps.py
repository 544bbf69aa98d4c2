"""ASGI applications for tests: called directly, or served by uvicorn on a thread or in a process.

``python -m tests.integrations.apps STATE LIMIT`` serves one until it is killed, and prints its port.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from tests.support import wait_until

from comporta import SlidingWindowLimiter
from comporta.integrations.asgi import App, Message, RateLimitMiddleware, Receive, Scope, Send
from comporta.stores.base import Store

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS_MAX = 120.0


class Reply(NamedTuple):
    """The response of an application; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        assert int(self.headers["content-length"]) == len(self.body)
        document: dict[str, Any] = json.loads(self.body)
        return document


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the minimum that ASGI requires."""
    if scope["type"] == "lifespan":
        await _lifespan(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def _lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    for step in ("startup", "shutdown"):
        assert (await receive())["type"] == f"lifespan.{step}"
        scope["app_saw"] = [*scope.get("app_saw", []), step]
        await send({"type": f"lifespan.{step}.complete"})


def scope_of(
    client: tuple[str, int] | None = ("192.0.2.1", 1234), path: str = "/", **headers: str
) -> dict[str, Any]:
    """Return the scope of a GET request; an underscore in a header name stands for a dash."""
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "GET", "path": path, "headers": sent, "client": client}


async def request(app: App, scope: Mapping[str, Any] | None = None) -> Reply:
    """Send one request to an application and return its response."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(dict(scope or scope_of()), receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


def responses(app: App, *scopes: Mapping[str, Any], store: Store | None = None) -> list[Reply]:
    """Send requests to an application on a new event loop; close the store's connections at the end."""

    async def request_all() -> list[Reply]:
        try:
            return [await request(app, scope) for scope in scopes]
        finally:
            await close_connections(store)

    return asyncio.run(request_all())


async def close_connections(store: Store | None) -> None:
    """Close the connections that a store opened on this event loop, if any."""
    if store is not None:
        await store.aclose()


def _listen() -> socket.socket:
    """Return a socket on a free port. With IPPROTO_TCP asyncio disables Nagle's algorithm on it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    return listener


def _server(app: Any) -> uvicorn.Server:
    """Return a server that leaves ``X-Forwarded-For`` to the application."""
    return uvicorn.Server(
        uvicorn.Config(app, log_level="warning", ws="none", proxy_headers=False, access_log=False)
    )


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serve an application on a thread of this process and yield its URL."""
    listener, server = _listen(), _server(app)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started, "the server ended before it started"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS_MAX)
        listener.close()
    assert not thread.is_alive(), "the server did not stop"


@contextmanager
def serve_in_process(state: str, limit: str) -> Iterator[str]:
    """Serve a limited application in its own process and yield its URL."""
    command = [sys.executable, "-m", "tests.integrations.apps", state, limit]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(WAIT_SECONDS_MAX, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            watchdog.cancel()
            assert port, f"the server ended with status {process.wait()}"
            yield f"http://127.0.0.1:{port}"
        finally:
            watchdog.cancel()
            process.kill()


def main() -> None:
    """Serve on a port that the system chooses; connections queue until the server accepts them."""
    state, limit = sys.argv[1:]
    app = RateLimitMiddleware(hello, SlidingWindowLimiter(limit, state, "inbound"), key=lambda _: "all")
    listener = _listen()
    listener.listen()
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - the parent reads it
    _server(app).run([listener])


if __name__ == "__main__":
    main()
