"""A raw HTTP server on this machine whose bodies end, break off, stall, arrive slowly or never end."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

WHOLE = b"x" * 400_000
"""A body that does not arrive together with the headers."""

PART = WHOLE[:1000]


class BodyServer:
    """Answers each request with the next of ``bodies``, then with ``WHOLE``."""

    def __init__(self, *bodies: str) -> None:
        self.bodies = list(bodies)
        self.default = "whole"
        self.requests: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._started = threading.Event()
        self._ended = asyncio.Event()
        self._transports: list[asyncio.WriteTransport] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> BodyServer:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def release(self) -> None:
        """Send the rest of the bodies that wait for this."""
        self._loop.call_soon_threadsafe(self._released.set)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer_all, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        self._started.set()
        await self._ended.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)  # the transports close their sockets in this turn
        await asyncio.sleep(0)

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.append(writer.transport)
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while await self._answer(reader, writer):
                pass
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        for line in head.lower().splitlines():
            if line.startswith("content-length:"):
                await reader.readexactly(int(line.partition(":")[2]))
        self.requests.append(head.split()[0])
        name = self.bodies.pop(0) if self.bodies else self.default
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            answer: Callable[[asyncio.StreamWriter], Awaitable[bool]] = getattr(self, f"_{name}")
            return await answer(writer)
        finally:
            self.in_flight -= 1

    async def _head(self, writer: asyncio.StreamWriter, *headers: str, status: str = "200 OK") -> None:
        writer.write("\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode())
        await writer.drain()

    async def _whole(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, f"Content-Length: {len(WHOLE)}")
        await asyncio.sleep(0.01)  # sleeps: so that the headers arrive first
        writer.write(WHOLE)
        await writer.drain()
        return True

    async def _small(self, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody")
        await writer.drain()
        return True

    async def _late(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, "Content-Length: 4")
        await asyncio.sleep(0.01)  # sleeps: so that the headers arrive first
        writer.write(b"body")
        await writer.drain()
        return True

    async def _empty(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, status="204 No Content")
        return True

    async def _half(self, writer: asyncio.StreamWriter) -> None:
        await self._head(writer, f"Content-Length: {len(WHOLE)}")
        writer.write(PART)
        await writer.drain()

    async def _reset(self, writer: asyncio.StreamWriter) -> bool:
        await self._half(writer)
        await asyncio.sleep(0.01)  # sleeps: so that the part arrives first
        linger = struct.pack("ii", 1, 0)  # close() sends a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        return False

    async def _cut(self, writer: asyncio.StreamWriter) -> bool:
        await self._half(writer)
        return False

    async def _cut_chunk(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, "Transfer-Encoding: chunked")
        writer.write(b"3e8\r\n" + PART + b"\r\n400\r\nhalf of it")
        await writer.drain()
        return False

    async def _stall(self, writer: asyncio.StreamWriter) -> bool:
        await self._half(writer)
        await self._released.wait()
        writer.write(WHOLE[len(PART) :])
        await writer.drain()
        return True

    async def _silent(self, writer: asyncio.StreamWriter) -> bool:
        await self._released.wait()
        return False

    async def _dribble(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, f"Content-Length: {len(WHOLE)}")
        while not self._released.is_set():
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.02)  # sleeps: the body arrives slowly
        return False

    async def _dribble_chunks(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, "Transfer-Encoding: chunked", "Connection: close")
        writer.write(b"61a80\r\n")
        while not self._released.is_set():
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.02)  # sleeps: the body arrives slowly
        return False

    async def _events(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        for number in range(3):
            writer.write(b"9\r\ndata: %d\n\n\r\n" % number)
            await writer.drain()
            await asyncio.sleep(0.3)  # sleeps: the events arrive slowly
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _broken(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, "Content-Length: 0", status="500 Internal Server Error")
        return True

    async def _broken_reset(self, writer: asyncio.StreamWriter) -> bool:
        await self._head(writer, f"Content-Length: {len(WHOLE)}", status="500 Internal Server Error")
        writer.write(PART)
        await writer.drain()
        return False
