"""What HTTP says about limits: what we write, what we read, and that nonsense is only nonsense."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comporta.headers import (
    HEADER_CHARS_MAX,
    NUMBER_MAX,
    Policy,
    Standing,
    exhausted,
    pause_told,
    ratelimit,
    ratelimit_policy,
    retry_after_seconds,
    whole_seconds,
)

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT
NAMES = st.text(st.sampled_from([chr(code) for code in range(0x20, 0x7F)]), min_size=1, max_size=20)
FIELDS = (
    *("Retry-After", "RateLimit", "RateLimit-Remaining", "RateLimit-Reset"),
    *("X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset"),
    *("Date", "Age"),
)
ALMOST = st.text(st.sampled_from('0123456789-.;,="\\ rtqwGMT:SunNov\x00é٣'), max_size=60)
VALUES = st.one_of(st.binary(max_size=60).map(lambda sent: sent.decode("latin-1")), ALMOST)


def test_ratelimit_policy__several_limits__are_a_list_of_quoted_names_with_integers() -> None:
    policies = [Policy("burst", 100, 60), Policy("day", 5000, 86_400.0), Policy("open", 7)]
    assert ratelimit_policy(policies) == '"burst";q=100;w=60, "day";q=5000;w=86400, "open";q=7'


@pytest.mark.parametrize(("window", "told"), [(0.001, 1), (1, 1), (1.001, 2), (59.5, 60)])
def test_ratelimit_policy__window_of_no_whole_seconds__is_rounded_up(window: float, told: int) -> None:
    assert ratelimit_policy([Policy("a", 1, window)]) == f'"a";q=1;w={told}'


def test_ratelimit__one_limit__tells_what_remains_and_for_how_long() -> None:
    assert ratelimit([Standing("burst", 50, 29.2)]) == '"burst";r=50;t=30'
    assert ratelimit([Standing('say "hi" \\', -1, -2.0)]) == r'"say \"hi\" \\";r=0;t=0'


@pytest.mark.parametrize("name", ["", "café", "two\r\nlines", "tab\t"])
def test_ratelimit__name_that_no_header_can_hold__is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must be printable ASCII and not empty, got"):
        ratelimit([Standing(name, 1, 1)])


@pytest.mark.parametrize(
    ("seconds", "told"),
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
def test_whole_seconds__any_number__is_a_whole_one_not_too_early(seconds: float, told: int) -> None:
    assert whole_seconds(seconds) == told


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
    ],
)
def test_retry_after_seconds__seconds_or_any_form_of_date__are_read(value: str, seconds: float) -> None:
    assert retry_after_seconds(value, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", "soon", "1e3", "٣", "0x10", "--1", "1,2", "inf", "nan", "1" * (HEADER_CHARS_MAX + 1)),
        *("Sun, 31 Feb 1994 08:49:37 GMT", "Sun, 06 Nov 1994 24:49:37 GMT", "Sun, 06 Nov 0000 08:49:37 GMT"),
        *("Sun, 06 Nov 1994 08:49:37 CET", "Sun, 6 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z"),
    ],
)
def test_retry_after_seconds__nonsense__is_nothing(value: str | None) -> None:
    assert retry_after_seconds(value, NOW) is None


def test_retry_after_seconds__short_year_at_a_time_that_is_no_date__is_nothing() -> None:
    assert retry_after_seconds("Sunday, 06-Nov-94 08:50:37 GMT", math.inf) is None
    assert retry_after_seconds("Sunday, 06-Nov-94 08:50:37 GMT", 1e300) is None


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001 - the zone is given beside
def test_retry_after_seconds__date_as_servers_write_it__is_that_moment(moment: datetime) -> None:
    moment = moment.replace(microsecond=0)
    assert retry_after_seconds(format_datetime(moment, usegmt=True), 0.0) == moment.timestamp()


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
        (None, None),
    ],
)
def test_exhausted__ratelimit__tells_when_the_last_limit_recovers(
    value: str | None, seconds: float | None
) -> None:
    assert exhausted(value) == seconds


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
    ],
)
def test_pause_told__headers_of_a_response__retry_after_wins(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert pause_told(headers, 1_700_000_000.0) == seconds


SENT = "Tue, 14 Nov 2023 22:13:20 GMT"


@pytest.mark.parametrize("slow", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Date": SENT, "Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT"}, 60.0),
        ({"Date": SENT, "Retry-After": "7"}, 7.0),
        ({"Date": SENT, "Age": "20", "Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT"}, 40.0),
        ({"Date": SENT, "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000060"}, 60.0),
        ({"Date": SENT, "RateLimit": '"a";r=0;t=30'}, 30.0),
    ],
)
def test_pause_told__clock_of_this_machine_is_wrong__goes_by_that_of_the_sender(
    headers: dict[str, str], seconds: float, slow: float
) -> None:
    assert pause_told(headers, 1_700_000_000.0 - slow) == seconds


@given(st.lists(st.tuples(NAMES, st.integers(0, NUMBER_MAX), st.integers(0, NUMBER_MAX)), max_size=5))
def test_exhausted__whatever_we_write__reads_as_it_was_meant(items: list[tuple[str, int, int]]) -> None:
    text = ratelimit([Standing(*item) for item in items])
    if len(text) <= HEADER_CHARS_MAX:
        assert exhausted(text) == max((float(reset) for _, left, reset in items if left == 0), default=None)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.floats())
def test_reading__anything_at_all__is_nothing_or_a_duration(headers: dict[str, str], now: float) -> None:
    told = pause_told(headers, now)
    assert told is None or math.isnan(now) or told >= 0
    for value in headers.values():
        for read in (exhausted(value), retry_after_seconds(value, NOW)):
            assert read is None or read >= 0
