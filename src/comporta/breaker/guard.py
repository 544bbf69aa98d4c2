"""Reports the result of an admitted call to its circuit, and decorates functions.

The two decorators are the fastest path of a call through a closed circuit. They do the same and are written
twice, because one of them awaits and each line runs for every call. No lock is held while the function runs.
Nothing here knows the public class.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from comporta import metrics
from comporta import outcome as outcomes
from comporta.breaker.admission import (
    CANCELLED,
    FAILURE,
    NEITHER,
    NO_RESULT,
    REFUSED,
    SUCCESS,
    Admission,
)
from comporta.breaker.flows import BreakerFlows
from comporta.breaker.local_view import LocalView
from comporta.client_answers import response_of
from comporta.errors import CircuitOpenError, StateError
from comporta.flow import Flow, run, run_async
from comporta.metrics import current_metrics
from comporta.outcome import PLAIN_TYPES, CountingRules, classify
from comporta.refusals import RefusalHandler
from comporta.signatures import require_result
from comporta.threads import is_from_destruction, run_cleanup

_CANNOT_AWAIT = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""A coroutine that ends with one of these has no event loop to wait on any more."""


_PLAIN_TYPES = PLAIN_TYPES | {dict}
"""Results of these types are successes. So is a boto3 dict, because botocore raises its failures."""

_LABELS = {
    outcomes.OK: SUCCESS,
    outcomes.FAILURE: FAILURE,
    outcomes.REFUSED: REFUSED,
    outcomes.NEITHER: NEITHER,
}
"""The names that a breaker gives to the kinds of outcomes."""


class CallGuard:
    """Admits calls to one circuit and records their results; knows which results count as failures."""

    __slots__ = (
        *("_classify", "_is_exact", "_now_ns", "_poller", "_state", "flows", "name", "on_refusal", "rules"),
        *("succeed_now", "view"),
    )

    def __init__(
        self, view: LocalView, rules: CountingRules, on_refusal: RefusalHandler | None = None
    ) -> None:
        self.view = view
        self.name = view.name
        self.flows = BreakerFlows(view)
        self.rules = rules
        self.on_refusal = on_refusal
        self._classify = rules.apply_to(classify)
        self.succeed_now = view.succeed_now
        self._is_exact = view.is_exact
        self._now_ns = view.now_ns
        self._state = view.state
        self._poller = view.poller

    def shared_admission(self) -> Admission | None:
        """Return the admission that all calls share while the circuit is closed without failures."""
        state = self._state
        admission = state.shared_admission
        if admission is None or self._is_exact:
            return admission
        if self._now_ns() >= state.valid_until_ns:
            return None
        self._poller.was_used = True
        return admission

    def succeed_untraced(self, admission: Admission) -> bool:
        """Record a success of which only the time matters; false, without recording it, if more counts."""
        view = self.view
        if not view.ignores_successes or admission is not self._state.shared_admission:
            return False
        if not self._is_exact:
            view.counters.succeeded_ns = self._now_ns()
        return True

    def require(self, admission: Admission) -> Admission:
        """Return the admission; raise ``CircuitOpenError`` if it is a refusal."""
        if not admission:
            raise self._count_refused(admission)
        return admission

    def answer_refused(self, admission: Admission) -> Any:
        """Return the ``on_refusal`` value for a refused call; raise ``CircuitOpenError`` if there is none."""
        refusal = self._count_refused(admission)
        if self.on_refusal is None:
            raise refusal
        return self.on_refusal.answer(refusal)

    async def answer_refused_async(self, admission: Admission) -> Any:
        """Do what ``answer_refused`` does, for an async call."""
        refusal = self._count_refused(admission)
        if self.on_refusal is None:
            raise refusal
        return await self.on_refusal.answer_async(refusal)

    def _count_refused(self, admission: Admission) -> CircuitOpenError:
        metrics.count("breaker_calls", breaker=self.name, outcome=REFUSED)
        return admission.refusal(self.name)

    def succeed_fast(self, admission: Admission) -> bool:
        """Record a success of the shared admission; false if ``finish`` must record it."""
        return current_metrics() is None and self.succeed_untraced(admission)

    def finish(self, admission: Admission, error: BaseException | None, result: object = NO_RESULT) -> None:
        """Record how an admitted call ended, blocking."""
        run(self._finish_flow(admission, error, result))

    async def finish_async(
        self, admission: Admission, error: BaseException | None, result: object = NO_RESULT
    ) -> None:
        """Record how an admitted call ended without blocking the event loop."""
        if isinstance(error, _CANNOT_AWAIT) or is_from_destruction(error):
            run_cleanup(self.finish, admission, error)
        else:
            await run_async(self._finish_flow(admission, error, result))

    def _finish_flow(self, admission: Admission, error: BaseException | None, result: object) -> Flow[None]:
        """Record the result. A store error is ignored, so that the caller gets the call's own result."""
        outcome, reason = CANCELLED, ""
        try:
            outcome, reason = self._outcome(error, result)
        finally:
            metrics.count("breaker_calls", breaker=self.name, outcome=outcome)
            with suppress(StateError):
                if outcome != SUCCESS or not self.succeed_now(admission):
                    yield from self.flows.finish_flow(admission, outcome, error or reason)

    def _outcome(self, error: BaseException | None, result: object) -> tuple[str, str]:
        """Return the outcome of a call, and the reason.

        If a user's function raises, the call counts as cancelled and its caller gets that exception.
        """
        if error is None and result is NO_RESULT:
            return SUCCESS, ""
        if error is not None and not isinstance(error, Exception):
            return CANCELLED, ""
        outcome = self._classify(result, error)
        return _LABELS[outcome.kind], outcome.reason


