"""The ordinary call without a flow: a closed circuit, a token at once, and a success.

``start`` takes what an attempt needs if all of it is at hand in this process, ``finish`` records a success
that nothing else depends on, and ``finish_body`` the end of a body that was still open then. Wherever one of
them returns false or raises, the flow of the call (``flows.py``), which describes a call completely, goes on
from there. Nothing here waits or retries.

Every call runs these functions. So they are made once for each upstream, with its policies as local names,
and read the clock once each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta import metrics
from comporta.outcome import OK, OK_OUTCOME, PLAIN_TYPES, classify
from comporta.retry.attempts import attempt_number, listeners
from comporta.retry.retry import FailedAttempt
from comporta.stores.base import WouldBlock
from comporta.threads import run_cleanup
from comporta.upstream.report import last_report

if TYPE_CHECKING:
    from comporta.limits.concurrency.call_limits import CallLimits
    from comporta.upstream.flows import UpstreamCall
    from comporta.upstream.policies import Policies


class FastPath(NamedTuple):
    """The three functions for the calls of one upstream."""

    start: Callable[[UpstreamCall], bool]
    """Take an admission, a permit and a token, and count the attempt; false if that needs the flow."""

    finish: Callable[[UpstreamCall], bool]
    """Record the success of an attempt; false if it was none, or if the store must record it."""

    finish_body: Callable[[UpstreamCall], bool]
    """Record that the body of an answer has ended; false if the flow must record the rest."""

    @classmethod
    def for_policies(cls, policies: Policies) -> FastPath:
        """Return the functions for an upstream with these policies."""
        return cls(_build_start(policies), _build_finish(policies), _build_finish_body(policies))


def _needs_flow(call: UpstreamCall) -> bool:
    """Start no call."""
    return False


def _is_possible(policies: Policies) -> bool:
    """Whether any call can start here: nobody observes attempts or results, and there is one clock."""
    if policies.try_acquire is None or policies.has_hooks:
        return False
    if policies.retry is not None and policies.retry._retry_if is not None:
        return False
    now_ns = policies.clock.now_ns
    breaker, budget = policies.breaker, policies.budget
    is_breaker_on_clock = breaker is None or breaker.view.now_ns == now_ns
    return is_breaker_on_clock and (budget is None or budget.store.clock.now_ns == now_ns)


def _build_start(  # noqa: C901 - the hot path is one function on purpose
    policies: Policies,
) -> Callable[[UpstreamCall], bool]:
    limits, pause, waiters = policies.call_limits, policies.pause, policies.waiters
    view = None if policies.breaker is None else policies.breaker.view
    state = None if view is None else view.state
    poller = None if view is None or view.is_exact else view.poller
    count_call = None if policies.budget is None else policies.budget._reporter.count_call_at
    take, number = policies.try_acquire, attempt_number.get
    if take is None or not _is_possible(policies):
        return _needs_flow

    def start(call: UpstreamCall) -> bool:
        if listeners or waiters or pause.until_ns or number() != 1:
            return False
        admission = None
        if state is not None:
            admission = state.shared_admission
            if admission is None:
                return False
            if poller is not None:  # the state may be old: the poller refreshes it while it is used
                if call.started_ns >= state.valid_until_ns:
                    return False
                poller.was_used = True
        try:
            call.has_token = _take_both(call, limits, take) if limits else not take(None, 1)
        except WouldBlock:
            return False
        if not call.has_token:
            return False
        report = call.report
        if admission is not None:
            call.admission, report.circuit = admission, admission.phase
        if count_call is not None:
            count_call(call.started_ns)
        report.attempts = 1
        call.has_token = False
        return True

    return start


def _take_both(call: UpstreamCall, limits: CallLimits, take: Callable[[Any, int], int]) -> bool:
    """Take a permit that was held back, and a token with ``take``; both or neither."""
    permit = None if limits.has_waiters else limits.take_held_back()
    if permit is None:
        return False
    call.permit = permit
    has_token = False
    with suppress(WouldBlock):
        has_token = not take(None, 1)
    if not has_token:
        call.permit = None
        limits.put_back(permit)
    return has_token


def _build_finish(policies: Policies) -> Callable[[UpstreamCall], bool]:  # noqa: C901 - as above
    degradation, limits, accepted = policies.degradation, policies.call_limits, policies.accepted
    view = None if policies.breaker is None else policies.breaker.view
    state = None if view is None else view.state
    counters = None if view is None or view.is_exact else view.counters
    is_traced = view is not None and not view.ignores_successes  # a success changes more than its time
    now_ns, current = policies.clock.now_ns, metrics._Current
    is_due = None if degradation is None else degradation._flows.is_due
    counts_accepted = degradation is not None and degradation.rule == "accepted"  # others do not use the rate
    plain_types = PLAIN_TYPES if policies.classify is classify else frozenset[type[Any]]()

    def finish(call: UpstreamCall) -> bool:
        is_result = type(call.answer) in plain_types and call.traits.has_open_body is None
        is_success = is_result or _is_success(call)
        call.is_attempted = True
        is_body_open = call.is_body_open
        if not is_success or (is_body_open and call._timeouts is None):  # the flow decides what counts
            return False
        if limits is not None and not is_body_open and not _hold_back_permit(call, limits):
            return False
        if is_due is not None and is_due():
            return False
        ended_ns = now_ns()
        if state is not None and not is_body_open:
            if is_traced or call.admission is not state.shared_admission:
                return False
            if counters is not None:
                counters.succeeded_ns = ended_ns
        if counts_accepted:
            accepted.add(ended_ns)
        report = call.report
        report.outcome = OK
        report.took = (ended_ns - call.started_ns) / 1e9
        if last_report.get() is not report:  # the call made calls through other upstreams
            last_report.set(report)
        if current.sink is not None and not is_body_open:
            policies.record(report)
        return True

    return finish


def _is_success(call: UpstreamCall) -> bool:
    """Classify an answer; whether it is a success that asks for nothing."""
    call.classify_answer()
    outcome = call.outcome
    return type(call.answer) is not FailedAttempt and (outcome is OK_OUTCOME or outcome == OK_OUTCOME)


def _build_finish_body(policies: Policies) -> Callable[[UpstreamCall], bool]:
    breaker, limits, now_ns = policies.breaker, policies.call_limits, policies.clock.now_ns

    def finish_body(call: UpstreamCall) -> bool:
        admission = call.admission
        if call.outcome.kind != OK or call.is_success_reported or call.observed is not None:
            return False
        if breaker is not None:
            if admission is None or not breaker.succeed_untraced(admission):
                return False
            call.admission = None
        if limits is not None and not _hold_back_permit(call, limits):
            return False
        report = call.report
        report.took = (now_ns() - call.started_ns) / 1e9
        if metrics._Current.sink is not None:
            run_cleanup(policies.record, report)
        return True

    return finish_body


def _hold_back_permit(call: UpstreamCall, limits: CallLimits) -> bool:
    """Release the permit without an operation; false if that needs the flow."""
    permit = call.permit
    if permit is None or not limits.hold_back(permit):
        return False
    call.permit = None
    return True
