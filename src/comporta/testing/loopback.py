"""A small HTTP/1.1 server on loopback, in a thread of its own: what our stand-ins for strangers are made of.

It knows requests and answers as bytes; what they mean is for those who build on it.
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
from typing import Any, NamedTuple, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from comporta.testing.programs import free_port
from comporta.testing.servers import HOST
from comporta.testing.started import Started

_CLOSE_SECONDS = 5.0
_HEAD_BYTES_MAX = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no time at all


class Request(NamedTuple):
    """What a client asked; names of headers are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class NoAnswer(NamedTuple):
    """In place of an answer: the connection ends, as in peace or with a reset."""

    reset: bool = False


class Running(NamedTuple):
    """What there is between ``start`` and ``close``."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    server: asyncio.Server


class Loopback(Started, ABC):
    """Listens from ``start`` to ``close``; whoever is still being answered then is cut off.

    What goes back to a request is its subclasses' business: ``answered``.
    """

    def __init__(self, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://{HOST}:{self.port}"
        self._running: Running | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def answered(self, request: Request) -> bytes | NoAnswer:
        """Return the answer to a request, as it goes over the wire."""

    def start(self) -> Self:
        """Listen."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="loopback", daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, HOST, self.port), loop
        ).result(_CLOSE_SECONDS)
        self._running = Running(loop, thread, server)
        return self

    def close(self) -> None:
        """End, with all who are still being answered; a second time nothing happens."""
        running, self._running = self._running, None
        if running is None:
            return
        loop, thread, server = running
        asyncio.run_coroutine_threadsafe(self._ended(server), loop).result(_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_SECONDS)
        loop.close()

    async def _ended(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not isinstance(answer := await self.answered(await _request(reader)), NoAnswer):
                writer.write(answer)
                await writer.drain()
            if answer.reset:
                end: socket.socket = writer.get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.close()


class Allowance:
    """A bucket as strangers keep one: ``rate`` a second, ``burst`` at once; no rate, no limit."""

    def __init__(self, rate: float | None, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled = time.monotonic()

    def take(self) -> float:
        """Take one; returns the seconds until there is something again, 0 if it was had."""
        if self._rate is None:
            return 0.0
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._rate
        self._tokens -= 1
        return 0.0


def response(status: int, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """Return an answer with a JSON body as it goes over the wire; no body at all with a 204."""
    content = b"" if status == 204 else json.dumps(body).encode()
    told = {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    if status == 204:
        del told["content-type"], told["content-length"]
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {status} -\r\n{lines}\r\n".encode() + content


def told_after(seconds: float) -> str:
    """Return a ``Retry-After``: whole seconds, one at the least."""
    return str(max(1, math.ceil(seconds)))


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n"))[:_HEAD_BYTES_MAX].decode("latin-1")
    first, *lines = head.splitlines()
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    address = urlsplit(target)
    body = await _body(reader, headers)
    return Request(method, unquote(address.path), dict(parse_qsl(address.query)), headers, body)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    return body
