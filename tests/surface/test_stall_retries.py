"""A test is retried only if it missed a deadline while the machine stalled."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.stalls import StallMonitor
from tests.support import Late, assert_within, within

ROOT = Path(__file__).resolve().parents[2]

_FAILING = """
import time, signal, tests.conftest
from tests.support import Late

tries = []

def stall(request):
    monitor = request.config.stash[tests.conftest.STALLS]
    began_ns = time.monotonic_ns()
    while monitor.longest_stall_since(began_ns) < 0.3:
        monitor._process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        monitor._process.send_signal(signal.SIGCONT)
        time.sleep(0.05)

def test_late__machine_ran__counts():
    tries.append("late")
    raise Late("too late")

def test_wrong__machine_stalled__counts(request):
    tries.append("wrong")
    stall(request)
    assert 1 == 2

def test_late__machine_stalled__is_retried(request):
    tries.append("stalled")
    stall(request)
    if tries.count("stalled") == 1:
        raise Late("too late")

def test_tries():
    assert tries == ["late", "wrong", "stalled", "stalled"]
"""


def test_retry__each_kind_of_failure__only_missed_deadlines_on_a_stalled_machine(tmp_path: Path) -> None:
    """The failing tests live in a project of their own, because other tests read every file of this one."""
    path = tmp_path / "tests" / "surface" / "test_retried.py"
    path.parent.mkdir(parents=True)
    path.write_text(_FAILING)
    options = ("-q", "-p", "no:cacheprovider", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"))
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "2 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "RETRIED tests/surface/test_retried.py::test_late__machine_stalled" in ran.stdout


def test_stall_monitor__stopped_process__records_the_stall(tmp_path: Path) -> None:
    with closing(StallMonitor(tmp_path)) as stalls:
        began_ns = time.monotonic_ns()
        while not stalls.longest_stall_since(began_ns) > 0.1:
            stalls._process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)  # sleeps: the stall under test lasts this long
            stalls._process.send_signal(signal.SIGCONT)
            time.sleep(0.05)  # sleeps: the monitor needs time to record the stall; the loop tries again
        assert stalls.longest_stall_since(time.monotonic_ns() + 10**12) == 0


def test_assert_within__longer_than_promised__raises_late() -> None:
    assert_within(1.0, 1.0)
    with pytest.raises(Late, match=r"it took 1\.100 s, at most 1 s are promised"):
        assert_within(1.1, 1.0)
    with pytest.raises(Late), within(0):
        time.sleep(0.001)  # sleeps: the block takes longer than it promises
