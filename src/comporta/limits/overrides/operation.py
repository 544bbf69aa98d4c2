"""Operations that change the override record of a limit, in one step for every worker.

Errors lower a limit and successes raise it again (degradation), an upstream asks for a pause, and an operator
sets other parameters or revokes them. One record (``record.py``) holds all of this, and every decision reads
it, so no worker can see the new rate with the old burst.

One decision of the upstream may refuse many calls at once. An operation that lowers the limit can therefore
carry the age of its call: if any worker lowered the limit after the call was sent, or lowered it for the
current pause, the operation changes nothing. The age grows until the operation is applied or sent: a slow
event loop or a lock must not make a call look younger than it is.

Lua version: ``override.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from comporta.clock import Clock
from comporta.limits.overrides.record import DEGRADATION_TTL_US, OverrideRecord, one_request_share
from comporta.limits.scripts import OVERRIDE_SPACE
from comporta.limits.strategies.base import LimitParams
from comporta.ramp import FULL_SHARE, cubic_share, is_due, step_down, step_down_to, step_up
from comporta.stores.base import GONE, Operation, Script, State, StateKey, key_text
from comporta.stores.lua import lua
from comporta.stores.records import NEVER_US, RECORD

CLOCK_STEP_US_MAX = 1_000_000
"""A drop that is further in the future than this was made before the clock was set back. A drop that is less
far in the future was made a moment ago: a server's clock may step back a little between two operations."""


class OverrideReply(NamedTuple):
    """Whether the record changed, the shares before and after, the remaining pause, and the record.

    Shares are in millionths.
    """

    changed: bool
    before: int
    share: int
    paused_us: int
    record: bytes


class OverrideOperation(Operation[OverrideReply]):
    """Base of the operations: they read the record as of now and write the updated one.

    The operation has no fallback: an override applies to every worker or to none.
    """

    __slots__ = ("_args", "name", "params")

    script = Script("adjust", partial(lua, "limits/support", "limits/overrides/override"), notes_changes=True)
    command = "look"
    changes_override = True
    reply_size = 5

    always_changes = False
    """Whether the operation counts as a change even if the parameters stay the same."""

    is_step = False
    """Whether the operation is a step of a degradation. Workers are notified of its first and last step at
    once, and see the steps in between when they next read everything: decisions read the record anyway."""

    note = b""
    """Text for people."""

    def __init__(self, name: str, params: LimitParams, *args: int) -> None:
        self.name = name
        self.params = params
        self._args = (*args, 0, 0, 0, 0)[:4]

    @property
    def state_keys(self) -> list[StateKey]:
        """The override record."""
        return [StateKey(OVERRIDE_SPACE, self.name, RECORD)]

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], OverrideReply]:
        """Update the record; delete it when it no longer has any effect."""
        current = self._current_record(states[0], now_us)
        updated = self._updated_record(current, now_us)
        if updated is not None and updated.share == FULL_SHARE:
            updated = updated.without_degradation()
        record = updated or current
        text = record.encode() if record.has_effect else b""
        changed = updated is not None and (self.always_changes or _differs(current, updated))
        reply = OverrideReply(changed, current.share, record.share, record.pause_left_us(now_us), text)
        if updated is None or not (record.has_effect or states[0]):
            return [None], reply
        expires_us = NEVER_US if record.expires_us is None else record.expires_us
        return [(expires_us, text) if record.has_effect else GONE], reply

    def changed_name(self, reply: OverrideReply) -> str | None:
        """Return the key of the record if workers must read it again."""
        is_between = self.is_step and reply.before < FULL_SHARE and reply.share < FULL_SHARE
        return key_text(OVERRIDE_SPACE, self.name) if reply.changed and not is_between else None

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord | None:
        """Return the record to write, or ``None`` to leave it as it is."""
        return None

    def _current_record(self, state: State | None, now_us: int) -> OverrideRecord:
        record = None if state is None else OverrideRecord.parse(state[1])
        if record is None:
            return OverrideRecord(self.params)
        record = record.as_of(now_us)
        if not record.set_by_operator and record.share == FULL_SHARE:
            record = replace(record, base=self.params)  # a pause alone does not describe the limit
        return record if record.set_by_operator else replace(record, note=b"")

    def script_args(self) -> list[int | str | bytes]:
        """Return the command, the parameters, four more numbers, and the note."""
        return [self.command, *self.params, *self._args, self.note]

    def parse(self, raw: Sequence[Any]) -> OverrideReply:
        """Parse the reply."""
        changed, before, share, paused_us, record = raw
        return OverrideReply(bool(changed), before, share, paused_us, record)


