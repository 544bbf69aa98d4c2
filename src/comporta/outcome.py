"""What the result of a call says about the upstream: the rules that breakers and upstreams share.

It answers three separate questions: whether the upstream works (for the breaker), whether it wants fewer
calls (for the limit), and whether another attempt may succeed (for the retry). ``client_answers`` reads the
status and headers from whatever the client returned or raised. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any, Final, NamedTuple

from comporta.client_answers import (
    Answer,
    HeaderFields,
    answer_of,
    causes,
    grpc_pushback_of,
    grpc_status_of,
    has_limit_fields,
    is_local_error,
    response_of,
)
from comporta.errors import ComportaError
from comporta.runtime import RUNTIME
from comporta.validators import ErrorFilter, require_error_filter

OK: Final = "ok"
FAILURE: Final = "failure"
REFUSED: Final = "refused"
NEITHER: Final = "neither"
KINDS: Final = (OK, FAILURE, REFUSED, NEITHER)

PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, bytes, list, tuple, set})
"""Results of these types are not responses; they are recognized without looking at their attributes."""

RETRYABLE_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
"""After these statuses another attempt may succeed; after a 501 it will not."""

PROGRAM_ERRORS: Final = (
    *(AssertionError, AttributeError, ImportError, IndexError, KeyError, NameError),
    *(NotImplementedError, TypeError),
)
"""Errors of the calling program, which say nothing about the upstream. A ``ValueError`` itself is one, too.

