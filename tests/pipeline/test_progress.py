"""Progress of a run on a terminal, and signals that end it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import pytest

from comporta import Pipeline
from comporta.pipeline.run.progress import TerminalProgress, progress_display, progress_line
from comporta.pipeline.run.report import COMPLETE, Report


def test_report__counts__are_shown_in_one_line() -> None:
    report = Report("x", total=1000, skipped=100, done=300, dead=2, retries=5, seconds=30)
    assert (report.rate, report.left, report.seconds_left) == (10.0, 600, 60.0)
    assert str(report) == "400 of about 1,000 done, 10.0/s, 5 retries, 2 dead letters"
    assert progress_line(report, "limit 10/s").endswith("limit 10/s, 0:01:00 left")
    unknown = Report("x")
    assert (unknown.rate, unknown.left, unknown.seconds_left) == (0.0, None, None)
    assert progress_line(unknown) == "0 done, 0.0/s"
    one = Report("run", total=10, done=10, retries=1, dead=1, seconds=1.0)
    assert str(one) == "10 of about 10 done, 10.0/s, 1 retry, 1 dead letter"
    assert "left" not in progress_line(one)  # the total is approximate: items may follow
    one.ended = COMPLETE
    assert progress_line(one).startswith("10 done, ")


def test_progress_line__narrow__leaves_out_the_least_important_parts() -> None:
    report = Report("run", total=1_000_000, done=400_000, retries=5_000, dead=2_000, seconds=40_000.0)
    extra = "circuit open until 12:00:00"
    lines = [progress_line(report, extra, width) for width in (200, 110, 95, 80, 60, 20)]
    assert lines[0].endswith(f"done, 10.0/s, 5,000 retries, 2,000 dead letters, {extra}, 16:40:00 left")
    assert lines[1].endswith(f"done, 10.0/s, 2,000 dead letters, {extra}, 16:40:00 left")
    assert lines[2].endswith(f"000 done, 2,000 dead letters, {extra}, 16:40:00 left")
    assert lines[3] == f"400,000 of about 1,000,000 done, 2,000 dead letters, {extra}"
    assert lines[4] == f"400,000 of about 1,000,000 done, {extra}"
    assert lines[5] == "400,000 of about 1,000,000 done"


def test_terminal_progress__report__is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    for terminal in (TerminalProgress(), TerminalProgress(lambda: "limit 7/s")):
        with terminal as show:
            show(Report("rows", total=10, done=5, seconds=1))
    output = capsys.readouterr().err
    assert "5 of about 10 done" in output
    assert "limit 7/s" in output


def test_progress__true__draws_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (True, False, None):
        with progress_display(given) as show:
            show(Report("x"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(progress_display(True), TerminalProgress)


@pytest.mark.parametrize(("times", "ended"), [(1, "drained"), (2, "stopped")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal__while_it_runs__drains_and_then_stops(times: int, ended: str, number: int) -> None:
    async def step(item: int) -> None:
        if item == 5:
            os.kill(os.getpid(), number)
            while pipeline._run is None or pipeline._run._end_state != "drained":  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
            if times == 2:
                os.kill(os.getpid(), number)
                await asyncio.Event().wait()

    before = signal.getsignal(signal.SIGTERM)
    pipeline = Pipeline(range(1_000_000), step, workers=2)
    report = pipeline.sync.run()
    assert report.ended == ended
    assert signal.getsignal(signal.SIGTERM) == before


def test_signals__run_on_another_thread__are_ignored() -> None:
    reports: list[Any] = []
    thread = threading.Thread(target=lambda: reports.append(Pipeline(range(5), lambda item: None).sync.run()))
    thread.start()
    thread.join()
    assert reports[0].done == 5


def test_drain__before_the_run_has_opened__starts_no_item() -> None:
    async def main() -> Report:
        pipeline = Pipeline(range(5), lambda item: None)
        running = asyncio.create_task(pipeline.run())
        await asyncio.sleep(0)
        pipeline.drain()
        return await running

    report = asyncio.run(main())
    assert (report.ended, report.done) == ("drained", 0)


def test_terminal_progress__line_printed__is_shown_above_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalProgress() as progress:
        progress.print("Finishing 1 item in progress.")
    assert "Finishing 1 item in progress.\n" in capsys.readouterr().err
