"""What happened is said once in the log, told to listeners, and kept for a while."""

from __future__ import annotations

import logging

import pytest

from comporta import events
from comporta.events import Event, latest_events, listen, publish
from comporta.metrics import InMemoryMetrics, use_metrics


def test_event__published__is_logged_told_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    stop = listen(heard.append)
    with caplog.at_level(logging.INFO, "comporta"):
        publish("tide", "harbour", "it is rising", "info")
    stop()
    stop()
    publish("tide", "harbour", "it is falling")
    [event] = heard
    assert event[1:] == ("tide", "harbour", "it is rising", "info")
    assert latest_events()[-2] == event
    assert [event.text for event in latest_events(1)] == ["it is falling"]
    assert latest_events(0) == []
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert caplog.records[0].getMessage() == "harbour: it is rising"


def test_event__text_of_several_lines__is_one(caplog: pytest.LogCaptureFixture) -> None:
    publish("tide", "harbour", "it is high\r\nERROR all is lost\x1b[2J\u2028" + 10_000 * "!")
    assert latest_events(1)[0].text.startswith("it is high  ERROR all is lost [2J !!!")
    assert len(latest_events(1)[0].text) == events.TEXT_CHARS_MAX
    assert caplog.messages == [f"harbour: {latest_events(1)[0].text}"]


def test_listener__that_fails__stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise ZeroDivisionError

    heard: list[Event] = []
    stops = [listen(broken), listen(heard.append)]
    publish("tide", "harbour", "it is high")
    for stop in stops:
        stop()
    assert len(heard) == 1
    assert "a listener failed on tide" in caplog.text


def test_listeners__too_many__are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LISTENERS_MAX", 0)
    with pytest.raises(ValueError, match="listeners must be at most 0"):
        listen(print)


def test_log_handler__that_fails__stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_event__with_a_sink__is_counted_by_kind_and_source() -> None:
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
