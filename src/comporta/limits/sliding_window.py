"""Sliding window: in no interval as long as the window is more than ``capacity`` granted.

The state is a log of what was granted when, so its size is its cost: 12 bytes for each entry. Up to a
capacity of 257 the log is exact. Above, grants in the same 1/256 of the window share an entry that
counts from the *last* of them: never too much, and at most 0.4 % too little. A limit raised while it
runs keeps the log it has (36 entries at least: at most 2.8 % too little).

Twin: ``sliding_window.lua``.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from comporta.limits.in_force import revised
from comporta.limits.rule import KEPT_AT_LEAST_US, Ended, Lent, Numbers, View, ceil_div
from comporta.limits.traffic import NO_PAST, SLICE_BITS, recent, returned, shifted
from comporta.stores.base import State

ENTRIES_MIN = 36
ENTRIES_MAX = 257
LEASE_PART = 100
"""A lease may live for this part of a window, and be as large: so much less than the limit is granted."""

_ENTRY = Struct("<qI")
_HEAD = Struct("<qqI16sH")


class LogCodec:
    """Lays out a sliding window's state: a head of fixed size, then the log."""

    __slots__ = ("size",)

    def __init__(self, entries_max: int) -> None:
        self.size = _HEAD.size + entries_max * _ENTRY.size

    @staticmethod
    def pack_into(buffer: Any, offset: int, /, *state: Any) -> None:
        """Write the head and as much log as there is."""
        log = state[4]
        _HEAD.pack_into(buffer, offset, *state[:4], len(log))
        start = offset + _HEAD.size
        buffer[start : start + len(log)] = log

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        """Read what was written."""
        *head, length = _HEAD.unpack_from(buffer, offset)
        start = offset + _HEAD.size
        return (*head, bytes(buffer[start : start + length]))


class SlidingWindow:
    """At most ``capacity`` units in any interval of ``window_us``.

    State: units in the log, last change, units granted in this slice, slices before, the log.
    """

    __slots__ = ("capacity", "codec", "entries", "grain_us", "numbers", "ttl_us", "window_us")

    code = 4

    def __init__(self, capacity: int, window_us: int, entries: int | None = None) -> None:
        self.capacity = capacity
        self.window_us = window_us
        self.entries = entries or min(max(capacity, ENTRIES_MIN), ENTRIES_MAX)
        # a window spans at most one cell of the time grid more than it is grains long
        exact = capacity <= self.entries
        self.grain_us = 1 if exact else ceil_div(window_us, self.entries - 1)
        self.codec = LogCodec(self.entries)
        self.ttl_us = max(KEPT_AT_LEAST_US, window_us)
        self.numbers = Numbers(capacity, 0, self.grain_us, window_us)

    def changed(self, numbers: Numbers) -> SlidingWindow:
        """Return the rule with other numbers; its log keeps the size it has room for."""
        return SlidingWindow(numbers.capacity, numbers.window_us, self.entries)

    def revised(self, change: bytes | None) -> Any:
        """Return the rule under what is recorded."""
        return revised(self, change)

    def at(self, now_us: int) -> tuple[SlidingWindow, int, int]:
        """It is the same at all times."""
        return self, 0, self.capacity

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Enter ``cost`` into the log if it fits.

        A cost above the capacity (possible only after the limit was lowered) needs an empty log.
        """
        if state is None:
            state = (0, now_us, 0, NO_PAST, b"")
        _, last_us, count, past, _ = state
        used, log = self._current(state, now_us)
        if used and used + cost > self.capacity and patience_us >= 0:
            wait_us = self._room_at(log, used + cost - self.capacity) - now_us
            if now_us >= last_us:
                return None, wait_us
            cost = 0  # the clock went back: anchor the log to the new time, taking nothing
        else:
            wait_us = 0
            log = self._entered(log, now_us, cost)
        if (now_us ^ last_us) >> SLICE_BITS:
            past, count = shifted(past, count, last_us, now_us), 0
        return (used + cost, now_us, count + cost, past, log), wait_us

    def give(self, state: State, now_us: int, cost: int) -> State:
        """Strike the newest entries: what was taken last is what is given back."""
        _, last_us, count, past, _ = state
        used, log = self._current(state, now_us)
        left = cost
        while left and log:
            at_us, units = _ENTRY.unpack_from(log, len(log) - _ENTRY.size)
            log = log[: -_ENTRY.size]
            if units > left:
                log += _ENTRY.pack(at_us, units - left)
            left -= min(units, left)
        count, past = returned(past, count, last_us, now_us, cost)
        return (used - cost + left, now_us, count, past, log)

    def lend(self, state: State, now_us: int, amount: int, life_us: int) -> Lent:
        """A lease is called by its moment."""
        return Lent(state, min(life_us, self._life_us_max), now_us)

    def take_back(self, state: State, now_us: int, ended: Ended, life_us: int) -> State | None:
        """Strike the newest entries in place of those of the lease, which are not much older."""
        if not 0 <= now_us - ended.name <= min(life_us, self._life_us_max):
            return None
        return self.give(state, now_us, ended.unused)

    def view(self, state: State | None, now_us: int) -> View:
        """Tell what still fits, and when the log will be empty."""
        if state is None:
            return View(self.capacity, 0, 0)
        _, last_us, count, past, _ = state
        used, log = self._current(state, now_us)
        newest_us = _ENTRY.unpack_from(log, len(log) - _ENTRY.size)[0] if log else 0
        return View(
            max(0, self.capacity - used),
            newest_us + self.window_us - now_us if log else 0,
            recent(past, count, last_us, now_us),
        )

    def expires_us(self, state: State) -> int:
        """A window after its last entry a log is empty."""
        return int(state[1]) + self.ttl_us

    @property
    def _life_us_max(self) -> int:
        """How long after it was entered a unit may be used.

        The window of a limit that lends is longer than what it promises by ``LEASE_PART`` at the most, which
        is twice this: once for units that are used late, once for entries struck in place of older ones.
        """
        return self.window_us // (2 * (LEASE_PART + 1))

    def used(self, state: State, now_us: int) -> int:
        """Return the units in the window."""
        return self._current(state, now_us)[0]

    def _current(self, state: State, now_us: int) -> tuple[int, bytes]:
        """Return the units and the log without what has left the window, anchored to ``now_us``."""
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

    def _room_at(self, log: bytes, missing: int) -> int:
        """Return when ``missing`` units will have left the window, or all of them if that is less."""
        leaves_us = 0
        for at_us, units in _ENTRY.iter_unpack(log):
            leaves_us = at_us + self.window_us
            missing -= units
            if missing <= 0:
                break
        return leaves_us

    def _entered(self, log: bytes, now_us: int, cost: int) -> bytes:
        if log:
            at_us, units = _ENTRY.unpack_from(log, len(log) - _ENTRY.size)
            # the log can be full only after its limit was raised: then entries are as coarse as it needs
            full = len(log) >= self.entries * _ENTRY.size
            if full or at_us // self.grain_us == now_us // self.grain_us:
                return log[: -_ENTRY.size] + _ENTRY.pack(now_us, units + cost)
        return log + _ENTRY.pack(now_us, cost)


def evenly_used(window: SlidingWindow, now_us: int) -> State:
    """Return the state of a window that was used up evenly until ``now_us``: it opens bit by bit."""
    entries = min(window.capacity, window.entries)
    log, entered = b"", 0
    for number in range(1, entries + 1):
        units = window.capacity * number // entries - entered
        entered += units
        log += _ENTRY.pack(now_us - window.window_us + window.window_us * number // entries, units)
    return (window.capacity, now_us, 0, NO_PAST, log)
