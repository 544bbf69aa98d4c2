"""One client's connection through a :class:`~comporta.testing.FaultProxy`, and what happens to its bytes.

A link is two pipes. Each reads as fast as bytes come and stamps them with the moment they are due, so that
delays do not add up; another task hands them on, in order, through whatever conditions hold by then. What a
request or a reply is, is told by turns: a reply is all that comes back until the client speaks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, NoReturn

from comporta.testing.faults import Conditions, Faults, Planned, Way

_CHUNK_BYTES = 16_384
_CHUNKS_MAX = 4_096  # held in each direction; then the sender has to wait
_ASKED_BYTES_MAX = 65_536
_THROTTLED_STEPS_PER_SECOND = 20
_ARRIVE_SECONDS = 5.0
_ARRIVE_POLL_SECONDS = 0.001
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no time at all


class Link:
    """A client, the server, and the two pipes between them."""

    def __init__(self, client: socket.socket, server: tuple[str, int], faults: Faults) -> None:
        self._client = client
        self._address = server
        self._faults = faults
        self._asked = b""  # what the client said in this turn
        self._answered = False
        self._mute = False  # for the rest of this turn
        self._dead = False  # for good
        self._planned: Planned | None = None
        self._bytes_before = 0  # that still pass before what is planned happens

    async def run(self) -> None:
        """Carry bytes until both sides are done, or one of them is gone."""
        upstream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        ends = (self._client, upstream)
        orderly = False
        try:
            await self._connect(upstream)
            requests = Pipe("requests", self._client, upstream, self._request, self._faults)
            replies = Pipe("replies", upstream, self._client, self._reply, self._faults)
            self._to_server, self._to_client = requests, replies
            async with asyncio.TaskGroup() as tasks:
                for pipe in (requests, replies):
                    tasks.create_task(pipe.read())
                    tasks.create_task(pipe.write())
            orderly = True
        except* OSError:
            pass  # reset by a side, or on purpose: the other side is to see it too
        finally:
            for end in ends:
                end.close() if orderly else reset(end)

    async def _connect(self, upstream: socket.socket) -> None:
        for end in (self._client, upstream):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(upstream, self._address)

    async def _request(self, data: bytes) -> None:
        if self._answered:
            self._asked, self._answered, self._mute = b"", False, False
        self._asked = (self._asked + data)[:_ASKED_BYTES_MAX]
        planned = self._faults.take("requests", self._asked)
        if planned is None:
            await self._to_server.send(data)
        else:
            await self._to_server.send(data[: _before(planned, data)])
            await self._to_server.cut()

    async def _reply(self, data: bytes) -> None:
        self._answered = True
        if self._mute or self._dead:
            return
        if self._planned is None:
            self._planned = self._faults.take("replies", self._asked)
            if self._planned is None:
                await self._to_client.send(data)
                return
            self._bytes_before = _before(self._planned, data)
        await self._spoil(self._planned, data)

    async def _spoil(self, planned: Planned, data: bytes) -> None:
        """Let through what may pass of a reply that is to be spoiled, then do it."""
        passing = data[: self._bytes_before]
        self._bytes_before -= len(passing)
        if passing:
            await self._to_client.send(passing)
        if self._bytes_before:
            return  # the rest of it is still to come
        self._planned = None
        if planned.kind == "garble":
            await self._to_client.send(planned.garbage)
            self._mute = True
        elif planned.kind == "stall":
            self._dead = True
        else:
            await self._to_client.cut()


class _Chunk(NamedTuple):
    data: bytes  # none: the sender is done
    came: float
    due: float


class Pipe:
    """Bytes in one direction."""

    def __init__(
        self,
        way: Way,
        source: socket.socket,
        target: socket.socket,
        deliver: Callable[[bytes], Awaitable[None]],
        faults: Faults,
    ) -> None:
        self._way: Way = way
        self._source = source
        self._target = target
        self._deliver = deliver
        self._faults = faults
        self._chunks: asyncio.Queue[_Chunk] = asyncio.Queue(_CHUNKS_MAX)
        self._loop = asyncio.get_running_loop()

    async def read(self) -> None:
        """Take what comes, and say when it is due: never before what came earlier."""
        due = 0.0
        data = b"more to come"
        while data:
            data = await self._loop.sock_recv(self._source, _CHUNK_BYTES)
            came = time.monotonic()
            due = max(due, came + self._now().delay_s())
            await self._chunks.put(_Chunk(data, came, due))

    async def write(self) -> None:
        """Hand on what is due."""
        while True:
            chunk = await self._chunks.get()
            await self._held(chunk)
            if not chunk.data:
                with contextlib.suppress(OSError):  # the other side may be gone already
                    self._target.shutdown(socket.SHUT_WR)
                return
            if chunk.came > self._faults.dropped_at and not self._now().blackhole:
                await self._deliver(chunk.data)

    async def send(self, data: bytes) -> None:
        """Send in packets of the size, and at the pace, that hold at the moment."""
        while data:
            now = self._now()
            size = now.packet_bytes or len(data)
            if now.bytes_per_second:
                size = min(size, max(1, int(now.bytes_per_second / _THROTTLED_STEPS_PER_SECOND)))
            packet, data = data[:size], data[size:]
            self._faults.passed_bytes[self._way] += len(packet)  # before anybody can have seen them
            await self._loop.sock_sendall(self._target, packet)
            if now.bytes_per_second:
                await self._faults.change(len(packet) / now.bytes_per_second)
            elif data:
                await asyncio.sleep(0)

    async def cut(self) -> NoReturn:
        """End the link with a reset, once what was sent is there: a reset overtakes what is still waiting."""
        deadline = time.monotonic() + _ARRIVE_SECONDS
        while _unsent(self._target) and time.monotonic() < deadline:  # noqa: ASYNC110 - the system tells nobody
            await asyncio.sleep(_ARRIVE_POLL_SECONDS)
        raise ConnectionResetError("on purpose")

    async def _held(self, chunk: _Chunk) -> None:
        """Wait as long as conditions keep this chunk. That the sender is done stays hidden in a blackhole."""
        while (left := chunk.due - time.monotonic()) > 0 and self._now().delays:
            await self._faults.change(left)
        while self._now().hang or (self._now().blackhole and not chunk.data):
            await self._faults.change()

    def _now(self) -> Conditions:
        return self._faults.conditions[self._way]


def reset(end: socket.socket) -> None:
    """Close a connection in such a way that the other side sees a reset, not an end."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    end.close()


def _unsent(end: socket.socket) -> int:
    """How many bytes the other side does not have yet, where the system tells."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system
        import termios  # noqa: PLC0415 - not on every system

        waiting = fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4))
    except (ImportError, OSError):
        return 0
    return int.from_bytes(waiting, sys.byteorder)


def _before(planned: Planned, data: bytes) -> int:
    """How many bytes pass before what is planned happens."""
    return len(data) // 2 if planned.after is None else planned.after
