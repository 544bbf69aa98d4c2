"""What happened to a call, for the code that made it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class CallReport:
    """What happened to one call through an upstream."""

    source: str
    """The name of the upstream."""

    attempts: int = 0
    """How many attempts were made."""

    waited: float = 0.0
    """Seconds spent waiting for permits, the limit and before retries."""

    took: float = 0.0
    """Seconds from start to end."""

    circuit: str = "closed"
    """The breaker's phase at the last attempt; ``"closed"`` without a breaker."""

    outcome: str = "cancelled"
    """The outcome of the last attempt: ``"ok"``, ``"failure"``, ``"refused"`` or ``"neither"``. Without an
    attempt: ``"open"`` (the breaker refused) or ``"limited"`` (no capacity in time). Otherwise ``"error"``
    (``classify`` or the store raised) or ``"cancelled"``, also while the call is in progress."""

    reason: str = ""
    """A short text about the outcome, for people."""


last_report: ContextVar[CallReport | None] = ContextVar("comporta_last_call", default=None)
"""What :func:`last_call` returns; the paths that every call takes use it without a function in between."""


def last_call() -> CallReport | None:
    """Return the report of the latest call through an upstream in this task or thread, finished or not."""
    return last_report.get()


def set_last_call(report: CallReport) -> None:
    """Make this the report that ``last_call`` returns in this task or thread."""
    last_report.set(report)
