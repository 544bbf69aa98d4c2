"""The wrappers that ``Upstream.guard`` puts around plain functions and coroutine functions.

An ordinary call needs no object: its state is in local variables of the wrapper. A call without keyword
arguments skips the copy that Python makes of them. Where the fast path stops, the wrapper creates the
``UpstreamCall`` from what it has, and the flow continues from there. With permits every call needs the
object, because a permit has to be released whatever happens; so does a call with a priority class or a cost
of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from comporta.flow import MissingLoopError, run, run_async
from comporta.outcome import OK_OUTCOME
from comporta.retry.retry import FailedAttempt
from comporta.signatures import require_result
from comporta.upstream.flows import UpstreamCall, unwrap
from comporta.upstream.report import CallReport, last_report

if TYPE_CHECKING:
    from comporta.upstream.options import CallOptions
    from comporta.upstream.policies import Policies


def guard_function(  # noqa: C901 - the hot path is one function on purpose
    policies: Policies, function: Callable[..., Any], options: CallOptions
) -> Callable[..., Any]:
    """Return a plain function that calls ``function`` through the policies."""
    if policies.permits is not None or options.is_classed:

        @wraps(function)
        def call_with_state(*args: Any, **kwargs: Any) -> Any:
            return UpstreamCall(policies, function, args, kwargs, options).execute()

        return call_with_state

    name, now_ns, classify = policies.name, policies.clock.now_ns, policies.classify
    plain_types, (admit, record_success, *_) = policies.plain_types, policies.fast_path
    new_object = object.__new__

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        report = admission = answer = outcome = None
        started_ns = now_ns()
        try:
            admission = admit(started_ns, None)
            if admission is not None:
                report = new_object(CallReport)  # without __init__: two thirds of the cost
                report.source, report.reason = name, ""
                report.circuit, report.outcome = admission.phase, "cancelled"
                report.attempts, report.waited, report.took = 1, 0.0, 0.0
                last_report.set(report)
                try:
                    answer = function(*args, **kwargs) if kwargs else function(*args)
                    is_plain = type(answer) in plain_types
                    if not is_plain:
                        require_result(function, answer)
                except Exception as error:
                    answer = FailedAttempt(error)
                else:
                    outcome = OK_OUTCOME if is_plain else classify(answer, None)
                    is_success = outcome is OK_OUTCOME or outcome == OK_OUTCOME
                    if is_success and record_success(admission, report, started_ns, False):
                        return answer
        except BaseException as error:
            begun = UpstreamCall(policies, function, args, kwargs, options)
            begun.interruption = error
        else:
            begun = UpstreamCall(policies, function, args, kwargs, options)
        if report is not None:
            begun.resume(report, started_ns, admission, answer, outcome)
            answer = None  # the traceback of an error references this frame
        return unwrap(run(begun.call_flow()))

    return call


def guard_coroutine_function(  # noqa: C901 - as above
    policies: Policies, function: Callable[..., Any], options: CallOptions
) -> Callable[..., Any]:
    """Return a coroutine function that calls ``function`` through the policies, within the time-out."""
    if policies.permits is not None or options.is_classed:

        @wraps(function)
        async def call_with_state(*args: Any, **kwargs: Any) -> Any:
            return await UpstreamCall(policies, function, args, kwargs, options).execute_async()

        return call_with_state

    timeouts = options.timeouts
    name, now_ns, classify = policies.name, policies.clock.now_ns, policies.classify
    plain_types, (admit, record_success, *_) = policies.plain_types, policies.fast_path
    new_object = object.__new__

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: C901 - as above
        report = admission = answer = outcome = None
        started_ns = now_ns()
        try:
            admission = admit(started_ns, None)
            if admission is not None:
                report = new_object(CallReport)  # without __init__: two thirds of the cost
                report.source, report.reason = name, ""
                report.circuit, report.outcome = admission.phase, "cancelled"
                report.attempts, report.waited, report.took = 1, 0.0, 0.0
                last_report.set(report)
                try:  # as TimedAttempt.wait() does, without a coroutine of its own
                    if timeouts is None:
                        answer = await (function(*args, **kwargs) if kwargs else function(*args))
                    else:
                        timeout = timeouts.start()
                        try:
                            answer = await (function(*args, **kwargs) if kwargs else function(*args))
                        except BaseException as error:
                            timeout.finish(error)
                            raise
                        timeout.finish()
                except MissingLoopError:
                    raise
                except Exception as error:
                    answer = FailedAttempt(error)
                else:
                    outcome = OK_OUTCOME if type(answer) in plain_types else classify(answer, None)
                    is_success = outcome is OK_OUTCOME or outcome == OK_OUTCOME
                    if is_success and record_success(admission, report, started_ns, False):
                        return answer
        except BaseException as error:
            begun = UpstreamCall(policies, function, args, kwargs, options)
            begun.interruption = error
        else:
            begun = UpstreamCall(policies, function, args, kwargs, options)
        if report is not None:
            begun.resume(report, started_ns, admission, answer, outcome)
            answer = None  # as above
        return unwrap(await run_async(begun.call_flow()))

    return call
