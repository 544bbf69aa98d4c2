"""Applications for tests: asked directly, served by uvicorn on a thread, or by uvicorn in its own process.

``python -m tests.integrations.serving STATE LIMIT`` serves one until it is told to end, and says its port.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from comporta import SlidingWindowLimiter
from comporta.integrations.asgi import App, Message, RateLimitMiddleware, Receive, Scope, Send
from comporta.stores.base import Store

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0


class Reply(NamedTuple):
    """What an application answered: header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        assert int(self.headers["content-length"]) == len(self.body)
        found: dict[str, Any] = json.loads(self.body)
        return found


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in the least that ASGI asks for."""
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
    """Return the scope of a GET; an underscore in a header's name stands for a dash."""
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "GET", "path": path, "headers": sent, "client": client}


async def ask(app: App, scope: Mapping[str, Any] | None = None) -> Reply:
    """Let an application answer one request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(dict(scope or scope_of()), receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


def asked(app: App, *scopes: Mapping[str, Any], store: Store | None = None) -> list[Reply]:
    """Let an application answer requests, on a loop of its own; the store's connections end with it."""

    async def all_of_them() -> list[Reply]:
        try:
            return [await ask(app, scope) for scope in scopes]
        finally:
            await closed(store)

    return asyncio.run(all_of_them())


async def closed(store: Store | None) -> None:
    """Close the connections that a store made on this loop, if it makes any."""
    if store is not None and hasattr(store, "aclose"):
        await store.aclose()


def _listening() -> socket.socket:
    """Return a socket of a free port; told that it is TCP, asyncio lets small answers go at once."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    return listener


def _server(app: Any) -> uvicorn.Server:
    """Return a server that leaves ``X-Forwarded-For`` to the application."""
    return uvicorn.Server(
        uvicorn.Config(app, log_level="warning", ws="none", proxy_headers=False, access_log=False)
    )


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application on a thread of this process; gives its address."""
    listener, server = _listening(), _server(app)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not server.started:
            assert thread.is_alive(), "the server ended before it began"
            assert time.monotonic() < deadline, "the server did not begin"
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        listener.close()
    assert not thread.is_alive(), "the server did not end"


@contextmanager
def process(state: str, limit: str) -> Iterator[str]:
    """Serve a limited application in a process of its own; gives its address."""
    command = [sys.executable, "-m", "tests.integrations.serving", state, limit]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        patience = threading.Timer(PATIENCE_SECONDS, started.kill)
        patience.start()
        try:
            assert started.stdout is not None
            port = started.stdout.readline().strip()
            patience.cancel()
            assert port, f"the server ended with status {started.wait()}"
            yield f"http://127.0.0.1:{port}"
        finally:
            patience.cancel()
            started.kill()


def main() -> None:
    """Serve, on a port that the system chooses; connections wait in line until the server takes them."""
    state, limit = sys.argv[1:]
    app = RateLimitMiddleware(hello, SlidingWindowLimiter(limit, state, "inbound"), key=lambda _: "all")
    listener = _listening()
    listener.listen()
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - that is how it is told
    _server(app).run([listener])


if __name__ == "__main__":
    main()
