"""What an attempt says about its upstream. Pure: no clock, no I/O, no HTTP client.

Three things are told apart that are often thrown together: whether the upstream works (the breaker's
business), whether it wants fewer calls (the limit's), and whether it makes sense to try again (the retry's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from comporta.errors import ComportaError
from comporta.retry.retry import retry_after_of

OK: Final = "ok"
FAILURE: Final = "failure"
REFUSED: Final = "refused"
NEITHER: Final = "neither"
KINDS: Final = (OK, FAILURE, REFUSED, NEITHER)

REPEATED_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
"""After these another try may do better; a 501 will be a 501 tomorrow."""

MISTAKES: Final = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(NotImplementedError, SyntaxError, TypeError, ValueError),
)
"""Errors of a program, not of its upstream's hour: they count as failures, but are not tried again."""


NOT_SENT: Final = frozenset({"LocalProtocolError", "UnsupportedProtocol"})
"""What HTTP clients call a request that cannot be sent, such as one with an illegal header."""


class Verdict(NamedTuple):
    """``kind``: the upstream works, fails, works and wants fewer calls, or neither: it was not reached.

    ``repeat``: another try may do better. ``pause``: for how many seconds it wants none at all (``None``: it
    did not say). ``why`` is for people.
    """

    kind: str
    repeat: bool = False
    pause: float | None = None
    why: str = ""


Judge = Callable[[Any, Exception | None], Verdict]
"""Given what an attempt returned, or the error it raised."""

WELL: Final = Verdict(OK)


def judged(result: Any, error: Exception | None, now: float) -> Verdict:
    """Judge what a guarded function did; what looks like an HTTP response is judged as one.

    What comporta itself refused, and what a client could not even send, says nothing about the upstream.
    """
    if error is None:
        return WELL if result is None else _judged_response(http_response(result), now) or WELL
    if isinstance(error, ComportaError) or _is_unsent(error):
        return Verdict(NEITHER, why=described(error))
    found = _judged_response(http_response(getattr(error, "response", None)), now)
    if found is not None:
        return found
    return Verdict(FAILURE, not isinstance(error, MISTAKES), retry_after_of(error) or None, described(error))


def judged_http(status: int, headers: Mapping[str, str], now: float) -> Verdict:
    """Judge a response: 429 is a wish for fewer calls, never a failure; 5xx are failures.

    Any answer may end the upstream's patience (``RateLimit`` with nothing left); ``Retry-After`` does so with
    429 and 5xx only, for elsewhere it is about that one resource.
    """
    from comporta.headers import pause_told  # noqa: PLC0415 - 2 ms, and not every upstream speaks HTTP

    told = {name.lower(): value for name, value in headers.items()}
    if status != 429 and status < 500:
        told.pop("retry-after", None)
    pause = pause_told(told, now)
    repeat = status in REPEATED_STATUSES
    if status == 429:
        return Verdict(REFUSED, repeat, pause, "429")
    if status >= 500:
        return Verdict(FAILURE, repeat, pause, str(int(status)))
    return Verdict(OK, repeat, pause) if pause is not None or repeat else WELL


def checked(judge: Judge) -> Judge:
    """Return a judge of somebody's own that is held to what a verdict may be."""
    if not callable(judge):
        raise TypeError(f"judge must be a function of a result and an error, got {judge!r:.100}")

    def judging(result: Any, error: Exception | None) -> Verdict:
        verdict = judge(result, error)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"judge must return a Verdict, got {verdict!r:.100}")
        if verdict.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {verdict.kind!r:.50}")
        if verdict.pause is not None and not 0 <= verdict.pause < inf:
            raise ValueError(f"pause must be None or at least 0 seconds, got {verdict.pause!r:.50}")
        return verdict

    return judging


def described(error: BaseException) -> str:
    """Name an error in a few words."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an error that cannot even be shown is still one
        text = ""
    return f"{type(error).__name__}: {text:.150}" if text else type(error).__name__


def http_response(thing: Any) -> tuple[int, Mapping[str, str]] | None:
    """Return status and headers of what has them by the names that HTTP clients agree on."""
    try:
        status = getattr(thing, "status_code", None)
        if status is None:
            status = getattr(thing, "status", None)
        headers = getattr(thing, "headers", None)
    except Exception:  # somebody else's properties
        return None
    if isinstance(status, int) and isinstance(headers, Mapping):
        return status, headers
    return None


def _is_unsent(error: Exception) -> bool:
    """Whether a client would not send it; known by its name, as clients are not known here."""
    return any(kind.__name__ in NOT_SENT for kind in type(error).__mro__)


def _judged_response(response: tuple[int, Mapping[str, str]] | None, now: float) -> Verdict | None:
    return None if response is None else judged_http(*response, now)
