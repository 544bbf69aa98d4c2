"""Starts, replaces and ends the worker processes of ``comporta serve``.

It holds the listening socket, so that clients wait while a worker is replaced. SIGTERM ends the service
without resetting a connection: ``/readyz`` returns 503 for ``drain_seconds``, then the socket is closed once
its queue is empty, and the workers finish what they have accepted. SIGINT does the same without the wait, and
a second signal ends it. SIGHUP reads the settings again and replaces the workers one after the other.

Workers read their settings from a copy of the file: whatever happens to the file, a worker that has to be
replaced gets the settings that are in force. The module does not import the application.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from logging.config import dictConfig
from pathlib import Path
from typing import Final

from uvicorn.config import STARTUP_FAILURE

from comporta.service.config import MULTIPROCESS_DIR_VARIABLE, ServiceConfig, check_exposure
from comporta.service.listener import bind_listener, ignore_new_clients, listener_url
from comporta.service.logs import log_config
from comporta.service.sources.factory import check_addresses
from comporta.service.sources.ssrf_guard import PrivateAddressError
from comporta.settings import CONFIG_VARIABLE

WORKER_SILENCE_SECONDS: Final = 30.0
"""A worker without a sign of life for this long is killed and replaced."""

EMPTY_QUEUE_SECONDS: Final = 0.15
"""The queue of the socket must be empty for this long before it is closed: handshakes may be in progress."""

CLOSE_QUEUE_SECONDS: Final = 2.0
KILL_MARGIN_SECONDS: Final = 15.0
"""How much longer than ``close_seconds`` a worker may take to end before it is killed."""

BACKOFF_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Pauses before a worker that died before it was ready is started again."""

_POLL_SECONDS = 0.02
_WORKER_MODULE = "comporta.service.worker"
_LOG = logging.getLogger("comporta.service")


