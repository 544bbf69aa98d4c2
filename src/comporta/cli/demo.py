"""``comporta demo``: several processes of this machine share one limit, live.

The workers are processes that know nothing of each other: each opens the same state and asks as fast as it
can. On the way one of them is killed in mid-work and the limit is halved for all. The table is read from the
shared state, as any process could.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from comporta.errors import StateError
from comporta.limits.config import LimitConfig
from comporta.limits.limiter import TokenBucketLimiter
from comporta.stores.base import Store
from comporta.stores.folder import path_of
from comporta.stores.records import Write
from comporta.stores.urls import forget_stores, open_store

NAME = "demo"
REPORTS = "demo_report"
_REPORT_EVERY_SECONDS = 0.1
_REFRESHES_PER_SECOND = 5
_BAR_CHARS = 24


@click.command()
@click.option(
    "--workers", default=4, show_default=True, type=click.IntRange(1, 64), help="Processes to start."
)
@click.option("--limit", default="100/s burst 20", show_default=True, help="The one limit they all share.")
@click.option("--seconds", default=15.0, show_default=True, type=click.FloatRange(3, 3600), help="How long.")
@click.option("--state", default=None, help="State URL; left out: shared memory of this machine.")
def demo(workers: int, limit: str, seconds: float, state: str | None) -> None:
    """Show several processes share one limit, live."""
    try:
        config = LimitConfig.parse(limit)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--limit") from None
    own = f"demo-{os.getpid()}"
    url = state or f"shared://{own}?keys=1024"
    try:
        store = open_store(url)
        limiter = TokenBucketLimiter(config, store, NAME)
        limiter.sync.reset()
    except Exception as error:
        raise click.ClickException(str(error)) from None
    try:
        with _running(workers, url, limit) as processes:
            _Show(processes, store, limiter, seconds).play()
    except KeyboardInterrupt:
        click.echo("Stopped.")
    finally:
        with suppress(StateError):  # a server that died meanwhile has nothing to be put back
            limiter.sync.change(None)
        forget_stores()
        if state is None:
            shutil.rmtree(path_of(own))


@contextmanager
def _running(workers: int, url: str, limit: str) -> Iterator[list[SpawnProcess]]:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_work, args=(number, url, limit), daemon=True) for number in range(workers)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _work(number: int, url: str, limit: str) -> None:
    """Ask as fast as is polite, and tell the shared state how it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = open_store(url)
    limiter = TokenBucketLimiter(limit, store, NAME)
    asked = granted = 0
    first, report_at = time.monotonic(), 0.0
    while True:
        asked += 1
        if limiter.sync.acquire():
            granted += 1
        else:
            time.sleep(0.001)
        if time.monotonic() >= report_at:
            now = time.monotonic()
            report_at = now + _REPORT_EVERY_SECONDS
            report = {"pid": os.getpid(), "asked": asked, "granted": granted, "first": first, "at": now}
            store.apply(Write(REPORTS, str(number), json.dumps(report).encode(), 3600))


class _Show:
    """Reads the shared state and draws it; plays the story's two incidents on the way."""

    def __init__(
        self, processes: list[SpawnProcess], store: Store, limiter: TokenBucketLimiter, seconds: float
    ) -> None:
        self._processes = processes
        self._store = store
        self._limiter = limiter
        self._seconds = seconds
        self._story = [f"One limit for all: {limiter.config}."]
        self._changed_at: float | None = None
        self._start = time.monotonic()
        self._incidents = [
            (seconds / 3, self._kill_one),
            (seconds * 2 / 3, self._halve_the_limit),
        ]

    def play(self) -> None:
        """Draw until the time is up: live on a terminal, a line a second elsewhere."""
        console = Console()
        if not console.is_terminal:
            self._play_lines()
            return
        with Live(self._drawn(), console=console, refresh_per_second=_REFRESHES_PER_SECOND) as live:
            while self._goes_on():
                live.update(self._drawn())
                time.sleep(1 / _REFRESHES_PER_SECOND)

    def _play_lines(self) -> None:
        said = 0
        while self._goes_on():
            for line in self._story[said:]:
                click.echo(line)
            said = len(self._story)
            click.echo(self._summary())
            sys.stdout.flush()
            time.sleep(min(1.0, self._seconds / 5))
        click.echo(self._summary())

    def _goes_on(self) -> bool:
        now = time.monotonic()
        if not self._store.entries(REPORTS):
            if not any(process.is_alive() for process in self._processes):
                raise click.ClickException("no worker could report: may this user write keys demo_report:*?")
            self._start = now  # the workers are still starting
        while self._incidents and now - self._start >= self._incidents[0][0]:
            self._incidents.pop(0)[1]()
        return now - self._start < self._seconds

    def _kill_one(self) -> None:
        process = self._processes[-1]
        if len(self._processes) > 1:
            process.kill()
            self._story.append(f"Worker {process.pid} was killed (kill -9) in mid-work: the others go on.")

    def _halve_the_limit(self) -> None:
        config = self._limiter.config
        self._limiter.sync.change(LimitConfig(config.rate / 2, max(1, config.capacity // 2)))
        self._changed_at = time.monotonic()
        self._story.append(f"The limit was halved to {config.rate / 2:g}/s: every worker obeys at once.")

    def _reports(self) -> list[dict[str, Any]]:
        found = self._store.entries(REPORTS)
        return [json.loads(found[key]) for key in sorted(found, key=int)]

    def _figures(self, reports: list[dict[str, Any]]) -> tuple[int, float]:
        """Return what was granted, and what was due by the time of the newest report."""
        if not reports:
            return 0, 0.0
        first, at = min(report["first"] for report in reports), max(report["at"] for report in reports)
        changed_at = self._changed_at or at
        rate = self._limiter.config.rate
        full, halved = min(at, changed_at) - first, max(0.0, at - changed_at)
        due = self._limiter.config.capacity + rate * full + rate / 2 * halved
        return sum(report["granted"] for report in reports), due

    def _summary(self) -> str:
        reports = self._reports()
        granted, due = self._figures(reports)
        shares = " ".join(f"{report['pid']}:{report['granted']}" for report in reports)
        passed = time.monotonic() - self._start
        return f"{passed:5.1f} s   granted {granted:,} of {due:,.0f} due   [{shares}]"

    def _drawn(self) -> Group:
        reports = self._reports()
        granted, due = self._figures(reports)
        alive = {process.pid for process in self._processes if process.is_alive()}
        table = Table(title="comporta: several processes, one limit", title_justify="left")
        table.add_column("worker", justify="right")
        for heading in ("asked", "granted"):
            table.add_column(heading, justify="right", min_width=9)
        table.add_column("share", min_width=_BAR_CHARS + 6)
        for report in reports:
            share = report["granted"] / max(1, granted)
            bar = "█" * round(share * _BAR_CHARS)
            state = "" if report["pid"] in alive else "killed"
            table.add_row(
                str(report["pid"]),
                f"{report['asked']:,}",
                f"{report['granted']:,}",
                f"{bar} {share:.0%} {state}",
                style=None if report["pid"] in alive else "dim",
            )
        stats = self._limiter.sync.stats()
        left = max(0.0, self._seconds - (time.monotonic() - self._start))
        verdict = "within the limit" if granted <= due else "ABOVE THE LIMIT"
        total = Text(
            f"granted {granted:,} of {due:,.0f} due: {granted / max(1.0, due):.1%}, {verdict}   "
            f"tokens left {stats.tokens_available} of {stats.limit}   {left:.0f} s to go"
        )
        return Group(table, total, *(Text(f"• {line}", style="cyan") for line in self._story))
