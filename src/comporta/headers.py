"""HTTP headers about rate limits: written for the service's clients, parsed from upstreams' responses.

``RateLimit-Policy`` describes the limits, ``RateLimit`` what a client has left (draft-11 of the IETF's
RateLimit header fields), and ``Retry-After`` when to try again. Many services send header pairs of their own,
such as ``X-RateLimit-Remaining`` and ``X-RateLimit-Reset``. No clock, no I/O, no web framework. Parsing never
raises: an invalid value yields ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import ceil, isnan
from typing import Final, NamedTuple

from comporta.client_answers import HeaderFields, has_limit_fields, joined_fields

NUMBER_MAX: Final = 999_999_999_999_999
"""The largest integer of a structured field; larger numbers are written and parsed as this one."""

HEADER_CHARS_MAX: Final = 8192
"""Longer values are ignored."""

_EPOCH_SECONDS_MIN = 1_000_000_000
"""A reset of at least this many seconds (31 years) is a Unix time; of 1000 times as many, in milliseconds."""

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?")
_PRINTABLE = re.compile(r"[ -~]+")
# A string without a closing quote extends to the end, so that matching takes linear time.
_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_MEMBERS = re.compile(rf'(?:{_STRING}|[^",])++', re.DOTALL)
_PARTS = re.compile(rf'(?:{_STRING}|[^";])++', re.DOTALL)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
_DATES = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"[a-z]{{3}}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT",
        rf"[a-z]{{6,9}}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT",
        rf"[a-z]{{3}} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
)
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})",
    re.IGNORECASE,
)
_UNIT_SECONDS: Mapping[str, float] = {
    "d": 86_400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}
_DURATION_PART = re.compile(r"([0-9]++(?:\.[0-9]*+)?+)(ms|us|µs|ns|d|h|m|s)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})++")
_WEEKDAY = re.compile(r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}", re.IGNORECASE)


class RateLimitPolicy(NamedTuple):
    """One limit: ``quota`` requests in ``window`` seconds (``None``: the header states no window)."""

    name: str
    quota: int
    window: float | None = None


class RateLimitStatus(NamedTuple):
    """What a client has left of one limit: ``remaining`` now, the whole quota again in ``reset`` seconds."""

    name: str
    remaining: int
    reset: float


def ratelimit_policy_header(policies: Iterable[RateLimitPolicy]) -> str:
    """Return the value of ``RateLimit-Policy``: ``"burst";q=100;w=60``.

    A window is at least one second and rounded up, so that the stated rate is never above the real one.
    """
    return ", ".join(
        f"{_quote(policy.name)};q={_to_integer(policy.quota)}"
        + ("" if policy.window is None else f";w={max(1, _to_integer(policy.window))}")
        for policy in policies
    )


def ratelimit_header(statuses: Iterable[RateLimitStatus]) -> str:
    """Return the value of ``RateLimit``: ``"burst";r=50;t=30``."""
    return ", ".join(
        f"{_quote(s.name)};r={_to_integer(s.remaining)};t={_to_integer(s.reset)}" for s in statuses
    )


def retry_after_header(seconds: float) -> int:
    """Return the value of ``Retry-After``: rounded up, so that a client that obeys it is not too early."""
    return _to_integer(seconds)


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Parse a ``Retry-After``: seconds, or an HTTP date in any of its three forms.

    ``now`` is in Unix seconds. A time in the past yields 0. If there are several values, separated by commas,
    the longest is returned. Anything else yields ``None``.
    """
    return _longest(_parse_wait(text, now) for text in _list_values(value))


def parse_milliseconds(value: str | None) -> float | None:
    """Convert milliseconds as text to seconds; ``None`` if the text is not a number, or is negative."""
    numbers = [_parse_number(text) for text in _list_values(value)]
    return _longest(number / 1000 for number in numbers if number is not None and number >= 0)


def parse_exhausted_ratelimit(value: str | None) -> float | None:
    """Parse a ``RateLimit``: if a limit is used up, return the seconds until it recovers.

    If several limits are used up, the last to recover counts. Returns ``None`` if no limit is used up, or if
    the header does not say until when. The older form without names (``limit=10, remaining=0, reset=7``) is
    parsed as well.
    """
    members = [dict(_parameters(member)) for member in _MEMBERS.findall(_clean(value))]
    together = {name: text for member in members for name, text in member.items()}
    waits = [_wait(member.get("r"), member.get("t")) for member in members]
    waits.append(_wait(together.get("remaining"), together.get("reset")))
    return max((wait for wait in waits if wait is not None), default=None)


def requested_pause(headers: HeaderFields, now: float, *, retry_after: bool = True) -> float | None:
    """Return for how many seconds response headers ask the client to pause; ``None`` if they do not.

    ``Retry-After-Ms`` comes first, then ``Retry-After``, then the limits that are used up, of which the last
    to recover counts. Limits are read from ``RateLimit``, and from pairs of ``...-Remaining...`` and
    ``...-Reset...`` whose names are otherwise the same and contain ``RateLimit`` or ``Rate-Limit``, as
    OpenAI, Anthropic, GitHub and many others send them. With ``retry_after=False`` only the limits count.

    ``now`` is in Unix seconds. A time in a header is compared to the response's ``Date`` if it has one,
    because this machine's clock may be wrong.
    """
    if not has_limit_fields(headers):
        return None
    fields = joined_fields(headers)
    if retry_after:
        pause = parse_milliseconds(fields.get("retry-after-ms"))
        if pause is None and "retry-after" in fields:
            pause = parse_retry_after(fields["retry-after"], _sender_now(fields, now))
        if pause is not None:
            return pause
    return _longest((parse_exhausted_ratelimit(fields.get("ratelimit")), *_exhausted_pairs(fields, now)))


