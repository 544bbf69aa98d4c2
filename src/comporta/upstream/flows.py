"""One call through all policies of an upstream: its attempts, its end, and the end of its body.

Threads and event loops share the flow. ``attempt_admission`` and ``attempt_outcome`` are the parts of
an attempt before and after the user's function.

An answer whose body the caller still has to read leaves the call open: the call keeps its permit and its
admission, and ``finish_body_flow`` concludes it when the body has ended (``body.py``).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from comporta.errors import CircuitOpenError, LimitReachedError, RefusedError, StateError
from comporta.flow import Flow, run, run_async
from comporta.outcome import FAILURE, OK, error_summary
from comporta.refusals import AnswerRefusal
from comporta.retry.attempts import attempt_number, listeners
from comporta.retry.retry import FailedAttempt
from comporta.stores.effects import Sleep
from comporta.threads import run_cleanup
from comporta.upstream.attempt import CloseResponse
from comporta.upstream.attempt_admission import admit_attempt_flow
from comporta.upstream.attempt_outcome import (
    report_abandoned_flow,
    report_flow,
    report_to_limit_flow,
    retry_delay_flow,
)
from comporta.upstream.call_state import CallState
from comporta.upstream.observation import CallObservation
from comporta.upstream.report import set_last_call

if TYPE_CHECKING:
    from comporta.breaker.admission import Admission
    from comporta.flow import Effect

_CANNOT_WAIT = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""A call that ends with one of these has no event loop to wait on any more."""


class UpstreamCall(CallState):
    """One call; it is executed once."""

    __slots__ = ()

    def execute(self) -> Any:
        """Make the call, blocking; return the last attempt's answer, or raise its error."""
        fast_path = self.policies.fast_path
        try:
            if fast_path.start(self):
                self.answer = self.block()
                if fast_path.finish(self):
                    answer, self.answer = self.answer, None  # which may refer to this call
                    return answer
        except BaseException as error:
            self.interruption = error
        return unwrap(run(self.call_flow()))

    async def execute_async(self) -> Any:
        """Make the call without blocking the event loop."""
        fast_path = self.policies.fast_path
        try:
            if fast_path.start(self):
                self.answer = await self.wait()
                if fast_path.finish(self):
                    answer, self.answer = self.answer, None  # as above
                    return answer
        except BaseException as error:
            self.interruption = error
        return unwrap(await run_async(self.call_flow()))

    def call_flow(self) -> Flow[Any]:
        """Make the call; return the last attempt's answer, or ``FailedAttempt``.

        If the fast path has begun the call, continue from where it stopped.
        """
        report, record = self.report, self.policies.record
        try:
            yield from self._attempts_flow()
        except BaseException as error:
            self._record_error(error)
            self.is_body_open = False
            if isinstance(error, _CANNOT_WAIT):
                record = partial(run_cleanup, record)
            yield from self._release_after_flow(error)
            handler = self.policies.refusal_handler(error)
            if handler is None or not isinstance(error, RefusedError):
                raise
            return (yield AnswerRefusal(handler, error, self.traits.answer_type))
        else:
            report.outcome, report.reason = self.outcome.kind, self.outcome.reason
            answer = self.answer
            if self.is_body_open:
                self.answer = None  # it will refer to this call: without the cycle it is collected at once
            return answer
        finally:
            report.took = (self.policies.clock.now_ns() - self.started_ns) / 1e9
            set_last_call(report)  # again: this call may have made calls through other upstreams
            if not self.is_body_open:
                record(report)

    def finish_body(self) -> bool:
        """Conclude a call whose body has ended without an error; false if that needs the flow."""
        return self.policies.fast_path.finish_body(self)

    def finish_body_flow(self, error: BaseException | None) -> Flow[None]:
        """Conclude a call whose answer had an open body: ``error`` broke it off, or ``None``.

        A cancellation says nothing about the upstream. What was reported before the body stays.
        """
        report = self.report
        try:
            if error is None:
                if not self.is_success_reported:
                    yield from report_flow(self, limits=False)
            elif not isinstance(error, Exception):
                report.outcome, report.reason = "cancelled", ""
            elif self.outcome.kind == OK:
                self.outcome = self.policies.classify(None, error)
                report.outcome, report.reason = self.outcome.kind, self.outcome.reason
                self._record_failure()
                yield from report_flow(self)
            if self.observed is not None and (error is None or isinstance(error, Exception)):
                answer = None if error is None else FailedAttempt(error)
                self.observed.finish(answer, self.outcome, None)
        except BaseException as failure:
            yield from self._release_after_flow(failure)
            raise
        else:
            if self.permit is not None or self.admission is not None:
                yield from self._release_all_flow()
        finally:
            report.took = (self.policies.clock.now_ns() - self.started_ns) / 1e9
            run_cleanup(self.policies.record, report)

    def _record_error(self, error: BaseException) -> None:
        """Write into the report why the call has no answer."""
        report = self.report
        if isinstance(error, CircuitOpenError):
            report.outcome, report.reason = "open", error.reason
        elif isinstance(error, LimitReachedError):
            report.outcome, report.reason = "limited", str(error)
        elif isinstance(error, Exception):
            report.outcome, report.reason = "error", error_summary(error)
        if listeners and isinstance(error, RefusedError):
            (self.observed or CallObservation(self.policies)).refuse(report, error)

    def _attempts_flow(self) -> Flow[None]:
        """Make attempts until one succeeds or no more retries are left."""
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            raise interruption
        if not self.is_attempted:
            yield from self._attempt_flow()
        elif not self.is_body_open:
            yield from self._release_permit_flow()
        while True:
            admission = self.admission
            delay = yield from self._conclude_attempt_flow()
            if self.observed is not None and not (self.is_body_open and delay is None):
                self.observed.finish(self.answer, self.outcome, delay)
            if delay is None:
                return
            yield from self._discard_answer_flow()
            yield from self._release_permit_flow()
            if delay:
                yield Sleep(self.policies.clock, delay)
                self.report.waited += delay
            self.sent_ns = self.policies.clock.now_ns()
            failed = self.answer
            try:
                yield from self._attempt_flow()
            except RefusedError as refusal:
                yield from report_abandoned_flow(self, admission)
                if type(failed) is FailedAttempt:
                    raise refusal from failed.error
                raise

    def _conclude_attempt_flow(self) -> Flow[float | None]:
        """Report the attempt to breaker and limit; return the delay before the next one, or ``None``."""
        if self.is_body_open and self.outcome.kind == OK:
            return (yield from self._conclude_headers_flow())
        self._record_failure()
        if self.policies.counts_attempts:
            yield from report_flow(self)
            return (yield from retry_delay_flow(self))
        delay = yield from retry_delay_flow(self)
        yield from report_flow(self, counts=delay is None)
        return delay

    def _record_failure(self) -> None:
        """Keep the text of an attempt that failed, for the fleet status."""
        if self.outcome.kind == FAILURE:
            self.policies.failures.record(self.outcome.reason)

    def _conclude_headers_flow(self) -> Flow[float | None]:
        """Report an answer whose body is still open; return the delay before the next attempt, or ``None``.

        The breaker counts the end of the body, or without a time-out the headers: a stream may never end.
        """
        delay = yield from retry_delay_flow(self)
        if delay is None and self._timeouts is not None:
            with suppress(StateError):
                yield from report_to_limit_flow(self)
            return None
        admission = self.admission
        yield from report_flow(self, counts=delay is None or self.policies.counts_attempts)
        if delay is None:
            self._keep_for_body(admission)
        return delay

    def _keep_for_body(self, admission: Admission | None) -> None:
        """Keep the admission of a reported success in case the body breaks off, unless it was a probe."""
        self.is_success_reported = True
        self.admission = None if admission is None or admission.probe else admission

    def _attempt_flow(self) -> Flow[None]:
        """Make one attempt as soon as breaker, permits and limit admit it."""
        policies, report = self.policies, self.report
        yield from admit_attempt_flow(self)
        attempt: Effect = self
        if report.attempts or policies.has_hooks or listeners or attempt_number.get() != 1:
            self.observed = self.observed or CallObservation(policies)
            attempt = self.observed.start(report, attempt)
        report.attempts += 1
        self.has_token = self.is_body_open = False
        self.answer = yield attempt
        self.classify_answer()
        if self.permit is not None and not self.is_body_open:
            yield from self._release_permit_flow()

    def _release_permit_flow(self) -> Flow[None]:
        permits, permit = self.policies.permits, self.permit
        if permits is not None and permit is not None:
            yield from permits._end_call_flow(permit)
            self.permit = None

    def _discard_answer_flow(self) -> Flow[None]:
        """Close a response that the caller will not get."""
        if type(self.answer) is not FailedAttempt:
            yield CloseResponse(self.answer)
            self.answer = None

    def _release_after_flow(self, error: BaseException) -> Flow[None]:
        """Release everything after an exception, without waiting if the call cannot wait any more."""
        if isinstance(error, _CANNOT_WAIT):
            run_cleanup(run, self._release_all_flow())
        else:
            yield from self._release_all_flow()

    def _release_all_flow(self) -> Flow[None]:
        """Release everything that a call without a result holds."""
        policies = self.policies
        releases = [self._release_permit_flow(), self._discard_answer_flow()]
        if policies.breaker is not None and self.admission is not None:
            releases.append(policies.breaker.flows.release_flow(self.admission))
        if self.has_token:
            releases.append(policies.tokens.release_flow(self.options.cost))
        yield from _run_all_flow(releases)


def unwrap(answer: Any) -> Any:
    """Return the answer of a call, or raise the error of its last attempt."""
    if type(answer) is FailedAttempt:
        answer.raise_error()
    return answer


def _run_all_flow(flows: list[Flow[None]]) -> Flow[None]:
    """Run flows one after the other; if one is cancelled, still run the others."""
    if flows:
        try:
            with suppress(StateError):
                yield from flows[0]
        finally:
            yield from _run_all_flow(flows[1:])
