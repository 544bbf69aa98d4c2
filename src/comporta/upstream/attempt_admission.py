"""What an attempt needs before it starts: an admission of the breaker, a permit and a token.

The breaker comes before the limit: otherwise callers would queue only to be refused. After a wait the breaker
decides again, because it may have opened in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from comporta.breaker.flows import passes_in_shadow
from comporta.errors import CircuitOpenError, LimitReachedError, StateError
from comporta.flow import Flow
from comporta.jitter import uniform
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.effects import Sleep
from comporta.upstream.attempt_outcome import pause_flow
from comporta.upstream.renewal import RENEWER

if TYPE_CHECKING:
    from collections.abc import Callable

    from comporta.upstream.call_state import CallState

_LONG_WAIT_NS = 1_000_000
"""After a wait longer than this, the breaker decides again."""

_JITTER = 0.1
"""Up to this fraction is added to a pause during an outage, so that callers do not all resume at once."""


def admit_attempt_flow(call: CallState) -> Flow[None]:
    """Wait until breaker, permits and limit admit an attempt; count the first one in the retry budget."""
    policies = call.policies
    if not _admit_now(call):
        yield from _admit_flow(call)
    if not (yield from _acquire_now_flow(call)):
        yield from _wait_flow(call)
    if policies.budget is not None and not call.report.attempts:
        policies.budget._count_call()


def _acquire_now_flow(call: CallState) -> Flow[bool]:
    """Take a token, and a permit if calls need one, without waiting: both or neither."""
    policies = call.policies
    limits = policies.call_limits
    if policies.pause.is_set or not call.takes_any_token:
        return False
    if limits is not None:
        call.permit = yield from limits.acquire_flow(call.options.caller.rank)
        call.has_token = call.permit is not None
    elif policies.try_acquire is not None:
        return _try_acquire(call, policies.try_acquire)
    elif policies.permits is None and policies.group is None:
        yield from _acquire_remotely_flow(call)
    return call.has_token


def _try_acquire(call: CallState, try_acquire: Callable[[None, int], int]) -> bool:
    """Take a token without waiting, if the limit is on this machine and has no waiters."""
    if call.policies.waiters:
        return False
    try:
        call.has_token = not try_acquire(None, 1)
    except WouldBlock:
        return False
    return call.has_token


def _acquire_remotely_flow(call: CallState) -> Flow[None]:
    """Take a token from a limit on a server, unless this caller may not wait or others wait before it."""
    policies, started_ns = call.policies, call.policies.clock.now_ns()
    limiter, max_wait_ns = policies.limiter, _max_wait_ns(call, started_ns)
    if not max_wait_ns or limiter.fallback is not None:
        return
    max_wait, caller = max_wait_ns / 1e9, call.options.caller
    call.has_token = yield from limiter._flows.acquire_first_flow(None, max_wait, caller)
    if call.has_token:
        if policies.limiter.fallback is not None:  # the local state does not hold the pause
            yield from _wait_out_pause_flow(call, started_ns + max_wait_ns)
        yield from _end_wait_flow(call, started_ns)


def _wait_flow(call: CallState) -> Flow[None]:
    """Wait for a permit, then for a token."""
    started_ns = call.policies.clock.now_ns()
    until_ns = started_ns + _max_wait_ns(call, started_ns)
    try:
        yield from _acquire_permit_flow(call, until_ns)
        with _renewed_permit(call):
            yield from _acquire_token_flow(call, until_ns)
    except BaseException:
        _record_wait(call, started_ns)
        raise
    yield from _end_wait_flow(call, started_ns)


@contextmanager
def _renewed_permit(call: CallState) -> Iterator[None]:
    """Renew the permit of a call that may wait for longer than ``permit_ttl`` allows for."""
    held = None if call.options.max_wait is None else call.held_permit
    if held is None:
        yield
        return
    renewer = RENEWER.get()
    renewer.add(*held)
    try:
        yield
    finally:
        renewer.discard(held[1])


def _end_wait_flow(call: CallState, started_ns: int) -> Flow[None]:
    """Record a wait, and get a new admission if the wait was long."""
    if _record_wait(call, started_ns) > _LONG_WAIT_NS:
        yield from _readmit_flow(call)


def _record_wait(call: CallState, started_ns: int) -> int:
    """Add a wait that ends now to the report; return its nanoseconds."""
    call.sent_ns = call.policies.clock.now_ns()
    waited_ns = call.sent_ns - started_ns
    call.report.waited += waited_ns / 1e9
    return waited_ns


def _max_wait_ns(call: CallState, now_ns: int) -> int:
    """Return how long an attempt may wait: ``max_wait``, and for a retry not beyond its deadline."""
    policies = call.policies
    if policies.retry is None or policies.retry.backoff.deadline is None or not call.report.attempts:
        return call.max_wait_ns
    remaining_ns = call.started_ns + round(policies.retry.backoff.deadline * 1e9) - now_ns
    return max(0, min(call.max_wait_ns, remaining_ns))


def _admit_now(call: CallState) -> bool:
    """Give the call the admission that all calls of a closed circuit share; return false if there is none."""
    breaker = call.policies.breaker
    admission = None if breaker is None else breaker.shared_admission()
    if admission is None:
        return False
    call.admission, call.report.circuit = admission, admission.phase
    return True


def _admit_flow(call: CallState) -> Flow[None]:
    """Get an admission from the breaker, and keep it until the attempt has a result."""
    breaker = call.policies.breaker
    if breaker is None:
        return
    admission = yield from breaker.flows.admit_flow()
    call.report.circuit = admission.phase
    if not admission:
        raise admission.refusal(breaker.name)
    call.admission = admission


def _readmit_flow(call: CallState) -> Flow[None]:
    """Get a new admission after a wait; a running probe and an admission of the ramp stay valid."""
    previous, breaker = call.admission, call.policies.breaker
    if previous is None or breaker is None or breaker.view.state.holds_probe(previous):
        return
    if passes_in_shadow(previous):  # it counts once as a call that would have been refused
        return
    if _admit_now(call):
        return
    try:
        yield from _admit_flow(call)
    except CircuitOpenError:
        if call.report.circuit != "ramp" or previous.phase != "ramp":
            raise


def _acquire_permit_flow(call: CallState, until_ns: int) -> Flow[None]:
    permits = call.policies.permits
    if permits is None:
        return
    call.permit = yield from permits._acquire_flow(_remaining(call, until_ns), call.options.caller)
    if call.permit is None:
        raise permits._refusal_error()


def _acquire_token_flow(call: CallState, until_ns: int) -> Flow[None]:
    """Take a token, waiting behind earlier callers."""
    max_wait, store = _remaining(call, until_ns), call.policies.limiter.store
    fallback = store.fallback
    yield from _wait_out_pause_flow(call, until_ns)
    tokens, options = call.policies.tokens, call.options
    call.has_token = yield from tokens.acquire_flow(options.cost, _remaining(call, until_ns), options.caller)
    if not call.has_token:
        raise (yield from _limit_error_flow(call, max_wait))
    if fallback is None and store.fallback is not None:  # the local state does not hold the pause
        yield from _wait_out_pause_flow(call, until_ns)


def _wait_out_pause_flow(call: CallState, until_ns: int) -> Flow[None]:
    """Wait for the end of a pause that the store cannot enforce during an outage.

    After the outage, write the rest of the pause to the store, which may have lost it.
    """
    policies = call.policies
    remaining = policies.pause.remaining(policies.clock)
    if remaining and policies.pause.is_unconfirmed and policies.limiter.store.fallback is None:
        with suppress(StateError):  # the next outage has begun
            yield from pause_flow(policies, remaining)
    if policies.limiter.store.fallback is None:
        return
    policies.pause.is_unconfirmed = remaining > 0
    remaining = max(remaining, policies.limiter._flows.overrides.pause_left_us() / 1e6)
    if not remaining:
        return
    remaining *= uniform(1, 1 + _JITTER)
    if remaining > _remaining(call, until_ns):
        raise _pause_error(policies.name, remaining)
    yield Sleep(policies.clock, remaining)


def _limit_error_flow(call: CallState, max_wait: float) -> Flow[LimitReachedError]:
    """Return the error that says why the limit had no token, and when it may have one."""
    name = call.policies.name
    refusal = yield from call.policies.tokens.refusal_flow(call.options.cost)
    if refusal.paused:
        return _pause_error(name, refusal.paused)
    text = f"{name}: the limit of {refusal.limit} had no capacity within {max_wait:.3g} s"
    return LimitReachedError(text, name, refusal.retry_after)


def _remaining(call: CallState, until_ns: int) -> float:
    return max(0, until_ns - call.policies.clock.now_ns()) / 1e9


def _pause_error(name: str, remaining: float) -> LimitReachedError:
    return LimitReachedError(f"{name}: paused by the upstream for {remaining:.1f} s more", name, remaining)