def _exhausted_pairs(fields: Mapping[str, str], now: float) -> Iterator[float | None]:
    """Yield the seconds until recovery for each limit whose ``...-remaining...`` says that it is used up."""
    for name, value in fields.items():
        if "remaining" not in name or not ("ratelimit" in name or "rate-limit" in name):
            continue
        remaining = [_parse_number(text) for text in _list_values(value)]
        resets = _list_values(fields.get(name.replace("remaining", "reset")))
        if len(remaining) != len(resets):  # it is unknown which values belong together
            remaining = [min((left for left in remaining if left is not None), default=None)] * len(resets)
        for left, reset in zip(remaining, resets, strict=True):
            if left is not None and left <= 0:
                yield _parse_reset(reset, _sender_now(fields, now))


def _sender_now(fields: Mapping[str, str], now: float) -> float:
    """Return the sender's time: the ``Date`` of the response, plus its ``Age`` in a cache."""
    date = _parse_http_date(_list_values(fields.get("date"))[0], now)
    return now if date is None else date + max(0.0, _parse_number(_clean(fields.get("age"))) or 0.0)


def _quote(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r:.100}")
    if not _PRINTABLE.fullmatch(name):
        raise ValueError(f"name must be printable ASCII and not empty, got {name!r:.100}")
    return '"' + name.replace("\\", r"\\").replace('"', r"\"") + '"'


def _to_integer(figure: float) -> int:
    """Round up to an integer of a structured field, from 0 to ``NUMBER_MAX``."""
    if isnan(figure):
        return 0
    return ceil(min(max(figure, 0), NUMBER_MAX))


def _clean(value: object) -> str:
    """Return a header value without surrounding blanks; an empty string if it is too long or not a str."""
    return value.strip(" \t") if isinstance(value, str) and len(value) <= HEADER_CHARS_MAX else ""


def _list_values(value: object) -> list[str]:
    """Return the values of a header that may occur several times; the comma in a date does not split it."""
    values: list[str] = []
    for part in _clean(value).split(","):
        if values and _WEEKDAY.fullmatch(values[-1]):
            values[-1] += f", {part.strip()}"
        else:
            values.append(part.strip())
    return values


def _longest(waits: Iterable[float | None]) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


def _parse_number(text: str) -> float | None:
    return _clamp(float(text)) if _NUMBER.fullmatch(text) else None


def _clamp(number: float) -> float:
    return max(-float(NUMBER_MAX), min(number, float(NUMBER_MAX)))


def _parse_wait(text: str, now: float) -> float | None:
    """Parse a number of seconds or an HTTP date."""
    number = _parse_number(text)
    if number is not None:
        return max(0.0, number)
    moment = _parse_http_date(text, now)
    return None if moment is None else max(0.0, moment - now)


def _parse_reset(text: str, now: float) -> float | None:
    """Parse when a limit recovers: seconds, a Unix time, an HTTP or RFC 3339 date, or ``6m0s``."""
    wait = _as_duration(_parse_wait(text, now), now)
    if wait is not None:
        return wait
    if _DURATION.fullmatch(text):
        parts = _DURATION_PART.findall(text)
        return _clamp(sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts))
    moment = _parse_rfc_3339(text)
    return None if moment is None else max(0.0, moment - now)


def _parameters(member: str) -> Iterator[tuple[str, str]]:
    """Yield the parameters of one list member, and the member itself if it is a pair."""
    for part in _PARTS.findall(member):
        name, equals, value = part.partition("=")
        if equals:
            yield name.strip().lower(), value.strip()


def _wait(remaining: str | None, reset: str | None) -> float | None:
    left, wait = _parse_number(remaining or ""), _parse_number(reset or "")
    if left is None or wait is None or left > 0:
        return None
    return max(0.0, wait)


def _as_duration(reset: float | None, now: float) -> float | None:
    """Return a reset as a duration; many servers send a Unix time, in seconds or milliseconds."""
    if reset is None or reset < _EPOCH_SECONDS_MIN:
        return reset
    moment = reset if reset < 1000 * _EPOCH_SECONDS_MIN else reset / 1000
    return max(0.0, moment - now)


def _parse_rfc_3339(text: str) -> float | None:
    """Parse a date such as ``2026-11-17T12:00:00Z`` into Unix seconds."""
    if not _RFC_3339.fullmatch(text):
        return None
    from datetime import datetime  # noqa: PLC0415 - few upstreams send dates

    try:
        return datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):
        return None


def _parse_http_date(text: str, now: float) -> float | None:
    """Parse an HTTP date into Unix seconds."""
    date = next((match for form in _DATES if (match := form.fullmatch(text))), None)
    if date is None:
        return None
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - few upstreams send dates

    month, day, year = _MONTHS.index(date["month"].lower()) + 1, int(date["day"]), int(date["year"])
    hour, minute, second = int(date["hour"]), int(date["minute"]), int(date["second"])
    try:
        if len(date["year"]) == 2:
            year = _full_year(year, datetime.fromtimestamp(now, UTC).year)
        leap = second == 60
        time = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=UTC)
        return (time + timedelta(seconds=leap)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _full_year(year: int, this_year: int) -> int:
    """Return a two-digit year in full; a year that would be more than 50 years ahead is in the past."""
    ahead = (year - this_year) % 100
    return this_year + (ahead if ahead <= 50 else ahead - 100)