Subclasses of ``ValueError`` are not: they include decoding errors of JSON and text, which are failures of the
upstream.
"""

_FINAL_ERRORS = (ArithmeticError, LookupError, SyntaxError, ValueError)
"""Failures after which another attempt would fail the same way."""

AWS_THROTTLING_CODES: Final = frozenset(
    {
        *("BandwidthLimitExceeded", "EC2ThrottledException", "LimitExceededException"),
        *("PriorRequestNotComplete", "ProvisionedThroughputExceededException", "RequestLimitExceeded"),
        *("RequestThrottled", "RequestThrottledException", "SlowDown", "ThrottledException", "Throttling"),
        *("ThrottlingException", "TooManyRequestsException", "TransactionInProgressException"),
    }
)
"""The error codes that botocore takes for a throttled request; their status may be 400 or 503."""

AWS_TIMEOUT_CODES: Final = frozenset({"RequestTimeout", "RequestTimeoutException"})
"""The error codes of AWS that mean what HTTP calls 408; their status is 400."""


class Outcome(NamedTuple):
    """What a call says about the upstream; the result of a ``classify`` function."""

    kind: str
    """``"ok"``, ``"failure"``, ``"refused"`` (it wants fewer calls) or ``"neither"`` (it says nothing)."""

    repeat: bool = False
    """Whether another attempt may succeed."""

    pause: float | None = None
    """For how many seconds the upstream wants no calls; ``None``: it did not say."""

    reason: str = ""
    """A short text for people."""


Classifier = Callable[[Any, Exception | None], Outcome]
"""From what an attempt returned, or the error it raised, to its outcome."""

OK_OUTCOME: Final = Outcome(OK)

GRPC_OUTCOMES: Final = {
    "ABORTED": Outcome(OK),  # a conflict: the caller has to start again from its first step
    "ALREADY_EXISTS": Outcome(OK),
    "CANCELLED": Outcome(NEITHER),
    "DATA_LOSS": Outcome(FAILURE),
    "DEADLINE_EXCEEDED": Outcome(FAILURE, repeat=True),
    "FAILED_PRECONDITION": Outcome(OK),
    "INTERNAL": Outcome(FAILURE, repeat=True),
    "INVALID_ARGUMENT": Outcome(OK),
    "NOT_FOUND": Outcome(OK),
    "OK": Outcome(OK),
    "OUT_OF_RANGE": Outcome(OK),
    "PERMISSION_DENIED": Outcome(OK),
    "RESOURCE_EXHAUSTED": Outcome(REFUSED, repeat=True),
    "UNAUTHENTICATED": Outcome(OK),
    "UNAVAILABLE": Outcome(FAILURE, repeat=True),
    "UNIMPLEMENTED": Outcome(OK),  # the caller uses a method that this server does not have
    "UNKNOWN": Outcome(FAILURE, repeat=True),  # what an exception in the server's code becomes
}
"""The outcome of every gRPC status."""


def classify(result: Any, error: Exception | None, now: float | None = None) -> Outcome:
    """Return the outcome of a call that returned ``result``, or raised ``error`` if that is not ``None``.

    This is what breakers and upstreams use by default. Your own ``classify`` function can call it and change
    what it returns: ``classify(result, error)._replace(repeat=False)``.

    A response, or an exception that carries one, is classified by its status and headers, whichever client it
    comes from: 4xx except 408 and 429 are answers and therefore ``"ok"``, 429 is ``"refused"``, 408 and 5xx
    are failures. Other exceptions are failures, except those that say nothing about the upstream: comporta's
    own, errors of a client that has no free connection or cannot send the request, and programming errors
    (``PROGRAM_ERRORS``). ``now`` is in Unix seconds, by default the current time; dates in headers are
    compared with it.
    """
    if error is None:
        response = None if type(result) in PLAIN_TYPES else response_of(result)
        return OK_OUTCOME if response is None else classify_answer(response, now)
    for cause in causes(error):
        outcome = _classify_cause(cause, now)
        if outcome is not None:
            return outcome if outcome.kind == OK else _with_reason(outcome, error)
    if isinstance(error, PROGRAM_ERRORS) or type(error) is ValueError:
        return Outcome(NEITHER, reason=error_summary(error))
    may_repeat = not isinstance(error, _FINAL_ERRORS)
    return Outcome(FAILURE, may_repeat, retry_after_of(error) or None, error_summary(error))


def _classify_cause(error: BaseException, now: float | None) -> Outcome | None:
    """Classify one exception of a chain; ``None`` if it does not say what the upstream answered."""
    if isinstance(error, ComportaError) or is_local_error(error):
        return Outcome(NEITHER)
    grpc_status = grpc_status_of(error)
    if grpc_status in GRPC_OUTCOMES:
        return GRPC_OUTCOMES[grpc_status]._replace(pause=_pushback(error), reason=grpc_status)
    answer = answer_of(error)
    if answer is None:
        return None
    outcome = classify_answer(answer, now)
    if outcome.pause is None and outcome.kind != OK:
        return outcome._replace(pause=retry_after_of(error) or None)
    return outcome


def classify_answer(answer: Answer, now: float | None = None) -> Outcome:
    """Classify an answer: 429 asks for fewer calls and is not a failure, 408 and 5xx are failures.

    A header that says that nothing is left asks for a pause with any status. ``Retry-After`` does so only
    with 408, 429 and 5xx; with other statuses it concerns one resource.
    """
    status, headers, code = answer.status, answer.headers, answer.code
    if 100 <= status < 400 and not code:
        if headers is None or not has_limit_fields(headers):
            return OK_OUTCOME
        pause = _pause(headers, now, retry_after=False)
        return OK_OUTCOME if pause is None else Outcome(OK, pause=pause)
    is_throttled = status == 429 or code in AWS_THROTTLING_CODES
    is_timeout = status == 408 or code in AWS_TIMEOUT_CODES
    is_failure = status >= 500 or is_timeout or (status == 0 and code != "")
    pause = _pause(headers, now, retry_after=is_throttled or is_failure)
    reason = f"{status or ''} {code}".strip()
    if is_throttled:
        return Outcome(REFUSED, True, pause, reason)
    if is_failure:
        return Outcome(FAILURE, is_timeout or status in RETRYABLE_STATUSES, pause, reason)
    return OK_OUTCOME if pause is None else Outcome(OK, pause=pause)


def _pause(headers: HeaderFields | None, now: float | None, *, retry_after: bool) -> float | None:
    if headers is None or not has_limit_fields(headers):
        return None
    from comporta.headers import requested_pause  # noqa: PLC0415 - 5 ms, and not every upstream is HTTP

    return requested_pause(headers, RUNTIME.unix_time() if now is None else now, retry_after=retry_after)


def _pushback(error: BaseException) -> float | None:
    """Return the pause that a gRPC server asked for."""
    value = grpc_pushback_of(error)
    if value is None:
        return None
    from comporta.headers import parse_milliseconds  # noqa: PLC0415 - as above

    return parse_milliseconds(value)


class CountingRules(NamedTuple):
    """A user's rules that override a classifier.

    ``ignore`` and ``failures`` return true for errors that are not counted, or that count as failures.
    ``counts_error`` and ``counts_result`` decide about all other errors and about results: true means a
    failure, false a success. None of them is called for an error of comporta itself, and the last two are not
    called for a refusal by the upstream.
    """

    ignore: Callable[[Exception], bool] | None = None
    failures: Callable[[Exception], bool] | None = None
    counts_error: Callable[[Exception], bool] | None = None
    counts_result: Callable[[Any], bool] | None = None

    @classmethod
    def from_options(
        cls,
        ignore: ErrorFilter | None,
        failures: ErrorFilter | None,
        counts_error: Callable[[Exception], bool] | None = None,
        counts_result: Callable[[Any], bool] | None = None,
    ) -> CountingRules:
        """Return the rules; raise a ``TypeError`` that names the one that is invalid."""
        for field, predicate in (("counts_error", counts_error), ("counts_result", counts_result)):
            if predicate is not None and not callable(predicate):
                raise TypeError(f"{field} must be a function, got {predicate!r:.50}")
        return cls(
            None if ignore is None else require_error_filter("ignore", ignore),
            None if failures is None else require_error_filter("failures", failures),
            counts_error,
            counts_result,
        )

    def apply_to(self, classify: Classifier) -> Classifier:
        """Return a classifier that follows these rules first; without any rule, ``classify`` itself."""
        if self == CountingRules():
            return classify

        def classify_by_rules(result: Any, error: Exception | None) -> Outcome:
            if error is None:
                return self._adjust_result(classify(result, None), result)
            if isinstance(error, ComportaError):
                return classify(None, error)
            if self.ignore is not None and self.ignore(error):
                return Outcome(NEITHER, reason=error_summary(error))
            return self._adjust_error(classify(None, error), error)

        return classify_by_rules

    def _adjust_error(self, outcome: Outcome, error: Exception) -> Outcome:
        if self.failures is not None and self.failures(error):
            return _with_reason(outcome._replace(kind=FAILURE), error)
        if self.counts_error is None or outcome.kind == REFUSED:
            return outcome
        if self.counts_error(error):
            return _with_reason(outcome._replace(kind=FAILURE), error)
        return Outcome(OK, pause=outcome.pause)

    def _adjust_result(self, outcome: Outcome, result: Any) -> Outcome:
        if self.counts_result is None or outcome.kind == REFUSED:
            return outcome
        if self.counts_result(result):
            return _with_reason(outcome._replace(kind=FAILURE), BadResultError(result))
        return Outcome(OK, pause=outcome.pause)


class BadResultError(Exception):
    """Describes a result that counts as a failure; it is recorded and never raised."""

    def __str__(self) -> str:
        return f"{self.args[0]!r:.100}"


def checked_classifier(classify: Classifier) -> Classifier:
    """Return a user's ``classify`` function with a check of its return value."""
    if not callable(classify):
        raise TypeError(f"classify must be a function of a result and an error, got {classify!r:.100}")

    def check(result: Any, error: Exception | None) -> Outcome:
        outcome = classify(result, error)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"classify must return an Outcome, got {outcome!r:.100}")
        if outcome.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {outcome.kind!r:.50}")
        if outcome.pause is not None and not 0 <= outcome.pause < inf:
            raise ValueError(f"pause must be None or at least 0 seconds, got {outcome.pause!r:.50}")
        return outcome

    return check


def error_summary(error: BaseException) -> str:
    """Return the type and the message of an error in one short line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # __str__ of another library may raise
        text = ""
    return f"{type(error).__name__}: {text:.150}" if text else type(error).__name__


def retry_after_of(error: BaseException) -> float:
    """Return the ``retry_after`` of an error in seconds; 0 if it is missing or not a finite number."""
    try:
        seconds = getattr(error, "retry_after", 0.0)
    except Exception:  # the error belongs to another library: its properties may raise
        return 0.0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isfinite(seconds):
        return 0.0
    return max(0.0, float(seconds))


def _with_reason(outcome: Outcome, error: BaseException) -> Outcome:
    return outcome if outcome.reason else outcome._replace(reason=error_summary(error))