def decorate(guard: CallGuard, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function that calls ``function`` through the circuit."""
    view = guard.view
    state, counters, poller, now_ns = view.state, view.counters, view.poller, view.now_ns
    is_remote = not view.is_exact
    is_plain = view.ignores_successes and guard.rules.counts_result is None
    current = metrics._current  # read without a call, which would cost as much as the rest of the condition

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        admission = state.shared_admission
        if is_remote:
            poller.was_used = True
        if admission is None or (is_remote and now_ns() >= state.valid_until_ns):
            admission = run(guard.flows.admit_flow())
            if not admission:
                return guard.answer_refused(admission)
        try:
            result = function(*args, **kwargs)
            has_plain_type = type(result) in _PLAIN_TYPES
            if not has_plain_type:
                require_result(function, result)
        except BaseException as error:
            guard.finish(admission, error)
            raise
        if (
            is_plain
            and admission is state.shared_admission
            and (has_plain_type or response_of(result) is None)
            and current.sink is None
        ):
            if is_remote:
                counters.succeeded_ns = now_ns()
            return result
        guard.finish(admission, None, result)
        return result

    return call


def decorate_async(
    guard: CallGuard, function: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function that calls ``function`` through the circuit."""
    view = guard.view
    state, counters, poller, now_ns = view.state, view.counters, view.poller, view.now_ns
    is_remote = not view.is_exact
    is_plain = view.ignores_successes and guard.rules.counts_result is None
    current = metrics._current  # read without a call, which would cost as much as the rest of the condition

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        admission = state.shared_admission
        if is_remote:
            poller.was_used = True
        if admission is None or (is_remote and now_ns() >= state.valid_until_ns):
            admission = await run_async(guard.flows.admit_flow())
            if not admission:
                return await guard.answer_refused_async(admission)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            await guard.finish_async(admission, error)
            raise
        if (
            is_plain
            and admission is state.shared_admission
            and (type(result) in _PLAIN_TYPES or response_of(result) is None)
            and current.sink is None
        ):
            if is_remote:
                counters.succeeded_ns = now_ns()
            return result
        await guard.finish_async(admission, None, result)
        return result

    return call
