"""A small HTTP/1.1 server on loopback, which runs in its own thread.

The simulated services in this package are subclasses of it. It handles requests and responses as bytes and
does not know what they mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from comporta.testing.lifecycle import Lifecycle
from comporta.testing.programs import free_port
from comporta.testing.redis_server import HOST

_CLOSE_SECONDS = 5.0
_HEAD_BYTES_MAX = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with a time of 0


class HttpRequest(NamedTuple):
    """A request of a client; header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Disconnect(NamedTuple):
    """Returned instead of a response: close the connection, normally or with a reset."""

    reset: bool = False


class ServerThread(NamedTuple):
    """The parts of a running server."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    server: asyncio.Server


class HttpServer(Lifecycle, ABC):
    """An HTTP server on loopback. ``close`` cuts off requests in progress.

    ``port`` is where it listens, and ``url`` is its URL. Subclasses implement ``_respond``.
    """

    def __init__(self, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://{HOST}:{self.port}"
        self._server_thread: ServerThread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @abstractmethod
    async def _respond(self, request: HttpRequest) -> bytes | Disconnect:
        """Return the response to a request, in its wire format."""

    def start(self) -> Self:
        """Start listening and return the server."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="comporta-http-server", daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, HOST, self.port), loop
        ).result(_CLOSE_SECONDS)
        self._server_thread = ServerThread(loop, thread, server)
        return self

    def close(self) -> None:
        """Stop listening and end all connections. A second call does nothing."""
        running, self._server_thread = self._server_thread, None
        if running is None:
            return
        loop, thread, server = running
        asyncio.run_coroutine_threadsafe(self._close_connections(server), loop).result(_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_SECONDS)
        loop.close()

    async def _close_connections(self, server: asyncio.Server) -> None:
        """Abort every connection, including one that is being accepted.

        asyncio accepts a connection in a task of its own. This task leaves its socket open if it is cancelled
        before its first step, or if the server is closed before the task ends. So the task ends first.
        """
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener)
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(tasks)
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # transports close in the next step of the loop

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection; a plain callback registers it before its task begins."""
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve_connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not isinstance(response := await self._respond(await _read_request(reader)), Disconnect):
                writer.write(response)
                await writer.drain()
            if response.reset:
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.close()
        self._writers.discard(writer)


class RequestQuota:
    """The rate limit of a simulated server: ``rate`` requests a second, ``burst`` at once.

    Without a rate there is no limit.
    """

    def __init__(self, rate: float | None, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled = time.monotonic()

    @property
    def available(self) -> float:
        """The tokens that were left after the last request."""
        return self._tokens

    def take(self, amount: int = 1) -> float:
        """Take tokens. Return 0 on success, or else the seconds until that many are available."""
        if self._rate is None:
            return 0.0
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < amount:
            return (amount - self._tokens) / self._rate
        self._tokens -= amount
        return 0.0


def json_response(status: int, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """Return a response with a JSON body in its wire format; a 204 has no body."""
    content = b"" if status == 204 else json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    if status == 204:
        del fields["content-type"], fields["content-length"]
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} -\r\n{lines}\r\n".encode() + content


def retry_after_header(seconds: float) -> str:
    """Return the value of a ``Retry-After`` header: whole seconds, at least 1."""
    return str(max(1, math.ceil(seconds)))


async def _read_request(reader: asyncio.StreamReader) -> HttpRequest:
    head = (await reader.readuntil(b"\r\n\r\n"))[:_HEAD_BYTES_MAX].decode("latin-1")
    first, *lines = head.splitlines()
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    url = urlsplit(target)
    body = await _read_body(reader, headers)
    return HttpRequest(method, unquote(url.path), dict(parse_qsl(url.query)), headers, body)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    return body
