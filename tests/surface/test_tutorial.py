"""Every step of the tutorial works as shown: its programs run in order, as processes, against one supplier.

Only the names of the state and the addresses of servers are replaced.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from tests.support import wait_until

from comporta.stores.shared.directory import directory_path
from comporta.testing import Server
from comporta.testing.programs import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SUPPLIER, UNLIMITED, LIMITED, GUARDED, CACHED, WORKER, MACHINES = PROGRAMS


class Shop:
    """A folder in which the programs of the tutorial run, and the supplier that they call."""

    def __init__(self, folder: Path, supplier: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.app = f"prices-{uuid.uuid4().hex}"
        self._supplier = supplier

    def start(self, program: str, **environ: str) -> subprocess.Popen[str]:
        text = program.replace("shared://prices", f"shared://{self.app}")
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", text],
            cwd=self.folder,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def outcomes(self, program: str, processes: int = 1) -> list[dict[str, int]]:
        """Run a program, several times at once, and return what each run printed."""
        started = [self.start(program) for _ in range(processes)]
        outputs = [process.communicate() for process in started]
        assert [process.returncode for process in started] == [0] * processes, outputs
        return [ast.literal_eval(stdout) for stdout, _ in outputs]

    def answer_with(self, status: int) -> int:
        """Type a status into the supplier's terminal; return how many requests it had until then."""
        assert self._supplier.stdin is not None
        assert self._supplier.stdout is not None
        print(status, file=self._supplier.stdin, flush=True)
        return int(re.findall(r"\d+", self._supplier.stdout.readline())[-1])


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    command = [sys.executable, "-u", "-W", "error", "-c", SUPPLIER]  # -u: as in a terminal, lines at once
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as supplier:
        assert supplier.stdout is not None
        assert supplier.stdout.readline().startswith("The supplier answers.")
        shop = Shop(tmp_path, supplier)
        yield shop
        assert supplier.stdin is not None
        supplier.stdin.close()
        assert supplier.wait(60) == 0
    shutil.rmtree(directory_path(shop.app), ignore_errors=True)


@contextmanager
def run_processes(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.timeout(900)  # it starts eight programs one after the other, which a busy machine delays
def test_tutorial__steps_1_to_4__limit_stop_and_serve_stale_prices(shop: Shop) -> None:
    [unlimited] = shop.outcomes(UNLIMITED)
    assert sum(unlimited.values()) == 30  # how many of them are refused depends on the machine
    refilled_at = time.monotonic() + 2
    wait_until(lambda: time.monotonic() > refilled_at)  # the burst of the supplier, as while a reader types

    first, second = shop.outcomes(LIMITED, processes=2)
    assert first == second == {"200": 30}

    before = shop.answer_with(500)
    [failing] = shop.outcomes(GUARDED)
    assert failing["500"] + failing["not sent: circuit open"] == 30
    assert 5 <= shop.answer_with(200) - before < 30

    wait_until(lambda: shop.outcomes(GUARDED) == [{"200": 30}])

    assert prices_served(shop) == 30
    shop.answer_with(500)
    assert prices_served(shop) == 30


def prices_served(shop: Shop) -> int:
    """Return how many prices the cache serves; on a slow machine even new ones are stale after 1 s."""
    [served] = shop.outcomes(CACHED)
    assert set(served) <= {"fresh", "stale"}
    return sum(served.values())


def test_tutorial__step_5__the_dashboard_shows_the_workers_and_the_supplier(shop: Shop) -> None:
    port = free_port()
    environ = {
        **os.environ,
        "COMPORTA_STATE": f"shared://{shop.app}",
        "COMPORTA_SERVICE_DATABASE": f"sqlite:///{shop.folder / 'service.db'}",
    }
    service = subprocess.Popen(
        [sys.executable, "-m", "comporta.cli", "serve", "--port", str(port)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def upstreams() -> set[str]:
        with suppress(httpx2.TransportError, KeyError, TypeError):
            status = httpx2.get(f"http://127.0.0.1:{port}/v1/dashboard", timeout=30).json()
            return {each["name"] for each in status["upstreams"]}
        return set()

    with run_processes(service, shop.start(WORKER), shop.start(WORKER)):
        wait_until(lambda: "supplier" in upstreams())


def test_tutorial__step_6__only_the_state_changes(shop: Shop, valkey: Server) -> None:
    program = MACHINES.replace("redis://localhost:6379/0", f"{valkey.url}?timeout=5")
    stdout, stderr = shop.start(program).communicate(timeout=60)
    assert stdout == "an answer\n", stderr


def test_tutorial__programs__are_saved_under_the_names_that_the_commands_use() -> None:
    names = [program.partition("\n")[0] for program in PROGRAMS[:-1]]
    assert names == ["# supplier.py", *["# prices.py"] * 4, "# worker.py"]
    commands = set(re.findall(r"python (\w+\.py)", PAGE))
    assert commands == {"supplier.py", "prices.py", "worker.py"}
