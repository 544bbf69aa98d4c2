"""What follows from the outcome of an attempt: reports to breaker and limit, and the delay before a retry."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from comporta.errors import StateError
from comporta.flow import Flow
from comporta.outcome import FAILURE, OK, REFUSED
from comporta.retry.retry import FailedAttempt

if TYPE_CHECKING:
    from comporta.breaker.admission import Admission
    from comporta.upstream.call_state import CallState
    from comporta.upstream.policies import Policies

_PAUSE_MIN = 0.001


def report_flow(call: CallState, *, counts: bool = True, limits: bool = True) -> Flow[None]:
    """Report the outcome of an attempt to breaker and limit; without ``counts`` the breaker ignores it.

    An error of the store is dropped: the call has its result.
    """
    try:  # noqa: SIM105 - suppress() would add a microsecond to every call
        yield from _report_to_breaker_flow(call, counts=counts)
    except StateError:
        pass
    call.admission = None
    if not limits:
        return
    try:  # noqa: SIM105 - suppress() would add a microsecond to every call
        yield from report_to_limit_flow(call)
    except StateError:
        pass


def _report_to_breaker_flow(call: CallState, *, counts: bool) -> Flow[None]:
    breaker, admission, outcome = call.policies.breaker, call.admission, call.outcome
    if breaker is None or admission is None:
        return
    if counts and outcome.kind == OK:
        if not breaker.succeed_now(admission):
            yield from breaker.flows.report_success_flow(admission)
    elif counts and outcome.kind == FAILURE:
        yield from breaker.flows.fail_flow(admission, outcome.reason)
    else:
        yield from breaker.flows.release_flow(admission)


def report_to_limit_flow(call: CallState) -> Flow[None]:
    """Pause the limit if the upstream asks for it; lower it after a refusal, raise it after a success."""
    policies, outcome = call.policies, call.outcome
    if outcome.pause:
        yield from pause_flow(policies, outcome.pause)
    if policies.degradation is None:
        return
    if outcome.kind == REFUSED:
        took = max(0, policies.clock.now_ns() - call.sent_ns) / 1e9
        yield from policies.degradation._flows.lower_flow(policies.accepted_rate, took)
    elif outcome.kind == OK:
        policies.accepted.add(policies.clock.now_ns())
        if policies.degradation._flows.is_due():
            yield from policies.degradation._flows.raise_flow()


def pause_flow(policies: Policies, seconds: float) -> Flow[None]:
    """Pause the calls of all workers for as long as the upstream asks, up to ``pause_max``."""
    seconds = min(seconds, policies.pause_max)
    if seconds >= _PAUSE_MIN:  # the limiter takes 0 as an order to resume
        policies.pause.extend(policies.clock, seconds)
        policies.pause.is_unconfirmed = True
        yield from policies.limiter._flows.overrides.pause_flow(seconds)
        policies.pause.is_unconfirmed = False


def report_abandoned_flow(call: CallState, admission: Admission | None) -> Flow[None]:
    """With ``count="series"``, report the failure of a call whose next attempt was refused."""
    policies = call.policies
    if (
        policies.counts_attempts
        or policies.breaker is None
        or admission is None
        or call.outcome.kind != FAILURE
    ):
        return
    if not admission.probe:  # a probe was released before the delay
        with suppress(StateError):
            yield from policies.breaker.flows.fail_flow(admission, call.outcome.reason)


def retry_delay_flow(call: CallState) -> Flow[float | None]:
    """Return the delay in seconds before the next attempt; ``None`` if there is no next attempt."""
    policies, outcome = call.policies, call.outcome
    if not _is_worth_retrying(call) or policies.retry is None:
        return None
    if call.delays is None:
        call.delays = policies.retry.delays()
    elapsed = (policies.clock.now_ns() - call.started_ns) / 1e9
    delay = call.delays.next_delay(outcome.pause or 0.0, elapsed)
    if delay is None or _is_known_open(call):
        return None
    if policies.budget is not None and not (yield from policies.budget._withdraw_flow()):
        return None
    # The limit enforces the pause for all callers, so a delay within it needs no sleep of its own.
    pause = min(outcome.pause or 0.0, policies.pause_max)
    is_paused = outcome.pause and (
        delay <= pause or (outcome.kind == REFUSED and policies.retry.backoff.min_delay <= pause)
    )
    return 0.0 if is_paused else delay


def _is_worth_retrying(call: CallState) -> bool:
    """Whether another attempt may succeed, and can start within ``max_wait``."""
    retry, outcome, answer = call.policies.retry, call.outcome, call.answer
    traits = call.traits
    allowed = traits.repeatable or (traits.replayable and outcome.kind == REFUSED)
    if retry is None or not allowed or (outcome.pause or 0.0) * 1e9 > call.max_wait_ns:
        return False
    if type(answer) is FailedAttempt:
        return outcome.repeat and retry.should_retry(answer.error)
    is_result = isinstance(answer, traits.answer_type)
    return outcome.repeat or (is_result and retry.should_retry_result(answer))


def _is_known_open(call: CallState) -> bool:
    """Whether the local view says that the breaker would refuse: then this answer is the final one."""
    breaker = call.policies.breaker
    admission = None if breaker is None else breaker.view.admit_now()
    return admission is not None and not admission and admission.phase != "ramp"
