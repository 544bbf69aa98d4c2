"""One call through all policies of an upstream: retry, breaker, permits, limit, and the call itself.

The breaker comes before the limit: otherwise callers would queue only to be refused. It comes again after a
wait, because it may have opened in the meantime. Threads and event loops share the flow. Everything that a
call holds (a probe, a permit, a token, a response) is an attribute of ``UpstreamCall``, so that one method
releases it all.

An answer whose body the caller still has to read leaves the call open: the call keeps its permit and its
admission, and ``finish_body_flow`` concludes it when the body has ended (``body.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comporta.errors import CircuitOpenError, LimitReachedError, RefusedError, StateError
from comporta.flow import Flow, run, run_async
from comporta.jitter import uniform
from comporta.outcome import FAILURE, OK, OK_OUTCOME, REFUSED, Outcome, error_summary
from comporta.refusals import AnswerRefusal
from comporta.retry.attempts import attempt_number, listeners
from comporta.retry.retry import FailedAttempt
from comporta.stores.base import WouldBlock
from comporta.stores.effects import Sleep
from comporta.threads import run_cleanup
from comporta.upstream.attempt import CloseResponse, TimedAttempt
from comporta.upstream.observation import CallObservation
from comporta.upstream.report import CallReport, last_report, set_last_call

if TYPE_CHECKING:
    from comporta.breaker.admission import Admission
    from comporta.flow import Effect
    from comporta.limits.concurrency.limit import ConcurrencyLimit
    from comporta.limits.concurrency.operation import Permit
    from comporta.limits.decision import Decision
    from comporta.retry.backoff import Delays
    from comporta.timeouts import Timeouts
    from comporta.upstream.policies import Policies

_LONG_WAIT_NS = 1_000_000
"""After a wait longer than this, the breaker decides again."""

_JITTER = 0.1
"""Up to this share is added to a pause during an outage, so that callers do not all resume at once."""

_PAUSE_MIN = 0.001
_CANNOT_WAIT = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""A call that ends with one of these has no event loop to wait on any more."""


class CallTraits(NamedTuple):
    """What the policies have to know about a call. Calls that differ only in their arguments share one."""

    repeatable: bool = True
    """Whether the call may be made again after a failure."""

    replayable: bool = False
    """Whether a call that the upstream refused may be made again, even if it is not ``repeatable``."""

    has_open_body: Callable[[Any], bool] | None = None
    """Whether the body of an answer is still to be read; ``None``: answers have no such body."""

    answer_type: type[Any] = object
    """``retry_if`` is asked about instances of it, and ``on_refusal`` may return one."""


FUNCTION_CALL: Final = CallTraits()
"""A call of a function that returns its result."""


