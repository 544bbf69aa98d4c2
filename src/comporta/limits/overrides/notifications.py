"""Publishes changes of a limit's override: an event for people and a metric for monitoring."""

from __future__ import annotations

from comporta import events
from comporta.metrics import count


def publish_limit_event(what: str, limiter: str, text: str, severity: str = "warning") -> None:
    """Publish a change once, from the worker that caused it."""
    events.publish(f"limit_{what}", limiter, text, severity)
    count("limit_changes", limiter=limiter, what=what)
