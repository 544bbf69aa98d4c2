"""How the tests themselves are run: in two halves, and anew where the machine was to blame."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.stalls import Stalls
from tests.support import Late, hold_to, within

ROOT = Path(__file__).resolve().parents[2]


def _run(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.halves", *names]
    environ = {**os.environ, "COVERAGE_FILE": str(folder / "coverage")}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_halves__together__run_each_test_once(tmp_path: Path) -> None:
    ran = _run(tmp_path, "tests/test_steps.py", "tests/test_events.py", "tests/test_threads.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    [found] = set(re.findall(r"collected (\d+) items", ran.stdout))
    assert sum(map(int, re.findall(r"(\d+) passed", ran.stdout))) == int(found)
    assert (tmp_path / "coverage").exists()


def test_stalls__watcher_kept_from_running__are_noted(tmp_path: Path) -> None:
    with closing(Stalls(tmp_path)) as stalls:
        began_ns = time.monotonic_ns()
        while not stalls.longest_since(began_ns) > 0.1:
            stalls._process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            stalls._process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        assert stalls.longest_since(time.monotonic_ns() + 10**12) == 0


def test_hold_to__longer_than_promised__is_late() -> None:
    hold_to(1.0, 1.0)
    with pytest.raises(Late, match=r"it took 1\.100 s, at most 1 s are promised"):
        hold_to(1.1, 1.0)
    with pytest.raises(Late), within(0):
        time.sleep(0.001)
