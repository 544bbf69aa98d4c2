"""Runs the demo: every scenario to its end, and every way to end it, which must leave nothing behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.demo.demo_process import COMMAND, ROOT, Demo, is_running, running_demo, wait_until
from tests.service.harness import CLIENT

from comporta.demo.scenarios import SCENARIOS, TOUR, Scenario

END_SECONDS = 5.0
"""The demo promises 2 s; the rest is a margin for busy machines."""

LEAVES_NOTHING = "the demo left no files and no processes behind"


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Demo]]:
    """Run two scenarios at the same time: both spend most of it waiting."""
    directory = tmp_path_factory.mktemp("demos")
    with (
        running_demo(directory / "tour") as tour,
        running_demo(directory / "redis-dies", "--scenario", "redis-dies") as dies,
    ):
        yield {"tour": tour, "redis-dies": dies}


def test_demo__top_command_it_prints__shows_the_same_fleet(demos: dict[str, Demo]) -> None:
    demo = demos["tour"]
    wait_until(lambda: "->" in demo.output())
    top = subprocess.run([*demo.top_command, "--once"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Workers: 3" in top.stdout
    assert "Cache: " in top.stdout


@pytest.mark.parametrize(("name", "scenario"), [("tour", TOUR), ("redis-dies", SCENARIOS["redis-dies"])])
def test_demo__output_to_a_pipe__runs_one_scenario_and_leaves_nothing(
    demos: dict[str, Demo], name: str, scenario: Scenario
) -> None:
    demo = demos[name]
    status = demo.wait()
    output = demo.output()
    assert status == 0, output
    positions = [
        output.index(f"{number} of {len(scenario.steps)}: {step.title}")
        for number, step in enumerate(scenario.steps, 1)
    ]
    assert positions == sorted(positions)
    assert output.strip().startswith("Dashboard: http://127.0.0.1:")
    assert "!!" not in output
    assert "PNCP received" in output.rpartition("busiest 10 s; at most")[0]
    assert LEAVES_NOTHING in output
    assert demo.leftovers() == []


def test_demo__interrupted_with_a_dashboard_open__ends_all_its_processes(tmp_path: Path) -> None:
    with running_demo(tmp_path / "demo") as demo:
        wait_until(lambda: "1 of" in demo.output())
        children = demo.children()
        with CLIENT.stream("GET", f"{demo.address}/v1/dashboard/stream") as page:
            lines = page.iter_lines()
            wait_until(lambda: next(lines) == "event: document")
            began = time.monotonic()
            demo.send(signal.SIGINT)
            demo.send(signal.SIGINT)  # a second Ctrl-C must not change anything
            assert demo.wait() == 0, demo.output()
            assert time.monotonic() - began < END_SECONDS
        assert len(children) == 5
        assert not [pid for pid in children if is_running(pid)]
        assert demo.leftovers() == []
        assert LEAVES_NOTHING in demo.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_demo__signal_while_it_starts__leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with running_demo(tmp_path / "demo") as demo:
        wait_until(demo.children)
        children = demo.children()
        demo.send(number)
        assert demo.wait() == 0, demo.output()
        assert not [pid for pid in children if is_running(pid)]
        assert demo.leftovers() == []


def test_demo__killed__all_its_processes_exit(tmp_path: Path) -> None:
    with running_demo(tmp_path / "demo", "--scenario", "redis-dies") as demo:
        wait_until(lambda: len(demo.children()) == 6)
        children = demo.children()
        demo.process.kill()
        demo.process.wait()
        wait_until(lambda: not [pid for pid in children if is_running(pid)])
        wait_until(lambda: not demo.leftovers())


def test_demo__seconds_option__ends_after_that_time(tmp_path: Path) -> None:
    with running_demo(tmp_path / "demo", "--seconds", "1", "--workers", "1") as demo:
        assert demo.wait() == 0
        assert demo.leftovers() == []


def test_demo__output_closed__exits_with_1_and_prints_no_error() -> None:
    with subprocess.Popen(
        [*COMMAND, "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        demo.stdout.readline()
        demo.stdout.close()
        assert demo.wait(60) == 1
        assert demo.stderr.read() == b""


def test_demo__port_in_use__fails_with_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(
            [*COMMAND, "--port", port], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
    assert ran.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: " in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [("--scenario", "flood"), ("--workers", "0"), ("--port", "70000"), ("--seconds", "0")],
)
def test_demo__option_out_of_range__fails_with_one_sentence(option: str, value: str) -> None:
    ran = subprocess.run(
        [*COMMAND, option, value], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 2
    assert f"Invalid value for '{option}'" in ran.stderr
    assert "Traceback" not in ran.stderr
