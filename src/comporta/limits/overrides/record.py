"""The override record of a limit, which operators, degradation and pauses write and every decision obeys.

The record is text that people and programs can read, under ``rate_limiter_change:<name>``. It starts with the
four parameters in effect, followed by details in brackets and a note for people::

    50 1 20000 0 50/s burst 50 (token_bucket)
    40 800000 20000000000 0 [degraded to 800000 of 50 1 20000 0 ends 17 dropped 14 climbed 0] 50/s
    10 1 100000 0 [paused until 15 for 6; not set by hand]

A degradation that climbs along a curve has two additional numbers: ``climbed 0 from 1000000 since 14`` is the
share before the last drop, and the time at which the curve starts. A pause that was extended while in effect
also has its start time: ``paused until 15 for 6 since 3``.

Times are in microseconds by the clock of the store. Whatever an operator did not set ends by itself: a
degradation some time after its last step, a pause at its end. No worker has to rewrite the record then,
because a strategy made from a record (:class:`ExpiringStrategy`) knows both times.

Lua version: ``effective_params`` in ``support.lua`` reads the record, ``override.lua`` writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from comporta.limits.strategies.base import (
    EXACT_INT_MAX,
    EndedLease,
    LeaseGrant,
    LimitParams,
    LimitUsage,
    Strategy,
    ceil_div,
)
from comporta.ramp import FULL_SHARE
from comporta.stores.base import PINNED_US, Codec, State
from comporta.stores.records import VALUE_BYTES_MAX

DEGRADATION_TTL_US = 300_000_000
"""How long a degradation lasts after its last step."""

PAUSE_US_MAX = 86_400_000_000
PAUSE_SLACK_US = 60_000_000
"""How much later than its length a pause may end. Beyond that the clock was set back, and it is over."""

NOTE_BYTES_MAX = 200

_SCALE_EXACT = 10**14  # up to this value a level written in tokens is restored exactly
_SCALE_MAX = 2**52  # up to this value sums are exact in Lua

_TEXT = re.compile(rb"([1-9]\d*) (\d+) (\d+) (\d+)(?: \[(.*?)\])?(.*)", re.DOTALL)
_DEGRADED = re.compile(
    rb"degraded to (\d+) of ([1-9]\d*) (\d+) (\d+) (\d+) ends (\d+) dropped (\d+) climbed (\d+)"
    rb"(?: from (\d+) since (\d+))?"
)
_PAUSED = re.compile(rb"paused until (\d+) for (\d+)(?: since (\d+))?")
_NOT_SET_BY_OPERATOR = b"not set by hand"


@dataclass(frozen=True, slots=True)
class OverrideRecord:
    """An override record. ``base`` holds the parameters at which a degradation starts and ends.

    ``set_by_operator`` is true if an operator set the base, which then stays in effect whatever else begins
    and ends. Otherwise the base is the configuration of the writer, and only a degradation makes it apply to
    other workers. ``written_params`` are the parameters in effect as they were read. ``peak`` is the share
    before the last drop, and ``curve_start_us`` the start of the curve that leads back to it; 0 without a
    curve. ``extended_since_us`` is the start of a pause that was extended; 0 for one that was not.
    """

    base: LimitParams
    set_by_operator: bool = False
    share: int = FULL_SHARE
    degraded_until_us: int = 0
    last_drop_us: int = 0
    last_climb_us: int = 0
    paused_until_us: int = 0
    pause_length_us: int = 0
    note: bytes = b""
    written_params: LimitParams | None = None
    peak: int = 0
    curve_start_us: int = 0
    extended_since_us: int = 0

    @classmethod
    def parse(cls, text: bytes | None) -> OverrideRecord | None:
        """Parse a record; ``None`` for invalid text, because an operator may have written it by hand."""
        parts = _TEXT.match((text or b"")[:VALUE_BYTES_MAX])
        if parts is None:
            return None
        params, details, note = LimitParams(*map(int, parts.group(1, 2, 3, 4))), parts[5] or b"", parts[6]
        degraded, paused = _DEGRADED.search(details), _PAUSED.search(details)
        if degraded and int(degraded[1]) >= FULL_SHARE:
            degraded = None
        base = LimitParams(*map(int, degraded.group(2, 3, 4, 5))) if degraded else params
        if not (params.is_valid and base.is_valid):
            return None
        share, until_us, drop_us, climb_us, peak, curve_start_us = (
            (min(int(n or 0), EXACT_INT_MAX) for n in degraded.group(1, 6, 7, 8, 9, 10))
            if degraded
            else (FULL_SHARE, 0, 0, 0, 0, 0)
        )
        paused_until_us, pause_length_us, since_us = (
            (int(n or 0) for n in paused.groups()) if paused else (0, 0, 0)
        )
        return cls(
            base,
            _NOT_SET_BY_OPERATOR not in details,
            share,
            until_us,
            drop_us,
            climb_us,
            paused_until_us,
            min(pause_length_us, PAUSE_US_MAX),
            note.removeprefix(b" "),
            params,
            min(peak, FULL_SHARE),
            curve_start_us,
            min(since_us, EXACT_INT_MAX),
        )

    @property
    def params(self) -> LimitParams:
        """The parameters in effect while the degradation lasts."""
        return scale_params(self.base, self.share)

    def as_of(self, now_us: int) -> OverrideRecord:
        """Return the record without the parts that have ended."""
        record = self
        if self.share < FULL_SHARE and now_us >= self.degraded_until_us:
            record = record.without_degradation()
        if self.paused_until_us and not self.pause_left_us(now_us):
            record = record.without_pause()
        return record

    def without_degradation(self) -> OverrideRecord:
        """Return the record with the limit at its full share."""
        ended = replace(self, share=FULL_SHARE, degraded_until_us=0, last_drop_us=0, last_climb_us=0)
        return replace(ended, peak=0, curve_start_us=0)

    def without_pause(self) -> OverrideRecord:
        """Return the record without its pause."""
        return replace(self, paused_until_us=0, pause_length_us=0, extended_since_us=0)

    @property
    def pause_start_us(self) -> int:
        """The start of the pause, before any extension."""
        return self.extended_since_us or self.paused_until_us - self.pause_length_us

    def pause_left_us(self, now_us: int) -> int:
        """Return how much of the pause is left."""
        left_us = self.paused_until_us - now_us
        if left_us > self.pause_length_us + PAUSE_SLACK_US:
            return 0
        return max(0, min(left_us, self.pause_length_us))

    @property
    def has_effect(self) -> bool:
        """Whether the record changes what a worker does."""
        return bool(self.set_by_operator or self.share < FULL_SHARE or self.paused_until_us)

    @property
    def expires_us(self) -> int | None:
        """The time until which the record has an effect; ``None`` if it must not expire."""
        if self.set_by_operator:
            return None
        return max(
            self.degraded_until_us, self.paused_until_us + PAUSE_SLACK_US if self.paused_until_us else 0
        )

    def encode(self) -> bytes:
        """Return the text of the record."""
        details = []
        if self.share < FULL_SHARE:
            base = b" ".join(b"%d" % n for n in self.base)
            times = (self.degraded_until_us, self.last_drop_us, self.last_climb_us)
            curve = b" from %d since %d" % (self.peak, self.curve_start_us) if self.peak else b""
            details.append(
                b"degraded to %d of %b ends %d dropped %d climbed %d%b" % (self.share, base, *times, curve)
            )
        if self.paused_until_us:
            since = b" since %d" % self.extended_since_us if self.extended_since_us else b""
            details.append(b"paused until %d for %d%b" % (self.paused_until_us, self.pause_length_us, since))
        if not self.set_by_operator:
            details.append(_NOT_SET_BY_OPERATOR)
        params = b" ".join(b"%d" % n for n in self.params)
        brackets = [b"[%b]" % b"; ".join(details)] if details else []
        return b" ".join([params, *brackets, *([self.note[:NOTE_BYTES_MAX]] if self.note else [])])


def scale_params(base: LimitParams, share: int) -> LimitParams:
    """Return the parameters of a limit lowered to a share: burst and rate, or the capacity of a window.

    A token is divided into smaller fractions, by a power of ten, as long as a full bucket can still be
    counted. Steps of 10 % are therefore exact, unless a full bucket already has more than 2**52 / 10
    fractions. In that case, and for other shares, the rate is rounded down by less than a fraction per
    microsecond, but never to 0.
    """
    if share >= FULL_SHARE:
        return base
    capacity = max(1, base.capacity * share // FULL_SHARE)
    if not base.per_us:
        return base._replace(capacity=capacity)
    full, finer = base.capacity * base.unit, FULL_SHARE
    while finer > 1 and (full * finer > _SCALE_MAX or base.per_us * finer > _SCALE_MAX):
        finer //= 10
    while finer > 1000 and full * finer > _SCALE_EXACT:
        finer //= 10
    per_us = max(1, base.per_us * finer * share // FULL_SHARE)
    return LimitParams(capacity, per_us, base.unit * finer, base.window_us)


def one_request_share(base: LimitParams) -> int:
    """Return the share of the limit that equals one request per second, or per window for a window."""
    return ceil_div(base.unit, base.per_us) if base.per_us else ceil_div(FULL_SHARE, base.capacity)


def rate_per_second(params: LimitParams) -> float:
    """Return the rate of a limit."""
    if params.per_us:
        return params.per_us * 1e6 / params.unit
    return params.capacity * 1e6 / params.window_us


_TEXT_UNITS_US = (("s", 1_000_000), ("minute", 60_000_000), ("hour", 3_600_000_000), ("day", 86_400_000_000))


def limit_text(params: LimitParams) -> str:
    """Return a limit as people write it: ``10/s``, ``30/minute burst 5``, ``100/900 s``.

    ``LimitConfig.parse`` can read it if the rate is a whole number in some unit of time.
    """
    if not params.per_us:
        return f"{params.capacity}/{params.window_us / 1e6:g} s"
    for name, unit_us in _TEXT_UNITS_US:
        amount, rest = divmod(params.per_us * unit_us, params.unit)
        if amount and not rest:
            burst = "" if amount == params.capacity else f" burst {params.capacity}"
            return f"{amount}/{name}{burst}"
    return f"{rate_text(rate_per_second(params))}/s burst {params.capacity}"


def rate_text(rate: float) -> str:
    """Return a rate rounded for people, because a lowered limit has more digits than people need."""
    return f"{rate:.4g}" if rate < 1000 else f"{rate:.0f}"


def apply_override(strategy: Strategy, override: bytes | None) -> Strategy:
    """Return a strategy that reads this one's states and obeys the record.

    A record with parameters of another kind of limit, which an older version of the program may have set,
    applies only its pause.
    """
    record = OverrideRecord.parse(override)
    if record is None:
        return strategy
    written = record.written_params or record.base
    if not (record.base.is_compatible(strategy.params) and written.is_compatible(strategy.params)):
        record = replace(record, set_by_operator=False, share=FULL_SHARE, degraded_until_us=0)
    if record.share >= FULL_SHARE and not record.paused_until_us:
        return strategy.with_params(record.base) if record.set_by_operator else strategy
    return ExpiringStrategy(strategy, record)


def without_expiry(strategy: Strategy) -> Strategy:
    """Return the strategy in effect, for a worker that cannot read the clock by which an override ends."""
    return strategy.degraded if isinstance(strategy, ExpiringStrategy) else strategy


class ExpiringStrategy(Strategy):
    """A strategy under an override that ends: degraded until one time, paused until another."""

    __slots__ = ("base", "codec", "degraded", "name", "params", "record")

    codec: Codec

    lasting = False
    """A refusal may end earlier than stated, when the degradation ends."""

    def __init__(self, strategy: Strategy, record: OverrideRecord) -> None:
        self.record = record
        self.base = strategy.with_params(record.base) if record.set_by_operator else strategy
        self.degraded = self.base
        if record.share < FULL_SHARE:
            self.degraded = strategy.with_params(record.written_params or record.params)
        self.name = strategy.name
        self.codec = strategy.codec
        self.params = self.degraded.params

    def with_params(self, params: LimitParams) -> Strategy:
        """Return the strategy with other parameters, which do not expire."""
        return self.base.with_params(params)

    def effective_at(self, now_us: int) -> tuple[Strategy, int, int]:
        """Return the strategy at a moment, how long it is paused, and its capacity without degradation."""
        if now_us < self.record.degraded_until_us:
            return self.degraded, self.record.pause_left_us(now_us), self.record.base.capacity
        return self.base, self.record.pause_left_us(now_us), self.base.params.capacity

    def params_at(self, now_us: int | None) -> tuple[LimitParams, LimitParams]:
        """Return the parameters in effect at a moment, and those without degradation.

        ``None`` is any moment before the degradation ends.
        """
        if self.record.share < FULL_SHARE and (now_us is None or now_us < self.record.degraded_until_us):
            return self.params, self.record.base
        return self.base.params, self.base.params

    def expires_us(self, state: State) -> int:
        """Return the time until which either strategy needs the state."""
        return max(self.base.expires_us(state), self.degraded.expires_us(state))

    def retention_us(self, state: State) -> int:
        """Return the same time; a state is pinned if either strategy has nothing left for another grant."""
        pinned = (self.base.retention_us(state) | self.degraded.retention_us(state)) & PINNED_US
        return self.expires_us(state) + pinned

    def with_override(self, override: bytes | None) -> Strategy:
        """Return the strategy without this record, under another one."""
        return self.base.with_override(override)

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Refuse during a pause, whatever is available; otherwise decide by the current strategy."""
        strategy, paused_us, _ = self.effective_at(now_us)
        new, wait_us = strategy.step(state, now_us, cost, max_wait_us)
        if paused_us and max_wait_us >= 0:
            refused = new if wait_us > max_wait_us else None  # a refusal only brings a state up to date
            return refused, max(wait_us, paused_us, max_wait_us + 1)
        return new, wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Release units, even during a pause."""
        return self.effective_at(now_us)[0].release(state, now_us, cost)

    def settle(self, state: State | None, now_us: int, amount: int, age_us: int) -> State | None:
        """Settle by the current strategy, even during a pause."""
        return self.effective_at(now_us)[0].settle(state, now_us, amount, age_us)

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return the use of a key, even during a pause."""
        return self.effective_at(now_us)[0].usage(state, now_us)

    def lease_size_max(self, worker_count: int) -> int:
        """Return the most units that one worker may lease from the degraded limit."""
        return self.degraded.lease_size_max(worker_count)

    def grant_lease(self, state: State, now_us: int, amount: int, ttl_us: int) -> LeaseGrant:
        """Grant a lease by the current strategy."""
        return self.effective_at(now_us)[0].grant_lease(state, now_us, amount, ttl_us)

    def return_lease(self, state: State, now_us: int, ended: EndedLease, ttl_us: int) -> State | None:
        """Return a lease by the current strategy."""
        return self.effective_at(now_us)[0].return_lease(state, now_us, ended, ttl_us)
