"""One client connection through a :class:`~comporta.testing.FaultProxy`.

A connection consists of two pipes, one for each direction. A pipe reads bytes as they arrive and stamps them
with the time at which they are due, so that delays do not add up. A second task forwards them in order, under
the conditions in force by then. The proxy does not parse the protocol: a reply is everything that the server
sends until the client sends again.
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

from comporta.testing.faults import Direction, LinkConditions, PlannedFault, ProxyFaults

_CHUNK_BYTES = 16_384
_CHUNKS_MAX = 4_096  # held in each direction; then the sender has to wait
_REQUEST_BYTES_MAX = 65_536
_THROTTLED_STEPS_PER_SECOND = 20
_ARRIVE_SECONDS = 5.0
_ARRIVE_POLL_SECONDS = 0.001
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with a time of 0


class ProxyConnection:
    """A client, the server, and the two pipes between them."""

    def __init__(self, client: socket.socket, server: tuple[str, int], faults: ProxyFaults) -> None:
        self._client = client
        self._address = server
        self._faults = faults
        self._request_bytes = b""  # the request that the client is sending, or has just sent
        self._has_reply = False
        self._discards_reply = False  # until the next request
        self._is_stalled = False  # until the connection ends
        self._fault: PlannedFault | None = None
        self._bytes_before_fault = 0

    async def run(self) -> None:
        """Forward bytes until both sides are done, or one of them is gone."""
        upstream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        is_orderly = False
        try:
            await self._connect(upstream)
            requests = Pipe("requests", self._client, upstream, self._forward_request, self._faults)
            replies = Pipe("replies", upstream, self._client, self._forward_reply, self._faults)
            self._to_server, self._to_client = requests, replies
            async with asyncio.TaskGroup() as tasks:
                for pipe in (requests, replies):
                    tasks.create_task(pipe.read())
                    tasks.create_task(pipe.write())
            is_orderly = True
        except* OSError:
            pass  # one side, or a fault, reset the connection: the other side gets a reset too
        finally:
            for end in (self._client, upstream):
                end.close() if is_orderly else reset_socket(end)

    async def _connect(self, upstream: socket.socket) -> None:
        for end in (self._client, upstream):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(upstream, self._address)

    async def _forward_request(self, data: bytes) -> None:
        if self._has_reply:
            self._request_bytes, self._has_reply, self._discards_reply = b"", False, False
        self._request_bytes = (self._request_bytes + data)[:_REQUEST_BYTES_MAX]
        fault = self._faults.consume("requests", self._request_bytes)
        if fault is None:
            await self._to_server.send(data)
        else:
            await self._to_server.send(data[: _bytes_before(fault, data)])
            await self._to_server.reset_after_send()

    async def _forward_reply(self, data: bytes) -> None:
        self._has_reply = True
        if self._discards_reply or self._is_stalled:
            return
        if self._fault is None:
            self._fault = self._faults.consume("replies", self._request_bytes)
            if self._fault is None:
                await self._to_client.send(data)
                return
            self._bytes_before_fault = _bytes_before(self._fault, data)
        await self._apply_fault(self._fault, data)

    async def _apply_fault(self, fault: PlannedFault, data: bytes) -> None:
        """Forward the part of a reply that precedes the fault, then apply the fault."""
        intact = data[: self._bytes_before_fault]
        self._bytes_before_fault -= len(intact)
        if intact:
            await self._to_client.send(intact)
        if self._bytes_before_fault:
            return  # the fault lies in a later part of the reply
        self._fault = None
        if fault.kind == "garble":
            await self._to_client.send(fault.garbage)
            self._discards_reply = True
        elif fault.kind == "stall":
            self._is_stalled = True
        else:
            await self._to_client.reset_after_send()


class _Chunk(NamedTuple):
    data: bytes  # empty: the sender closed its side
    arrived: float
    due: float


class Pipe:
    """The bytes in one direction."""

    def __init__(
        self,
        direction: Direction,
        source: socket.socket,
        target: socket.socket,
        deliver: Callable[[bytes], Awaitable[None]],
        faults: ProxyFaults,
    ) -> None:
        self._direction: Direction = direction
        self._source = source
        self._target = target
        self._deliver = deliver
        self._faults = faults
        self._chunks: asyncio.Queue[_Chunk] = asyncio.Queue(_CHUNKS_MAX)
        self._loop = asyncio.get_running_loop()

    async def read(self) -> None:
        """Read chunks and stamp each with the time it is due, never earlier than the one before."""
        due = 0.0
        data = b"more to come"
        while data:
            data = await self._loop.sock_recv(self._source, _CHUNK_BYTES)
            arrived = time.monotonic()
            due = max(due, arrived + self._conditions().draw_delay_s())
            await self._chunks.put(_Chunk(data, arrived, due))

    async def write(self) -> None:
        """Forward each chunk when it is due."""
        while True:
            chunk = await self._chunks.get()
            await self._hold(chunk)
            if not chunk.data:
                with contextlib.suppress(OSError):  # the other side may be gone already
                    self._target.shutdown(socket.SHUT_WR)
                return
            if chunk.arrived > self._faults.dropped_at and not self._conditions().blackhole:
                await self._deliver(chunk.data)

    async def send(self, data: bytes) -> None:
        """Send in packets of the size, and at the rate, that are in force."""
        while data:
            conditions = self._conditions()
            size = conditions.packet_bytes or len(data)
            if conditions.bytes_per_second:
                size = min(size, max(1, int(conditions.bytes_per_second / _THROTTLED_STEPS_PER_SECOND)))
            packet, data = data[:size], data[size:]
            self._faults.forwarded_bytes[self._direction] += len(packet)  # before the receiver can see them
            await self._loop.sock_sendall(self._target, packet)
            if conditions.bytes_per_second:
                await self._faults.wait_for_change(len(packet) / conditions.bytes_per_second)
            elif data:
                await asyncio.sleep(0)

    async def reset_after_send(self) -> NoReturn:
        """End the connection with a reset once all sent bytes have arrived: a reset overtakes the others."""
        deadline = time.monotonic() + _ARRIVE_SECONDS
        while _unsent_bytes(self._target) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event for this
            await asyncio.sleep(_ARRIVE_POLL_SECONDS)
        raise ConnectionResetError("on purpose")

    async def _hold(self, chunk: _Chunk) -> None:
        """Wait as long as the conditions hold this chunk. A blackhole also hides that the sender closed."""
        while (left := chunk.due - time.monotonic()) > 0 and self._conditions().has_delay:
            await self._faults.wait_for_change(left)
        while self._conditions().hang or (self._conditions().blackhole and not chunk.data):
            await self._faults.wait_for_change()

    def _conditions(self) -> LinkConditions:
        return self._faults.conditions[self._direction]


def reset_socket(end: socket.socket) -> None:
    """Close a connection so that the other side sees a reset, not an orderly end, unless it is closed."""
    if end.fileno() >= 0:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        end.close()


def _unsent_bytes(end: socket.socket) -> int:
    """Return how many bytes the other side has not acknowledged, or 0 where the system does not say."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system
        import termios  # noqa: PLC0415 - not on every system

        unsent = fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4))
    except (ImportError, OSError):
        return 0
    return int.from_bytes(unsent, sys.byteorder)


def _bytes_before(fault: PlannedFault, data: bytes) -> int:
    """Return how many bytes pass before the fault."""
    return len(data) // 2 if fault.after_bytes is None else fault.after_bytes
