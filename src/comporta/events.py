"""Events of this process: each is logged, counted in a metric and passed to every listener.

An event reports something that an operator wants to know, such as a store outage or an opened breaker.
Individual decisions are not events; ``metrics.py`` counts those. Events are also counted, by kind and source,
and the process keeps the latest ones for status pages and the command line.

This module does not know who publishes events or who listens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from comporta.metrics import count
from comporta.runtime import RUNTIME, PerProcess
from comporta.threads import snapshot

EVENTS_MAX: Final = 1000
"""The process keeps at most this many events; a new one replaces the oldest."""

LISTENERS_MAX: Final = 100

TEXT_CHARS_MAX: Final = 1000
"""The text of an event is cut after this many characters."""

_LEVELS = {"info": 20, "warning": 30, "error": 40}  # the numbers of the logging module


class Event(NamedTuple):
    """Something that happened to ``source`` at ``at`` (Unix seconds)."""

    at: float
    kind: str
    source: str
    text: str
    severity: str


Listener = Callable[[Event], None]


class _EventLog:
    """The latest events of a process, and its listeners."""

    def __init__(self) -> None:
        self.latest: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.listeners: list[Listener] = []


_LOG = PerProcess(_EventLog)


def publish(
    kind: str, source: str, text: str, severity: str = "warning", *, label: str | None = None
) -> None:
    """Log an event, count it, keep it and pass it to every listener.

    ``severity`` is ``"info"``, ``"warning"`` or ``"error"``. ``label`` replaces the source in metrics, for
    sources that are unbounded in number or confidential.
    """
    event = Event(RUNTIME.unix_time(), kind, source, _single_line(text), severity)
    log = _LOG.get()
    log.latest.append(event)
    _log(_LEVELS[severity], f"{source}: {event.text}", kind, source)
    count("events", kind=kind, source=source if label is None else label)
    for listener in tuple(log.listeners):
        try:
            listener(event)
        except Exception as error:  # a failing listener must not stop the publisher
            _log(_LEVELS["error"], f"a listener failed on {kind}: {error!r}", kind, source)


def listen(listener: Listener) -> Callable[[], None]:
    """Call ``listener`` with every event from now on; return a function that removes it.

    The listener runs on the thread that publishes the event.
    """
    listeners = _LOG.get().listeners
    if len(listeners) >= LISTENERS_MAX:
        raise ValueError(
            f"listeners must be at most {LISTENERS_MAX}: call what listen() returned to remove one"
        )
    listeners.append(listener)

    def stop() -> None:
        if listener in listeners:
            listeners.remove(listener)

    return stop


def latest_events(count: int = EVENTS_MAX) -> list[Event]:
    """Return up to ``count`` of the latest events of this process, the newest last."""
    return snapshot(_LOG.get().latest)[-count:] if count > 0 else []


def _single_line(text: str) -> str:
    """Return ``text`` on one line: parts of it come from servers and from the names of their keys."""
    text = text[:TEXT_CHARS_MAX]
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def _log(level: int, line: str, kind: str, source: str) -> None:
    import logging  # noqa: PLC0415 - the import costs 6 ms, and most processes publish nothing

    with suppress(Exception):  # a failing log handler must not stop the publisher
        logging.getLogger("comporta").log(level, "%s", line, extra={"kind": kind, "source": source})
