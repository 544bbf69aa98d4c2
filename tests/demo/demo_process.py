"""Runs the demo as users do: as a separate process, observed from outside."""

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

from comporta.stores.shared.directory import directory_path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 180.0
COMMAND = (sys.executable, "-m", "comporta.cli", "demo")


class Demo:
    """A running demo whose output and temporary files are in ``directory``."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir()
        self._output_file = directory / "output"
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        with self._output_file.open("wb") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "--port", "0", *options],
                cwd=ROOT,
                env=os.environ | {"TMPDIR": str(self.temporary), "COLUMNS": "100"},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def output(self) -> str:
        """Return its output so far, with every run of white space as one space."""
        return re.sub(r"\s+", " ", self._output_file.read_text(encoding="utf-8"))

    @property
    def address(self) -> str:
        """The address of the dashboard, once it is printed."""
        wait_until(lambda: "Dashboard: " in self.output())
        [address] = re.findall(r"Dashboard: (http://[\d.:]+)/", self.output())
        return str(address)

    @property
    def top_command(self) -> list[str]:
        """The words of the command for another terminal, once it is printed."""
        wait_until(lambda: "service.db" in self.output())
        [command] = re.findall(r"another terminal, run: (.+? top \S+ --database \S+)", self.output())
        return str(command).split()

    def children(self) -> list[int]:
        """Return the ids of its running child processes."""
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [pid for pid in pids if _stat_fields(pid)[1:2] == [str(self.pid)] and is_running(pid)]

    def wait(self) -> int:
        """Wait until it ends by itself, and return its exit status."""
        return self.process.wait(TIMEOUT_SECONDS)

    def leftovers(self) -> list[str]:
        """Return the directories that it has left behind."""
        shared = Path(directory_path(f"demo-{self.pid}"))
        return [
            *map(str, self.temporary.glob("comporta-demo-*")),
            *([str(shared)] if shared.exists() else []),
        ]

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


@contextmanager
def running_demo(directory: Path, *options: str) -> Iterator[Demo]:
    """Run a demo until the block ends; its children exit with it."""
    demo = Demo(directory, *options)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.wait()


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return _stat_fields(pid)[:1] not in ([], ["Z"])


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state and the parent on; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []
