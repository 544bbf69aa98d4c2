"""Token bucket: a rate, and a burst that accumulates while nothing is taken.

With leases, the tokens in the bucket and the leased tokens together never exceed the capacity. A worker may
use leased tokens some time after they left the bucket. If the bucket had refilled to its full capacity by
then, both together would exceed one burst. The state of a bucket with leases therefore keeps a *ledger* of
leased tokens, and the bucket fills only as far as the ledger leaves room.

Entries of the ledger expire by themselves, because workers may die: time is divided into slices of the length
for which a lease may be used, and the ledger holds what was leased in the current slice and in the slice
before. A lease therefore stays on the ledger until no worker can use it any more, and for at most twice that
time. The leased bucket is a separate class so that plain buckets stay small and fast.

Lua version: ``token_bucket.lua``, ``token_bucket_lease.lua``.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from comporta.clock import SECOND_US
from comporta.limits.strategies.base import (
    CHARGE,
    EndedLease,
    LeaseGrant,
    LimitParams,
    LimitUsage,
    ceil_div,
    rescale_level,
)
from comporta.limits.strategies.bucket import BucketStrategy, exact_rate
from comporta.limits.strategies.recent_traffic import (
    NO_PAST,
    SLICE_US,
    recent_count,
    shift_past,
    subtract_released,
)
from comporta.stores.base import State
from comporta.stores.lua import lua
from comporta.stores.records import NEVER_US

if TYPE_CHECKING:
    from comporta.limits.config import LimitConfig


class TokenBucketStrategy(BucketStrategy):
    """At most ``capacity`` tokens, refilled at the rate; the level is the content of the bucket."""

    __slots__ = ()

    name = "token_bucket"
    short_name = "token"

    @classmethod
    def from_config(cls, config: LimitConfig) -> TokenBucketStrategy:
        """Return the strategy with the numbers of a configuration, with a ledger if it has leases."""
        per_us, unit = exact_rate(config.rate, config.capacity)
        if config.lease is False:
            return cls(config.capacity, per_us, unit)
        return LeasedTokenBucketStrategy(config.capacity, per_us, unit, cls.lease_us(config) // 2)

    @staticmethod
    def lua() -> str:
        """Return the Lua version."""
        return lua("limits/strategies/token_bucket")

    @staticmethod
    def acquire_lua() -> str:
        """Return the Lua version of the most frequent decision."""
        return lua("limits/strategies/token_bucket_acquire")

    @staticmethod
    def lease_lua() -> str:
        """Return the Lua version of the leases."""
        return lua("limits/strategies/token_bucket_lease")

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Take ``cost`` tokens if the bucket holds them.

        A cost above the capacity, which an override can cause, needs a full bucket and leaves a debt, so that
        its wait corresponds to its cost and is not endless.
        """
        full, per_us, own_unit = self.full, self.per_us, self.unit
        if state is None:
            state = (full, now_us, own_unit, 0, NO_PAST)
        level, last_us, unit, count, past = state
        if unit is not own_unit and unit != own_unit:  # nearly always the same object, on memory://
            level = rescale_level(level, unit, own_unit)
        if now_us > last_us:
            level += (now_us - last_us) * per_us
        if level > full:
            level = full
        need = cost * own_unit
        wait_us = 0
        if level < need and level < full and max_wait_us >= 0:
            wait_us = -((level - (min(full, need))) // per_us)
            if now_us >= last_us:
                return None, wait_us
            need = cost = 0  # the clock went back: store the state at the new time and take nothing
        if now_us ^ last_us >= SLICE_US:
            past, count = shift_past(past, count, last_us, now_us), 0
        if max_wait_us and max_wait_us == CHARGE:
            need = min(need, max(0, level + SECOND_US * per_us))
        return (level - need, now_us, own_unit, count + cost, past), wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Put tokens back; the bucket never holds more than its capacity."""
        _, last_us, _, count, past = state
        level = min(self.full, self._level(state, now_us) + cost * self.unit)
        return (level, now_us, self.unit, *subtract_released(past, count, last_us, now_us, cost))

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return the whole tokens in the bucket and when it will be full."""
        if state is None:
            return LimitUsage(self.capacity, 0, 0)
        _, last_us, _, count, past = state
        return LimitUsage(*self.available(state, now_us), recent_count(past, count, last_us, now_us))

    def available(self, state: State | None, now_us: int) -> tuple[int, int]:
        """Return the whole tokens in the bucket and when it will be full."""
        if state is None:
            return self.capacity, 0
        level, last_us, unit = state[:3]  # as _level() does, without its calls: every whole decision needs it
        if unit != self.unit:
            level = rescale_level(level, unit, self.unit)
        if now_us > last_us:
            level += (now_us - last_us) * self.per_us
        if level > self.full:
            level = self.full
        return (level // self.unit if level > 0 else 0), -((level - self.full) // self.per_us)

    def expires_us(self, state: State) -> int:
        """Return when the bucket is full again, which is equivalent to never used."""
        if state[0] >= 0:  # without debt, nearly always: stores call this for every grant
            return int(state[1]) + self.ttl_us
        return super().expires_us(state)

    def debt(self, level: int) -> int:
        """Return how far a level is below an empty bucket."""
        return -level

    def used_units(self, state: State, now_us: int) -> int:
        """Return the tokens that the rate has not refilled yet, debt included."""
        return ceil_div(self.full - self._level(state, now_us), self.unit)

    def outage_share(self, worker_count: int, since_us: int) -> tuple[TokenBucketStrategy, State]:
        """Return an empty bucket with a part of the rate and the capacity."""
        unit = self.unit * worker_count
        share = TokenBucketStrategy(max(1, self.capacity // worker_count), self.per_us, unit)
        return share, (0, since_us, unit, 0, NO_PAST)

    def _level(self, state: State, now_us: int) -> int:
        level = rescale_level(state[0], state[2], self.unit)
        since_us: int = max(0, now_us - state[1])
        return min(self.full, level + since_us * self.per_us)


class LeaseLedger(NamedTuple):
    """The tokens leased in the slice with this number, and in the slice before it."""

    slice_number: int
    current: int
    before: int


class LeasedTokenBucketStrategy(TokenBucketStrategy):
    """At most ``capacity`` tokens in total, in the bucket and leased.

    State: the state of a bucket, then the three numbers of the ledger.
    """

    __slots__ = ("slice_us",)

    # starts like the state of a plain bucket: programs with and without leases can share a state
    codec = Struct("<qqqI16sqII")

    def __init__(self, capacity: int, per_us: int, unit: int, slice_us: int) -> None:
        super().__init__(capacity, per_us, unit)
        self.slice_us = slice_us
        self.params = LimitParams(capacity, per_us, unit, slice_us)

    def with_params(self, params: LimitParams) -> LeasedTokenBucketStrategy:
        """Return the strategy with other parameters; a program without leases gives no slice."""
        capacity, per_us, unit, slice_us = params
        return LeasedTokenBucketStrategy(capacity, per_us, unit, slice_us or self.slice_us)

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Take ``cost`` tokens if the bucket holds them, as a plain bucket does."""
        if state is None:
            state = (self.full, now_us, self.unit, 0, NO_PAST, *LeaseLedger(0, 0, 0))
        _, last_us, _, count, past, *ledger = state
        level = self._level(state, now_us)
        need, wait_us = cost * self.unit, 0
        if level < need and level < self.full and max_wait_us >= 0:
            wait_us = self._wait_us(level, min(need, self.full), now_us, LeaseLedger(*ledger))
            if now_us >= last_us:
                return None, wait_us
            need = cost = 0  # the clock went back: store the state at the new time and take nothing
        if now_us ^ last_us >= SLICE_US:
            past, count = shift_past(past, count, last_us, now_us), 0
        if max_wait_us == CHARGE:
            need = min(need, max(0, level + SECOND_US * self.per_us))
        return (level - need, now_us, self.unit, count + cost, past, *ledger), wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Put tokens back, as far as the ledger leaves room."""
        _, last_us, _, count, past, *ledger = state
        room = self.available_capacity(state, now_us) * self.unit
        level = min(room, self._level(state, now_us) + cost * self.unit)
        traffic = subtract_released(past, count, last_us, now_us, cost)
        return (level, now_us, self.unit, *traffic, *ledger)

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return the whole tokens in the bucket, without leased ones, and when the bucket will be full."""
        if state is None:
            return LimitUsage(self.capacity, 0, 0)
        _, last_us, _, count, past, *_ = state
        return LimitUsage(*self.available(state, now_us), recent_count(past, count, last_us, now_us))

    def available(self, state: State | None, now_us: int) -> tuple[int, int]:
        """Return the same without the traffic of the last minute."""
        if state is None:
            return self.capacity, 0
        level = self._level(state, now_us)
        return max(0, level // self.unit), self._wait_us(level, self.full, now_us, LeaseLedger(*state[5:]))

    def available_capacity(self, state: State | None, now_us: int) -> int:
        """Return the capacity without the tokens on the ledger."""
        if state is None:
            return self.capacity
        ledger = self._ledger_at(LeaseLedger(*state[5:]), now_us)
        return max(0, self.capacity - ledger.current - ledger.before)

    def lease_size_max(self, worker_count: int) -> int:
        """Return the most tokens that one worker may lease, so that all together lease half the capacity."""
        return self.capacity // (2 * worker_count)

    def grant_lease(self, state: State, now_us: int, amount: int, ttl_us: int) -> LeaseGrant:
        """Add tokens that were just taken to the ledger; the holder may use them for one slice's time."""
        number, current, before = self._ledger_at(LeaseLedger(*state[5:]), now_us)
        if amount:
            state = (*state[:5], number, current + amount, before)
        return LeaseGrant(state, self.slice_us, number)

    def return_lease(self, state: State, now_us: int, ended: EndedLease, ttl_us: int) -> State | None:
        """Remove a lease from the ledger and put its unused tokens into the bucket.

        A lease that is no longer on the ledger has expired: the bucket has already been refilled with its
        tokens.
        """
        number, current, before = self._ledger_at(LeaseLedger(*state[5:]), now_us)
        if ended.lease_id == number:
            removed = min(ended.lent, current)
            current -= removed
        elif ended.lease_id == number - 1:
            removed = min(ended.lent, before)
            before -= removed
        else:
            return None
        _, last_us, _, count, past, *_ = state
        refilled = (self._level(state, now_us), now_us, self.unit)  # with the ledger as it was until now
        traffic = subtract_released(past, count, last_us, now_us, 0)
        without_lease = (*refilled, *traffic, number, current, before)
        return self.release(without_lease, now_us, max(0, ended.unused - (ended.lent - removed)))

    def _level(self, state: State, now_us: int) -> int:
        """Return the level, refilled only as far as each moment since the last change had room."""
        level = rescale_level(state[0], state[2], self.unit)
        since_us: int = min(state[1], now_us)
        for ends_us, room in self._room_intervals(LeaseLedger(*state[5:]), now_us):
            if since_us < ends_us:
                upto_us = min(ends_us, now_us)
                level = min(level + (upto_us - since_us) * self.per_us, room)
                since_us = upto_us
        return level

    def _wait_us(self, level: int, need: int, now_us: int, ledger: LeaseLedger) -> int:
        """Return how long until the level is ``need``, which fits once no token is leased."""
        at_us = now_us
        for ends_us, room in self._room_intervals(ledger, now_us):
            if at_us < ends_us and level < need:
                ready_us = at_us - (level - need) // self.per_us
                upto_us = min(ends_us, ready_us) if need <= room else ends_us
                level = min(level + (upto_us - at_us) * self.per_us, room)
                at_us = upto_us
        return at_us - now_us

    def _room_intervals(self, ledger: LeaseLedger, now_us: int) -> tuple[tuple[int, int], ...]:
        """Return the end of each interval of the ledger, and the level that fits into the bucket then."""
        if not ledger.current + ledger.before or ledger.slice_number > now_us // self.slice_us:
            return ((NEVER_US, self.full),)
        first_us = (ledger.slice_number + 1) * self.slice_us
        return (
            (first_us, self._room(ledger.current + ledger.before)),
            (first_us + self.slice_us, self._room(ledger.current)),
            (NEVER_US, self.full),
        )

    def _room(self, leased: int) -> int:
        return max(0, self.capacity - leased) * self.unit

    def _ledger_at(self, ledger: LeaseLedger, now_us: int) -> LeaseLedger:
        """Return the ledger as of now; empty after the clock went back: its slices cannot be placed."""
        number = now_us // self.slice_us
        if number == ledger.slice_number:
            return ledger
        return LeaseLedger(number, 0, ledger.current if number == ledger.slice_number + 1 else 0)
