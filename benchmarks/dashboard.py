"""The dashboard: cached searches a second while a hundred pages are open, and while none is.

One server, and the same searches by the same client in turns: with pages, without, round after round. Pages
are streams that a process of their own reads; opening and closing them is not timed.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

from benchmarks.measure import Effort, Run, Timings
from benchmarks.report import Goal, Section, Table
from benchmarks.service import SEARCH, asked, client, served
from comporta.testing import ProcurementServer

PAGES: Final = 100
WITH = f"cached search, {PAGES} pages open"
WITHOUT = "cached search, no page open"

_SLOT_SECONDS = 2.5
"""Long enough for two documents at the least to be made and sent to all of them in every turn."""

_WARMED_UP = 2000
_STREAM = b"GET /v1/dashboard/stream HTTP/1.1\r\nhost: bench\r\n\r\n"
_OPEN, _CLOSE = "open", "close"


def run(effort: Effort) -> Section:
    """Compare the two, and look at the server's memory before and after."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        portals = stack.enter_context(ProcurementServer(seed=1))
        server = stack.enter_context(served(Path(folder), "dashboard", "false", portals))
        asked(server.url + SEARCH)
        searching = stack.enter_context(client(server.url + SEARCH))
        searching(_WARMED_UP)  # what is made once is made before its size is taken
        before = _resident_mib(server.pid)
        timings = _measured(stack.enter_context(_reading(server.url)), searching, effort)
        size = len(asked(f"{server.url}/v1/dashboard"))
        after = _resident_mib(server.pid)
    rounds = len(timings.rates[WITH])
    words = (
        f"One worker; in every other turn {PAGES} streams are open, each told {size / 1024:.1f} KiB about "
        f"once a second. The server's memory: {before:.0f} MiB before the first page, {after:.0f} "
        f"MiB after {rounds} times {PAGES} of them came and went."
    )
    promise = f"dashboard, searches while {PAGES} pages are open: the same with none"
    goal = Goal.at_least(0.9, promise, timings, WITH, [WITHOUT])
    return Section("Dashboard, pages open", words, [Table.of_speeds("Requests", timings, WITH)], [goal])


def _measured(pages: _Pages, searching: Run, effort: Effort) -> Timings:
    timings = Timings((WITH, WITHOUT))
    turns = ((WITH, _OPEN), (WITHOUT, _CLOSE))
    for number in range(effort.rounds):
        for name, word in turns if number % 2 else turns[::-1]:
            pages.told(word)
            timings.rates[name].append(_speed(searching))
    pages.told(_CLOSE)
    return timings


def _speed(searching: Run) -> float:
    made, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < _SLOT_SECONDS:
        made += searching(64)
    return made / passed


class _Pages:
    """A process that opens pages when it is told to, closes them again, and says when it has."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def told(self, word: str) -> None:
        """Have it done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == word


@contextmanager
def _reading(url: str) -> Iterator[_Pages]:
    command = [sys.executable, "-m", "benchmarks.dashboard", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _Pages(process)
        finally:
            process.terminate()


def _resident_mib(pid: int) -> float:
    """Return what a process has in memory; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text("utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def _read_pages(url: str) -> None:
    """Obey words on standard input: keep so many pages open, or none, and read whatever comes."""
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or 0
    with selectors.DefaultSelector() as ready:
        ready.register(sys.stdin, selectors.EVENT_READ)
        open_pages: list[socket.socket] = []
        while True:
            for key, _ in ready.select():
                if key.fileobj is not sys.stdin:
                    assert isinstance(key.fileobj, socket.socket)
                    assert key.fileobj.recv(1 << 20), "the server ended a stream"
                    continue
                word = sys.stdin.readline().strip()
                for page in open_pages:
                    ready.unregister(page)
                    page.close()
                open_pages = [_opened(address) for _ in range(PAGES)] if word == _OPEN else []
                for page in open_pages:
                    ready.register(page, selectors.EVENT_READ)
                print(word, flush=True)


def _opened(address: tuple[str, int]) -> socket.socket:
    """Open a page, and wait for its first document."""
    page = socket.create_connection(address, 60)
    page.sendall(_STREAM)
    seen = b""
    while b"event: document" not in seen:
        seen = seen[-100:] + page.recv(1 << 20)
    return page


if __name__ == "__main__":
    _read_pages(sys.argv[1])
