"""A real gunicorn server in processes of its own, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]


class GunicornServer:
    """A running server: the arbiter's process, its URL and its log."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self._log = log

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        return self._log.read_text()

    def reload(self) -> None:
        """Replace the workers gracefully, and wait until the old ones have ended."""
        old = self.log.count("Booting worker") - self.log.count("Worker exiting")
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.log.count("Worker exiting") >= old)


@contextmanager
def gunicorn(app: str, *options: str, environ: Mapping[str, str]) -> Iterator[GunicornServer]:
    """Serve an application with gunicorn; requests queue until its workers accept them."""
    with socket.socket() as listener, tempfile.TemporaryDirectory() as directory:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        listener.set_inheritable(True)
        log = Path(directory) / "log"
        bind = ["--bind", f"fd://{listener.fileno()}", "--error-logfile", str(log), "--no-control-socket"]
        with subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *bind, *options, app],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}", **environ},
            pass_fds=[listener.fileno()],
            start_new_session=True,
        ) as process:
            server = GunicornServer(process, f"http://127.0.0.1:{listener.getsockname()[1]}", log)
            listener.close()  # so that connections are refused when the server has ended
            try:
                wait_until(lambda: log.exists() and ("Booting worker" in server.log or process.poll()))
                yield server
            finally:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