class ReadOverride(OverrideOperation):
    """Read the record without changing it."""

    __slots__ = ()

    changes_override = False


class LowerOperation(OverrideOperation):
    """Base of the operations that lower a limit; their third number is the age of the refused call in µs.

    The age is given when the operation is created, and grows by ``clock``. With 0, every error counts.
    """

    __slots__ = ("_clock", "_created_us")

    is_step = True

    def __init__(self, name: str, params: LimitParams, *args: int, clock: Clock | None = None) -> None:
        super().__init__(name, params, *args)
        self._clock = clock
        self._created_us = 0 if clock is None else clock.now_ns() // 1000

    def _age_us(self) -> int:
        """Return the current age of the call; 0 if every error counts."""
        age_us = self._args[2]
        if not age_us or self._clock is None:
            return age_us
        return age_us + max(0, self._clock.now_ns() // 1000 - self._created_us)

    def script_args(self) -> list[int | str | bytes]:
        """Return the arguments with the age as of now."""
        args = super().script_args()
        args[7] = self._age_us()
        return args


class LowerByStep(LowerOperation):
    """Lower the limit by a step, but not below a floor; both in millionths of the original limit."""

    __slots__ = ()

    command = "drop"

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord | None:
        by, floor, *_ = self._args
        if _is_answered(current, now_us, self._age_us()):
            return None
        return _lowered_record(current, step_down(current.share, by, floor), now_us)


class LowerByFraction(LowerOperation):
    """Lower the limit by a fraction of the current limit, but not below a floor, and start a curve."""

    __slots__ = ()

    command = "cut"

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord | None:
        by, floor, *_ = self._args
        if _is_answered(current, now_us, self._age_us()):
            return None
        target = current.share - current.share * by // FULL_SHARE
        lowered = _lowered_record(current, step_down_to(current.share, target, floor), now_us)
        return replace(lowered, peak=current.share, curve_start_us=now_us)


class LowerToRate(LowerOperation):
    """Lower the limit to a rate in requests per 1000 s, but not below a floor; once in ``round_trip_us``."""

    __slots__ = ()

    command = "accept"

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord | None:
        rate, floor, _, round_trip_us = self._args
        if current.share < FULL_SHARE and not is_due(now_us, current.last_drop_us, round_trip_us):
            return None
        if _is_answered(current, now_us, self._age_us()):
            return None
        capacity, per_us, unit, window_us = current.base
        # as floats, because Lua has no other numbers
        over, by = (unit, per_us) if per_us else (window_us, capacity)
        fraction = float(rate) * over / (by * 1000)
        target = int(min(fraction, FULL_SHARE))
        return _lowered_record(current, step_down_to(current.share, target, floor), now_us)


class RaiseByStep(OverrideOperation):
    """Raise a lowered limit by a step of at least one request if the last step was long enough ago."""

    __slots__ = ()

    command = "climb"
    is_step = True

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord | None:
        by, every_us, *_ = self._args
        if not _is_raise_due(current, now_us, every_us):
            return None
        share = step_up(current.share, max(by, one_request_share(current.base)))
        return _raised_record(current, share, now_us)


class RaiseAlongCurve(OverrideOperation):
    """Raise a lowered limit to its curve if the last step was at least ``step_us`` ago.

    ``by`` and ``every_us`` are the curve (:func:`comporta.ramp.cubic_share`). A period without successes
    moves the limit along the curve by at most ``every_us``, because it gives no information about the
    upstream.
    """

    __slots__ = ()

    command = "curve"
    is_step = True

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord | None:
        by, every_us, step_us, _ = self._args
        if not _is_raise_due(current, now_us, step_us):
            return None
        peak = current.peak or current.share
        start_us = min(current.curve_start_us or current.last_drop_us, now_us)
        idle_us = now_us - max(start_us, min(current.last_climb_us, now_us))
        start_us += max(0, idle_us - every_us)
        share = max(current.share, cubic_share(peak, by, every_us, now_us - start_us))
        raised = _raised_record(current, share, now_us)
        return replace(raised, peak=peak, curve_start_us=start_us)


class PauseLimit(OverrideOperation):
    """Pause the limit for some microseconds; a longer pause that is in effect is not shortened."""

    __slots__ = ()

    command = "pause"

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord | None:
        length_us = self._args[0]
        if length_us <= current.pause_left_us(now_us):
            return None
        since_us = current.pause_start_us if current.paused_until_us else 0
        paused = replace(current, paused_until_us=now_us + length_us, pause_length_us=length_us)
        return replace(paused, extended_since_us=max(0, since_us))


class ResumeLimit(OverrideOperation):
    """End a pause."""

    __slots__ = ()

    command = "resume"

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord | None:
        return current.without_pause() if current.paused_until_us else None


class SetLimit(OverrideOperation):
    """Put an operator's parameters into effect; a degradation restarts from them, a pause continues."""

    __slots__ = ("note",)

    command = "set"
    always_changes = True

    def __init__(self, name: str, params: LimitParams, note: str) -> None:
        super().__init__(name, params)
        self.note = note.encode()

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord:
        return replace(_only_pause(current, self.params), set_by_operator=True, note=self.note)


class RevokeOverride(OverrideOperation):
    """Revoke an operator's parameters and any degradation since then; a pause continues."""

    __slots__ = ()

    command = "revoke"
    always_changes = True

    def _updated_record(self, current: OverrideRecord, now_us: int) -> OverrideRecord:
        return _only_pause(current, self.params)


def _is_answered(record: OverrideRecord, now_us: int, age_us: int) -> bool:
    """Whether the last drop also accounts for the refusal of a call that was sent ``age_us`` ago."""
    if not age_us or record.share == FULL_SHARE or record.last_drop_us > now_us + CLOCK_STEP_US_MAX:
        return False
    is_of_this_pause = record.paused_until_us > 0 and record.last_drop_us >= record.pause_start_us
    return is_of_this_pause or record.last_drop_us >= now_us - age_us


def _is_raise_due(record: OverrideRecord, now_us: int, every_us: int) -> bool:
    last_step_us = max(record.last_drop_us, record.last_climb_us)
    return record.share < FULL_SHARE and is_due(now_us, last_step_us, every_us)


def _lowered_record(record: OverrideRecord, share: int, now_us: int) -> OverrideRecord:
    ends_us = now_us + DEGRADATION_TTL_US
    return replace(
        record, share=share, last_drop_us=now_us, degraded_until_us=ends_us, peak=0, curve_start_us=0
    )


def _raised_record(record: OverrideRecord, share: int, now_us: int) -> OverrideRecord:
    ends_us = now_us + DEGRADATION_TTL_US
    return replace(record, share=share, last_climb_us=now_us, degraded_until_us=ends_us)


def _only_pause(record: OverrideRecord, params: LimitParams) -> OverrideRecord:
    """Return a record of these parameters with the pause of another record, and nothing else of it."""
    return OverrideRecord(
        params,
        paused_until_us=record.paused_until_us,
        pause_length_us=record.pause_length_us,
        extended_since_us=record.extended_since_us,
    )


def _differs(old: OverrideRecord, new: OverrideRecord) -> bool:
    return (old.share, old.paused_until_us) != (new.share, new.paused_until_us)
