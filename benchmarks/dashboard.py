"""The dashboard: cached searches a second while 100 pages are open, and while none is.

One server, and the same searches by the same client in turns, with pages and without. Pages are streams that
another process reads; opening and closing them is not measured.
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
from benchmarks.service import SEARCH, client, fetch, serve
from comporta.testing import ProcurementServer

PAGES: Final = 100
WITH = f"cached search, {PAGES} pages open"
WITHOUT = "cached search, no page open"

_SLOT_SECONDS = 2.5
"""Long enough for at least two documents for every page in each turn."""

_WARM_UP_REQUESTS = 2000
_STREAM = b"GET /v1/dashboard/stream HTTP/1.1\r\nhost: bench\r\n\r\n"
_OPEN, _CLOSE = "open", "close"


def run(effort: Effort) -> Section:
    """Compare both, and measure the server's memory before and after."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        portals = stack.enter_context(ProcurementServer(seed=1))
        server = stack.enter_context(serve(Path(folder), "dashboard", "false", portals))
        fetch(server.url + SEARCH)
        search = stack.enter_context(client(server.url + SEARCH))
        search(_WARM_UP_REQUESTS)  # create everything that exists once before the first measurement
        before = _resident_mib(server.pid)
        timings = _measure(stack.enter_context(_page_reader(server.url)), search, effort)
        size = len(fetch(f"{server.url}/v1/dashboard"))
        after = _resident_mib(server.pid)
    rounds = len(timings.rates[WITH])
    description = (
        f"One worker; in every other turn {PAGES} streams are open, each of which gets {size / 1024:.1f} KiB "
        f"about once a second. The server's memory: {before:.0f} MiB before the first page, {after:.0f} "
        f"MiB after {rounds} rounds with {PAGES} pages."
    )
    promise = f"dashboard, searches while {PAGES} pages are open: the same with none"
    goal = Goal.at_least(0.9, promise, timings, WITH, [WITHOUT])
    return Section("Dashboard, pages open", description, [Table.of_speeds("Requests", timings, WITH)], [goal])


def _measure(pages: _Pages, search: Run, effort: Effort) -> Timings:
    timings = Timings((WITH, WITHOUT))
    turns = ((WITH, _OPEN), (WITHOUT, _CLOSE))
    for number in range(effort.rounds):
        for name, word in turns if number % 2 else turns[::-1]:
            pages.send(word)
            timings.rates[name].append(_speed(search))
    pages.send(_CLOSE)
    return timings


def _speed(search: Run) -> float:
    made, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < _SLOT_SECONDS:
        made += search(64)
    return made / passed


class _Pages:
    """A process that opens and closes pages on command and confirms it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, word: str) -> None:
        """Send a command and wait until it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == word


@contextmanager
def _page_reader(url: str) -> Iterator[_Pages]:
    command = [sys.executable, "-m", "benchmarks.dashboard", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _Pages(process)
        finally:
            process.terminate()


def _resident_mib(pid: int) -> float:
    """Return the resident memory of a process, or 0 where the system does not report it."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text("utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def _read_pages(url: str) -> None:
    """Execute commands from standard input: open all pages or close them, and read their streams."""
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
                open_pages = [_open_page(address) for _ in range(PAGES)] if word == _OPEN else []
                for page in open_pages:
                    ready.register(page, selectors.EVENT_READ)
                print(word, flush=True)


def _open_page(address: tuple[str, int]) -> socket.socket:
    """Open a page, and wait for its first document."""
    page = socket.create_connection(address, 60)
    page.sendall(_STREAM)
    seen = b""
    while b"event: document" not in seen:
        seen = seen[-100:] + page.recv(1 << 20)
    return page


if __name__ == "__main__":
    _read_pages(sys.argv[1])
