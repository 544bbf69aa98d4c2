"""What HTTP says about limits: written for clients of ours, read from upstreams.

``RateLimit-Policy`` tells what the limits are, ``RateLimit`` how the client stands (draft-11 of the IETF's
RateLimit header fields), ``Retry-After`` when to come back. Pure: no clock, no I/O, no web framework. What an
upstream sends is never trusted to make sense: reading returns ``None`` for nonsense, and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import ceil, isnan
from typing import Final, NamedTuple

NUMBER_MAX: Final = 999_999_999_999_999
"""The largest integer of a structured field; a larger figure is written, and read, as this one."""

HEADER_CHARS_MAX: Final = 8192
"""A longer value is not read: no honest server sends one."""

_EPOCH_SECONDS_MIN = 1_000_000_000
"""A reset of more seconds than this (31 years) is a moment, not a duration; a thousand times it, in ms."""

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?")
_PRINTABLE = re.compile(r"[ -~]+")
# A string that is never closed goes on to the end: so no text takes longer than its length.
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
_PREFIXES = ("ratelimit", "x-ratelimit", "x-rate-limit")


class Policy(NamedTuple):
    """One limit: ``quota`` requests in ``window`` seconds (``None``: no window is told)."""

    name: str
    quota: int
    window: float | None = None


class Standing(NamedTuple):
    """How a client stands with one limit: ``remaining`` now, all of it again in ``reset`` seconds."""

    name: str
    remaining: int
    reset: float


def ratelimit_policy(policies: Iterable[Policy]) -> str:
    """Return the value of ``RateLimit-Policy``: ``"burst";q=100;w=60``.

    A window is at least one second, and rounded up: a rate told is never above the real one.
    """
    return ", ".join(
        f"{_string(policy.name)};q={_integer(policy.quota)}"
        + ("" if policy.window is None else f";w={max(1, _integer(policy.window))}")
        for policy in policies
    )


def ratelimit(standings: Iterable[Standing]) -> str:
    """Return the value of ``RateLimit``: ``"burst";r=50;t=30``."""
    return ", ".join(f"{_string(s.name)};r={_integer(s.remaining)};t={_integer(s.reset)}" for s in standings)


def whole_seconds(seconds: float) -> int:
    """Return the value of ``Retry-After``: rounded up, so that whoever obeys it does not come too early."""
    return _integer(seconds)


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """Read a ``Retry-After``: seconds, or an HTTP date in any of its three forms.

    ``now`` is in Unix seconds. A moment that has passed is 0; what makes no sense is ``None``.
    """
    text = _read(value)
    number = _number(text)
    if number is not None:
        return max(0.0, number)
    moment = _moment(text, now)
    return None if moment is None else max(0.0, moment - now)


def exhausted(value: str | None) -> float | None:
    """Read a ``RateLimit``: the seconds until there is something left again, if a limit is used up.

    ``None`` if nothing is used up, or nobody says until when. Of several limits the last to recover counts.
    The older form without names (``limit=10, remaining=0, reset=7``) is read as well.
    """
    members = [dict(_parameters(member)) for member in _MEMBERS.findall(_read(value))]
    together = {name: text for member in members for name, text in member.items()}
    waits = [_wait(member.get("r"), member.get("t")) for member in members]
    waits.append(_wait(together.get("remaining"), together.get("reset")))
    return max((wait for wait in waits if wait is not None), default=None)


def pause_told(headers: Mapping[str, str], now: float) -> float | None:
    """Tell from the headers of a response for how many seconds to stay away; ``None``: nobody said so.

    ``Retry-After`` wins; then ``RateLimit``, then the pairs ``RateLimit-Remaining`` and ``RateLimit-Reset``
    with or without ``X-`` before them. ``now`` is in Unix seconds; a moment that is told is the sender's,
    and goes by its ``Date`` where there is one, for this machine's clock may be wrong.
    """
    found = {name.lower(): value for name, value in headers.items()}
    now = _sent(found, now)
    asked = retry_after_seconds(found.get("retry-after"), now)
    if asked is not None:
        return asked
    waits = [exhausted(found.get("ratelimit"))]
    for prefix in _PREFIXES:
        reset = _since(retry_after_seconds(found.get(f"{prefix}-reset"), now), now)
        remaining = _number(_read(found.get(f"{prefix}-remaining")))
        waits.append(reset if remaining is not None and remaining <= 0 else None)
    return next((wait for wait in waits if wait is not None), None)


def _sent(found: Mapping[str, str], now: float) -> float:
    """Return what the sender's clock says: its ``Date``, and the time that the answer lay in a cache."""
    if not any(name.endswith(("retry-after", "-reset")) for name in found):
        return now  # nearly every answer has a date, and few tell a moment
    date = _moment(_read(found.get("date")), now)
    return now if date is None else date + max(0.0, _number(_read(found.get("age"))) or 0.0)


def _string(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r:.100}")
    if not _PRINTABLE.fullmatch(name):
        raise ValueError(f"name must be printable ASCII and not empty, got {name!r:.100}")
    return '"' + name.replace("\\", r"\\").replace('"', r"\"") + '"'


def _integer(figure: float) -> int:
    """Round up into what a structured field can hold; never below 0."""
    if isnan(figure):
        return 0
    return ceil(min(max(figure, 0), NUMBER_MAX))


def _read(value: object) -> str:
    """Return text that is safe to look at; whatever else it is reads as empty."""
    return value.strip(" \t") if isinstance(value, str) and len(value) <= HEADER_CHARS_MAX else ""


def _number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return max(-float(NUMBER_MAX), min(float(text), float(NUMBER_MAX)))


def _parameters(member: str) -> Iterator[tuple[str, str]]:
    """Give the parameters of one member of a list, and a member that is a pair itself."""
    for part in _PARTS.findall(member):
        name, equals, value = part.partition("=")
        if equals:
            yield name.strip().lower(), value.strip()


def _wait(remaining: str | None, reset: str | None) -> float | None:
    left, wait = _number(remaining or ""), _number(reset or "")
    if left is None or wait is None or left > 0:
        return None
    return max(0.0, wait)


def _since(reset: float | None, now: float) -> float | None:
    """Return a reset as a duration; many servers tell the moment, in seconds or milliseconds."""
    if reset is None or reset < _EPOCH_SECONDS_MIN:
        return reset
    moment = reset if reset < 1000 * _EPOCH_SECONDS_MIN else reset / 1000
    return max(0.0, moment - now)


def _moment(text: str, now: float) -> float | None:
    """Read an HTTP date as Unix seconds."""
    found = next((match for form in _DATES if (match := form.fullmatch(text))), None)
    if found is None:
        return None
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - few upstreams send dates

    month, day, year = _MONTHS.index(found["month"].lower()) + 1, int(found["day"]), int(found["year"])
    hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"])
    try:
        if len(found["year"]) == 2:
            year = _century(year, datetime.fromtimestamp(now, UTC).year)
        leap = second == 60
        moment = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=UTC)
        return (moment + timedelta(seconds=leap)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _century(year: int, this_year: int) -> int:
    """Return a year of two digits in full: one that seems more than 50 years ahead has passed."""
    ahead = (year - this_year) % 100
    return this_year + (ahead if ahead <= 50 else ahead - 100)
