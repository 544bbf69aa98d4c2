"""What happened, in words: said once in the log, and to whoever listens.

An event is something people want to know of (the state engine is gone, a breaker has opened), not a decision:
those are counted (``metrics.py``). Events are counted as well, by kind and source. The latest are kept for
pages and command lines.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from comporta.metrics import current_metrics

LATEST_MAX: Final = 1000
"""How many events a process remembers; the oldest is dropped for the next."""

LISTENERS_MAX: Final = 100

TEXT_CHARS_MAX: Final = 1000
"""The longest text of an event; what is beyond it is cut."""

_LEVELS = {"info": 20, "warning": 30, "error": 40}  # logging's own numbers


class Event(NamedTuple):
    """Something that happened to ``source`` at ``at`` (Unix seconds)."""

    at: float
    kind: str
    source: str
    text: str
    severity: str


Listener = Callable[[Event], None]

_latest: deque[Event] = deque(maxlen=LATEST_MAX)
_listeners: list[Listener] = []


def publish(kind: str, source: str, text: str, severity: str = "warning") -> None:
    """Say it: in the log (``severity`` is the name of a level), to listeners, and for later."""
    event = Event(time.time(), kind, source, _line(text), severity)
    _latest.append(event)
    _log(_LEVELS[severity], f"{source}: {event.text}", kind, source)
    sink = current_metrics()
    if sink is not None:
        with suppress(Exception):  # a sink that fails must not stop what happens
            sink.counter("events", 1, kind=kind, source=source)
    for listener in tuple(_listeners):
        try:
            listener(event)
        except Exception as error:  # whoever listens must not be able to stop what happens
            _log(_LEVELS["error"], f"a listener failed on {kind}: {error!r}", kind, source)


def listen(listener: Listener) -> Callable[[], None]:
    """Call ``listener`` with every event from now on, on the thread it happens on; returns how to stop it."""
    if len(_listeners) >= LISTENERS_MAX:
        raise ValueError(f"listeners must be at most {LISTENERS_MAX}: is an old one never stopped?")
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return stop


def latest_events(count: int = LATEST_MAX) -> list[Event]:
    """Return the latest events of this process, the newest last."""
    return list(_latest)[-count:] if count > 0 else []


def _line(text: str) -> str:
    """Return a text as one line: parts of it come from servers, and from whoever can write to their keys."""
    text = text[:TEXT_CHARS_MAX]
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


def _log(level: int, line: str, kind: str, source: str) -> None:
    import logging  # noqa: PLC0415 - costs 6 ms, and most processes have nothing to say

    with suppress(Exception):  # nor must a handler
        logging.getLogger("comporta").log(level, "%s", line, extra={"kind": kind, "source": source})
