"""What happened to a call: for whoever made it, afterwards."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class CallReport:
    """One call as it went. ``waited`` and ``took`` are seconds: in line before attempts, and in all.

    ``circuit`` is the breaker's phase as the last attempt found it (closed, if there is none). ``outcome`` is
    what the last attempt showed, one of ok, failure, refused (by the upstream) and neither; or open (the
    breaker refused), limited (no room in time), error (a judge or the state failed), and cancelled, as long
    as there is none of these. ``source`` says who was asked.
    """

    source: str
    attempts: int = 0
    waited: float = 0.0
    took: float = 0.0
    circuit: str = "closed"
    outcome: str = "cancelled"
    why: str = ""


_latest: ContextVar[CallReport | None] = ContextVar("comporta_last_call", default=None)


def last_call() -> CallReport | None:
    """Return the report of the latest call through an upstream in this task or thread, running or done."""
    return _latest.get()


def reported(report: CallReport) -> None:
    """Make this the latest call of this task or thread."""
    _latest.set(report)
