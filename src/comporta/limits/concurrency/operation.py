"""Permits for calls in flight: acquiring, releasing, renewing and listing them, as operations.

A permit has an owner and a deadline. The permits of a killed process block others until their deadline and no
longer; a refused attempt extends no deadline. A process that waits leaves a claim (``fairness_queue.py``),
and an acquisition leaves a permit free for each due claim of another process.

During an outage of the store a worker uses its share of the permits (``LocalPermitPool``); the permits that
it already holds count against the share. On recovery it registers all permits that it holds
(``RegisterPermits``).

Lua version: ``permits.lua``, ``holders.lua``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from comporta.limits.concurrency.fairness_queue import (
    CLAIM_DUE_US,
    Claims,
    due_claims_ahead,
    live_claims,
    other_claims,
    renew_claim,
    waiting_since_us,
)
from comporta.limits.concurrency.permits import (
    EMPTY_PERMITS,
    PERMIT_SPACE,
    HeldPermits,
    Permit,
    PermitHolder,
    PermitPool,
    changed_permits,
)
from comporta.stores.base import Operation, Script, State, StateKey, key_text
from comporta.stores.lua import lua, script_error
from comporta.stores.outage_info import Outage

_POLL_US_MIN = 2_000
_POLL_DIVISOR = 16
"""A process that is next retries after this fraction of the time that the last call has taken so far."""

_PERMIT_SCRIPT = ("limits/concurrency/permit_support", "limits/concurrency/permits")


class PermitReply(NamedTuple):
    """Whether the operation succeeded; after a refusal, when the first permit of another caller expires.

    ``poll_us`` is when to retry if another process waits or holds the permit; 0 means the usual pause.
    ``is_local`` is true if this worker's share decided, not the shared store.
    """

    succeeded: bool
    wait_us: int = 0
    poll_us: int = 0
    is_local: bool = False


class PermitOperation(Operation[PermitReply]):
    """Base of the operations on permits: one permit, or several to release."""

    __slots__ = ("_permit_texts", "_permits", "_pool")

    script = Script("permits", partial(lua, *_PERMIT_SCRIPT), batchable=True)
    reply_size = 3
    command = ""

    def __init__(self, pool: PermitPool, *permits: Permit) -> None:
        self._pool = pool
        self._permits = permits
        self._permit_texts = [str(permit) for permit in permits]

    @property
    def state_keys(self) -> list[StateKey]:
        """The permits of the limit and the claims to them."""
        return [self._pool.state_key]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], PermitReply]:
        """Remove expired permits, and apply the operation."""
        old = states[0] or EMPTY_PERMITS
        permits, claims, reply = self._apply(self._pool.held_permits(states[0], now_us), old[1], now_us)
        new = changed_permits(states[0], permits, claims)
        return [new], reply._replace(is_local=True) if self._pool.is_local else reply

    @abstractmethod
    def _apply(
        self, held: HeldPermits, claims: Claims, now_us: int
    ) -> tuple[HeldPermits, Claims, PermitReply]:
        """Return the permits in use and the claims after the operation, and the reply."""

    def _with_permit(self, held: HeldPermits, now_us: int) -> HeldPermits:
        deadline_us = now_us + self._pool.permit_ttl_us
        return (*self._other_permits(held), (deadline_us, self._permit_texts[0]))

    def _other_permits(self, held: HeldPermits) -> HeldPermits:
        return tuple(permit for permit in held if permit[1] not in self._permit_texts)

    def script_keys(self) -> tuple[str, str]:
        """Return the permits of the limit and the claims to them."""
        key = key_text(PERMIT_SPACE, self._pool.name)
        return key, f"{key}:waiting"

    def script_args(self) -> list[int | str | bytes]:
        """Return the command, the permits, and the numbers of the limit."""
        pool = self._pool
        return [self.command, "\n".join(self._permit_texts), pool.max_permits, pool.permit_ttl_us]

    def fallback(self, outage: Outage) -> PermitOperation | None:
        """Return the same operation on this worker's share: at least one permit, none if it has no room."""
        return type(self)(self._pool.local_share(outage), *self._permits)

    def parse(self, raw: Sequence[Any]) -> PermitReply:
        """Parse three numbers; if the first is an error, the second says which key it concerns."""
        succeeded, wait_us, poll_us = raw
        if not isinstance(succeeded, int):
            key = self.script_keys()[wait_us]
            raise script_error(succeeded, key)
        return PermitReply(succeeded == 1, int(wait_us), int(poll_us))


class AcquirePermit(PermitOperation):
    """Acquire a permit if one is free that is not reserved for a due claim of another process.

    A caller that does not wait leaves no claim and goes behind all due claims. Given several permits, the
    operation releases all but the first, then acquires the first.
    """

    __slots__ = ()

    command = "take"

    def _apply(
        self, held: HeldPermits, claims: Claims, now_us: int
    ) -> tuple[HeldPermits, Claims, PermitReply]:
        claims = live_claims(claims, now_us)
        since_us = self._waiting_since_us(claims, now_us)
        ahead = due_claims_ahead(claims, self._owner, since_us)
        others = self._other_permits(held)  # a retry may follow a grant whose reply was lost
        if len(others) + ahead < self._pool.max_permits:
            return self._with_permit(others, now_us), self._claims_when_granted(claims), PermitReply(True)
        wait_us = min(others)[0] - now_us if others else self._pool.permit_ttl_us
        refused = PermitReply(False, wait_us, self._poll_us(others, claims, ahead, now_us))
        return others, self._claims_when_refused(claims, since_us, now_us), refused

    @property
    def _owner(self) -> str:
        return self._permits[0].owner

    def _waiting_since_us(self, claims: Claims, now_us: int) -> int:
        return now_us

    def _claims_when_granted(self, claims: Claims) -> Claims:
        return claims

    def _claims_when_refused(self, claims: Claims, since_us: int, now_us: int) -> Claims:
        return claims

    def _poll_us(self, others: HeldPermits, claims: Claims, ahead: int, now_us: int) -> int:
        return 0

    def undo(self, reply: PermitReply) -> ReleasePermits | None:
        """Return the operation that releases the permit of a cancelled caller."""
        return ReleasePermits(self._pool, *self._permits) if reply.succeeded else None


