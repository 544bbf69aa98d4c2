"""A process that has imported what workers need, and forks into them: most of the cost of a start is imports.

``python -m tests.processes.template FD`` reads requests from a socket, each for a process with a job, an
environment, a niceness and standard streams. The template itself has no threads and opens no store.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from tests.processes.worker import find_job

ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX = 200_000
REPLY_BYTES_MAX = 100
STDERR = 2


class ForkedProcess:
    """A process that the template forked, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, job: str, arguments: dict[str, Any]) -> None:
        own_stdin, stdin = os.pipe()
        stdout, own_stdout = os.pipe()
        request = {"job": job, "arguments": arguments, "environ": dict(os.environ), "nice": os.nice(0)}
        self.pid, self._pidfd = _template().fork(request, [own_stdin, own_stdout, STDERR])
        os.close(own_stdin)
        os.close(own_stdout)
        self.stdin = os.fdopen(stdin, "w")
        self.stdout = os.fdopen(stdout)
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or minus the number of the signal; ``None`` while the process runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return the same."""
        status = self._wait(timeout)
        if status is None:
            raise TimeoutError(f"process {self.pid} has not ended after {timeout:g} seconds")
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, seconds: float | None) -> int | None:
        if self._status is None and select.select([self._pidfd], [], [], seconds)[0]:
            self._status = _template().exit_status(self.pid)
            os.close(self._pidfd)
        return self._status


class Template:
    """The template of this process. Each of its replies has a number and may have a descriptor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-W", "error", "-m", "tests.processes.template", str(fd)]
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[fd])
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], streams: list[int]) -> tuple[int, int]:
        """Return the number of a new process, and a descriptor of it."""
        number, [pidfd] = self._ask(request, streams)
        return number, pidfd

    def exit_status(self, pid: int) -> int:
        """Return the exit status of a process that has ended; its number may be used again from then on."""
        return self._ask({"ended": pid}, [])[0]

    def close(self) -> None:
        """End the template."""
        self._socket.close()
        self._process.wait()

    def _ask(self, request: dict[str, Any], fds: list[int]) -> tuple[int, list[int]]:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
            reply, received, *_ = socket.recv_fds(self._socket, REPLY_BYTES_MAX, 1)
        return int(reply), received


_template = cache(Template)


def main(requests: socket.socket) -> None:
    """Carry out requests until the other side has closed the socket; in a forked process, do its job."""
    while True:
        message, streams, *_ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not message:
            return
        request = json.loads(message)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            requests.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        job = find_job(request["job"])
        pid = os.fork()
        if not pid:
            requests.close()
            _become(request, streams)
            job(**request["arguments"])
            return
        pidfd = os.pidfd_open(pid)
        socket.send_fds(requests, [str(pid).encode()], [pidfd])
        for fd in (*streams, pidfd):
            os.close(fd)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Take on the environment, niceness and standard streams of a request."""
    os.environ.clear()
    os.environ.update(request["environ"])
    os.nice(request["nice"] - os.nice(0))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
