"""Rate-limit headers: written by us, parsed from others, and malformed ones."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from email.message import Message
from email.utils import format_datetime
from typing import Any

import httpx
import httpx2
import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from comporta.headers import (
    HEADER_CHARS_MAX,
    NUMBER_MAX,
    RateLimitPolicy,
    RateLimitStatus,
    parse_exhausted_ratelimit,
    parse_retry_after,
    ratelimit_header,
    ratelimit_policy_header,
    requested_pause,
    retry_after_header,
)

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT
SENT = "Tue, 14 Nov 2023 22:13:20 GMT"
NAMES = st.text(st.sampled_from([chr(code) for code in range(0x20, 0x7F)]), min_size=1, max_size=20)
FIELDS = (
    *("Retry-After", "RateLimit", "RateLimit-Remaining", "RateLimit-Reset"),
    *("X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset"),
    *("Date", "Age", "Retry-After-Ms", "X-RateLimit-Remaining-Tokens", "X-RateLimit-Reset-Tokens"),
    *("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
)
ALMOST = st.text(st.sampled_from('0123456789-.;,="\\ rtqwGMT:SunNov\x00é٣'), max_size=60)
DURATIONS = st.text(st.sampled_from("0123456789.hmsuµnd, "), max_size=20)
MOMENTS = st.text(st.sampled_from("0123456789-:.TZ+ "), max_size=30)
VALUES = st.one_of(
    st.just("0"),
    DURATIONS,
    MOMENTS,
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    st.binary(max_size=60).map(lambda sent: sent.decode("latin-1")),
    ALMOST,
)


def test_ratelimit_policy_header__several_limits__lists_quoted_names_with_integers() -> None:
    policies = [
        RateLimitPolicy("burst", 100, 60),
        RateLimitPolicy("day", 5000, 86_400.0),
        RateLimitPolicy("open", 7),
    ]
    assert ratelimit_policy_header(policies) == '"burst";q=100;w=60, "day";q=5000;w=86400, "open";q=7'


@pytest.mark.parametrize(("window", "expected"), [(0.001, 1), (1, 1), (1.001, 2), (59.5, 60)])
def test_ratelimit_policy_header__fractional_window__is_rounded_up(window: float, expected: int) -> None:
    assert ratelimit_policy_header([RateLimitPolicy("a", 1, window)]) == f'"a";q=1;w={expected}'


def test_ratelimit_header__one_limit__has_remaining_and_reset() -> None:
    assert ratelimit_header([RateLimitStatus("burst", 50, 29.2)]) == '"burst";r=50;t=30'
    assert ratelimit_header([RateLimitStatus('say "hi" \\', -1, -2.0)]) == r'"say \"hi\" \\";r=0;t=0'


@pytest.mark.parametrize("name", ["", "café", "two\r\nlines", "tab\t"])
def test_ratelimit_header__name_not_printable_ascii__raises(name: str) -> None:
    with pytest.raises(ValueError, match="name must be printable ASCII and not empty, got"):
        ratelimit_header([RateLimitStatus(name, 1, 1)])


def test_ratelimit_header__name_not_a_str__raises() -> None:
    with pytest.raises(TypeError, match="name must be a str, got 5"):
        ratelimit_header([RateLimitStatus(5, 1, 1)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, 0),
        (0.001, 1),
        (1.0, 1),
        (1.2, 2),
        (-5, 0),
        (math.inf, NUMBER_MAX),
        (math.nan, 0),
        (1e30, NUMBER_MAX),
    ],
)
def test_retry_after_header__any_number__is_rounded_up(seconds: float, expected: int) -> None:
    assert retry_after_header(seconds) == expected


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 7\t", 7.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("9" * 400, float(NUMBER_MAX)),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("sun, 06 nov 1994 08:50:37 gmt", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun Nov  6 08:50:37 1994", 60.0),
        ("Sun Nov 16 08:49:37 1994", 10 * 86_400.0),
        ("Sun, 06 Nov 1994 08:49:60 GMT", 23.0),
        ("Sun, 06 Nov 1994 08:49:30 GMT", 0.0),
        ("Friday, 06-Nov-43 08:49:37 GMT", 1_546_300_800.0),
        ("Monday, 06-Nov-45 08:49:37 GMT", 0.0),
        ("5, 7", 7.0),
        ("7,soon", 7.0),
        ("Sun, 06 Nov 1994 08:50:37 GMT, Sun, 06 Nov 1994 08:49:47 GMT", 60.0),
        ("3, Sunday, 06-Nov-94 08:50:37 GMT,Sun Nov  6 08:50:38 1994", 61.0),
        ("Sunday, 06-Nov-44 08:49:37 GMT", 1_577_923_200.0),
        ("5".ljust(HEADER_CHARS_MAX), 5.0),
    ],
)
def test_parse_retry_after__seconds_or_any_date_form__returns_seconds(value: str, seconds: float) -> None:
    assert parse_retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", "soon", "1e3", "٣", "0x10", "--1", "1;2", "inf", "nan", "1" * (HEADER_CHARS_MAX + 1)),
        *("Sun, 31 Feb 1994 08:49:37 GMT", "Sun, 06 Nov 1994 24:49:37 GMT", "Sun, 06 Nov 0000 08:49:37 GMT"),
        *("Sun, 06 Nov 1994 08:49:37 CET", "Sun, 6 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z"),
    ],
)
def test_parse_retry_after__malformed__is_none(value: str | None) -> None:
    assert parse_retry_after(value, NOW) is None


def test_parse_retry_after__short_year_with_now_out_of_range__is_none() -> None:
    assert parse_retry_after("Sunday, 06-Nov-94 08:50:37 GMT", math.inf) is None
    assert parse_retry_after("Sunday, 06-Nov-94 08:50:37 GMT", 1e300) is None


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001 - the zone is given beside
def test_parse_retry_after__date_from_the_standard_library__is_that_time(moment: datetime) -> None:
    moment = moment.replace(microsecond=0)
    assert parse_retry_after(format_datetime(moment, usegmt=True), 0.0) == moment.timestamp()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ('"burst";r=0;t=30', 30.0),
        ('"burst";r=50;t=30', None),
        ('"burst";r=50;t=30, "day";r=0;t=7200', 7200.0),
        ('"burst";r=0;t=30,"day";r=0;t=7;pk=:cGs=:', 30.0),
        ('"a, \\"b\\";r=0;t=9";r=3;t=2', None),
        ('"a";r=0', None),
        ('"a";t=5', None),
        ('"a" ; R=0 ; T=5', 5.0),
        ("burst;r=0;t=4", 4.0),
        ("limit=10, remaining=0, reset=7", 7.0),
        ("limit=10, remaining=2, reset=7", None),
        ('"never closed;r=0;t=5', None),
        ('"a";r=0;t=soon', None),
        ('"a";r=0;t=5;t=7=8', None),
        (None, None),
    ],
)
def test_parse_exhausted_ratelimit__several_limits__returns_the_last_recovery(
    value: str | None, seconds: float | None
) -> None:
    assert parse_exhausted_ratelimit(value) == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Content-Type": "text/plain"}, None),
        ({"retry-after": "3", "RateLimit": '"a";r=0;t=30'}, 3.0),
        ({"Retry-After": "later", "RateLimit": '"a";r=0;t=30'}, 30.0),
        ({"RATELIMIT": '"a";r=0;t=30', "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "5"}, 30.0),
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "12"}, 12.0),
        ({"RateLimit-Remaining": "1", "RateLimit-Reset": "12"}, None),
        ({"RateLimit-Reset": "12"}, None),
        ({"RateLimit-Remaining": "0"}, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000060"}, 60.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000060000"}, 60.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1600000000"}, 0.0),
        ({"X-Rate-Limit-Remaining": "-1", "X-Rate-Limit-Reset": "9"}, 9.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "Tue, 14 Nov 2023 22:13:25 GMT"}, 5.0),
        ({"Retry-After-Ms": "1500", "Retry-After": "2"}, 1.5),
        ({"Retry-After-Ms": "soon", "Retry-After": "2"}, 2.0),
        ({"Retry-After-Ms": "-1"}, None),
        ({"Retry-After": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "9"}, 2.0),
    ],
)
def test_requested_pause__several_headers__retry_after_comes_first(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert requested_pause(headers, 1_700_000_000.0) == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s"}, 1.0),
        ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1s"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2m59.56s"}, 179.56),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1d1h1m1s"}, 90061.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "500us"}, 0.0005),
        (
            {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": f"{'9' * 400}h"},
            float(NUMBER_MAX),
        ),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6 m"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "-1s"}, None),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "8s",
            },
            8.0,
        ),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:29Z",
            },
            9.0,
        ),
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2023-11-14T23:13:30.500+01:00",
                "anthropic-ratelimit-output-tokens-remaining": "5",
                "anthropic-ratelimit-output-tokens-reset": "2023-11-14T23:13:30Z",
            },
            10.5,
        ),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2023-11-14T22:00:00Z",
            },
            0.0,
        ),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2023-02-31T22:00:00Z",
            },
            None,
        ),
        ({"x-items-remaining": "0", "x-items-reset": "5", "x-ratelimit-limit": "5"}, None),
    ],
)
def test_requested_pause__pairs_of_any_service__pause_when_nothing_is_left(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert requested_pause(headers, 1_700_000_000.0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("pairs", "seconds"),
    [
        ([("Retry-After", "5"), ("retry-after", "5")], 5.0),
        ([("Retry-After", "5"), ("Retry-After", "8")], 8.0),
        ([("X-RateLimit-Remaining", "0"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "8")], 8.0),
        ([("RateLimit-Remaining", "0, 3"), ("RateLimit-Reset", "8, 60")], 8.0),
        ([("RateLimit-Remaining", "3, 0"), ("RateLimit-Reset", "8, 60")], 60.0),
        ([("RateLimit-Remaining", "3, 0"), ("RateLimit-Reset", "8")], 8.0),
        ([("RateLimit-Remaining", "many, more"), ("RateLimit-Reset", "8")], None),
        ([("RateLimit", '"a";r=0;t=3'), ("RateLimit", '"b";r=0;t=9')], 9.0),
        ([("Date", SENT), ("Date", SENT), ("Retry-After", "Tue, 14 Nov 2023 22:14:20 GMT")], 60.0),
    ],
)
@pytest.mark.parametrize("kind", ["httpx", "httpx2", "aiohttp", "urllib", "urllib3"])
def test_requested_pause__header_occurs_twice__is_read(
    kind: str, pairs: list[tuple[str, str]], seconds: float | None
) -> None:
    assert requested_pause(_headers(kind, pairs), 1_600_000_000.0) == seconds


def _headers(kind: str, pairs: list[tuple[str, str]]) -> Any:
    """Return headers in the container of a client."""
    if kind == "urllib":
        message = Message()
        for name, value in pairs:
            message[name] = value
        return message
    if kind == "urllib3":
        fields = urllib3.HTTPHeaderDict()
        for name, value in pairs:
            fields.add(name, value)
        return fields
    if kind == "aiohttp":
        return CIMultiDictProxy(CIMultiDict(pairs))
    return (httpx if kind == "httpx" else httpx2).Headers(pairs)


@pytest.mark.parametrize("reset", ["1000000000", "1000000000000"])
def test_requested_pause__least_reset_that_is_a_unix_time__is_compared_to_now(reset: str) -> None:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
    assert requested_pause(headers, 999_999_995.0) == 5.0


def test_parse_retry_after__machine_in_another_zone__is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_year_in_tokyo = datetime(2025, 12, 31, 20, tzinfo=UTC).timestamp()
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    try:
        assert parse_retry_after("Wed, 31 Dec 2025 20:00:07 GMT", new_year_in_tokyo) == 7.0
        assert parse_retry_after("Friday, 31-Dec-76 20:00:07 GMT", new_year_in_tokyo) == 0.0, "it is 1976"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_requested_pause__without_retry_after__reads_the_limits_only() -> None:
    headers = {"Retry-After": "5", "Retry-After-Ms": "5", "RateLimit": '"a";r=0;t=30'}
    assert requested_pause(headers, NOW, retry_after=False) == 30.0


def test_requested_pause__values_that_are_not_text__are_ignored() -> None:
    headers: Any = {"Retry-After": 5, "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": b"5"}
    assert requested_pause(headers, NOW) is None


def test_requested_pause__headers_cannot_be_read__is_none() -> None:
    class Unreadable(dict[str, str]):
        def items(self) -> Any:
            raise RuntimeError("closed")

    assert requested_pause(Unreadable({"Retry-After": "5"}), NOW) is None


def test_requested_pause__nothing_about_limits__reads_the_names_only() -> None:
    class NamesOnly(dict[str, str]):
        def items(self) -> Any:
            raise AssertionError("the values were read")

    assert requested_pause(NamesOnly({"Date": SENT, "Strict-Transport-Security": "5"}), NOW) is None


@pytest.mark.parametrize("slow", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Date": SENT, "Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT"}, 60.0),
        ({"Date": SENT, "Retry-After": "7"}, 7.0),
        ({"Date": SENT, "Age": "20", "Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT"}, 40.0),
        ({"Date": SENT, "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000060"}, 60.0),
        ({"Date": SENT, "RateLimit": '"a";r=0;t=30'}, 30.0),
        ({"Date": "Monday, 14-Nov-22 22:13:20 GMT", "Retry-After": "Mon, 14 Nov 2022 22:13:50 GMT"}, 30.0),
    ],
)
def test_requested_pause__local_clock_is_wrong__uses_the_senders_date(
    headers: dict[str, str], seconds: float, slow: float
) -> None:
    assert requested_pause(headers, 1_700_000_000.0 - slow) == seconds


@given(st.lists(st.tuples(NAMES, st.integers(0, NUMBER_MAX), st.integers(0, NUMBER_MAX)), max_size=5))
def test_parse_exhausted_ratelimit__our_own_header__round_trips(items: list[tuple[str, int, int]]) -> None:
    text = ratelimit_header([RateLimitStatus(*item) for item in items])
    if len(text) <= HEADER_CHARS_MAX:
        assert parse_exhausted_ratelimit(text) == max(
            (float(reset) for _, left, reset in items if left == 0), default=None
        )


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.floats())
def test_parsing__any_text__returns_none_or_a_duration(headers: dict[str, str], now: float) -> None:
    pause = requested_pause(headers, now)
    assert pause is None or math.isnan(now) or pause >= 0
    for value in headers.values():
        for seconds in (parse_exhausted_ratelimit(value), parse_retry_after(value, NOW)):
            assert seconds is None or seconds >= 0
