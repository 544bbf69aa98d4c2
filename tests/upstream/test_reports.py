"""The report of a call, and its metrics."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.upstream.conftest import Make
from tests.upstream.drivers import Scripted

from comporta import CallReport, Upstream, last_call
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md").read_text()


def test_last_call__during_the_call__is_the_unfinished_report(make: Make) -> None:
    driver = make()
    seen: list[Any] = []

    def reads_report() -> None:
        report = last_call()
        assert report is not None
        seen.append((report.source, report.attempts, report.outcome))

    driver.call(reads_report)
    assert seen == [("pncp", 1, "cancelled")]


def test_last_call__after_nested_calls__is_the_outer_call(make: Make, store: MemoryStore) -> None:
    driver, inner = make(), Upstream("inner", "10/s", state=store)
    sources: list[str] = []

    def nested() -> None:
        inner.sync.call(lambda: None)
        report = last_call()
        assert report is not None
        sources.append(report.source)

    driver.call(nested)
    assert sources == ["inner"]
    assert driver.report is not None
    assert driver.report.source == "pncp"


def test_last_call__other_threads_and_tasks__have_their_own(store: MemoryStore) -> None:
    upstream = Upstream("pncp", "100/s", state=store)
    reports: list[CallReport | None] = []

    def thread() -> None:
        reports.append(last_call())
        upstream.sync.call(lambda: None)
        reports.append(last_call())

    async def fetch() -> None:
        await asyncio.sleep(0)

    async def task() -> CallReport | None:
        await upstream.call(fetch)
        return last_call()

    async def main() -> None:
        await upstream.call(fetch)
        own = last_call()
        others = await asyncio.gather(task(), task())
        assert last_call() is own
        assert len({id(report) for report in [own, *others]}) == 3

    upstream.sync.call(lambda: None)
    own = last_call()
    worker = threading.Thread(target=thread)
    worker.start()
    worker.join()
    assert last_call() is own
    assert reports[0] is None
    assert reports[1] is not None
    assert reports[1] is not own
    asyncio.run(main())


def test_metrics__calls_of_every_kind__are_counted_and_timed(
    make: Make, clock: ManualClock, metrics: InMemoryMetrics
) -> None:
    driver = make("1/s")
    driver.call(Scripted(clock, OSError()))
    with pytest.raises(ZeroDivisionError):
        driver.call(Scripted(clock, ZeroDivisionError()))
    assert metrics.value("upstream_calls", upstream="pncp", outcome="ok") == 1
    assert metrics.value("upstream_calls", upstream="pncp", outcome="failure") == 1
    assert metrics.value("upstream_attempts", upstream="pncp") == 3
    metrics_now = metrics.snapshot()
    assert metrics_now['upstream_wait_seconds{upstream="pncp"}'].total == pytest.approx(3)  # type: ignore[union-attr]
    assert metrics_now['upstream_call_seconds{upstream="pncp"}'].count == 2  # type: ignore[union-attr]


def test_metrics__reference_page__lists_each_with_type_and_labels(
    make: Make, metrics: InMemoryMetrics
) -> None:
    make().call(lambda: None)
    shown = [name for name in metrics.snapshot() if name.startswith("upstream_")]
    assert len(shown) == 5
    for series in shown:
        name, _, labels = series.partition("{")
        kind = "histogram, seconds" if name.endswith("seconds") else "counter"
        [row] = re.findall(rf"^\| `{name}` \| {kind} \| (.*?) \|", PAGE, re.MULTILINE)
        for label in re.findall(r"(\w+)=", labels):
            assert f"`{label}`" in row


def test_metrics__sink_raises__the_call_succeeds(make: Make) -> None:
    class Broken:
        def counter(self, name: str, value: float, /, **labels: str) -> None:
            raise RuntimeError("full")

        histogram = counter

    previous = use_metrics(Broken())
    try:
        assert make().call(lambda: "well") == "well"
    finally:
        use_metrics(previous)
