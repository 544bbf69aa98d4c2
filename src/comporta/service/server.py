"""Serves the application with uvicorn in this process: deadlines for clients, and a shutdown without resets.

``supervisor`` runs worker processes with such servers (``worker``).
"""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any, Final

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from comporta.service.config import ServiceConfig
from comporta.service.container import Container

ACCEPT_SECONDS: Final = 0.05
"""How long a worker that closes leaves asyncio to set up the connections that it has just accepted."""

FIRST_REQUEST_SECONDS: Final = 3.0
"""How long a worker that closes waits for the request of a client that it has already accepted."""

JOINED_BYTES_MAX: Final = 65_536
"""How many bytes of a response wait for the end of the event loop's turn."""

_REQUEST_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


class JoinedWrites:
    """A transport that sends what is written in one turn of the event loop with one system call.

    uvicorn writes the head of a response and then its body: two system calls and two packets, which is a
    large part of what a small response costs. Everything else is left to the transport.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data at the end of this turn; large data at once, so that the transport's limit applies."""
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)
        self._size += len(data)
        if self._size >= JOINED_BYTES_MAX:
            self._flush()

    def close(self) -> None:
        """Send the rest, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        written, self._written, self._size = self._written, [], 0
        if written and not self._transport.is_closing():
            self._transport.write(b"".join(written))


class DeadlineProtocol(H11Protocol):
    """A connection with deadlines for sending a request and for reading the response.

    Without them a client that stops reading would keep its response in memory, and a dashboard slot, forever.
    The protocol also tells the application about a shutdown before uvicorn starts to wait for open streams.
    """

    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for the first request."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._start_request_timer()
        if self._container.shutting_down.is_set():
            self._await_first_request()

    def data_received(self, data: bytes) -> None:
        """Keep the deadline running from the first byte of a request to its last."""
        super().data_received(data)
        if self.conn.their_state in _REQUEST_INCOMPLETE:
            self._start_request_timer()
        else:
            self._cancel_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel both deadlines."""
        self._cancel_request_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the deadline for the client to continue reading."""
        super().pause_writing()
        self._cancel_write_timer()
        self._write_timer = self.loop.call_later(self.app.state.config.request_seconds, self._abort)

    def resume_writing(self) -> None:
        """Cancel the deadline: the client reads again."""
        self._cancel_write_timer()
        super().resume_writing()

    def shutdown(self) -> None:
        """Tell the application that it is shutting down, and close a connection that has no request.

        The first request of a new connection is still served: closing would reset it.
        """
        self._container.shutting_down.set()
        if self._has_request:
            super().shutdown()
        else:
            self._await_first_request()

    @property
    def _has_request(self) -> bool:
        cycle: object | None = self.cycle
        return cycle is not None

    @property
    def _container(self) -> Container:
        container: Container = self.app.state.container
        return container

    def _await_first_request(self) -> None:
        self.loop.call_later(FIRST_REQUEST_SECONDS, self._close_without_request)

    def _close_without_request(self) -> None:
        if not self._has_request:
            self.transport.close()

    def _start_request_timer(self) -> None:
        if self._request_timer is None:
            seconds = self.app.state.config.request_seconds
            self._request_timer = self.loop.call_later(seconds, self._abort)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abort(self) -> None:
        self.transport.abort()


class ServiceServer(uvicorn.Server):
    """A server that can announce its shutdown, and resets no connection that it has accepted."""

    def drain(self) -> None:
        """Announce the shutdown in ``/readyz``, and ask clients for a new connection after each response."""
        if self.started:
            container: Container = self.config.loaded_app.state.container
            container.is_draining = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more clients, finish what was accepted, and close."""
        loop = asyncio.get_running_loop()
        for server in self.servers:
            for listener in server.sockets:
                loop.remove_reader(listener.fileno())
        await asyncio.sleep(ACCEPT_SECONDS)  # asyncio would drop accepted clients without a protocol
        await super().shutdown(sockets)


def uvicorn_config(
    config: ServiceConfig, app: FastAPI | str, log_config: dict[str, Any] | None = None
) -> uvicorn.Config:
    """Return uvicorn's configuration for an application or the import path of its factory.

    uvicorn configures logging as soon as this object is created.
    """
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        host=config.host,
        loop="asyncio",  # uvicorn would switch to uvloop wherever that happens to be installed
        http=DeadlineProtocol,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=log_config,
        limit_concurrency=config.connections_max,
        timeout_graceful_shutdown=math.ceil(config.close_seconds),
    )
