"""Events are logged once, passed to listeners, counted, and stored until newer ones replace them."""

from __future__ import annotations

import logging

import pytest

from comporta import events
from comporta.events import Event, latest_events, listen, publish
from comporta.metrics import InMemoryMetrics, use_metrics


def test_event__published__is_logged_stored_and_passed_to_listeners(caplog: pytest.LogCaptureFixture) -> None:
    received: list[Event] = []
    stop = listen(received.append)
    with caplog.at_level(logging.INFO, "comporta"):
        publish("tide", "harbour", "it is rising", "info")
    stop()
    stop()
    publish("tide", "harbour", "it is falling")
    [event] = received
    assert event[1:] == ("tide", "harbour", "it is rising", "info")
    assert latest_events()[-2] == event
    assert [event.text for event in latest_events(1)] == ["it is falling"]
    assert latest_events(0) == []
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert caplog.records[0].getMessage() == "harbour: it is rising"


def test_event__text_of_several_lines__becomes_one_line(caplog: pytest.LogCaptureFixture) -> None:
    publish("tide", "harbour", "it is high\r\nERROR all is lost\x1b[2J\u2028" + 10_000 * "!")
    assert latest_events(1)[0].text.startswith("it is high  ERROR all is lost [2J !!!")
    assert len(latest_events(1)[0].text) == events.TEXT_CHARS_MAX
    assert caplog.messages == [f"harbour: {latest_events(1)[0].text}"]


def test_listener__that_raises__affects_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise ZeroDivisionError

    received: list[Event] = []
    stops = [listen(broken), listen(received.append)]
    publish("tide", "harbour", "it is high")
    for stop in stops:
        stop()
    assert len(received) == 1
    assert "a listener failed on tide" in caplog.text


def test_listeners__too_many__raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LISTENERS_MAX", 0)
    with pytest.raises(ValueError, match="listeners must be at most 0"):
        listen(print)


def test_log_handler__that_raises__affects_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    handler = Broken()
    logger = logging.getLogger("comporta")
    logger.addHandler(handler)
    try:
        publish("tide", "harbour", "it is out")
    finally:
        logger.removeHandler(handler)
    assert latest_events(1)[0].text == "it is out"


class BrokenSink:
    """A sink that cannot count."""

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        raise ZeroDivisionError

    histogram = counter


def test_event__sink_set__is_counted_by_kind_and_source() -> None:
    sink = InMemoryMetrics()
    before = use_metrics(sink)
    try:
        publish("tide", "harbour", "it is rising", "info")
        use_metrics(BrokenSink())
        publish("tide", "harbour", "it is falling", "info")
    finally:
        use_metrics(before)
    assert sink.snapshot() == {'events{kind="tide",source="harbour"}': 1}
    assert latest_events(1)[0].text == "it is falling"
