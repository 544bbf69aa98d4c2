"""Says that what is in force of a limit has changed: an event for people, a figure for the monitoring."""

from __future__ import annotations

from contextlib import suppress

from comporta import events
from comporta.metrics import current_metrics


def tell(what: str, limiter: str, text: str, severity: str = "warning") -> None:
    """Say it once, by the worker that caused it."""
    events.publish(f"limit_{what}", limiter, text, severity)
    sink = current_metrics()
    if sink is not None:
        with suppress(Exception):  # a sink that fails must not stop a change
            sink.counter("limit_changes", 1, limiter=limiter, what=what)
