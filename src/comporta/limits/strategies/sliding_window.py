"""Sliding window: no interval as long as the window contains more than ``capacity`` grants.

The state is a log of grants and their times, and each entry costs 12 bytes. Up to a capacity of 257 the log
is exact. Above that, grants in the same 1/256 of the window share an entry that counts from the *last* of
them, so the window never grants too much, and at most 0.4 % too little. A limit that is raised at run time
keeps the size of its log (at least 36 entries, which grant at most 2.8 % too little).

Lua version: ``sliding_window.lua``, ``sliding_window_lease.lua``, ``sliding_window_settle.lua``.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from comporta.clock import to_us
from comporta.limits.strategies.base import (
    STATE_TTL_US_MIN,
    EndedLease,
    LeaseGrant,
    LimitParams,
    LimitUsage,
    ceil_div,
)
from comporta.limits.strategies.recent_traffic import (
    COUNT_MAX,
    NO_PAST,
    SLICE_US,
    recent_count,
    shift_past,
    subtract_released,
)
from comporta.limits.strategies.window import LEASE_DIVISOR, WindowStrategy
from comporta.stores.base import PINNED_US, State
from comporta.stores.lua import lua

if TYPE_CHECKING:
    from comporta.limits.config import LimitConfig

ENTRIES_MIN = 36
ENTRIES_MAX = 257
_ENTRY = Struct("<qI")
_HEAD = Struct("<qqI16sH")


class LogCodec:
    """Lays out a sliding window's state: a head of fixed size, then the log."""

    __slots__ = ("size",)

    def __init__(self, entries_max: int) -> None:
        self.size = _HEAD.size + entries_max * _ENTRY.size

    @staticmethod
    def pack(*state: Any) -> bytes:
        """Return the head and the log: 50 bytes after the first grant, 12 more for each further entry."""
        *head, log = state
        return _HEAD.pack(*head, len(log)) + bytes(log)

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        """Read what ``pack`` returned."""
        *head, length = _HEAD.unpack_from(buffer, offset)
        start = offset + _HEAD.size
        return (*head, bytes(buffer[start : start + length]))


