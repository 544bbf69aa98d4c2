"""How far a run is, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import pytest

from comporta import Pipeline
from comporta.pipeline.runs.progress import Terminal, progress_of, shown
from comporta.pipeline.runs.report import Report


def test_report__figures__are_told_in_one_line() -> None:
    report = Report("x", total=1000, skipped=100, done=300, dead=2, retries=5, seconds=30)
    assert (report.rate, report.left, report.seconds_left) == (10.0, 600, 60.0)
    assert str(report) == "400 of about 1,000 done, 10.0/s, 5 retries, 2 dead letters"
    assert shown(report, "limit 10/s").endswith("limit 10/s, 0:01:00 left")
    unknown = Report("x")
    assert (unknown.rate, unknown.left, unknown.seconds_left) == (0.0, None, None)
    assert shown(unknown) == "0 done, 0.0/s"


def test_terminal__drawn__shows_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    for terminal in (Terminal(), Terminal(lambda: "limit 7/s")):
        with terminal as show:
            show(Report("rows", total=10, done=5, seconds=1))
    told = capsys.readouterr().err
    assert "5 of about 10 done" in told
    assert "limit 7/s" in told


def test_progress__true__is_a_terminal_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (True, False, None):
        with progress_of(given) as show:
            show(Report("x"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(progress_of(True), Terminal)


@pytest.mark.parametrize(("times", "ended"), [(1, "drained"), (2, "stopped")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal__while_it_runs__drains_and_then_stops(times: int, ended: str, number: int) -> None:
    async def step(item: int) -> None:
        if item == 5:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.2)
            if times == 2:
                os.kill(os.getpid(), number)
                await asyncio.sleep(60)

    before = signal.getsignal(signal.SIGTERM)
    report = Pipeline(range(1_000_000), step, workers=2).sync.run()
    assert report.ended == ended
    assert signal.getsignal(signal.SIGTERM) == before


def test_signals__on_another_thread__are_not_heard_and_do_no_harm() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(Pipeline(range(5), lambda item: None).sync.run()))
    thread.start()
    thread.join()
    assert found[0].done == 5


def test_drain__before_it_has_begun__begins_nothing() -> None:
    async def main() -> Report:
        pipeline = Pipeline(range(5), lambda item: None)
        running = asyncio.create_task(pipeline.run())
        await asyncio.sleep(0)
        pipeline.drain()
        return await running

    report = asyncio.run(main())
    assert (report.ended, report.done) == ("drained", 0)
