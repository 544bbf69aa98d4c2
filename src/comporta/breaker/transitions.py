"""The events and metrics for changes of a circuit that this process notices.

Compares two replies. It does not read a store and does not know who caused the change.
"""

from __future__ import annotations

from typing import NamedTuple

from comporta import events, metrics
from comporta.breaker.admission import FORCE_NAMES
from comporta.breaker.state import (
    CHANGE_CLOSED,
    CHANGE_NONE,
    CHANGE_OPENED,
    CHANGE_RAMP,
    CHANGE_RESET,
    CLOSED,
    HALF_OPEN,
    NOT_FORCED,
    OPEN,
    CircuitReply,
)
from comporta.clock import SECOND_US
from comporta.ramp import FULL_SHARE

_LABELS = {
    CHANGE_OPENED: "open",
    CHANGE_CLOSED: "closed",
    CHANGE_RAMP: "ramp",
    CHANGE_RESET: "closed",
}


class BreakerEvent(NamedTuple):
    """An event about a circuit: its kind, a sentence for people, and its severity."""

    kind: str
    text: str
    severity: str


def publish(name: str, reply: CircuitReply, noticed: list[BreakerEvent]) -> None:
    """Publish the events that this process noticed, and count the transition that this reply caused.

    Every worker publishes the events, but only the worker whose operation changed the circuit counts it.
    """
    for kind, text, severity in noticed:
        events.publish(kind, name, text, severity)
    if reply.change != CHANGE_NONE:
        metrics.count("breaker_transitions", breaker=name, to=_LABELS[reply.change])


def events_between(previous: CircuitReply | None, reply: CircuitReply) -> list[BreakerEvent]:
    """Return the event for the difference between two replies, if there is one."""
    forced, phase = (NOT_FORCED, CLOSED) if previous is None else (previous.forced, previous.phase)
    if reply.forced != forced:
        return [_forced_event(reply)]
    reopened = previous is not None and reply.phase == OPEN and previous.generation != reply.generation
    return [_phase_event(reply)] if reply.phase != phase or reopened else []


def _forced_event(reply: CircuitReply) -> BreakerEvent:
    mode = FORCE_NAMES.get(reply.forced)
    text = f"forced {mode} by an operator: {reply.reason}" if mode else "no longer forced"
    return BreakerEvent("breaker_forced", text.rstrip(": "), "warning")


def _phase_event(reply: CircuitReply) -> BreakerEvent:
    if reply.phase == OPEN:
        text = f"open for {reply.remaining_us / SECOND_US:.1f} s: {reply.reason}"
        return BreakerEvent("breaker_opened", text.rstrip(": "), "warning")
    if reply.phase == HALF_OPEN:
        text = f"half-open, waiting for a probe: {reply.reason}"
        return BreakerEvent("breaker_half_open", text.rstrip(": "), "info")
    if reply.phase == CLOSED:
        return BreakerEvent("breaker_closed", "closed", "info")
    return BreakerEvent("breaker_closed", f"closing, {100 * reply.share / FULL_SHARE:.0f} % admitted", "info")
