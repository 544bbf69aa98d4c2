"""Serves the application with uvicorn, in this process or in several supervised worker processes.

Each worker loads the configuration from the environment of this process. All of them share one socket, which
``listener`` opens.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.config import LOGGING_CONFIG, STARTUP_FAILURE
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.listener import open_listener
from comporta.service.metrics import MULTIPROCESS_DIR_VARIABLE
from comporta.service.sources.factory import check_addresses

APP_FACTORY: Final = "comporta.service.server:create_worker_app"

WORKER_HEALTHCHECK_SECONDS: Final = 30
"""A worker without a sign of life for this long is replaced; on a busy machine one takes a while to start."""

_REQUEST_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


class DeadlineProtocol(H11Protocol):
    """A connection with deadlines for sending a request and for reading the response.

    Without them a client that stops reading would keep its response in memory, and a dashboard slot, forever.
    The protocol also tells the application about a shutdown before uvicorn starts to wait for open streams.
    """

    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for the first request."""
        super().connection_made(transport)
        self._start_request_timer()

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
        """Start the deadline for the client to read on."""
        super().pause_writing()
        self._cancel_write_timer()
        self._write_timer = self.loop.call_later(self.app.state.config.request_seconds, self._abort)

    def resume_writing(self) -> None:
        """Cancel the deadline: the client reads again."""
        self._cancel_write_timer()
        super().resume_writing()

    def shutdown(self) -> None:
        """Tell the application that it is shutting down."""
        self.app.state.container.shutting_down.set()
        super().shutdown()

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


class WorkerSupervisor(Multiprocess):
    """Supervises workers and notices immediately when one has ended.

    uvicorn pings each worker through a pipe. While this process also holds the worker's end of the pipe, the
    death of a worker does not close it, and the supervisor waits for a reply that never comes.
    """

    def init_processes(self) -> None:
        """Start the workers."""
        super().init_processes()
        self._close_child_pipes()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that died."""
        super().keep_subprocess_alive()
        self._close_child_pipes()

    def _close_child_pipes(self) -> None:
        for process in self.processes:
            process.child_conn.close()


def serve(config: ServiceConfig, on_listening: Callable[[str], None]) -> None:
    """Serve until a signal ends the process; finish requests in progress and close everything.

    ``on_listening`` gets the URL once clients can connect; they queue until a worker accepts them. A wrong
    configuration raises before that. A worker that cannot start ends the process with uvicorn's exit status
    for a startup failure.
    """
    asyncio.run(check_addresses(config))
    with open_listener(config.host, config.port) as listener:
        on_listening(_listener_url(listener))
        settings = uvicorn_config(config, APP_FACTORY, _log_config())
        if config.workers == 1:
            with _ignore_repeated_signal():
                uvicorn.Server(settings).run([listener])
        else:
            with _multiprocess_metrics():
                supervisor = WorkerSupervisor(settings, [listener])
                supervisor.run()
            if any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes):
                sys.exit(STARTUP_FAILURE)  # uvicorn does this for a single process, but not here


def create_worker_app() -> FastAPI:
    """Return the application of a worker process.

    Its objects live as long as the process, so they are frozen: repeated garbage collection over them blocked
    the event loop for 60 ms.
    """
    app = create_app()
    gc.collect()
    gc.freeze()
    return app


def uvicorn_config(
    config: ServiceConfig, app: FastAPI | str, log_config: dict[str, Any] | None = None
) -> uvicorn.Config:
    """Return uvicorn's configuration for an application or the import path of its factory.

    uvicorn configures logging as soon as this object is created.
    """
    settings = uvicorn.Config(
        app,
        factory=isinstance(app, str),
        host=config.host,
        workers=config.workers,
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
    settings.timeout_worker_healthcheck = WORKER_HEALTHCHECK_SECONDS
    return settings


def _listener_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


@contextmanager
def _ignore_repeated_signal() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM that uvicorn raises a second time after a clean shutdown."""
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _multiprocess_metrics() -> Iterator[None]:
    """Give workers a directory for their counters, so that each can report the sum of all."""
    if os.environ.get(MULTIPROCESS_DIR_VARIABLE):
        yield
        return
    directory = tempfile.mkdtemp(prefix="comporta-metrics-")
    os.environ[MULTIPROCESS_DIR_VARIABLE] = directory
    try:
        yield
    finally:
        del os.environ[MULTIPROCESS_DIR_VARIABLE]
        shutil.rmtree(directory, ignore_errors=True)


def _log_config() -> dict[str, Any]:
    """Return uvicorn's log configuration, extended to the ``comporta`` logger."""
    config: dict[str, Any] = copy.deepcopy(LOGGING_CONFIG)
    config["loggers"]["comporta"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return config
