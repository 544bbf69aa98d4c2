"""A small HTTP/1.1 server on loopback, in a thread of its own: what our stand-ins for strangers are made of.

It knows requests and answers as bytes; what they mean is for those who build on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import NamedTuple, Self
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


class Loopback(Started):
    """Listens from ``start`` to ``close``; whoever is still being answered then is cut off."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def answer(self, request: Request) -> bytes | NoAnswer:
        """Say what goes back, headers and all."""
        raise NotImplementedError

    def start(self) -> Self:
        """Listen."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="loopback", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, HOST, self.port), loop
        ).result(_CLOSE_SECONDS)
        return self

    def close(self) -> None:
        """End, with all who are still being answered; a second time nothing happens."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._ended(), loop).result(_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        loop.close()

    async def _ended(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not isinstance(answer := await self.answer(await _request(reader)), NoAnswer):
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
