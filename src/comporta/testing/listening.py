"""A small HTTP server in a thread of its own, for what is simulated: HTTP/1.1 on loopback, kept alive.

It reads requests and writes answers; what is answered is its subclasses' business. No web framework: whoever
tests a program against it needs none of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from typing import Any, NamedTuple, Self

from comporta.testing.programs import free_port
from comporta.testing.servers import HOST
from comporta.testing.started import Started

_CLOSE_SECONDS = 5.0
_BODY_BYTES_MAX = 1024 * 1024


class Request(NamedTuple):
    """What was asked for: ``target`` is the path with its query."""

    method: str
    target: str
    body: bytes


class Listening(Started):
    """Answers every request by ``answered``; an answer of ``None`` hangs up."""

    def __init__(self, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://{HOST}:{self.port}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def answered(self, request: Request) -> bytes | None:
        """Return the answer to a request, as it goes over the wire."""
        raise NotImplementedError

    def start(self) -> Self:
        """Listen."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="upstream", daemon=True)
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
            while (answer := await self.answered(await _read(reader))) is not None:
                writer.write(answer)
                await writer.drain()
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


async def _read(reader: asyncio.StreamReader) -> Request:
    """Read a request to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    lower = head.lower()
    _, found, rest = lower.partition(b"\r\ncontent-length:")
    body = b""
    if found:
        body = await reader.readexactly(min(_BODY_BYTES_MAX, int(rest.partition(b"\r\n")[0])))
    elif b"\r\ntransfer-encoding: chunked" in lower:
        while size := int(await reader.readline(), 16):
            body = (body + (await reader.readexactly(size + 2))[:-2])[:_BODY_BYTES_MAX]
        await reader.readline()
    return Request(method, target, body)
