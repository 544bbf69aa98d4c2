"""Decorated functions: the shortest way of a call through a closed circuit.

Both wrappers say the same; they are apart because one awaits, and written out because each line of them is on
the way of every call. Nothing is locked while the function runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from comporta.breaker.admission import REFUSED, Admission
from comporta.breaker.view import count
from comporta.flow import run, run_async
from comporta.metrics import current_metrics

if TYPE_CHECKING:
    from comporta.breaker.breaker import CircuitBreaker


def guarded(breaker: CircuitBreaker, function: Callable[..., Any]) -> Callable[..., Any]:
    """Guard a plain function."""
    view = breaker.view
    plain, remote = view.plain and breaker.counts_result is None, not view.exact
    now_ns = view.now_ns

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        admission = view.standing
        if remote:
            view.used = True
        if admission is None or (remote and now_ns() >= view.good_until_ns):
            admission = _admitted(breaker, run(breaker.verbs.admitting()))
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            breaker.ended(admission, error)
            raise
        if plain and admission is view.standing and current_metrics() is None:
            if remote:
                view.succeeded_ns = now_ns()
            return result
        breaker.ended(admission, None, result)
        return result

    return call


def guarded_async(
    breaker: CircuitBreaker, function: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Guard a coroutine function."""
    view = breaker.view
    plain, remote = view.plain and breaker.counts_result is None, not view.exact
    now_ns = view.now_ns

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        admission = view.standing
        if remote:
            view.used = True
        if admission is None or (remote and now_ns() >= view.good_until_ns):
            admission = _admitted(breaker, await run_async(breaker.verbs.admitting()))
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            await breaker.ended_async(admission, error)
            raise
        if plain and admission is view.standing and current_metrics() is None:
            if remote:
                view.succeeded_ns = now_ns()
            return result
        await breaker.ended_async(admission, None, result)
        return result

    return call


def _admitted(breaker: CircuitBreaker, admission: Admission) -> Admission:
    if not admission:
        count("breaker_calls", breaker.name, outcome=REFUSED)
        raise admission.refusal(breaker.name)
    return admission