class WorkerProcess:
    """One worker process and the socket that controls it."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self.process = process
        self.is_ready = asyncio.Event()
        self.is_retiring = False
        self.wants_replacement = False
        self.listen_errno: int | None = None
        self.last_sign = 0.0
        self._control = control
        self.ended = asyncio.create_task(self._follow())

    @classmethod
    async def start(cls, listener: socket.socket, environ: dict[str, str]) -> WorkerProcess:
        """Start a worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the current directory comes last
                "-m",
                _WORKER_MODULE,
                str(listener.fileno()),
                str(theirs.fileno()),
                env=environ,
                pass_fds=(listener.fileno(), theirs.fileno()),
            )
        return cls(process, ours)

    async def wait_ready(self) -> bool:
        """Wait until the worker accepts clients; return ``False`` if it ended before that."""
        ready = asyncio.create_task(self.is_ready.wait())
        await asyncio.wait((ready, self.ended), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        return self.is_ready.is_set() and not self.ended.done()

    def send(self, command: str) -> None:
        """Send ``drain`` or ``close``."""
        self.is_retiring = self.is_retiring or command == "close"
        with suppress(OSError):  # it has ended
            self._control.sendall(f"{command}\n".encode("ascii"))

    async def close(self, seconds: float) -> None:
        """Let the worker finish and end; kill it after ``seconds``."""
        self.send("close")
        await asyncio.wait((self.ended,), timeout=seconds)
        if not self.ended.done():
            _LOG.error("worker %d did not end within %g s and was killed", self.process.pid, seconds)
        self.kill()
        await self.ended

    def kill(self) -> None:
        """Kill the process if it runs."""
        with suppress(ProcessLookupError):
            self.process.kill()

    async def _follow(self) -> int:
        """Read what the worker reports until it ends; return its exit status."""
        reader, writer = await asyncio.open_connection(sock=self._control)
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while line := await reader.readline():
                self.last_sign = loop.time()
                word, _, number = line.decode("ascii").strip().partition(" ")
                if word == "ready":
                    self.is_ready.set()
                elif word == "term":
                    self.wants_replacement = True
                elif word == "busy":
                    self.listen_errno = int(number)
        writer.close()
        return await self.process.wait()


class Supervisor:
    """Keeps workers running on one socket. ``directory`` holds copies of settings and the counters."""

    def __init__(self, config: ServiceConfig, listener: socket.socket, directory: Path) -> None:
        self._config = config
        self._listener = listener
        self._directory = directory
        self._environ: dict[str, str] = {}
        self._workers: list[WorkerProcess] = []
        self._guards: set[asyncio.Task[None]] = set()
        self._end_signals: list[int] = []
        self._has_end_signal = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None
        self._reload_requested = False
        self._copies = 0

    async def run(self, on_listening: Callable[[str], None]) -> int:
        """Supervise until a signal ends the service; return the exit status."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the settings have just been read
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_end_signal, number)
        self._environ = self._worker_environ(self._config)
        starting = [await self._start_worker() for _ in range(self._config.workers)]
        self._workers = starting
        if not await self._first_is_ready():
            return await self._fail_to_start()
        on_listening(listener_url(self._listener))
        for worker in starting:
            self._guard(worker)
        await self._wait_for_end_signal()
        await self._end()
        return 0

    # -- start

    def _worker_environ(self, config: ServiceConfig) -> dict[str, str]:
        """Copy the settings file, and return an environment that names the copy.

        A single worker counts in memory, which is faster: no other process reads its counters.
        """
        environ = {**os.environ}
        if config.workers > 1:
            environ.setdefault(MULTIPROCESS_DIR_VARIABLE, str(self._directory))
        path = environ.get(CONFIG_VARIABLE)
        if path:
            self._copies += 1
            folder = self._directory / f"settings-{self._copies}"
            folder.mkdir()
            environ[CONFIG_VARIABLE] = shutil.copyfile(path, str(folder / Path(path).name))
        return environ

    async def _start_worker(self, environ: dict[str, str] | None = None) -> WorkerProcess:
        return await WorkerProcess.start(self._listener, environ or self._environ)

    async def _first_is_ready(self) -> bool:
        """Wait until a worker is ready, all have failed, or a signal ends the start."""
        waiting = {asyncio.create_task(worker.wait_ready()) for worker in self._workers}
        signalled = asyncio.create_task(self._has_end_signal.wait())
        try:
            while waiting:
                done, _ = await asyncio.wait((*waiting, signalled), return_when=asyncio.FIRST_COMPLETED)
                if signalled in done:
                    return False
                if any(each.result() for each in done if each is not signalled):
                    return True
                waiting -= done
            return False
        finally:
            for task in (*waiting, signalled):
                task.cancel()

    async def _fail_to_start(self) -> int:
        for worker in self._workers:
            worker.kill()
        await asyncio.gather(*(worker.ended for worker in self._workers))
        if self._has_end_signal.is_set():
            return 0
        numbers = [worker.listen_errno for worker in self._workers if worker.listen_errno is not None]
        if numbers:
            raise OSError(numbers[0], os.strerror(numbers[0]))
        return STARTUP_FAILURE

    # -- workers that die

    def _guard(self, worker: WorkerProcess) -> None:
        task = asyncio.create_task(self._keep_alive(worker))
        self._guards.add(task)
        task.add_done_callback(self._guards.discard)

    async def _keep_alive(self, worker: WorkerProcess) -> None:
        """Replace a worker whenever it dies, hangs or asks for it, until it is retired."""
        deaths = 0
        while True:
            await self._watch(worker)
            pid, status = worker.process.pid, worker.process.returncode
            if status is not None and not worker.is_retiring:
                deaths = 0 if worker.is_ready.is_set() else min(deaths + 1, len(BACKOFF_SECONDS) - 1)
                _LOG.error("worker %d ended unexpectedly (%s)", pid, _status_text(status))
                await asyncio.sleep(BACKOFF_SECONDS[deaths])
            if worker.is_retiring:
                return
            replacement = await self._start_worker()
            self._workers[self._workers.index(worker)] = replacement
            if status is None:
                _LOG.info("worker %d got SIGTERM and is replaced", pid)
                await replacement.wait_ready()
                await worker.close(self._close_seconds)
            worker = replacement

    async def _watch(self, worker: WorkerProcess) -> None:
        """Return when a worker has ended or asks for a replacement; kill one that shows no sign of life."""
        loop = asyncio.get_running_loop()
        while not worker.ended.done() and not worker.wants_replacement:
            await asyncio.wait((worker.ended,), timeout=0.2)
            silence = loop.time() - worker.last_sign
            if worker.is_ready.is_set() and silence > WORKER_SILENCE_SECONDS and not worker.ended.done():
                _LOG.error("worker %d gave no sign of life for %.0f s", worker.process.pid, silence)
                worker.kill()
                await worker.ended

    # -- signals

    def _on_end_signal(self, number: int) -> None:
        self._end_signals.append(number)
        self._has_end_signal.set()

    def _on_reload_signal(self) -> None:
        self._reload_requested = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reload_on_request())
        else:
            _LOG.info(
                "SIGHUP: the workers are already being replaced; the settings are read again afterwards"
            )

    async def _wait_for_end_signal(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)
        await self._has_end_signal.wait()
        self._has_end_signal.clear()
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.gather(self._reloading, return_exceptions=True)

    async def _reload_on_request(self) -> None:
        """Reload until no further signal has arrived: the settings may have changed meanwhile."""
        while self._reload_requested:
            self._reload_requested = False
            await self._reload()

    async def _reload(self) -> None:
        """Replace all workers with workers that use the new settings, if the first one starts with them."""
        _LOG.info("SIGHUP: reading the settings and replacing the workers")
        try:
            config = await asyncio.to_thread(ServiceConfig.load)
            check_exposure(config)
            await check_addresses(config)
            environ = self._worker_environ(config)
        except (ValueError, TypeError, OSError, PrivateAddressError) as error:
            _LOG.error("the settings are wrong, the old ones stay in force: %s", _error_text(error))
            return
        if (config.host, config.port) != (self._config.host, self._config.port):
            _LOG.warning("host and port do not change before the service is restarted")
        first = await self._start_worker(environ)
        try:
            if not await first.wait_ready():
                _LOG.error("a worker could not start, the old settings stay in force: see the lines above")
                return
        except asyncio.CancelledError:
            first.kill()
            raise
        self._config, self._environ = config, environ
        dictConfig(log_config(config))
        await self._replace_all(first)
        _LOG.info("the settings are in force; workers: %d", len(self._workers))

    async def _replace_all(self, first: WorkerProcess) -> None:
        old = self._workers
        for worker in old:
            worker.is_retiring = True  # if it dies now, it is not replaced
        self._workers = [first, *old]  # all of them, in case a signal ends the service meanwhile
        self._guard(first)
        for position in range(max(self._config.workers, len(old))):
            if 0 < position < self._config.workers:
                started = await self._start_worker()
                self._workers.append(started)
                await started.wait_ready()
                self._guard(started)
            if position < len(old):
                await old[position].close(self._close_seconds)
                self._workers.remove(old[position])

    # -- end

    @property
    def _close_seconds(self) -> float:
        return self._config.close_seconds + KILL_MARGIN_SECONDS

    async def _end(self) -> None:
        """Drain, close the socket when its queue is empty, and let all workers finish."""
        for worker in self._workers:
            worker.is_retiring = True
            worker.send("drain")
        if signal.SIGINT not in self._end_signals and self._config.drain_seconds:
            _LOG.info("the service ends in %g s; /readyz returns 503", self._config.drain_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.drain_seconds):
                    await self._has_end_signal.wait()
        ignore_new_clients(self._listener)
        await self._wait_for_empty_queue()
        self._listener.close()
        await asyncio.gather(*(worker.close(self._close_seconds) for worker in self._workers))
        for task in tuple(self._guards):
            task.cancel()
        _LOG.info("the service has ended")

    async def _wait_for_empty_queue(self) -> None:
        """Wait until workers have accepted all clients that are connected."""
        empty_polls = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_QUEUE_SECONDS):
                while empty_polls * _POLL_SECONDS < EMPTY_QUEUE_SECONDS:
                    empty_polls = 0 if select.select([self._listener], [], [], 0)[0] else empty_polls + 1
                    await asyncio.sleep(_POLL_SECONDS)


def serve(config: ServiceConfig, on_listening: Callable[[str], None]) -> None:
    """Serve until a signal ends the process; finish requests in progress and close everything.

    ``on_listening`` gets the URL once a worker is ready. An invalid configuration raises an error before
    that. If no worker can start, the process ends with uvicorn's exit status for a startup failure.
    """
    asyncio.run(check_addresses(config))
    dictConfig(log_config(config))
    directory = Path(tempfile.mkdtemp(prefix="comporta-serve-"))
    try:
        with bind_listener(config.host, config.port) as listener:
            status = asyncio.run(_supervise(config, listener, directory, on_listening))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if status:
        sys.exit(status)


async def _supervise(
    config: ServiceConfig, listener: socket.socket, directory: Path, on_listening: Callable[[str], None]
) -> int:
    return await Supervisor(config, listener, directory).run(on_listening)


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _status_text(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
