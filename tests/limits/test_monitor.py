"""The monitor: metric names, and log lines that clients cannot forge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from comporta import LimitKey
from comporta.limits import monitor as module
from comporta.limits.monitor import (
    NAMESPACES_MAX,
    DecisionRecorder,
    LogThrottle,
    NamespaceLabels,
    RateLimitMonitor,
    key_namespace,
)
from comporta.metrics import HistogramSummary, InMemoryMetrics, use_metrics
from comporta.testing import ManualClock


class Broken:
    """A sink that always raises."""

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        raise RuntimeError("disk full\nERROR forged")

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        raise RuntimeError("disk full")


@pytest.fixture(autouse=True)
def restore_metrics() -> Iterator[None]:
    previous = use_metrics(None)
    yield
    use_metrics(previous)


def test_record_operation__allowed__is_counted_and_timed() -> None:
    metrics = InMemoryMetrics()
    asyncio.run(RateLimitMonitor(metrics).record_operation("token", "test", True, 0.001))
    assert metrics.snapshot() == {
        'rate_limit_operations{allowed="true",limiter="token",namespace="test"}': 1,
        'rate_limit_duration{limiter="token",namespace="test"}': HistogramSummary(1, 0.001, 0.001, 0.001),
    }


def test_record_operation__refused__is_only_counted() -> None:
    metrics = InMemoryMetrics()
    monitor = RateLimitMonitor(metrics)
    asyncio.run(monitor.record_operation("token", "test", allowed=False, duration=1.0, region="eu"))
    assert metrics.snapshot() == {
        'rate_limit_operations{allowed="false",limiter="token",namespace="test",region="eu"}': 1
    }


def test_record_operation__no_metrics_given__uses_the_process_sink() -> None:
    monitor, metrics = RateLimitMonitor(), InMemoryMetrics()
    asyncio.run(monitor.record_operation("token", "test"))
    use_metrics(metrics)
    asyncio.run(monitor.record_operation("token", "test"))
    assert metrics.value("rate_limit_operations", limiter="token", allowed="true") == 1


def test_record_operation__sink_raises__logs_one_line_and_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    monitor = RateLimitMonitor(Broken(), clock=clock)
    for _ in range(5):
        asyncio.run(monitor.record_operation("token", "test"))
    clock.advance(1)
    asyncio.run(monitor.record_operation("token", "test"))
    assert caplog.messages == [
        r"Metrics were lost: RuntimeError: disk full\nERROR forged",
        r"Metrics were lost: RuntimeError: disk full\nERROR forged (4 more since the last line)",
    ]


def test_record_decision__sink_raises__continues(caplog: pytest.LogCaptureFixture) -> None:
    DecisionRecorder().record_decision(Broken(), "token", "a:b", True, 0.1)
    assert caplog.messages == [r"Metrics were lost: RuntimeError: disk full\nERROR forged"]


def test_record_error__sink_raises_too__logs_both(caplog: pytest.LogCaptureFixture) -> None:
    DecisionRecorder(Broken()).record_error("token", "a:b", ValueError("bad"))
    assert caplog.messages == [
        r"Metrics were lost: RuntimeError: disk full\nERROR forged",
        "Rate limit check failed: limiter token, key a:b: ValueError: bad",
    ]


def test_log_refusal__flood__logs_once_a_second_per_namespace_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    monitor = DecisionRecorder(clock=clock)
    for number in range(100):
        monitor.log_refusal("token", f"a:{number}")
    monitor.log_refusal("token", "b:0")
    monitor.log_refusal("window", "a:0")
    clock.advance(0.999)
    monitor.log_refusal("token", "a:100")
    clock.advance(0.001)
    monitor.log_refusal("token", "a:101")
    assert caplog.messages == [
        "Rate limit exceeded: limiter token, key a:0",
        "Rate limit exceeded: limiter token, key b:0",
        "Rate limit exceeded: limiter window, key a:0",
        "Rate limit exceeded: limiter token, key a:101 (100 more since the last line)",
    ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 4
    assert [vars(record)["suppressed"] for record in caplog.records] == [0, 0, 0, 100]


def test_log_refusal__key_with_control_characters__stays_on_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    DecisionRecorder().log_refusal("token", "a:b\r\nERROR all is lost\x1b[2J\u2028" + "x" * 10_000)
    [record] = caplog.records
    assert record.getMessage().startswith(
        r"Rate limit exceeded: limiter token, key a:b\r\nERROR all is lost\x1b[2J\u2028xx"
    )
    assert len(record.getMessage()) < 200
    fields = vars(record)
    assert fields["key"] == record.getMessage().removeprefix("Rate limit exceeded: limiter token, key ")
    assert (fields["limiter"], fields["namespace"]) == ("token", "a")


def test_record_error__error_with_line_breaks__stays_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    DecisionRecorder().record_error("token", "a:b", RuntimeError("key 'a\nb'" + "x" * 10_000))
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 600
    assert vars(record)["error"].startswith(r"RuntimeError: key ")


@pytest.mark.parametrize(
    ("key", "namespace"),
    [
        (LimitKey("a:b", "c"), "a:b"),
        ("a:b:c", "a"),
        ("ip:::1", "ip"),
        ("plain", "default"),
        (":x", "default"),
        (None, "default"),
    ],
)
def test_key_namespace__key__is_the_text_before_the_colon(key: LimitKey | str | None, namespace: str) -> None:
    assert key_namespace(key) == namespace


def test_labels__too_many_namespaces__are_other_unless_reserved() -> None:
    labels = NamespaceLabels()
    given = {labels.label(f"n{number}") for number in range(NAMESPACES_MAX * 2)}
    assert len(given) == NAMESPACES_MAX  # with "other"; "default" has its label from the start
    assert labels.label("n0") == "n0"
    assert labels.label("late") == "other"
    assert labels.label("default") == "default"
    labels.reserve("late")
    assert labels.label("late") == "late"


@pytest.mark.parametrize(
    ("namespace", "label"),
    [("café", "café"), ("a\nb", r"a\nb"), ("\ud800", r"\ud800"), ("x" * 101, "other"), ("", "default")],
)
def test_labels__unprintable_namespace__is_printable_and_short(namespace: str, label: str) -> None:
    assert [NamespaceLabels().label(namespace), NamespaceLabels().label(namespace)] == [label, label]


def test_log_throttle__too_many_subjects__forgets_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SUBJECTS_MAX", 2)
    gate = LogThrottle(ManualClock())
    assert [gate.suppressed_count(subject) for subject in "aabbcca"] == [0, None, 0, None, 0, None, 0]
