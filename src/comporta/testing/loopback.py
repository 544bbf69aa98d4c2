"""A small HTTP/1.1 server on loopback, in a thread of its own: what our stand-ins for strangers are made of.

It knows requests and answers as bytes; what they mean is for those who build on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self, cast
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


Answers = Callable[[Request], Awaitable[bytes | NoAnswer]]


class Running(NamedTuple):
    """What there is between ``start`` and ``close``."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    server: asyncio.Server


class Loopback(Started):
    """Listens from ``start`` to ``close``; whoever is still being answered then is cut off.

    ``answer`` says what goes back to a request, headers and all.
    """

    def __init__(self, answer: Answers) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._answers = answer
        self._running: Running | None = None
        self._tasks: set[asyncio.Task[None]] = set()

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
            while not isinstance(answer := await self._answers(await _request(reader)), NoAnswer):
                writer.write(answer)
                await writer.drain()
            if answer.reset:
                end: socket.socket = writer.get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.close()


def response(status: int, body: str, headers: dict[str, str]) -> bytes:
    """Return an answer of JSON text as it goes over the wire."""
    content = body.encode()
    told = {"content-type": "application/json", "content-length": str(len(content)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {status} -\r\n{lines}\r\n".encode() + content


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
