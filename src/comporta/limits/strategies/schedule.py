"""Calendar windows: when the day or the month of a time zone begins, in Unix time.

A schedule knows the offsets of its zone from UTC between 2020 and 2050 as plain numbers, so that Python and
Lua compute the same boundaries from the same table. Nothing here reads a clock.

A time that the zone skips (clocks go forward) counts as the moment that many minutes later; for a time that
occurs twice (clocks go back), the first occurrence counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import NamedTuple

DAY_S = 86_400
PERIODS = {"day": DAY_S, "month": 30 * DAY_S}
"""The periods and their nominal lengths, which give a limit's rate and its share during an outage."""

_FIRST_YEAR, _LAST_YEAR = 2020, 2050
_ZONE = re.compile(r"[A-Za-z0-9_+/-]{1,60}")
_NAME = re.compile(r"(day|month)_at_(\d\d)(\d\d)_([a-z0-9_]+)")


class OffsetChange(NamedTuple):
    """How many seconds local time is ahead of UTC, from a moment on (Unix seconds)."""

    at_s: int
    offset_s: int


class Schedule(NamedTuple):
    """A day or a month that begins at a time of day in a time zone."""

    period: str
    time_s: int
    zone: str
    changes: tuple[OffsetChange, ...]

    @property
    def name(self) -> str:
        """The name of the strategy with this schedule."""
        return f"{self.period}_at_{self.time_text.replace(':', '')}_{_zone_slug(self.zone)}"

    @property
    def time_text(self) -> str:
        """The time of day, such as ``06:30``."""
        return f"{self.time_s // 3600:02}:{self.time_s // 60 % 60:02}"

    def window(self, now_s: int) -> tuple[int, int]:
        """Return when the current window began and when it ends."""
        local_day = (now_s + _offset_at(self.changes, now_s)) // DAY_S
        index = local_day if self.period == "day" else _month_of_day(local_day)
        while self._begin(index) > now_s:
            index -= 1
        while self._begin(index + 1) <= now_s:
            index += 1
        return self._begin(index), self._begin(index + 1)

    def _begin(self, index: int) -> int:
        """Return when a day (counted from 1970) or a month (counted from the year 0) begins."""
        day = index if self.period == "day" else _first_day_of_month(index)
        local_s, offset_s = day * DAY_S + self.time_s, self.changes[0].offset_s
        for change in self.changes[1:]:
            if local_s < change.at_s + max(offset_s, change.offset_s):
                break
            offset_s = change.offset_s
        return local_s - offset_s


def parse_schedule(period: str, time: str, zone: str) -> Schedule:
    """Return the schedule of ``period``, ``HH:MM`` and a time zone; ``ValueError`` says what is invalid."""
    hours, _, minutes = time.partition(":")
    if not (len(minutes) == 2 and (hours + minutes).isdigit() and int(hours) < 24 and int(minutes) < 60):
        raise ValueError(f"time of a calendar window must be 00:00 to 23:59, got {time!r:.20}")
    return Schedule(period, int(hours) * 3600 + int(minutes) * 60, zone, zone_changes(zone))


def schedule_of_name(name: str) -> Schedule | None:
    """Return the schedule that a strategy's name describes; ``None`` if it describes none."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        return None
    period, hours, minutes, slug = parts.groups()
    zone = "UTC" if slug == "utc" else _zones_by_slug().get(slug)
    return None if zone is None else parse_schedule(period, f"{hours}:{minutes}", zone)


@cache
def zone_changes(zone: str) -> tuple[OffsetChange, ...]:
    """Return the changes of a zone's offset from UTC; the first one is its offset when the table begins."""
    info = _find_zone(zone)
    moment, end = datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(_LAST_YEAR, 1, 1, tzinfo=UTC)
    changes = [OffsetChange(int(moment.timestamp()), _offset(info, moment))]
    while moment < end:
        following = moment + timedelta(days=7)  # no zone changes twice within a week
        if _offset(info, following) != changes[-1].offset_s:
            changes.append(_change_between(info, moment, following))
        moment = following
    return tuple(changes)


def _change_between(info: tzinfo, before: datetime, after: datetime) -> OffsetChange:
    """Return the only change between two moments, to the second."""
    old = _offset(info, before)
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=int((after - before).total_seconds()) // 2)
        before, after = (middle, after) if _offset(info, middle) == old else (before, middle)
    return OffsetChange(int(after.timestamp()), _offset(info, after))


def _offset(info: tzinfo, moment: datetime) -> int:
    offset = moment.astimezone(info).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _find_zone(zone: str) -> tzinfo:
    if zone == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones  # noqa: PLC0415 - few programs have calendar windows

    try:
        if _ZONE.fullmatch(zone):
            return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        if not available_timezones():
            raise ValueError(
                f"time zone {zone!r} cannot be found: this machine has no time zone data. Install the "
                "package tzdata, or use UTC"
            ) from None
    raise ValueError(
        f"time zone must be an IANA name such as 'America/Sao_Paulo' or 'UTC', got {zone!r:.80}"
    ) from None


@cache
def _zones_by_slug() -> dict[str, str]:
    from zoneinfo import available_timezones  # noqa: PLC0415 - as above

    return {_zone_slug(zone): zone for zone in available_timezones()}


def _zone_slug(zone: str) -> str:
    return zone.lower().replace("+", "_plus_").replace("-", "_minus_").replace("/", "_")


def _offset_at(changes: Sequence[OffsetChange], now_s: int) -> int:
    offset_s = changes[0].offset_s
    for change in changes[1:]:
        if now_s < change.at_s:
            break
        offset_s = change.offset_s
    return offset_s


def _first_day_of_month(month: int) -> int:
    """Return the first day of a month, counted from 1970; a month is 12 for each year, plus 0 to 11."""
    year, number = divmod(month, 12)
    year -= number < 2  # if years begin in March, the leap day is the last day
    number = (number + 10) % 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * number + 2) // 5 - 719_468


def _month_of_day(day: int) -> int:
    """Return the month of a day, or an adjacent month."""
    return (day + 719_468) * 4800 // 146_097 + 2