class UpstreamCall(TimedAttempt):
    """One call; it is executed once. As an effect it is one attempt, which saves an object for each call."""

    __slots__ = (
        *("_admission", "_answer", "_delays", "_has_token", "_interruption", "_is_attempted"),
        *("_is_body_open", "_is_success_reported", "_observed", "_outcome", "_permit", "_policies"),
        *("_sent_ns", "_started_ns", "_traits", "report"),
    )

    def __init__(  # noqa: PLR0917 - keywords would cost a tenth of the call
        self,
        policies: Policies,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        timeouts: Timeouts | None,
        traits: CallTraits = FUNCTION_CALL,
    ) -> None:
        self.report = report = CallReport(policies.name)
        last_report.set(report)
        self._function = function
        self._arguments = arguments
        self._keywords = keywords
        self._timeouts = timeouts
        self._policies = policies
        self._traits = traits
        self._is_body_open = False
        self._started_ns = self._sent_ns = policies.clock.now_ns()
        self._delays: Delays | None = None
        self._outcome: Outcome = OK_OUTCOME
        self._admission: Admission | None = None
        self._permit: Permit | None = None
        self._has_token = False
        self._answer: Any = None
        self._observed: CallObservation | None = None
        self._is_attempted = self._is_success_reported = False
        self._interruption: BaseException | None = None

    def execute(self) -> Any:
        """Make the call, blocking; return the last attempt's answer, or raise its error."""
        fast_path = self._policies.fast_path
        try:
            if fast_path.start(self):
                try:  # as block() does
                    self._answer = self._function(*self._arguments, **self._keywords)
                except Exception as error:
                    self._answer = FailedAttempt(error)
                if fast_path.finish(self):
                    answer, self._answer = self._answer, None  # which may refer to this call
                    return answer
        except BaseException as error:
            self._interruption = error
        return _unwrap(run(self.call_flow()))

    async def execute_async(self) -> Any:
        """Make the call without blocking the event loop."""
        fast_path = self._policies.fast_path
        try:
            if fast_path.start(self):
                self._answer = await self.wait()
                if fast_path.finish(self):
                    answer, self._answer = self._answer, None  # as above
                    return answer
        except BaseException as error:
            self._interruption = error
        return _unwrap(await run_async(self.call_flow()))

    def call_flow(self) -> Flow[Any]:
        """Make the call; return the last attempt's answer, or ``FailedAttempt``.

        If the fast path has begun the call, go on from where it stopped.
        """
        report, record = self.report, self._policies.record
        try:
            yield from self._attempts_flow()
        except BaseException as error:
            self._record_error(error)
            self._is_body_open = False
            if isinstance(error, _CANNOT_WAIT):
                record = partial(run_cleanup, record)
            yield from self._release_after_flow(error)
            handler = self._policies.refusal_handler(error)
            if handler is None or not isinstance(error, RefusedError):
                raise
            return (yield AnswerRefusal(handler, error, self._traits.answer_type))
        else:
            report.outcome, report.reason = self._outcome.kind, self._outcome.reason
            answer = self._answer
            if self._is_body_open:
                self._answer = None  # it will refer to this call: without the cycle it is collected at once
            return answer
        finally:
            report.took = (self._policies.clock.now_ns() - self._started_ns) / 1e9
            set_last_call(report)  # again: this call may have made calls through other upstreams
            if not self._is_body_open:
                record(report)

    def exclude_time(self, seconds: float) -> None:
        """Do not count the time that the caller took between its reads as time of the upstream."""
        admission = self._admission
        if admission is not None and admission.started_ns:
            admission.started_ns += round(seconds * 1e9)

    def finish_body(self) -> bool:
        """Conclude a call whose body has ended without an error; false if that needs the flow."""
        return self._policies.fast_path.finish_body(self)

    @property
    def is_body_open(self) -> bool:
        """Whether the answer has a body to read, whose end ``finish_body_flow`` must record."""
        return self._is_body_open

    @property
    def permit(self) -> tuple[ConcurrencyLimit, Permit] | None:
        """The permit that the call holds, and its limit."""
        permits, permit = self._policies.permits, self._permit
        return None if permits is None or permit is None else (permits, permit)

    def finish_body_flow(self, error: BaseException | None) -> Flow[None]:
        """Conclude a call whose answer had an open body: ``error`` broke it off, or ``None``.

        A cancellation says nothing about the upstream. What was reported before the body stays.
        """
        report = self.report
        try:
            if error is None:
                if not self._is_success_reported:
                    yield from self._report_flow(limits=False)
            elif not isinstance(error, Exception):
                report.outcome, report.reason = "cancelled", ""
            elif self._outcome.kind == OK:
                self._outcome = self._policies.classify(None, error)
                report.outcome, report.reason = self._outcome.kind, self._outcome.reason
                yield from self._report_flow()
            if self._observed is not None and (error is None or isinstance(error, Exception)):
                answer = None if error is None else FailedAttempt(error)
                self._observed.finish(answer, self._outcome, None)
        except BaseException as failure:
            yield from self._release_after_flow(failure)
            raise
        else:
            if self._permit is not None or self._admission is not None:
                yield from self._release_all_flow()
        finally:
            report.took = (self._policies.clock.now_ns() - self._started_ns) / 1e9
            run_cleanup(self._policies.record, report)

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
            (self._observed or CallObservation(self._policies)).refuse(report, error)

    def _attempts_flow(self) -> Flow[None]:
        """Make attempts until one succeeds or no more retries are left."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            raise interruption
        if not self._is_attempted:
            yield from self._attempt_flow()
        elif not self._is_body_open:
            yield from self._release_permit_flow()
        while True:
            admission = self._admission
            delay = yield from self._conclude_attempt_flow()
            if self._observed is not None and not (self._is_body_open and delay is None):
                self._observed.finish(self._answer, self._outcome, delay)
            if delay is None:
                return
            yield from self._discard_answer_flow()
            yield from self._release_permit_flow()
            if delay:
                yield Sleep(self._policies.clock, delay)
                self.report.waited += delay
            self._sent_ns = self._policies.clock.now_ns()
            failed = self._answer
            try:
                yield from self._attempt_flow()
            except RefusedError as refusal:
                yield from self._report_abandoned_flow(admission)
                if type(failed) is FailedAttempt:
                    raise refusal from failed.error
                raise

    def _conclude_attempt_flow(self) -> Flow[float | None]:
        """Report the attempt to breaker and limit; return the delay before the next one, or ``None``."""
        if self._is_body_open and self._outcome.kind == OK:
            return (yield from self._conclude_headers_flow())
        if self._policies.counts_attempts:
            yield from self._report_flow()
            return (yield from self._retry_delay_flow())
        delay = yield from self._retry_delay_flow()
        yield from self._report_flow(counts=delay is None)
        return delay

    def _conclude_headers_flow(self) -> Flow[float | None]:
        """Report an answer whose body is still open; return the delay before the next attempt, or ``None``.

        The breaker counts the end of the body, or without a time-out the headers: a stream may never end.
        """
        delay = yield from self._retry_delay_flow()
        if delay is None and self._timeouts is not None:
            with suppress(StateError):
                yield from self._report_to_limit_flow()
            return None
        admission = self._admission
        yield from self._report_flow(counts=delay is None or self._policies.counts_attempts)
        if delay is None:
            self._keep_for_body(admission)
        return delay

    def _keep_for_body(self, admission: Admission | None) -> None:
        """Keep the admission of a reported success in case the body breaks off; a probe has its result."""
        self._is_success_reported = True
        self._admission = None if admission is None or admission.probe else admission

    def _attempt_flow(self) -> Flow[None]:
        """Make one attempt as soon as breaker, permits and limit admit it."""
        policies, report = self._policies, self.report
        admission = None if policies.breaker is None else policies.breaker.shared_admission()
        if admission is None:
            yield from self._admit_flow()
        else:
            self._admission, report.circuit = admission, admission.phase
        if not (yield from self._acquire_now_flow()):
            yield from self._wait_flow()
        if policies.budget is not None and not report.attempts:
            policies.budget._count_call()
        attempt: Effect = self
        if report.attempts or policies.has_hooks or listeners or attempt_number.get() != 1:
            self._observed = self._observed or CallObservation(policies)
            attempt = self._observed.start(report, attempt)
        report.attempts += 1
        self._has_token = self._is_body_open = False
        self._answer = yield attempt
        self._classify_answer()
        if self._permit is not None and not self._is_body_open:
            yield from self._release_permit_flow()

    def _classify_answer(self) -> None:
        """Find out what the answer says about the upstream, and whether its body is still to be read."""
        answer, classify = self._answer, self._policies.classify
        if type(answer) is FailedAttempt:
            self._outcome = classify(None, answer.error)
        else:
            has_open_body = self._traits.has_open_body
            self._is_body_open = has_open_body is not None and has_open_body(answer)
            self._outcome = classify(answer, None)

    def _acquire_now_flow(self) -> Flow[bool]:
        """Take a token, and a permit if calls need one, without waiting: both or neither."""
        limits = self._policies.call_limits
        if limits is None:
            return self._try_acquire()
        if self._policies.pause.is_set:
            return False
        self._permit = yield from limits.acquire_flow()
        self._has_token = self._permit is not None
        return self._has_token

    def _try_acquire(self) -> bool:
        """Take a token without waiting, if the limit is on this machine and has no waiters."""
        policies = self._policies
        if policies.try_acquire is None or policies.waiters or policies.pause.is_set:
            return False
        try:
            self._has_token = not policies.try_acquire(None, 1)
        except WouldBlock:
            return False
        return self._has_token

    def _wait_flow(self) -> Flow[None]:
        """Wait for a permit, then for a token."""
        clock = self._policies.clock
        started_ns = clock.now_ns()
        until_ns = started_ns + self._max_wait_ns(started_ns)
        try:
            yield from self._acquire_permit_flow(until_ns)
            yield from self._acquire_token_flow(until_ns)
        finally:
            self._sent_ns = clock.now_ns()
            waited_ns = self._sent_ns - started_ns
            self.report.waited += waited_ns / 1e9
        if waited_ns > _LONG_WAIT_NS:
            yield from self._readmit_flow()

    def _max_wait_ns(self, now_ns: int) -> int:
        """Return how long an attempt may wait: ``max_wait``, and for a retry not beyond its deadline."""
        policies = self._policies
        if policies.retry is None or policies.retry.backoff.deadline is None or not self.report.attempts:
            return policies.max_wait_ns
        remaining_ns = self._started_ns + round(policies.retry.backoff.deadline * 1e9) - now_ns
        return max(0, min(policies.max_wait_ns, remaining_ns))

    def _admit_flow(self) -> Flow[None]:
        """Get an admission from the breaker, and keep it until the attempt has a result."""
        breaker = self._policies.breaker
        if breaker is None:
            return
        admission = yield from breaker.flows.admit_flow()
        self.report.circuit = admission.phase
        if not admission:
            raise admission.refusal(breaker.name)
        self._admission = admission

    def _readmit_flow(self) -> Flow[None]:
        """Get a new admission after a wait; a running probe and an admission of the ramp stay valid."""
        previous, breaker = self._admission, self._policies.breaker
        if previous is None or breaker is None or breaker.view.state.holds_probe(previous):
            return
        try:
            yield from self._admit_flow()
        except CircuitOpenError:
            if self.report.circuit != "ramp" or previous.phase != "ramp":
                raise

    def _acquire_permit_flow(self, until_ns: int) -> Flow[None]:
        permits = self._policies.permits
        if permits is None:
            return
        self._permit = yield from permits._acquire_flow(self._remaining(until_ns))
        if self._permit is None:
            raise permits._refusal_error()

    def _release_permit_flow(self) -> Flow[None]:
        permits, permit = self._policies.permits, self._permit
        if permits is not None and permit is not None:
            yield from permits._end_call_flow(permit)
            self._permit = None

    def _acquire_token_flow(self, until_ns: int) -> Flow[None]:
        """Take a token, waiting behind earlier callers."""
        max_wait, store = self._remaining(until_ns), self._policies.limiter.store
        fallback = store.fallback
        yield from self._wait_out_pause_flow(until_ns)
        self._has_token = yield from self._policies.limiter._flows.acquire_flow(
            None, 1, self._remaining(until_ns)
        )
        if not self._has_token:
            raise (yield from self._limit_error_flow(max_wait))
        if fallback is None and store.fallback is not None:  # the local state does not know of a pause
            yield from self._wait_out_pause_flow(until_ns)

    def _wait_out_pause_flow(self, until_ns: int) -> Flow[None]:
        """Wait for the end of a pause that the store cannot enforce during an outage.

        After the outage, write the rest of the pause to the store, which may have lost it.
        """
        policies = self._policies
        remaining = policies.pause.remaining(policies.clock)
        if remaining and policies.pause.is_unconfirmed and policies.limiter.store.fallback is None:
            with suppress(StateError):  # the next outage has begun
                yield from self._pause_flow(remaining)
        if policies.limiter.store.fallback is None:
            return
        policies.pause.is_unconfirmed = remaining > 0
        remaining = max(remaining, policies.limiter._flows.pause_left_us() / 1e6)
        if not remaining:
            return
        remaining *= uniform(1, 1 + _JITTER)
        if remaining > self._remaining(until_ns):
            raise _pause_error(policies.name, remaining)
        yield Sleep(policies.clock, remaining)

    def _limit_error_flow(self, max_wait: float) -> Flow[LimitReachedError]:
        """Return the error that says why the limit had no token, and when it may have one."""
        policies = self._policies
        retry_after = 1 / policies.limiter.config.rate
        with suppress(StateError):
            decision: Decision = yield from policies.limiter._flows.peek_flow(None)
            if decision.paused:
                return _pause_error(policies.name, decision.paused)
            retry_after = decision.retry_after or retry_after
        text = (
            f"{policies.name}: the limit of {policies.limiter.config} had no capacity within {max_wait:.3g} s"
        )
        return LimitReachedError(text, policies.name, retry_after)

    def _remaining(self, until_ns: int) -> float:
        return max(0, until_ns - self._policies.clock.now_ns()) / 1e9

    def _report_flow(self, *, counts: bool = True, limits: bool = True) -> Flow[None]:
        """Report the outcome of an attempt to breaker and limit; without ``counts`` the breaker ignores it.

        An error of the store is dropped: the call has its result.
        """
        try:  # noqa: SIM105 - suppress() would add a microsecond to every call
            yield from self._report_to_breaker_flow(counts=counts)
        except StateError:
            pass
        self._admission = None
        if not limits:
            return
        try:  # noqa: SIM105 - suppress() would add a microsecond to every call
            yield from self._report_to_limit_flow()
        except StateError:
            pass

    def _report_to_breaker_flow(self, *, counts: bool) -> Flow[None]:
        breaker, admission, outcome = self._policies.breaker, self._admission, self._outcome
        if breaker is None or admission is None:
            return
        if counts and outcome.kind == OK:
            if not breaker.succeed_now(admission):
                yield from breaker.flows.report_success_flow(admission)
        elif counts and outcome.kind == FAILURE:
            yield from breaker.flows.fail_flow(admission, outcome.reason)
        else:
            yield from breaker.flows.release_flow(admission)

    def _report_to_limit_flow(self) -> Flow[None]:
        policies, outcome = self._policies, self._outcome
        if outcome.pause:
            yield from self._pause_flow(outcome.pause)
        if policies.degradation is None:
            return
        if outcome.kind == REFUSED:
            took = max(0, policies.clock.now_ns() - self._sent_ns) / 1e9
            yield from policies.degradation._flows.lower_flow(policies.accepted_rate, took)
        elif outcome.kind == OK:
            policies.accepted.add(policies.clock.now_ns())
            if policies.degradation._flows.is_due():
                yield from policies.degradation._flows.raise_flow()

    def _pause_flow(self, seconds: float) -> Flow[None]:
        """Pause the calls of all workers for as long as the upstream asks, up to ``pause_max``."""
        policies = self._policies
        seconds = min(seconds, policies.pause_max)
        if seconds >= _PAUSE_MIN:  # the limiter takes 0 as an order to resume
            policies.pause.extend(policies.clock, seconds)
            policies.pause.is_unconfirmed = True
            yield from policies.limiter._flows.pause_flow(seconds)
            policies.pause.is_unconfirmed = False

    def _report_abandoned_flow(self, admission: Admission | None) -> Flow[None]:
        """With ``count="series"``, report the failure of a call whose next attempt was refused."""
        policies = self._policies
        if (
            policies.counts_attempts
            or policies.breaker is None
            or admission is None
            or self._outcome.kind != FAILURE
        ):
            return
        if not admission.probe:  # a probe was released before the delay
            with suppress(StateError):
                yield from policies.breaker.flows.fail_flow(admission, self._outcome.reason)

    def _retry_delay_flow(self) -> Flow[float | None]:
        """Return the delay before the next attempt in seconds; ``None`` if there is none."""
        policies, outcome = self._policies, self._outcome
        if not self._is_worth_retrying() or policies.retry is None:
            return None
        if self._delays is None:
            self._delays = policies.retry.delays()
        elapsed = (policies.clock.now_ns() - self._started_ns) / 1e9
        delay = self._delays.next_delay(outcome.pause or 0.0, elapsed)
        if delay is None or self._is_known_open():
            return None
        if policies.budget is not None and not (yield from policies.budget._withdraw_flow()):
            return None
        # The limit enforces the pause for all callers, so a delay within it needs no sleep of its own.
        pause = min(outcome.pause or 0.0, policies.pause_max)
        is_paused = outcome.pause and (
            delay <= pause or (outcome.kind == REFUSED and policies.retry.backoff.min_delay <= pause)
        )
        return 0.0 if is_paused else delay

    def _is_worth_retrying(self) -> bool:
        """Whether another attempt may succeed, and can start within ``max_wait``."""
        retry, outcome, answer = self._policies.retry, self._outcome, self._answer
        traits = self._traits
        allowed = traits.repeatable or (traits.replayable and outcome.kind == REFUSED)
        if retry is None or not allowed or (outcome.pause or 0.0) > self._policies.max_wait:
            return False
        if type(answer) is FailedAttempt:
            return outcome.repeat and retry.should_retry(answer.error)
        is_result = isinstance(answer, traits.answer_type)
        return outcome.repeat or (is_result and retry.should_retry_result(answer))

    def _is_known_open(self) -> bool:
        """Whether the local view says that the breaker would refuse: then this answer is the final one."""
        breaker = self._policies.breaker
        admission = None if breaker is None else breaker.view.admit_now()
        return admission is not None and not admission and admission.phase != "ramp"

    def _discard_answer_flow(self) -> Flow[None]:
        """Close a response that the caller will not get."""
        if type(self._answer) is not FailedAttempt:
            yield CloseResponse(self._answer)
            self._answer = None

    def _release_after_flow(self, error: BaseException) -> Flow[None]:
        """Release everything after an exception, without waiting where nothing can wait any more."""
        if isinstance(error, _CANNOT_WAIT):
            run_cleanup(run, self._release_all_flow())
        else:
            yield from self._release_all_flow()

    def _release_all_flow(self) -> Flow[None]:
        """Release everything that a call without a result holds."""
        policies = self._policies
        releases = [self._release_permit_flow(), self._discard_answer_flow()]
        if policies.breaker is not None and self._admission is not None:
            releases.append(policies.breaker.flows.release_flow(self._admission))
        if self._has_token:
            releases.append(policies.limiter._flows.release_flow(None, 1))
        yield from _run_all_flow(releases)


def _unwrap(answer: Any) -> Any:
    if type(answer) is FailedAttempt:
        answer.raise_error()
    return answer


def _run_all_flow(flows: list[Flow[None]]) -> Flow[None]:
    """Run flows one after the other; if one is cancelled, run the others all the same."""
    if flows:
        try:
            with suppress(StateError):
                yield from flows[0]
        finally:
            yield from _run_all_flow(flows[1:])


def _pause_error(name: str, remaining: float) -> LimitReachedError:
    return LimitReachedError(f"{name}: paused by the upstream for {remaining:.1f} s more", name, remaining)