class AwaitPermit(AcquirePermit):
    """Acquire a permit, or leave a claim, for a caller that will retry."""

    __slots__ = ()

    command = "wait"

    def _waiting_since_us(self, claims: Claims, now_us: int) -> int:
        return waiting_since_us(claims, self._owner, now_us)

    def _claims_when_granted(self, claims: Claims) -> Claims:
        return other_claims(claims, self._owner)

    def _claims_when_refused(self, claims: Claims, since_us: int, now_us: int) -> Claims:
        return renew_claim(claims, self._owner, since_us, now_us)

    def _poll_us(self, others: HeldPermits, claims: Claims, ahead: int, now_us: int) -> int:
        """Return when to retry, for a process that is next or that lets another go first; 0 for others."""
        last = max(others, default=None)
        if not ahead:
            is_due = now_us - self._waiting_since_us(claims, now_us) >= CLAIM_DUE_US
            held_elsewhere = last is not None and last[1].partition(" ")[2] != self._owner
            if not is_due or not (held_elsewhere or other_claims(claims, self._owner)):
                return 0
        held_us = 0 if last is None else now_us + self._pool.permit_ttl_us - last[0]
        return max(_POLL_US_MIN, held_us // _POLL_DIVISOR) * (1 + ahead // self._pool.max_permits)

    def fallback(self, outage: Outage) -> PermitOperation:
        """Return an attempt on this worker's share without a claim, which no other process would see."""
        return AcquirePermit(self._pool.local_share(outage), *self._permits)


class FinalAcquirePermit(AwaitPermit):
    """Acquire a permit, or withdraw the claim of a caller that gives up."""

    __slots__ = ()

    command = "last"

    def _claims_when_refused(self, claims: Claims, since_us: int, now_us: int) -> Claims:
        return other_claims(claims, self._owner)

    def _poll_us(self, others: HeldPermits, claims: Claims, ahead: int, now_us: int) -> int:
        return 0


class ReleasePermits(PermitOperation):
    """Release permits; an expired one is ignored, because another caller may hold its place."""

    __slots__ = ()

    command = "give"

    def _apply(
        self, held: HeldPermits, claims: Claims, now_us: int
    ) -> tuple[HeldPermits, Claims, PermitReply]:
        others = self._other_permits(held)
        return others, claims, PermitReply(len(others) < len(held))


class RenewPermit(PermitOperation):
    """Extend a permit to its whole time to live from now; fails if the permit has expired."""

    __slots__ = ()

    command = "renew"

    def _apply(
        self, held: HeldPermits, claims: Claims, now_us: int
    ) -> tuple[HeldPermits, Claims, PermitReply]:
        if self._other_permits(held) == held:
            return held, claims, PermitReply(False)
        return self._with_permit(held, now_us), claims, PermitReply(True)


class RegisterPermits(PermitOperation):
    """Register permits that this process holds, after an outage in which the store may have lost them.

    Each permit keeps its remaining time. Afterwards more permits may be in use than the limit has; no other
    permit is granted until enough of them are free.
    """

    __slots__ = ("_left_us",)

    command = "hold"

    def __init__(self, pool: PermitPool, left_us: Mapping[Permit, int]) -> None:
        super().__init__(pool, *left_us)
        self._left_us = tuple(left_us.values())

    def _apply(
        self, held: HeldPermits, claims: Claims, now_us: int
    ) -> tuple[HeldPermits, Claims, PermitReply]:
        registered = zip(self._left_us, self._permit_texts, strict=True)
        own = [(now_us + left_us, permit) for left_us, permit in registered]
        return (*self._other_permits(held), *own), claims, PermitReply(True)

    def script_args(self) -> list[int | str | bytes]:
        """Return the command, each permit preceded by its remaining time, and the numbers of the limit."""
        command, _, *numbers = super().script_args()
        registered = zip(self._left_us, self._permit_texts, strict=True)
        return [command, "\n".join(f"{left_us} {permit}" for left_us, permit in registered), *numbers]

    def fallback(self, outage: Outage) -> PermitOperation | None:
        """Return ``None``: the local share counts these permits anyway."""
        return None


class ListHolders(Operation[list[PermitHolder]]):
    """List the holders of permits and when each permit expires."""

    __slots__ = ("_pool",)

    script = Script("holders", partial(lua, "limits/concurrency/holders"))

    def __init__(self, pool: PermitPool) -> None:
        self._pool = pool

    @property
    def state_keys(self) -> list[StateKey]:
        """The permits of the limit."""
        return [self._pool.state_key]

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[list[State | None], list[PermitHolder]]:
        """List the permits without changing them."""
        held = sorted(self._pool.held_permits(states[0], now_us))
        return [None], [_parse_holder(permit, deadline_us - now_us) for deadline_us, permit in held]

    def script_args(self) -> tuple[int]:
        """Return the time to live of a permit."""
        return (self._pool.permit_ttl_us,)

    def fallback(self, outage: Outage) -> ListHolders:
        """List the permits that this worker holds."""
        return ListHolders(self._pool.local_share(outage))

    def parse(self, raw: Sequence[Any]) -> list[PermitHolder]:
        """Parse pairs of a permit and the microseconds left."""
        return [
            _parse_holder(permit.decode("utf-8", "replace"), int(left_us))
            for permit, left_us in zip(raw[::2], raw[1::2], strict=True)
        ]


def _parse_holder(permit: str, left_us: int) -> PermitHolder:
    return PermitHolder(permit.partition(" ")[2], left_us / 1e6)
