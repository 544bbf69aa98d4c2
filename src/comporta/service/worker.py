"""A worker process of ``comporta serve``: one uvicorn server on the socket that all workers share.

The supervisor controls it through a socket with lines of text. It sends ``drain`` (report that the service is
about to end, but continue) and ``close`` (accept no more clients, finish, exit). The worker sends ``ready``
once it accepts clients, ``alive`` every second from its event loop, ``busy <errno>`` if it cannot listen, and
``term`` if it got SIGTERM: the supervisor then replaces it. A worker without a supervisor exits within 2 s.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE

from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.logs import log_config
from comporta.service.server import ServiceServer, uvicorn_config

APP_FACTORY: Final = "comporta.service.worker:create_worker_app"
ORPHAN_SECONDS: Final = 1.2
"""How long a worker may take to end after its supervisor was killed; requests in flight get half of it."""

_TICKS_PER_SIGN = 10
"""uvicorn calls ``on_tick`` every 0.1 s."""


class WorkerServer(ServiceServer):
    """A server that obeys its supervisor. ``exit_now`` ends the process without closing anything."""

    def __init__(
        self,
        config: uvicorn.Config,
        control: socket.socket,
        exit_now: Callable[[int], object] = os._exit,
    ) -> None:
        super().__init__(config)
        self._control = control
        control.setblocking(False)
        self._exit_now = exit_now
        self._ended = threading.Event()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the supervisor says ``close`` or is gone."""
        threading.Thread(target=self._obey, name="comporta-control", daemon=True).start()
        try:
            super().run(sockets)
        finally:
            self._ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and report that this worker accepts clients or why it cannot listen."""
        try:
            await super().startup(sockets)
        except OSError as error:
            self._send(f"busy {error.errno}")
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        self._send("ready")

    async def on_tick(self, counter: int) -> bool:
        """Report a sign of life every second."""
        if counter % _TICKS_PER_SIGN == 0:
            self._send("alive")
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the supervisor, which also receives those of a terminal and of systemd."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {
            signal.SIGTERM: signal.signal(signal.SIGTERM, self._term),
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
            signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _term(self, *_: object) -> None:
        self._send("term")

    def _obey(self) -> None:
        with suppress(OSError, ValueError):  # the socket was closed
            for command in self._commands():
                if command == b"drain":
                    self.drain()
                else:
                    self.should_exit = True
        if self._ended.is_set() or self.should_exit:
            return
        self.config.timeout_graceful_shutdown = ORPHAN_SECONDS / 2  # type: ignore[assignment] # in seconds
        self.should_exit = True
        if not self._ended.wait(ORPHAN_SECONDS):
            self._exit_now(1)

    def _commands(self) -> Iterator[bytes]:
        """Yield the lines that the supervisor sends until it is gone; the thread waits here."""
        buffered = b""
        while True:
            select.select([self._control], [], [])
            received = self._control.recv(1024)
            if not received:
                return
            *lines, buffered = (buffered + received).split(b"\n")
            yield from lines

    def _send(self, line: str) -> None:
        with suppress(OSError):  # the supervisor is gone, or does not read
            self._control.sendall(f"{line}\n".encode("ascii"))


def create_worker_app() -> FastAPI:
    """Return the application of a worker process.

    Its objects live as long as the process, so they are frozen: repeated garbage collection over them blocked
    the event loop for 60 ms.
    """
    app = create_app()
    gc.collect()
    gc.freeze()
    return app


def main(listener: int, control: int) -> None:
    """Run a worker with the descriptors of its two sockets."""
    sys.path.append(str(Path.cwd()))  # for a processor in this directory; installed packages come first
    config = ServiceConfig.load()
    settings = uvicorn_config(config, APP_FACTORY, log_config(config))
    with socket.socket(fileno=control) as supervisor:
        WorkerServer(settings, supervisor).run([socket.socket(fileno=listener)])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