class SlidingWindowStrategy(WindowStrategy):
    """At most ``capacity`` units in any interval of ``window_us``.

    State: units in the log, last change, units granted in this slice, past slices, the log.
    """

    __slots__ = ("capacity", "codec", "entries", "grain_us", "params", "pinned_ttl_us", "ttl_us", "window_us")

    name = "sliding_window"
    short_name = "sliding"
    codec: LogCodec

    def __init__(
        self, capacity: int, window_us: int, entries: int | None = None, grain_us_min: int = 1
    ) -> None:
        self.capacity = capacity
        self.window_us = window_us
        self.entries = entries or min(max(capacity, ENTRIES_MIN), ENTRIES_MAX)
        # a window overlaps at most one more cell of the time grid than its length in grains
        exact = capacity <= self.entries
        self.grain_us = max(grain_us_min, 1 if exact else ceil_div(window_us, self.entries - 1))
        self.codec = LogCodec(self.entries)
        self.ttl_us = max(STATE_TTL_US_MIN, window_us)
        self.pinned_ttl_us = self.ttl_us + PINNED_US
        self.params = LimitParams(capacity, 0, self.grain_us, window_us)

    @classmethod
    def from_config(cls, config: LimitConfig) -> SlidingWindowStrategy:
        """Return the strategy with the numbers of a configuration.

        A worker may use leased units later, within half of the lease. The window is longer by the whole
        lease, so that it counts those units long enough.
        """
        return cls(config.capacity, to_us(config.window or 0) + cls.lease_us(config))

    @staticmethod
    def lua() -> str:
        """Return the Lua version."""
        return lua("limits/strategies/sliding_window")

    @staticmethod
    def settle_lua() -> str:
        """Return the Lua version of ``settle``."""
        return lua("limits/strategies/sliding_window_settle")

    @staticmethod
    def lease_lua() -> str:
        """Return the Lua version of the leases."""
        return lua("limits/strategies/sliding_window_lease")

    def with_params(self, params: LimitParams) -> SlidingWindowStrategy:
        """Return the strategy with other parameters; its log keeps its size and gets no finer grain."""
        return type(self)(params.capacity, params.window_us, self.entries, params.unit)

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Add ``cost`` to the log if it fits.

        A cost above the capacity, which an override can cause, needs an empty log.
        """
        if state is None:
            state = (0, now_us, 0, NO_PAST, b"")
        _, last_us, count, past, _ = state
        used, log = self._live_log(state, now_us)
        if used and used + cost > self.capacity and max_wait_us >= 0:
            wait_us = self._room_at_us(log, used + cost - self.capacity) - now_us
            if now_us >= last_us:
                return None, wait_us
            cost = 0  # the clock went back: store the log at the new time and take nothing
        else:
            wait_us = 0
            log = self._append_entry(log, now_us, cost)
        if now_us ^ last_us >= SLICE_US:
            past, count = shift_past(past, count, last_us, now_us), 0
        return (used + cost, now_us, count + cost, past, log), wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Remove the newest units from the log: the units taken last are released first."""
        _, last_us, count, past, _ = state
        used, log = self._live_log(state, now_us)
        left = cost
        while left and log:
            at_us, units = _ENTRY.unpack_from(log, len(log) - _ENTRY.size)
            log = log[: -_ENTRY.size]
            if units > left:
                log += _ENTRY.pack(at_us, units - left)
            left -= min(units, left)
        count, past = subtract_released(past, count, last_us, now_us, cost)
        return (used - cost + left, now_us, count, past, log)

    def settle(self, state: State | None, now_us: int, amount: int, age_us: int) -> State | None:
        """Change the entry of the call, so that its real cost counts from the time of the grant.

        A credit that is larger than the entry continues with older entries. A debit of a call whose entry has
        left the window counts from now on.
        """
        if state is None:
            return super().settle(state, now_us, amount, age_us)
        used, log = self._live_log(state, now_us)
        if amount < 0:
            log, amount = self._credit_entries(log, now_us - age_us, amount)
        else:
            amount = max(0, min(amount, self.debit_max(used)))
            log = self._debit_entry(log, now_us, amount, age_us)
        if not amount:
            return None
        _, last_us, count, past, _ = state
        count, past = subtract_released(past, count, last_us, now_us, -amount)
        return (used + amount, now_us, min(count, COUNT_MAX), past, log)

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return what still fits and when the log will be empty."""
        if state is None:
            return LimitUsage(self.capacity, 0, 0)
        _, last_us, count, past, _ = state
        used, log = self._live_log(state, now_us)
        newest_us = _ENTRY.unpack_from(log, len(log) - _ENTRY.size)[0] if log else 0
        return LimitUsage(
            max(0, self.capacity - used),
            newest_us + self.window_us - now_us if log else 0,
            recent_count(past, count, last_us, now_us),
        )

    def expires_us(self, state: State) -> int:
        """Return when the log is empty: one window after its last entry."""
        return int(state[1]) + self.ttl_us

    def retention_us(self, state: State) -> int:
        """Return the same time; a window that is used up is pinned."""
        used_up = state[0] >= self.capacity
        retention_us: int = state[1] + (self.pinned_ttl_us if used_up else self.ttl_us)
        return retention_us

    def used_units(self, state: State, now_us: int) -> int:
        """Return the units in the window."""
        return self._live_log(state, now_us)[0]

    def outage_share(self, worker_count: int, since_us: int) -> tuple[SlidingWindowStrategy, State]:
        """Return a window with a part of the capacity, and with the length that keeps the rate exact.

        Its log starts as if it had been used up evenly, so that capacity becomes available gradually.
        """
        part = ceil_div(self.capacity, worker_count)
        share = SlidingWindowStrategy(part, ceil_div(self.window_us * part * worker_count, self.capacity))
        return share, evenly_used_state(share, since_us)

    def grant_lease(self, state: State, now_us: int, amount: int, ttl_us: int) -> LeaseGrant:
        """Grant a lease; its id is the time of the grant."""
        return LeaseGrant(state, min(ttl_us, self._lease_us_max), now_us)

    def return_lease(self, state: State, now_us: int, ended: EndedLease, ttl_us: int) -> State | None:
        """Remove the newest units instead of the lease's units, which are only slightly older."""
        if not 0 <= now_us - ended.lease_id <= min(ttl_us, self._lease_us_max):
            return None
        return self.release(state, now_us, ended.unused)

    @property
    def _lease_us_max(self) -> int:
        """The longest time for which a unit may be used after it was added to the log.

        The window of a limit with leases is longer than the configured one by at most ``1 / LEASE_DIVISOR``.
        That is twice this time: once for units that are used late, once for entries removed in place of older
        ones.
        """
        return self.window_us // (2 * (LEASE_DIVISOR + 1))

    def _live_log(self, state: State, now_us: int) -> tuple[int, bytes]:
        """Return the units and the log without entries that have left the window; none is in the future."""
        used, last_us, _, _, log = state
        if last_us > now_us:
            log = b"".join(_ENTRY.pack(min(at_us, now_us), units) for at_us, units in _ENTRY.iter_unpack(log))
        gone = 0
        while gone < len(log):
            at_us, units = _ENTRY.unpack_from(log, gone)
            if at_us + self.window_us > now_us:
                break
            used -= units
            gone += _ENTRY.size
        return used, log[gone:] if gone else log

    def _room_at_us(self, log: bytes, missing: int) -> int:
        """Return when ``missing`` units will have left the window, or all of them if there are fewer."""
        leaves_us = 0
        for at_us, units in _ENTRY.iter_unpack(log):
            leaves_us = at_us + self.window_us
            missing -= units
            if missing <= 0:
                break
        return leaves_us

    def _entry_offset(self, log: bytes, granted_us: int) -> int:
        """Return the offset of the newest entry that is not in a later time grain; -1 if there is none."""
        offset = len(log) - _ENTRY.size
        while offset >= 0:
            if _ENTRY.unpack_from(log, offset)[0] // self.grain_us <= granted_us // self.grain_us:
                return offset
            offset -= _ENTRY.size
        return -1

    def _debit_entry(self, log: bytes, now_us: int, amount: int, age_us: int) -> bytes:
        """Return the log after a debit of a call that was granted ``age_us`` ago."""
        if not log or age_us >= self.window_us:
            return self._append_entry(log, now_us, amount)
        return _with_units(log, max(0, self._entry_offset(log, now_us - age_us)), amount)

    def _credit_entries(self, log: bytes, granted_us: int, amount: int) -> tuple[bytes, int]:
        """Return the log after a credit, which is below 0, and how much of it could be credited."""
        offset, left = self._entry_offset(log, granted_us), -amount
        while left and offset >= 0:
            credited = min(left, _ENTRY.unpack_from(log, offset)[1])
            log, left, offset = _with_units(log, offset, -credited), left - credited, offset - _ENTRY.size
        while log and not _ENTRY.unpack_from(log, len(log) - _ENTRY.size)[1]:
            log = log[: -_ENTRY.size]
        return log, amount + left

    def _append_entry(self, log: bytes, now_us: int, cost: int) -> bytes:
        if log:
            at_us, units = _ENTRY.unpack_from(log, len(log) - _ENTRY.size)
            # the log can be full only after its limit was raised; then grants share its last entry
            is_full = len(log) >= self.entries * _ENTRY.size
            if is_full or at_us // self.grain_us == now_us // self.grain_us:
                return log[: -_ENTRY.size] + _ENTRY.pack(now_us, units + cost)
        return log + _ENTRY.pack(now_us, cost)


def _with_units(log: bytes, offset: int, more: int) -> bytes:
    """Return the log with ``more`` units, or fewer, in the entry at an offset."""
    at_us, units = _ENTRY.unpack_from(log, offset)
    return log[:offset] + _ENTRY.pack(at_us, units + more) + log[offset + _ENTRY.size :]


def evenly_used_state(window: SlidingWindowStrategy, now_us: int) -> State:
    """Return the state of a window that was used up evenly until ``now_us``."""
    entries = min(window.capacity, window.entries)
    log, added = b"", 0
    for number in range(1, entries + 1):
        units = window.capacity * number // entries - added
        added += units
        log += _ENTRY.pack(now_us - window.window_us + window.window_us * number // entries, units)
    return (window.capacity, now_us, 0, NO_PAST, log)
