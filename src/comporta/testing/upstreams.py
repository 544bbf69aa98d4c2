"""An upstream as strangers run them: it enforces a limit of its own, and can be slow or broken.

It runs in a thread of this process and speaks HTTP/1.1 on loopback, so that whole programs can be tried
against it: any client, any number of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from typing import Self

from comporta.testing.programs import free_port
from comporta.testing.servers import HOST
from comporta.testing.started import Started

_CLOSE_SECONDS = 5.0
_HEAD_BYTES_MAX = 65_536


class SimulatedUpstream(Started):
    """A server that answers ``rate`` requests a second, ``burst`` at once, and refuses others with 429.

    ::

        with SimulatedUpstream(rate=10, burst=10) as upstream:
            httpx2.get(upstream.url)
            upstream.status = 503

    ``status``, ``headers`` and ``delay`` (seconds) are how it answers from now on; ``delay`` of ``None`` is
    never. ``upcoming`` are statuses for the next requests, before it goes back to ``status``.
    ``retry_after`` says when to come back in refusals and with a 503. ``accepted``, ``refused`` and ``most``
    (requests at the same time) are what it has seen. No ``rate``: no limit.
    """

    def __init__(self, rate: float | None = None, burst: int = 10, *, retry_after: bool = True) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.status = 200
        self.headers: dict[str, str] = {}
        self.upcoming: list[int] = []
        self.delay: float | None = 0.0
        self.retry_after = retry_after
        self.accepted = self.refused = self.most = self.present = 0
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

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
            while True:
                await self._request(reader)
                writer.write(await self._answer())
                await writer.drain()
        writer.close()

    @staticmethod
    async def _request(reader: asyncio.StreamReader) -> None:
        """Read a request to its end, and forget it."""
        head = (await reader.readuntil(b"\r\n\r\n"))[:_HEAD_BYTES_MAX].lower()
        _, found, rest = head.partition(b"\r\ncontent-length:")
        if found:
            await reader.readexactly(int(rest.partition(b"\r\n")[0]))
        elif b"\r\ntransfer-encoding: chunked" in head:
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()

    async def _answer(self) -> bytes:
        self.present += 1
        self.most = max(self.most, self.present)
        try:
            wait = self._take()
            if self.delay != 0:
                await asyncio.sleep(math.inf if self.delay is None else self.delay)
        finally:
            self.present -= 1
        if wait > 0:
            return self._response(429, wait)
        status = self.upcoming.pop(0) if self.upcoming else self.status
        return self._response(status, 1 if status == 503 else None)

    def _response(self, status: int, retry_after: float | None) -> bytes:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if retry_after is not None and self.retry_after:
            headers.setdefault("retry-after", str(max(1, math.ceil(retry_after))))
        return _written(status, headers)

    def _take(self) -> float:
        """Take from the bucket; returns the seconds until there is something in it again."""
        if self._rate is None:
            self.accepted += 1
            return 0.0
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            self.refused += 1
            return (1 - self._tokens) / self._rate
        self._tokens -= 1
        self.accepted += 1
        return 0.0


def _written(status: int, headers: dict[str, str]) -> bytes:
    body = f'{{"status": {status}}}'
    told = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {status} -\r\n{lines}\r\n{body}".encode()
