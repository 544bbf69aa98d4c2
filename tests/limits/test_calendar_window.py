"""Calendar windows: days and months of a time zone, on every store, across clock changes and outages."""

from __future__ import annotations

import pickle
import time
import zoneinfo
from datetime import date, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.limits.faces import Bench
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import command, max_examples, redis_store

from comporta import BaseLimiter, FixedWindowLimiter, LimitConfig, LimitGroup, SlidingWindowLimiter
from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.limits.manager import limit_configs_from_settings
from comporta.limits.strategies import calendar_window, schedule
from comporta.limits.strategies.base import EndedLease, LeaseGrant, LimitParams, LimitUsage
from comporta.limits.strategies.calendar_window import CalendarWindowStrategy, calendar_strategy
from comporta.limits.strategies.recent_traffic import NO_PAST, SLICE_US
from comporta.limits.strategies.registry import strategy_type
from comporta.limits.strategies.schedule import parse_schedule, schedule_of_name
from comporta.settings import LimitSettings
from comporta.stores.base import PINNED_US, State
from comporta.testing import ManualClock, Server

SAO_PAULO = "3/day at 00:00 America/Sao_Paulo"
BERLIN = "3/day at 02:30 Europe/Berlin"
MONTHS = "3/month at 00:00 UTC"


def _unix(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=fold).timestamp()


def _set_clock(clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds - clock.now_ns() / 1e9)


def test_limiter__day_of_a_zone__begins_at_its_midnight_on_every_store(bench: Bench) -> None:
    limiter = bench.limiter(SAO_PAULO)
    _set_clock(bench.clock, _unix("2027-03-09 22:00", "America/Sao_Paulo"))
    assert [limiter.acquire("k") for _ in range(4)] == [True] * 3 + [False]
    refused = limiter.decide("k")
    assert refused.retry_after == refused.reset_after == 2 * 3600
    bench.clock.advance(2 * 3600 - 0.000001)
    assert not limiter.acquire("k")
    bench.clock.advance(0.000001)
    assert [limiter.acquire("k") for _ in range(4)] == [True] * 3 + [False]
    limiter.release("k", 2)
    assert limiter.peek("k").remaining == 2
    assert limiter.acquire_up_to("k", 5) == 2
    limiter.reset("k")
    assert limiter.stats("k").tokens_available == 3


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("2027-01-31 23:59", "2027-02-01"),
        ("2028-02-29 12:00", "2028-03-01"),
        ("2027-12-31 23:00", "2028-01-01"),
    ],
)
def test_limiter__month__ends_with_its_last_day(bench: Bench, first: str, last: str) -> None:
    limiter = bench.limiter(MONTHS)
    _set_clock(bench.clock, _unix(first))
    assert limiter.acquire("k", cost=3)
    assert limiter.decide("k").retry_after == pytest.approx(_unix(last) - _unix(first))
    _set_clock(bench.clock, _unix(last))
    assert limiter.acquire("k", cost=3)


def test_limiter__clock_changes__days_have_23_and_25_hours(bench: Bench) -> None:
    limiter = bench.limiter("3/day at 00:00 Europe/Berlin")
    for day, hours in (("2027-03-28", 23), ("2027-10-31", 25), ("2027-11-01", 24)):
        _set_clock(bench.clock, _unix(day, "Europe/Berlin"))
        assert limiter.acquire("k", cost=3)
        assert limiter.decide("k").retry_after == hours * 3600


@pytest.mark.parametrize(
    ("before", "begins"),
    [
        ("2027-03-28 00:00", _unix("2027-03-28 03:30", "Europe/Berlin")),  # 02:30 does not exist
        ("2027-10-31 00:00", _unix("2027-10-31 02:30", "Europe/Berlin")),  # the first of two
    ],
)
def test_limiter__time_that_is_skipped_or_repeated__begins_one_window(
    bench: Bench, before: str, begins: float
) -> None:
    limiter = bench.limiter(BERLIN)
    _set_clock(bench.clock, _unix(before, "Europe/Berlin"))
    assert limiter.acquire("k", cost=3)
    assert limiter.decide("k").retry_after == begins - _unix(before, "Europe/Berlin")
    _set_clock(bench.clock, begins)
    assert limiter.acquire("k", cost=3)
    bench.clock.advance(3600)
    assert not limiter.acquire("k")


def test_limiter__clock_set_back_over_the_boundary__grants_no_window_twice(bench: Bench) -> None:
    limiter = bench.limiter("3/day at 00:00 UTC")
    midnight = _unix("2027-06-02")
    _set_clock(bench.clock, midnight - 1)
    assert limiter.acquire("k", cost=3)
    _set_clock(bench.clock, midnight + 1)
    assert limiter.acquire("k", cost=3)
    _set_clock(bench.clock, midnight - 1)
    assert not limiter.acquire("k")
    assert limiter.decide("k").retry_after == 86_401
    _set_clock(bench.clock, midnight + 2)
    assert not limiter.acquire("k")


def test_limiter__clock_set_back_by_days__keeps_what_was_counted(bench: Bench) -> None:
    limiter = bench.limiter("3/day at 00:00 UTC")
    _set_clock(bench.clock, _unix("2027-06-09"))
    assert limiter.acquire("k", cost=3)
    _set_clock(bench.clock, _unix("2027-06-02 12:00"))
    assert not limiter.acquire("k")
    assert limiter.peek("k").retry_after == 12 * 3600
    _set_clock(bench.clock, _unix("2027-06-03"))
    assert limiter.acquire("k")


def test_limiter__calendar_window_overridden__obeys_pause_degradation_and_operator(bench: Bench) -> None:
    limiter = bench.limiter("10/day at 00:00 UTC")
    degradation = bench.degradation(limiter, drop=0.5)
    degradation.record_error()
    assert limiter.stats().limit == 5
    limiter.pause(1)
    assert not limiter.acquire()
    limiter.resume()
    limiter.set_limit("2/day at 00:00 UTC")
    assert sum(limiter.acquire() for _ in range(5)) == 2
    limiter.set_limit("4/day")
    assert sum(limiter.acquire() for _ in range(5)) == 2
    with pytest.raises(ValueError, match="window of day_at_0000_utc must be 86400 seconds, got 3600"):
        limiter.set_limit("4/hour")
    with pytest.raises(ValueError, match="a time of day does not apply to day_at_0000_utc, got '4/day at 01"):
        limiter.set_limit("4/day at 01:00 UTC")


def test_limiter__calendar_window_with_a_lease__grants_unit_by_unit(bench: Bench) -> None:
    limiter = bench.limiter(LimitConfig.parse("500/day at 00:00 UTC", lease=True))
    assert sum(limiter.acquire("k") for _ in range(510)) == 500


def test_group__two_schedules__charges_both_or_none(bench: Bench) -> None:
    day = bench.limiter("3/day at 00:00 UTC", "group.day").target
    month = bench.limiter("2/month at 06:00 Asia/Tokyo", "group.month").target
    group = LimitGroup(day, month).sync
    assert [group.acquire([None, None]) for _ in range(3)] == [True, True, False]
    assert day.sync.peek().remaining == 1


def test_settle__calendar_window__credits_only_what_the_same_window_granted(bench: Bench) -> None:
    limiter = bench.limiter("10/day at 00:00 UTC")
    bench.clock.advance(15 * 3600 + 59 * 60)  # one minute before midnight
    granted_at = bench.clock.now_ns() / 1e9
    assert limiter.acquire("k", 6)
    assert limiter.settle("k", 6, 5, granted_at)
    assert limiter.peek("k").remaining == 5
    bench.clock.advance(120)
    assert not limiter.settle("k", 5, 4, granted_at)
    assert limiter.acquire("k", 3)
    assert not limiter.settle("k", 5, 4, granted_at)
    assert limiter.settle("k", 5, 8, granted_at), "a debit counts into the current window"
    assert limiter.peek("k").remaining == 4


def test_redis__calendar_window__expires_with_it(valkey: Server) -> None:
    clock = ManualClock(_unix("2027-06-02 20:00"))
    with redis_store(valkey, clock) as store:
        BaseLimiter("3/day at 00:00 UTC", store, "n").sync.acquire("k")
        left_ms = int(command(valkey, "PTTL", "rate_limiter:n:k")[1:])
        assert 4 * 3_600_000 - 10_000 < left_ms <= 4 * 3_600_000


def test_failover__calendar_window__divides_the_limit_and_reports_after_the_outage() -> None:
    clock = ManualClock(_unix("2027-06-02"))
    store, primary = manual_failover(clock)
    limiter = BaseLimiter("10/day at 00:00 UTC", store, "n").sync
    assert limiter.acquire("k")
    primary.error = StateUnavailableError("gone")
    assert not limiter.acquire("k")
    clock.advance(43_200)
    assert sum(limiter.acquire("k") for _ in range(7)) == 5
    primary.error = None
    while store.fallback is not None:
        run_heartbeat(store)
    assert limiter.peek("k").remaining == 4
    store.close()


ZONES = ("UTC", "America/Sao_Paulo", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca")


@settings(max_examples=max_examples(300), deadline=None)
@given(
    period=st.sampled_from(["day", "month"]),
    at=st.sampled_from(["00:00", "02:30", "23:59"]),
    zone=st.sampled_from(ZONES),
    now=st.integers(1_600_000_000, 2_500_000_000),
)
def test_schedule__any_moment__agrees_with_zoneinfo(period: str, at: str, zone: str, now: int) -> None:
    start, end = parse_schedule(period, at, zone).window(now)
    assert start <= now < end
    local = datetime.fromtimestamp(start, zoneinfo.ZoneInfo(zone))
    hours, minutes = map(int, at.split(":"))
    begins = local.replace(hour=hours, minute=minutes, fold=0)
    assert start == begins.timestamp()
    assert period == "day" or local.day == 1


def test_strategy__monotonic_clock__counts_by_unix_time_and_follows_it() -> None:
    strategy = LimitConfig.parse("3/day at 00:00 UTC").build_strategy()
    offsets = [1_800_000_000_000_000]

    class SettableClock(ManualClock):
        def unix_offset_us(self) -> int:
            return offsets[0]

    timed = strategy.on_clock(SettableClock())
    state, wait_us = timed.step(None, 5, 3)
    assert state is not None
    assert (wait_us, state[1]) == (0, 1_799_971_200_000_000)
    assert timed.step(state, 6, 1) == (None, 57_599_999_994)
    offsets[0] += 57_600_000_000  # an operator sets the machine's time
    assert timed.with_params(strategy.params).step(state, 6, 1)[1] == 0
    assert timed.expires_us(state) == 57_600_000_000
    assert timed.used_units(state, 5) == 0
    assert strategy.used_units(state, state[1]) == 3
    now_us = MONOTONIC.unix_offset_us() + MONOTONIC.now_ns() // 1000
    assert now_us == pytest.approx(time.time() * 1e6, abs=1e6)


def test_memory__calendar_window__works_on_the_machine_clock() -> None:
    limiter = FixedWindowLimiter("2/month at 00:00 America/Sao_Paulo").sync
    assert [limiter.acquire() for _ in range(3)] == [True, True, False]
    assert 0 < limiter.peek().retry_after <= 31 * 86_400


def test_config__calendar_text__reads_back_and_survives_a_pickle() -> None:
    config = LimitConfig.parse("1000 per DAY at 06:30 America/Sao_Paulo")
    assert str(config) == "1000/day at 06:30 America/Sao_Paulo (day_at_0630_america_sao_paulo)"
    assert config.strategy == "day_at_0630_america_sao_paulo"
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - made here
    assert BaseLimiter(config).name == "day_at_0630_america_sao_paulo-86400-1000"
    assert issubclass(strategy_type("month_at_0000_etc_gmt_plus_5"), CalendarWindowStrategy)
    assert limit_configs_from_settings(LimitSettings(limit=MONTHS)) == [LimitConfig.parse(MONTHS)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "5/day at 00:00 America/Sao_Paolo",
            "time zone must be an IANA name such as .*, got 'America/Sao_Paolo'",
        ),
        ("5/day at 00:00 ../../etc/passwd", r"time zone must be an IANA name such as .*, got '\.\./\.\./etc"),
        ("5/day at 24:00 UTC", "time of a calendar window must be 00:00 to 23:59, got '24:00'"),
        ("5/day at 00:60 UTC", "time of a calendar window must be 00:00 to 23:59, got '00:60'"),
        ("0/day at 00:00 UTC", "amount must be .*got 0"),
        ("5/day at 00:00", "limit must look like .*'1000/day at 00:00 America/Sao_Paulo'"),
        ("5/month", "with a time also month"),
        ("5/hour at 00:00 UTC", "limit must look like"),
    ],
)
def test_config__impossible_calendar_text__is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LimitConfig.parse(text)


