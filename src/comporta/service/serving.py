"""Has uvicorn serve the application: in this process, or in several of which this one takes care.

Workers read the configuration by themselves, as this process's environment says. They share one socket, made
here (``listening.py``).
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
from comporta.service.figures import FOLDER_VARIABLE
from comporta.service.listening import listening
from comporta.service.sources.opening import check_addresses

APP: Final = "comporta.service.serving:create_settled_app"

WORKER_SECONDS: Final = 30
"""After how long without a sign a worker is replaced: on a busy machine one takes a while to start."""

_UNSENT = (h11.IDLE, h11.SEND_BODY)


class PatientProtocol(H11Protocol):
    """A connection that gives a client so much time to send a request, and to read on, and then ends it.

    Whoever stops reading would keep what is meant for them in memory, and a page's place, for ever. It also
    tells the application that the server is about to end, before the server waits for streams to.
    """

    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Go on waiting, from the first byte of a request to its last."""
        super().data_received(data)
        if self.conn.their_state in _UNSENT:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nobody to wait for."""
        self._stop_waiting()
        self._stop_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait until the client reads on."""
        super().pause_writing()
        self._stop_reading()
        self._reading = self.loop.call_later(self.app.state.config.request_seconds, self._give_up)

    def resume_writing(self) -> None:
        """It did."""
        self._stop_reading()
        super().resume_writing()

    def shutdown(self) -> None:
        """Tell the application that the end is near."""
        self.app.state.parts.leaving.set()
        super().shutdown()

    def _wait(self) -> None:
        if self._deadline is None:
            seconds = self.app.state.config.request_seconds
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _give_up(self) -> None:
        self.transport.abort()


class Supervisor(Multiprocess):
    """Takes care of workers, and hears at once when one has ended.

    A worker that ends while it is asked for a sign gives none. As long as this process holds the worker's end
    of their pipe as well, nobody hears that it is closed, and the sign is waited for in vain.
    """

    def init_processes(self) -> None:
        """Start the workers."""
        super().init_processes()
        self._let_go()

    def keep_subprocess_alive(self) -> None:
        """Start others in the place of those that died."""
        super().keep_subprocess_alive()
        self._let_go()

    def _let_go(self) -> None:
        for process in self.processes:
            process.child_conn.close()


def serve(config: ServiceConfig, told: Callable[[str], None]) -> None:
    """Serve until told to end; then what is under way is finished, and everything given back.

    ``told`` is given the address, once clients can connect: they wait in line until a worker takes them. What
    can be known to be wrong is an error before that; a worker that cannot start ends the process with an
    exit status that says so.
    """
    asyncio.run(check_addresses(config))
    with listening(config.host, config.port) as listener:
        told(_address(listener))
        settings = settings_of(config, APP, _logging())
        if config.workers == 1:
            with _ending_quietly():
                uvicorn.Server(settings).run([listener])
        else:
            with _figures_together():
                supervisor = Supervisor(settings, [listener])
                supervisor.run()
            if any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes):
                sys.exit(STARTUP_FAILURE)  # as for a single one; the supervisor itself keeps silent about it


def create_settled_app() -> FastAPI:
    """Return the application of a worker, in a process that serves nothing else.

    What is there by now stays: to look through it for garbage again and again held up the loop for 60 ms.
    """
    app = create_app()
    gc.collect()
    gc.freeze()
    return app


def settings_of(
    config: ServiceConfig, app: FastAPI | str, log_config: dict[str, Any] | None = None
) -> uvicorn.Config:
    """Return how uvicorn is to serve an application, or what a name makes; it sets up the log at once."""
    found = uvicorn.Config(
        app,
        factory=isinstance(app, str),
        host=config.host,
        workers=config.workers,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=log_config,
        limit_concurrency=config.connections_max,
        timeout_graceful_shutdown=math.ceil(config.close_seconds),
    )
    found.timeout_worker_healthcheck = WORKER_SECONDS
    return found


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """Have a signal that was obeyed end the process as usual: uvicorn raises it once more when it is done."""
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _figures_together() -> Iterator[None]:
    """Give the workers a folder for their counters, so that each can show those of all."""
    if os.environ.get(FOLDER_VARIABLE):
        yield
        return
    folder = tempfile.mkdtemp(prefix="comporta-metrics-")
    os.environ[FOLDER_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[FOLDER_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def _logging() -> dict[str, Any]:
    """Return uvicorn's way to log, for our own lines as well."""
    found: dict[str, Any] = copy.deepcopy(LOGGING_CONFIG)
    found["loggers"]["comporta"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return found
