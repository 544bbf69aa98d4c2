"""The demo, played: every story to its end, and an end that leaves nothing, however it comes."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.demo.running import COMMAND, ROOT, Demo, running, runs, wait_for
from tests.service.running import CLIENT

from comporta.demo.stories import STORIES, TOUR, Story

END_SECONDS = 5.0
"""Two seconds are promised; the rest is for machines that do many things at once."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Demo]]:
    """Two stories at once: most of the time they wait."""
    folder = tmp_path_factory.mktemp("played")
    with running(folder / "tour") as tour, running(folder / "redis-dies", "--scenario", "redis-dies") as dies:
        yield {"tour": tour, "redis-dies": dies}


@pytest.mark.parametrize(("name", "story"), [("tour", TOUR), ("redis-dies", STORIES["redis-dies"])])
def test_demo__off_a_terminal__plays_a_story_to_its_end_and_leaves_nothing(
    played: dict[str, Demo], name: str, story: Story
) -> None:
    demo = played[name]
    status = demo.ended()
    said = demo.said()
    assert status == 0, said
    told = [
        said.index(f"{number} of {len(story.steps)}: {step.title}")
        for number, step in enumerate(story.steps, 1)
    ]
    assert told == sorted(told)
    assert said.strip().startswith("Dashboard: http://127.0.0.1:")
    assert "!!" not in said
    assert "PNCP saw" in said.rpartition("busiest ten seconds")[0]
    assert "nothing is left behind" in said
    assert demo.left() == []


def test_demo__interrupted_with_a_page_open__is_gone_with_all_it_started(tmp_path: Path) -> None:
    with running(tmp_path / "demo") as demo:
        wait_for(lambda: "1 of" in demo.said())
        children = demo.children()
        with CLIENT.stream("GET", f"{demo.address}/v1/dashboard/stream") as page:
            lines = page.iter_lines()
            wait_for(lambda: next(lines) == "event: document")
            began = time.monotonic()
            demo.send(signal.SIGINT)
            demo.send(signal.SIGINT)  # whoever is impatient changes nothing
            assert demo.ended() == 0, demo.said()
            assert time.monotonic() - began < END_SECONDS
        assert len(children) == 5
        assert not [pid for pid in children if runs(pid)]
        assert demo.left() == []
        assert "nothing is left behind" in demo.said()


def test_demo__what_it_says_to_type_in_another_terminal__shows_the_same_fleet(tmp_path: Path) -> None:
    with running(tmp_path / "demo") as demo:
        wait_for(lambda: "->" in demo.said())
        top = subprocess.run(
            [*demo.words_for_top, "--once"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        demo.send(signal.SIGINT)
        assert demo.ended() == 0, demo.said()
    assert "Workers: 3" in top.stdout
    assert "Cache: " in top.stdout
    assert demo.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_demo__told_to_end_while_it_starts__leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path / "demo") as demo:
        wait_for(demo.children)
        children = demo.children()
        demo.send(number)
        assert demo.ended() == 0, demo.said()
        assert not [pid for pid in children if runs(pid)]
        assert demo.left() == []


def test_demo__killed__is_followed_by_all_it_started(tmp_path: Path) -> None:
    with running(tmp_path / "demo", "--scenario", "redis-dies") as demo:
        wait_for(lambda: len(demo.children()) == 6)
        children = demo.children()
        demo.process.kill()
        demo.process.wait()
        wait_for(lambda: not [pid for pid in children if runs(pid)])
        wait_for(lambda: not demo.left())


def test_demo__so_many_seconds__ends_after_them(tmp_path: Path) -> None:
    with running(tmp_path / "demo", "--seconds", "1", "--workers", "1") as demo:
        assert demo.ended() == 0
        assert demo.left() == []


def test_demo__nobody_reads__ends_without_a_word() -> None:
    with subprocess.Popen(
        [*COMMAND, "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        demo.stdout.readline()
        demo.stdout.close()
        assert demo.wait(60) == 1
        assert demo.stderr.read() == b""


def test_demo__port_that_is_taken__is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(
            [*COMMAND, "--port", port], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
    assert ran.returncode == 1
    assert f"127.0.0.1:{port} cannot be listened at" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [("--scenario", "flood"), ("--workers", "0"), ("--port", "70000"), ("--seconds", "0")],
)
def test_demo__option_that_makes_no_sense__is_one_sentence(option: str, value: str) -> None:
    ran = subprocess.run(
        [*COMMAND, option, value], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 2
    assert f"Invalid value for '{option}'" in ran.stderr
    assert "Traceback" not in ran.stderr
