"""Everything that one call through an upstream holds, and what the policies know about the call.

A probe, a permit, a token, a response: each is an attribute of ``CallState``, so that one flow can release
them all. The modules that take an attempt through the policies change them; this module decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comporta.outcome import OK_OUTCOME, Outcome
from comporta.retry.retry import FailedAttempt
from comporta.upstream.attempt import TimedAttempt
from comporta.upstream.report import CallReport, last_report

if TYPE_CHECKING:
    from comporta.breaker.admission import Admission
    from comporta.limits.concurrency.limit import ConcurrencyLimit
    from comporta.limits.concurrency.permits import Permit
    from comporta.retry.backoff import Delays
    from comporta.upstream.observation import CallObservation
    from comporta.upstream.options import CallOptions
    from comporta.upstream.policies import Policies


class CallTraits(NamedTuple):
    """What the policies have to know about a call. Calls that differ only in their arguments share one."""

    repeatable: bool = True
    """Whether the call may be made again after a failure."""

    replayable: bool = False
    """Whether a call that the upstream refused may be made again, even if it is not ``repeatable``."""

    has_open_body: Callable[[Any], bool] | None = None
    """Whether the body of an answer is still to be read; ``None``: answers have no such body."""

    answer_type: type[Any] = object
    """``retry_if`` is called with instances of it, and ``on_refusal`` may return one."""


FUNCTION_CALL: Final = CallTraits()
"""A call of a function that returns its result."""


class CallState(TimedAttempt):
    """The state of one call. As an effect it is one attempt, which saves an object for each call.

    ``started_ns`` is the start of the call, ``sent_ns`` that of the latest attempt. ``outcome`` and
    ``answer`` are those of the latest attempt. ``is_body_open``: the answer has a body to read, whose end
    ``finish_body_flow`` must record; ``is_success_reported``: the breaker has counted its headers.
    ``is_attempted`` and ``interruption``: the fast path made the first attempt, or was interrupted.
    """

    __slots__ = (
        *("admission", "answer", "delays", "has_token", "interruption", "is_attempted", "is_body_open"),
        *("is_success_reported", "observed", "options", "outcome", "permit", "policies", "report"),
        *("sent_ns", "started_ns", "traits"),
    )

    def __init__(  # noqa: PLR0917 - keywords would cost a tenth of the call
        self,
        policies: Policies,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        options: CallOptions,
        traits: CallTraits = FUNCTION_CALL,
    ) -> None:
        self.report = report = CallReport(policies.name)
        last_report.set(report)
        self._function = function
        self._arguments = arguments
        self._keywords = keywords
        self.options = options
        self._timeouts = options.timeouts
        self.policies = policies
        self.traits = traits
        self.is_body_open = False
        self.started_ns = self.sent_ns = policies.clock.now_ns()
        self.delays: Delays | None = None
        self.outcome: Outcome = OK_OUTCOME
        self.admission: Admission | None = None
        self.permit: Permit | None = None
        self.has_token = False
        self.answer: Any = None
        self.observed: CallObservation | None = None
        self.is_attempted = self.is_success_reported = False
        self.interruption: BaseException | None = None

    def resume(
        self,
        report: CallReport,
        started_ns: int,
        admission: Admission | None,
        answer: Any,
        outcome: Outcome | None,
    ) -> None:
        """Take over a call that a wrapper began without this object; ``call_flow`` continues it.

        Without an ``outcome``, the answer is not classified yet, or ``interruption`` is why there is no
        answer.
        """
        self.report = report
        last_report.set(report)
        self.started_ns = self.sent_ns = started_ns
        self.admission = None if self.policies.breaker is None else admission
        self.answer = answer
        if self.interruption is not None:
            return
        self.is_attempted = True
        if outcome is not None:
            self.outcome = outcome
            return
        try:
            self.classify_answer()
        except BaseException as error:
            self.interruption = error

    @property
    def max_wait_ns(self) -> int:
        """How long an attempt may wait for capacity."""
        seconds = self.options.max_wait
        return self.policies.max_wait_ns if seconds is None else round(seconds * 1e9)

    @property
    def takes_any_token(self) -> bool:
        """Whether the call needs one token and leaves none to higher classes."""
        options = self.options
        return options.cost == 1 and not self.policies.limiter._flows.has_headroom(options.caller.rank)

    @property
    def held_permit(self) -> tuple[ConcurrencyLimit, Permit] | None:
        """The permit that the call holds, and its limit."""
        permits, permit = self.policies.permits, self.permit
        return None if permits is None or permit is None else (permits, permit)

    def classify_answer(self) -> None:
        """Classify the answer, and determine whether its body is still to be read."""
        answer, classify = self.answer, self.policies.classify
        if type(answer) is FailedAttempt:
            self.outcome = classify(None, answer.error)
        else:
            has_open_body = self.traits.has_open_body
            self.is_body_open = has_open_body is not None and has_open_body(answer)
            self.outcome = classify(answer, None)

    def exclude_time(self, seconds: float) -> None:
        """Exclude the time that the caller took between its reads from the duration of the call."""
        admission = self.admission
        if admission is not None and admission.started_ns:
            admission.started_ns += round(seconds * 1e9)
