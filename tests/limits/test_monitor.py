"""What the monitor writes down: figures under the seed's names, log lines nobody can forge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from comporta import LimitKey
from comporta.limits import monitor as module
from comporta.limits.monitor import NAMESPACES_MAX, Gate, Labels, RateLimitMonitor, namespace_of
from comporta.metrics import InMemoryMetrics, Summary, use_metrics
from comporta.testing import ManualClock


class Broken:
    """A sink that cannot keep anything."""

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        raise RuntimeError("disk full\nERROR forged")

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        raise RuntimeError("disk full")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    previous = use_metrics(None)
    yield
    use_metrics(previous)


def test_record_operation__allowed__counts_and_times_it() -> None:
    metrics = InMemoryMetrics()
    asyncio.run(RateLimitMonitor(metrics).record_operation("token", "test", True, 0.001))
    assert metrics.snapshot() == {
        'rate_limit_operations{allowed="true",limiter="token",namespace="test"}': 1,
        'rate_limit_duration{limiter="token",namespace="test"}': Summary(1, 0.001, 0.001, 0.001),
    }


def test_record_operation__refused__counts_only() -> None:
    metrics = InMemoryMetrics()
    monitor = RateLimitMonitor(metrics)
    asyncio.run(monitor.record_operation("token", "test", allowed=False, duration=1.0, region="eu"))
    assert metrics.snapshot() == {
        'rate_limit_operations{allowed="false",limiter="token",namespace="test",region="eu"}': 1
    }


def test_record_operation__no_metrics_given__uses_those_of_the_process_at_that_time() -> None:
    monitor, metrics = RateLimitMonitor(), InMemoryMetrics()
    asyncio.run(monitor.record_operation("token", "test"))
    use_metrics(metrics)
    asyncio.run(monitor.record_operation("token", "test"))
    assert metrics.value("rate_limit_operations", limiter="token", allowed="true") == 1


def test_record_operation__sink_raises__says_so_in_one_line_and_goes_on(
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


def test_decided__sink_raises__goes_on(caplog: pytest.LogCaptureFixture) -> None:
    RateLimitMonitor().decided(Broken(), "token", "a:b", True, 0.1)
    assert caplog.messages == [r"Metrics were lost: RuntimeError: disk full\nERROR forged"]


def test_failed__sink_raises_too__logs_both(caplog: pytest.LogCaptureFixture) -> None:
    RateLimitMonitor(Broken()).failed("token", "a:b", ValueError("bad"))
    assert caplog.messages == [
        r"Metrics were lost: RuntimeError: disk full\nERROR forged",
        "Rate limit check failed: limiter token, key a:b: ValueError: bad",
    ]


def test_refused__flood__logs_once_a_second_per_limiter_and_namespace_with_the_count_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    monitor = RateLimitMonitor(clock=clock)
    for number in range(100):
        monitor.refused("token", f"a:{number}")
    monitor.refused("token", "b:0")
    monitor.refused("window", "a:0")
    clock.advance(0.999)
    monitor.refused("token", "a:100")
    clock.advance(0.001)
    monitor.refused("token", "a:101")
    assert caplog.messages == [
        "Rate limit exceeded: limiter token, key a:0",
        "Rate limit exceeded: limiter token, key b:0",
        "Rate limit exceeded: limiter window, key a:0",
        "Rate limit exceeded: limiter token, key a:101 (100 more since the last line)",
    ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 4
    assert [vars(record)["suppressed"] for record in caplog.records] == [0, 0, 0, 100]


def test_refused__forged_key__stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    RateLimitMonitor().refused("token", "a:b\r\nERROR all is lost\x1b[2J\u2028" + "x" * 10_000)
    [record] = caplog.records
    assert record.getMessage().startswith(
        r"Rate limit exceeded: limiter token, key a:b\r\nERROR all is lost\x1b[2J\u2028xx"
    )
    assert len(record.getMessage()) < 200
    fields = vars(record)
    assert fields["key"] == record.getMessage().removeprefix("Rate limit exceeded: limiter token, key ")
    assert (fields["limiter"], fields["namespace"]) == ("token", "a")


def test_failed__error_with_a_key_in_it__stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    RateLimitMonitor().failed("token", "a:b", RuntimeError("key 'a\nb'" + "x" * 10_000))
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
def test_namespace_of__key__is_what_stands_first(key: LimitKey | str | None, namespace: str) -> None:
    assert namespace_of(key) == namespace


def test_labels__more_namespaces_than_allowed__are_other_but_reserved_ones_are_not() -> None:
    labels = Labels()
    given = {labels.of(f"n{number}") for number in range(NAMESPACES_MAX * 2)}
    assert len(given) == NAMESPACES_MAX  # with "other", and "default" had its place before
    assert labels.of("n0") == "n0"
    assert labels.of("late") == "other"
    assert labels.of("default") == "default"
    labels.reserve("late")
    assert labels.of("late") == "late"


@pytest.mark.parametrize(
    ("namespace", "label"),
    [("café", "café"), ("a\nb", r"a\nb"), ("\ud800", r"\ud800"), ("x" * 101, "other"), ("", "default")],
)
def test_labels__awkward_namespace__is_printable_and_short(namespace: str, label: str) -> None:
    assert [Labels().of(namespace), Labels().of(namespace)] == [label, label]


def test_gate__more_subjects_than_it_remembers__begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SUBJECTS_MAX", 2)
    gate = Gate(ManualClock())
    assert [gate.held_back(subject) for subject in "aabbcca"] == [0, None, 0, None, 0, None, 0]
