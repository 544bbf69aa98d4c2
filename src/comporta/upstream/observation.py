"""Calls hooks and listeners for the attempts of one call. Created only if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comporta.retry.attempts import NO_HOOKS, NumberedAttempt, RetryAttempt
from comporta.retry.retry import FailedAttempt

if TYPE_CHECKING:
    from comporta.flow import Effect
    from comporta.outcome import Outcome
    from comporta.upstream.policies import Policies
    from comporta.upstream.report import CallReport


class CallObservation:
    """The attempt of a call that is in progress, and how long the call has waited so far."""

    __slots__ = ("_attempt", "_policies", "_waited")

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._waited = 0.0
        self._attempt = RetryAttempt(0)

    def start(self, report: CallReport, effect: Effect) -> Effect:
        """Call the hook before an attempt; return the effect that makes the attempt under its number."""
        waited, self._waited = report.waited - self._waited, report.waited
        self._attempt = self._policies.hooks.start(report.attempts + 1, report.source, waited)
        return NumberedAttempt(effect, self._attempt.number)

    def finish(self, answer: Any, outcome: Outcome, delay: float | None) -> None:
        """Call listeners and the hook after an attempt; ``delay`` is that of the next one."""
        failed = type(answer) is FailedAttempt
        self._policies.hooks.finish(
            self._attempt,
            outcome=outcome.kind,
            reason=outcome.reason,
            error=answer.error if failed else None,
            result=None if failed else answer,
            next_delay=delay if delay is None else max(delay, outcome.pause or 0.0),
        )

    def refuse(self, report: CallReport, error: Exception) -> None:
        """Notify listeners, but not hooks, of an attempt that is not made."""
        refused = RetryAttempt(report.attempts + 1, report.source, report.waited - self._waited)
        NO_HOOKS.finish(refused, outcome=report.outcome, reason=report.reason, error=error)
