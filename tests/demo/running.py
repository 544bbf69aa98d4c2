"""The demo as people start it: in a process of its own, looked at from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from comporta.stores.folder import path_of

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 180.0
COMMAND = (sys.executable, "-m", "comporta.cli", "demo")


class Demo:
    """A demo that runs, with its standard output in a file and its temporary folders in one of the test's."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir()
        self.folder = folder
        self._said = folder / "said"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        with self._said.open("wb") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "--port", "0", *options],
                cwd=ROOT,
                env=os.environ | {"TMPDIR": str(self.temporary), "COLUMNS": "100"},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def said(self) -> str:
        """Return what it has said so far, without the breaks in its lines."""
        return re.sub(r"\s+", " ", self._said.read_text(encoding="utf-8"))

    @property
    def address(self) -> str:
        """The address of the page, once it was said."""
        wait_for(lambda: "Dashboard: " in self.said())
        [found] = re.findall(r"Dashboard: (http://[\d.:]+)/", self.said())
        return str(found)

    @property
    def words_for_top(self) -> list[str]:
        """What it says to type in another terminal, once that was said."""
        wait_for(lambda: "service.db" in self.said())
        [found] = re.findall(r"at a glance: (.+? top \S+ --database \S+)", self.said())
        return str(found).split()

    def children(self) -> list[int]:
        """Return the processes that it has started and that still run."""
        found = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [pid for pid in found if _facts(pid)[1:2] == [str(self.pid)] and runs(pid)]

    def ended(self) -> int:
        """Wait until it has ended by itself, and return its exit status."""
        return self.process.wait(PATIENCE_SECONDS)

    def left(self) -> list[str]:
        """Return what it has left behind in folders."""
        shared = Path(path_of(f"demo-{self.pid}"))
        return [
            *map(str, self.temporary.glob("comporta-demo-*")),
            *([str(shared)] if shared.exists() else []),
        ]

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Demo]:
    """Run a demo until the block ends; children follow their parent."""
    demo = Demo(folder, *options)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.wait()


def wait_for(true: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether a process is there, and has not ended yet."""
    return _facts(pid)[:1] not in ([], ["Z"])


def _facts(pid: int) -> list[str]:
    """Return what the system says of a process, from its state and its parent on; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []
