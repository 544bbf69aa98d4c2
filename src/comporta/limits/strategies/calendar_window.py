"""Calendar window: ``capacity`` per day or month of a time zone, such as 1000 a day from midnight.

Unlike a fixed window, it begins at the same moment for every key. As with a fixed window, two full windows
may adjoin. There is one strategy for each schedule; its name contains the schedule, such as
``day_at_0000_america_sao_paulo``.

A server decides by its own clock. A store of this process or machine steps by a monotonic clock, to which the
strategy adds the difference to Unix time at that moment. Setting the clock back over a boundary does not
reopen the ended window, and setting it back further keeps the count.

Lua version: ``calendar_window.lua``, ``calendar_window_lease.lua``, ``calendar_window_settle.lua``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING

from comporta.clock import SECOND_US
from comporta.limits.strategies.base import (
    STATE_TTL_US_MIN,
    EndedLease,
    LeaseGrant,
    LimitParams,
    LimitUsage,
)
from comporta.limits.strategies.counted_window import CountedWindowStrategy
from comporta.limits.strategies.recent_traffic import (
    NO_PAST,
    SLICE_US,
    recent_count,
    shift_past,
    subtract_released,
)
from comporta.limits.strategies.schedule import PERIODS, Schedule, parse_schedule, schedule_of_name
from comporta.stores.base import PINNED_US, State
from comporta.stores.lua import lua

if TYPE_CHECKING:
    from comporta.clock import Clock
    from comporta.limits.config import LimitConfig


def _no_offset() -> int:
    return 0


class CalendarWindowStrategy(CountedWindowStrategy):
    """``capacity`` units in each window of a schedule; a subclass for each schedule.

    State: units used in the window, its start (Unix time), its end and the last change (by the store's
    clock), units granted in this slice, past slices. ``unix_offset_us`` returns what to add to the store's
    clock.
    """

    __slots__ = ("_unix_offset_us", "_window", "capacity", "params")

    codec = Struct("<qqqqI16s")
    schedule: Schedule

    def __init__(self, capacity: int, unix_offset_us: Callable[[], int] = _no_offset) -> None:
        self.capacity = capacity
        self.params = LimitParams(capacity, 0, 0, PERIODS[self.schedule.period] * SECOND_US)
        self._unix_offset_us = unix_offset_us
        self._window = (0, 0)

    @classmethod
    def from_config(cls, config: LimitConfig) -> CalendarWindowStrategy:
        """Return the strategy with the numbers of a configuration."""
        return cls(config.capacity)

    @classmethod
    def check_config(cls, config: LimitConfig) -> None:
        """Raise ``ValueError`` for a window of another length than the schedule's nominal one."""
        length = PERIODS[cls.schedule.period]
        if config.window != length:
            raise ValueError(f"window of {cls.name} must be {length} seconds, got {config.window}")

    @classmethod
    def limit_text(cls, config: LimitConfig) -> str:
        """Return the limit as people write it."""
        schedule = cls.schedule
        return f"{config.capacity}/{schedule.period} at {schedule.time_text} {schedule.zone}"

    @classmethod
    def lua(cls) -> str:
        """Return the Lua version, with the schedule as a table."""
        schedule = cls.schedule
        changes = ", ".join(f"{change.at_s}, {change.offset_s}" for change in schedule.changes)
        is_month = "true" if schedule.period == "month" else "false"
        table = f"local CALENDAR = {{time_s = {schedule.time_s}, is_month = {is_month}, {changes}}}"
        return f"{table}\n{lua('limits/strategies/calendar_window')}\nlocal {cls.name} = calendar_window"

    @staticmethod
    def settle_lua() -> str:
        """Return the Lua version of ``settle``."""
        return lua("limits/strategies/calendar_window_settle")

    @staticmethod
    def lease_lua() -> str:
        """Return the Lua version of the leases."""
        return lua("limits/strategies/calendar_window_lease")

    def on_clock(self, clock: Clock) -> CalendarWindowStrategy:
        """Return the strategy for states whose times come from a clock of this process."""
        return type(self)(self.capacity, clock.unix_offset_us)

    def with_params(self, params: LimitParams) -> CalendarWindowStrategy:
        """Return the strategy with another capacity; the windows stay as they are."""
        return type(self)(params.capacity, self._unix_offset_us)

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Count ``cost`` into the window if it fits.

        A cost above the capacity, which an override can cause, needs an empty window.
        """
        used, start_us, ends_us = self._current_window(state, now_us)
        _, _, _, last_us, count, past = state or (0, 0, 0, now_us, 0, NO_PAST)
        wait_us = 0
        if used and used + cost > self.capacity and max_wait_us >= 0:
            wait_us = ends_us - now_us
            if now_us >= last_us:
                return None, wait_us
            cost = 0  # the clock went back: store the state at the new time and take nothing
        if now_us ^ last_us >= SLICE_US:
            past, count = shift_past(past, count, last_us, now_us), 0
        return (used + cost, start_us, ends_us, now_us, count + cost, past), wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Subtract ``cost`` from the count if the window it was counted into has not ended."""
        used, start_us, ends_us = self._current_window(state, now_us)
        _, _, _, last_us, count, past = state
        traffic = subtract_released(past, count, last_us, now_us, cost)
        return (max(0, used - cost), start_us, ends_us, now_us, *traffic)

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return what is left in the window and when the window ends."""
        if state is None:
            return LimitUsage(self.capacity, 0, 0)
        _, _, _, last_us, count, past = state
        used, _, ends_us = self._current_window(state, now_us)
        return LimitUsage(
            max(0, self.capacity - used),
            ends_us - now_us if used else 0,
            recent_count(past, count, last_us, now_us),
        )

    def pace_us(self, units: int) -> int:
        """Return the least time until some units fit: all windows that must end before that, less the first.

        The shortest month has 28 days, and a day of a clock change 23 hours.
        """
        return (units - 1) // self.capacity * self.params.window_us * 9 // 10

    def expires_us(self, state: State) -> int:
        """Return when the window ends, or when the last minute's grants are a minute old."""
        return max(int(state[2]), int(state[3]) + STATE_TTL_US_MIN)

    def retention_us(self, state: State) -> int:
        """Return the same time; a window that is used up is pinned."""
        return self.expires_us(state) + (PINNED_US if state[0] >= self.capacity else 0)

    def grant_lease(self, state: State, now_us: int, amount: int, ttl_us: int) -> LeaseGrant:
        """Grant a lease that ends no later than its window; its id is the start of the window."""
        return LeaseGrant(state, min(ttl_us, state[2] - now_us), state[1])

    def return_lease(self, state: State, now_us: int, ended: EndedLease, ttl_us: int) -> State | None:
        """Subtract the unused units from the count if the window they were counted into has not ended."""
        if state[1] != ended.lease_id or self._current_window(state, now_us)[1] != ended.lease_id:
            return None
        return self.release(state, now_us, ended.unused)

    def _is_in_window(self, state: State, now_us: int, age_us: int) -> bool:
        """Whether the state and a grant that is ``age_us`` old both belong to the current window."""
        start_us = self._current_window(state, now_us)[1]
        return state[1] == start_us and now_us + self._unix_offset_us() - age_us >= start_us

    def _current_window(self, state: State | None, now_us: int) -> tuple[int, int, int]:
        """Return the units used in the current window, its start (Unix time) and its end (store's clock)."""
        offset_us = self._unix_offset_us()
        unix_us = now_us + offset_us
        start_us, end_us = self._window
        if not start_us <= unix_us < end_us:
            self._window = start_us, end_us = self._window_at(unix_us)
        used = 0
        if state is not None and state[1] >= start_us:
            used = state[0]
            if state[1] == end_us:  # the clock was set back over the boundary: the new window continues
                start_us, end_us = self._window_at(end_us)
        return used, start_us, end_us - offset_us

    def _window_at(self, unix_us: int) -> tuple[int, int]:
        start_s, end_s = self.schedule.window(unix_us // SECOND_US)
        return start_s * SECOND_US, end_s * SECOND_US


def calendar_strategy(period: str, time: str, zone: str) -> type[CalendarWindowStrategy]:
    """Return the strategy of a schedule; ``ValueError`` says what is invalid."""
    return _strategy_of(parse_schedule(period, time, zone))


def calendar_strategy_of_name(name: str) -> type[CalendarWindowStrategy] | None:
    """Return the strategy that a name such as ``day_at_0000_utc`` describes; ``None`` if there is none."""
    schedule = schedule_of_name(name)
    return None if schedule is None else _strategy_of(schedule)


@cache
def _strategy_of(schedule: Schedule) -> type[CalendarWindowStrategy]:
    members = {"name": schedule.name, "schedule": schedule, "__slots__": (), "__module__": __name__}
    return type("CalendarWindowStrategy", (CalendarWindowStrategy,), members)
