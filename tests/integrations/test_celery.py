"""Celery tasks that are refused return at the right time: with real workers and a real broker."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from tests.support import WAIT_SECONDS_MAX, command

from comporta import CircuitOpenError, LimitConfig, LimitReachedError, TokenBucketLimiter
from comporta.integrations import celery as integration
from comporta.integrations.celery import RefusalRetryTask, refusal_countdown
from comporta.testing import Server

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def worker(server: Server, state: str, *options: str) -> Iterator[Celery]:
    """Run a worker and yield an application that sends it tasks and reads their results."""
    queue = uuid.uuid4().hex
    environ = {
        "COMPORTA_TEST_BROKER": server.url,
        "COMPORTA_TEST_STATE": state,
        "COMPORTA_TEST_QUEUE": queue,
    }
    arguments = ["-A", "tests.integrations.celery_app", "worker", "-l", "WARNING", "-n", f"{queue}@test"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with subprocess.Popen(
        [sys.executable, "-m", "celery", *arguments, *quiet, *options],
        cwd=ROOT,
        env={**os.environ, **environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        client = Celery(broker=server.url, backend=server.url)
        client.conf.task_default_queue = queue
        try:
            yield client
            process.terminate()
            assert process.wait(WAIT_SECONDS_MAX) == 0
        finally:
            process.kill()
            client.close()
            command(server, "FLUSHALL")


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_tasks__refused_by_the_limit_or_failed__return_as_often_as_they_should(
    pool: str, valkey: Server, shared_state: str
) -> None:
    with worker(valkey, shared_state, "-P", pool, "-c", "3") as client:
        sent = [client.send_task("tests.integrations.celery_app.fetch", [page]) for page in range(5)]
        refused = client.send_task("tests.integrations.celery_app.refuse", [0.0])
        failed = client.send_task("tests.integrations.celery_app.fail")
        results: list[dict[str, Any]] = [result.get(timeout=WAIT_SECONDS_MAX) for result in sent]
        with pytest.raises(CircuitOpenError, match="refusal 2"):
            refused.get(timeout=WAIT_SECONDS_MAX)
        with pytest.raises(LookupError, match="retry 1"):
            failed.get(timeout=WAIT_SECONDS_MAX)
    assert [result["page"] for result in results] == list(range(5))
    assert sum(result["refusals"] > 0 for result in results) >= 1, "not all tasks fit into the burst of 2"
    assert {result["retries"] for result in results} == {0}, "a refusal does not count as a retry"
    leased = TokenBucketLimiter(LimitConfig(0.001, 1000), shared_state, "leased")
    assert leased.sync.peek().remaining == 1000 - 5, "leases are returned when the worker ends"


def application() -> Celery:
    return Celery("local", broker="memory://", backend="cache+memory://", task_cls=RefusalRetryTask)


def test_task__called_directly__raises_the_refusal() -> None:
    @application().task  # type: ignore[untyped-decorator]
    def refuse() -> None:
        raise LimitReachedError("no capacity", "portal", 3.0)

    with pytest.raises(LimitReachedError) as refusal:
        refuse()
    assert refusal.value.retry_after == 3.0


def test_task__applied_eagerly__runs_again_at_once() -> None:
    calls: list[int] = []

    @application().task  # type: ignore[untyped-decorator]
    def refuse_twice() -> str:
        calls.append(len(calls))
        if len(calls) < 3:
            raise LimitReachedError("no capacity", "portal", 3.0)
        return "done"

    assert refuse_twice.apply().get() == "done"
    assert calls == [0, 1, 2]


def test_task__refused_too_often__fails_with_the_refusal() -> None:
    calls: list[int] = []

    @application().task(refusals_max=2)  # type: ignore[untyped-decorator]
    def refuse() -> None:
        calls.append(len(calls))
        raise LimitReachedError(f"refusal {calls[-1]}", "portal", 0.0)

    with pytest.raises(LimitReachedError, match="refusal 2"):
        refuse.apply().get()


def test_task__unlimited_refusals__goes_on() -> None:
    calls: list[int] = []

    @application().task(refusals_max=None)  # type: ignore[untyped-decorator]
    def refuse_often() -> str:
        calls.append(len(calls))
        if len(calls) < 105:
            raise LimitReachedError("no capacity", "portal", 0.0)
        return "done"

    assert refuse_often.apply().get() == "done"


@pytest.mark.parametrize(
    ("retry_after", "refusals", "least", "most"),
    [(0.0, 0, 0, 1), (30.0, 0, 30, 31), (30.0, 3, 30, 38), (30.0, 50, 30, 90), (float("inf"), 9, 900, 900)],
)
def test_countdown__refusal__is_not_before_retry_after_and_bounded(
    retry_after: float, refusals: int, least: float, most: float
) -> None:
    error = LimitReachedError("no capacity", "portal", retry_after)
    countdowns = [refusal_countdown(error, refusals) for _ in range(100)]
    assert least <= min(countdowns)
    assert max(countdowns) <= most
    assert least == most or len(set(countdowns)) > 50, "tasks return apart from each other"


def test_import__library_missing__says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "celery", None)
    with pytest.raises(ImportError, match=r"needs the package celery: pip install 'comporta\[celery\]'"):
        runpy.run_path(integration.__file__)