def test_config__calendar_text_for_another_strategy__is_refused() -> None:
    with pytest.raises(ValueError, match="a time of day does not apply to sliding_window, got '3/day at"):
        SlidingWindowLimiter(SAO_PAULO)


def test_config__machine_without_zones__says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_not_found(_: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError("No time zone found")

    monkeypatch.setattr(zoneinfo, "ZoneInfo", raise_not_found)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(ValueError, match=r"has no time zone data\. Install the package tzdata, or use UTC"):
        schedule.zone_changes.__wrapped__("America/Sao_Paulo")
    assert schedule.zone_changes.__wrapped__("UTC")[0].offset_s == 0


def test_schedule__before_the_time_of_day__is_the_window_of_the_day_before() -> None:
    day = 86_400
    assert parse_schedule("day", "23:59", "UTC").window(20_000 * day) == (
        20_000 * day - 60,
        20_001 * day - 60,
    )
    assert parse_schedule("month", "06:00", "UTC").window(1_798_761_600)[1] == 1_798_783_200


def test_schedule__clocks_go_back_across_midnight__the_day_does_not_begin_twice() -> None:
    """At 00:30 local time, one hour ahead of UTC, clocks go back to 23:30."""
    day, hour = 20_000 * 86_400, 3600
    change = day - hour // 2
    changes = (schedule.OffsetChange(0, hour), schedule.OffsetChange(change, 0))
    assert schedule.Schedule("day", 0, "UTC", changes).window(change + 60)[0] == day - hour


def test_zone_changes__of_a_zone__are_its_offset_in_2020_and_each_change_until_2050() -> None:
    changes = schedule.zone_changes.__wrapped__("Europe/Berlin")
    assert changes[:3] == (
        (_unix("2020-01-01"), 3600),
        (_unix("2020-03-29 01:00"), 7200),
        (_unix("2020-10-25 01:00"), 3600),
    )
    assert (len(changes), changes[-1]) == (61, (_unix("2049-10-31 01:00"), 3600))
    assert {type(number) for change in changes for number in change} == {int}
    assert schedule.zone_changes.__wrapped__("America/Sao_Paulo") == ((_unix("2020-01-01"), -10_800),)


@pytest.mark.parametrize(
    ("at", "moment", "begins"),
    [
        ("03:00", "2027-03-28 12:00", "2027-03-28 01:00"),  # 02:00 is 03:00
        ("02:59", "2027-03-28 12:00", "2027-03-28 01:59"),
        ("03:00", "2027-10-31 12:00", "2027-10-31 02:00"),  # 03:00 is 02:00
        ("02:59", "2027-10-31 12:00", "2027-10-31 00:59"),
    ],
)
def test_schedule__time_of_a_clock_change__counts_by_the_new_offset(
    at: str, moment: str, begins: str
) -> None:
    assert parse_schedule("day", at, "Europe/Berlin").window(int(_unix(moment)))[0] == _unix(begins)


def test_schedule__first_and_last_second_of_each_month__are_in_its_window() -> None:
    months = parse_schedule("month", "00:00", "UTC")
    for number in range(12 * 30):
        begin, end = (
            int(_unix(f"{2020 + each // 12}-{each % 12 + 1:02}-01")) for each in (number, number + 1)
        )
        assert months.window(begin) == months.window(end - 1) == (begin, end)


def test_first_day_of_month__any_month__is_that_of_the_calendar() -> None:
    epoch = date(1970, 1, 1)
    for year in (1600, 1899, 1900, 1970, 1999, 2000, 2026, 2027, 2028, 2100, 2101, 2400, 2401):
        for number in range(12):
            expected = (date(year, number + 1, 1) - epoch).days
            assert schedule._first_day_of_month(12 * year + number) == expected


def test_name__zone_with_a_sign__reads_back() -> None:
    for zone, slug in (("Etc/GMT-5", "etc_gmt_minus_5"), ("Etc/GMT+5", "etc_gmt_plus_5")):
        name = parse_schedule("day", "06:05", zone).name
        assert name == f"day_at_0605_{slug}"
        found = schedule_of_name(name)
        assert found is not None
        assert found.zone == zone


def test_schedule_of_name__machine_without_zones__knows_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_zones_by_slug", dict)
    found = schedule_of_name("month_at_0630_utc")
    assert found is not None
    assert (found.period, found.time_text, found.zone) == ("month", "06:30", "UTC")
    assert schedule_of_name("month_at_0630_europe_berlin") is None


@pytest.mark.parametrize("name", ["day_at_0000_nowhere", "day_at_000_utc", "week_at_0000_utc"])
def test_schedule__name_that_describes_none__is_none(name: str) -> None:
    assert schedule_of_name(name) is None


DAY_US = 86_400_000_000
START_US = 20_000 * DAY_US
END_US = START_US + DAY_US
NOON_US = START_US + DAY_US // 2
DAYS = calendar_strategy("day", "00:00", "UTC")(3)


def used_state(used: int, last_us: int = NOON_US) -> State:
    return (used, START_US, END_US, last_us, used, NO_PAST)


def test_strategy__of_a_schedule__is_a_named_class_without_a_dictionary() -> None:
    made = calendar_window._strategy_of.__wrapped__(parse_schedule("day", "00:00", "UTC"))
    strategy = made(3)
    assert strategy.params == LimitParams(3, 0, 0, DAY_US)
    assert not hasattr(strategy, "__dict__")
    assert (made.__name__, made.__module__) == ("CalendarWindowStrategy", CalendarWindowStrategy.__module__)


def test_lua__of_a_schedule__begins_with_its_table() -> None:
    for period, is_month in (("day", "false"), ("month", "true")):
        text = calendar_strategy(period, "01:00", "UTC").lua()
        assert text.startswith(f"local CALENDAR = {{time_s = 3600, is_month = {is_month}, 1577836800, 0}}\n")


def test_step__first_of_a_window__stores_its_bounds_and_its_count() -> None:
    assert DAYS.step(None, NOON_US, 2) == (used_state(2), 0)
    assert DAYS.step(None, START_US, 2) == (used_state(2, START_US), 0)
    assert DAYS.step(None, START_US - 1, 2)[0] == (2, START_US - DAY_US, START_US, START_US - 1, 2, NO_PAST)


def test_step__does_not_fit__refuses_and_stores_only_a_clock_that_went_back() -> None:
    full = used_state(3)
    assert DAYS.step(full, NOON_US, 1) == (None, DAY_US // 2)
    assert DAYS.step(full, NOON_US - 5, 1) == (used_state(3, NOON_US - 5), DAY_US // 2 + 5)


def test_step__next_slice__moves_the_count_to_the_past() -> None:
    last_us = NOON_US // (2 * SLICE_US) * 2 * SLICE_US
    state, _ = DAYS.step(used_state(2, last_us), last_us + SLICE_US, 1)
    assert state == (3, START_US, END_US, last_us + SLICE_US, 1, (2).to_bytes(16, "little"))


def test_release__more_than_was_used__leaves_an_unused_window() -> None:
    assert DAYS.release(used_state(2), NOON_US + 1, 5) == used_state(0, NOON_US + 1)


def test_usage__unused_used_and_released__is_what_is_left_and_until_when() -> None:
    assert DAYS.usage(None, NOON_US) == LimitUsage(3, 0, 0)
    assert DAYS.usage(used_state(2), NOON_US) == LimitUsage(1, DAY_US // 2, 2)
    assert DAYS.usage(used_state(4), NOON_US) == LimitUsage(0, DAY_US // 2, 4)
    assert DAYS.usage(used_state(0), NOON_US) == LimitUsage(3, 0, 0)


def test_pace__calendar_window__counts_short_windows_in_whole_microseconds() -> None:
    pace_us = [DAYS.pace_us(units) for units in (1, 3, 4, 7)]
    assert pace_us == [0, 0, DAY_US * 9 // 10, 2 * DAY_US * 9 // 10]
    assert {type(each) for each in pace_us} == {int}


def test_retention__calendar_window__is_until_its_end_or_a_minute_and_pinned_if_used_up() -> None:
    late_us = END_US - 10_000_000
    assert DAYS.expires_us(used_state(2)) == END_US
    assert DAYS.expires_us(used_state(2, late_us)) == late_us + 60_000_000
    assert DAYS.retention_us(used_state(2)) == END_US
    assert DAYS.retention_us(used_state(3)) == END_US + PINNED_US
    assert DAYS.retention_us(used_state(4)) == END_US + PINNED_US


def test_lease__calendar_window__ends_with_its_window_and_is_named_by_its_start() -> None:
    state = used_state(2)
    assert DAYS.grant_lease(state, NOON_US, 2, 1000) == LeaseGrant(state, 1000, START_US)
    assert DAYS.grant_lease(state, END_US - 7, 2, 1000) == LeaseGrant(state, 7, START_US)


def test_return_lease__calendar_window__credits_the_window_that_granted_it() -> None:
    state, ended = used_state(3), EndedLease(START_US, 2, 1)
    assert DAYS.return_lease(state, NOON_US + 1, ended, 0) == (*used_state(2, NOON_US + 1)[:4], 2, NO_PAST)
    assert DAYS.return_lease(state, NOON_US, ended._replace(lease_id=START_US - DAY_US), 0) is None
    assert DAYS.return_lease(state, END_US, ended, 0) is None
    assert DAYS.return_lease(state, END_US, ended._replace(lease_id=END_US), 0) is None


def test_return_lease__clock_set_back_over_the_boundary__credits_the_window_that_stays_open() -> None:
    state = (3, END_US, END_US + DAY_US, END_US, 3, NO_PAST)
    returned = DAYS.return_lease(state, END_US - 1, EndedLease(END_US, 2, 1), 0)
    assert returned is not None
    assert returned[:4] == (2, END_US, END_US + DAY_US, END_US - 1)


def test_settle__credit_of_a_calendar_window__counts_from_its_first_microsecond() -> None:
    timed = DAYS.on_clock(ManualClock())  # its time is Unix time
    for strategy in (DAYS, timed):
        settled = strategy.settle(used_state(2), NOON_US, -1, NOON_US - START_US)
        assert settled is not None
        assert settled[0] == 1
        assert strategy.settle(used_state(2), NOON_US, -1, NOON_US - START_US + 1) is None
        assert strategy.settle(used_state(2), END_US, -1, 0) is None


def test_settle__credit_after_the_clock_was_set_back__counts_into_the_window_that_stays_open() -> None:
    state = (3, END_US, END_US + DAY_US, END_US, 3, NO_PAST)
    assert DAYS.settle(state, END_US - 1, -1, 0) is None, "it was granted before the window began"


def test_settle__credit_on_a_monotonic_clock__is_placed_by_unix_time() -> None:
    class UnixAhead(ManualClock):
        def unix_offset_us(self) -> int:
            return START_US

    timed = DAYS.on_clock(UnixAhead())
    state = (2, START_US, DAY_US, 1000, 2, NO_PAST)
    credited = timed.settle(state, 1000, -1, 1000)
    assert credited is not None
    assert credited[:4] == (1, START_US, DAY_US, 1000)
    assert timed.settle(state, 1000, -1, 1001) is None
