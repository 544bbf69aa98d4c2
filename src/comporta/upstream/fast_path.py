"""The ordinary call without a flow: a closed circuit, a token at once, and a success.

``start`` takes what an attempt needs if all of it is at hand in this process, ``finish`` records a success
that nothing else depends on, and ``finish_body`` the end of a body that was still open then; ``admit`` and
``record_success`` are their parts for a call without an object (``guarded_function.py``). Wherever one of
them returns false or raises, the flow of the call (``flows.py``), which describes a call completely,
continues from there. Nothing here waits or retries.

Every call runs these functions, so they are created once for each upstream, with its policies as local names,
and read the clock once each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta import metrics
from comporta.breaker.admission import Admission
from comporta.limits.priority import NORMAL, contexts_entered, has_own_caller
from comporta.outcome import OK, OK_OUTCOME
from comporta.retry.attempts import attempt_number, listeners
from comporta.retry.retry import FailedAttempt
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.failover.control import ENGINE_ERRORS
from comporta.threads import run_cleanup
from comporta.upstream.report import CallReport, last_report

if TYPE_CHECKING:
    from comporta.limits.concurrency.call_limits import CallLimits
    from comporta.upstream.flows import UpstreamCall
    from comporta.upstream.policies import Policies


class FastPath(NamedTuple):
    """The functions for the calls of one upstream."""

    admit: Callable[[int, UpstreamCall | None], Admission | None]
    """Take a permit and a token for a call that starts now; ``None`` if that needs the flow.

    The call gets the permit; where calls need none, there may be no object for the call.
    """

    record_success: Callable[[Admission, CallReport, int, bool], bool]
    """Record the success of a call, given its start and whether its body is open; false as in ``finish``."""

    start: Callable[[UpstreamCall], bool]
    """Take an admission, a permit and a token, and count the attempt; false if that needs the flow."""

    finish: Callable[[UpstreamCall], bool]
    """Record the success of an attempt; false if it was no success, or if the store must record it."""

    finish_body: Callable[[UpstreamCall], bool]
    """Record that the body of an answer has ended; false if the flow must record the rest."""

    @classmethod
    def for_policies(cls, policies: Policies) -> FastPath:
        """Return the functions for an upstream with these policies."""
        admit, record_success = _build_admit(policies), _build_record_success(policies)
        start, finish = _build_start(admit), _build_finish(policies, record_success)
        return cls(admit, record_success, start, finish, _build_finish_body(policies))


_NO_BREAKER = Admission("closed", 0)
"""The admission of a call without a breaker."""


_NEEDS_FLOW_ERRORS = (WouldBlock, *ENGINE_ERRORS)
"""A decision that raises one of these is made again by the flow, which waits or falls back."""


def _needs_flow(started_ns: int, call: UpstreamCall | None) -> None:
    """Admit no call, so that the flow does it."""


def _is_possible(policies: Policies) -> bool:
    """Whether any call can start here: no hook observes attempts or results, and there is one clock."""
    if policies.try_acquire is None or policies.has_hooks or policies.limiter._flows.has_headroom(NORMAL):
        return False
    if policies.retry is not None and policies.retry._retry_if is not None:
        return False
    now_ns = policies.clock.now_ns
    breaker, budget = policies.breaker, policies.budget
    is_breaker_on_clock = breaker is None or breaker.view.now_ns == now_ns
    return is_breaker_on_clock and (budget is None or budget.store.clock.now_ns == now_ns)


def _build_admit(  # noqa: C901 - the hot path is one function on purpose
    policies: Policies,
) -> Callable[[int, UpstreamCall | None], Admission | None]:
    limits, pause, waiters = policies.call_limits, policies.pause, policies.waiters
    view = None if policies.breaker is None else policies.breaker.view
    state = None if view is None else view.state
    poller = None if view is None or view.is_exact else view.poller
    reporter = None if policies.budget is None else policies.budget._reporter
    take, number = policies.try_acquire, attempt_number.get
    bound, store = policies.limiter._flows.bound, policies.limiter.store
    fails_over = bound.fails_over
    if take is None or not _is_possible(policies):
        return _needs_flow
    try_acquire = take

    def admit(  # noqa: C901 - as above
        started_ns: int, call: UpstreamCall | None
    ) -> Admission | None:
        if listeners or waiters or pause.until_ns or number() != 1:
            return None
        if (contexts_entered and has_own_caller()) or (call is not None and call.options.is_classed):
            return None
        admission: Admission | None = _NO_BREAKER
        if state is not None:
            admission = state.shared_admission
            if admission is None:
                return None
            if poller is not None:  # the state may be old: the poller refreshes it while it is used
                if started_ns >= state.valid_until_ns:
                    return None
                poller.was_used = True
        take = try_acquire
        if fails_over:  # call the engine directly, without the fallback in between
            if bound.engine_limit is None or not store.is_healthy:
                return None
            take = bound.engine_limit.try_acquire
        try:
            if take(None, 1) if limits is None or call is None else not _take_both(call, limits, take):
                return None
        except _NEEDS_FLOW_ERRORS:
            return None
        if reporter is not None:
            if started_ns >= reporter._stale_ns:
                reporter._start_slice()
            reporter.calls += 1
        return admission

    return admit


def _build_start(
    admit: Callable[[int, UpstreamCall | None], Admission | None],
) -> Callable[[UpstreamCall], bool]:
    def start(call: UpstreamCall) -> bool:
        admission = admit(call.started_ns, call) if call.options.cost == 1 else None
        if admission is None:
            return False
        report = call.report
        report.circuit, report.attempts = admission.phase, 1
        call.admission = None if admission is _NO_BREAKER else admission
        return True

    return start


def _take_both(call: UpstreamCall, limits: CallLimits, take: Callable[[Any, int], int]) -> bool:
    """Take a permit that was held back, and a token with ``take``; both or neither."""
    permit = None if limits.has_waiters else limits.take_held_back()
    if permit is None:
        return False
    call.permit = permit
    has_token = False
    with suppress(*_NEEDS_FLOW_ERRORS):
        has_token = not take(None, 1)
    if not has_token:
        call.permit = None
        limits.put_back(permit)
    return has_token


def _build_record_success(policies: Policies) -> Callable[[Admission, CallReport, int, bool], bool]:
    degradation, accepted = policies.degradation, policies.accepted
    view = None if policies.breaker is None else policies.breaker.view
    state = None if view is None else view.state
    counters = None if view is None or view.is_exact else view.counters
    is_traced = view is not None and not view.ignores_successes  # a success changes more than its time
    now_ns, current = policies.clock.now_ns, metrics._current
    bound = policies.limiter._flows.bound
    fails_over = bound.fails_over
    settled = bound.cached_algorithm if bound.cached_algorithm.lasting else None  # not lowered
    is_due = None if degradation is None else degradation._flows.is_due
    counts_accepted = degradation is not None and degradation.rule == "accepted"  # others ignore the rate

    def record_success(admission: Admission, report: CallReport, started_ns: int, is_body_open: bool) -> bool:
        if is_due is not None:
            limit = bound.engine_limit if fails_over else bound
            is_settled = limit is not None and limit.cached_algorithm is settled
            if not is_settled and is_due():
                return False
        ended_ns = now_ns()
        if state is not None and not is_body_open:
            if is_traced or admission is not state.shared_admission:
                return False
            if counters is not None:
                counters.succeeded_ns = ended_ns
        if counts_accepted:
            accepted.add(ended_ns)
        report.outcome = OK
        report.took = (ended_ns - started_ns) / 1e9
        if last_report.get() is not report:  # the call made calls through other upstreams
            last_report.set(report)
        if current.sink is not None and not is_body_open:
            policies.record(report)
        return True

    return record_success


def _build_finish(
    policies: Policies, record_success: Callable[[Admission, CallReport, int, bool], bool]
) -> Callable[[UpstreamCall], bool]:
    limits, plain_types = policies.call_limits, policies.plain_types

    def finish(call: UpstreamCall) -> bool:
        is_result = type(call.answer) in plain_types and call.traits.has_open_body is None
        is_success = is_result or _is_success(call)
        call.is_attempted = True
        is_body_open = call.is_body_open
        if not is_success or (is_body_open and call._timeouts is None):  # the flow decides what counts
            return False
        if limits is not None and not is_body_open and not _hold_back_permit(call, limits):
            return False
        return record_success(call.admission or _NO_BREAKER, call.report, call.started_ns, is_body_open)

    return finish


def _is_success(call: UpstreamCall) -> bool:
    """Classify an answer; return whether it is a success that needs neither a pause nor a retry."""
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
        if metrics._current.sink is not None:
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
