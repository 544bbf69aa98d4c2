"""Claims on a limit: the first waiter of each process keeps its place among those of other processes.

Without claims, a waiter that needs many units starves: callers of other processes that need one take each
unit as it arrives. A first waiter that was refused therefore leaves a claim (its units, its class, and since
when its process waits), and later waiters of the same or a lower class leave those units untouched. Higher
classes ignore it. A claim expires unless its process retries. The module is pure: it reads no clock and does
no I/O.

Lua version: ``claims.lua``.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from comporta.stores.base import State, StateType

CLAIMS_MAX = 16
"""How many claims a key keeps. A process without room for a claim retries without one."""

CLAIM_TTL_US = 250_000
"""How long a claim outlives the time of its process's next attempt."""

RETRY_EVERY_US = 1_000_000
"""A waiter retries at least this often: another machine may raise, reset or resume a limit."""


class LimitClaim(NamedTuple):
    """A claim: who left it, its class, since when its process waits, its units, and when it expires."""

    claimant: int
    rank: int
    since_us: int
    units: int
    ends_us: int


LimitClaims = tuple[LimitClaim, ...]


class ClaimAttempt(NamedTuple):
    """An attempt to take: who tries, its class, how long its process has waited, and how long it will wait.

    With a ``left_us`` below 0 the caller does not wait, and leaves no claim.
    """

    claimant: int
    rank: int
    waited_us: int = 0
    left_us: int = -1


def live_claims(claims: LimitClaims, now_us: int) -> LimitClaims:
    """Return the claims that have not expired; after the clock was set back a future one starts now."""
    latest_us = now_us + RETRY_EVERY_US + CLAIM_TTL_US
    return tuple(
        claim._replace(since_us=min(claim.since_us, now_us), ends_us=min(claim.ends_us, latest_us))
        for claim in claims
        if claim.ends_us > now_us
    )


def units_ahead(claims: LimitClaims, attempt: ClaimAttempt, now_us: int) -> int:
    """Return the units that others claimed before: of a higher class, or earlier in the same class."""
    place = (attempt.rank, now_us - attempt.waited_us, attempt.claimant)
    return sum(
        claim.units
        for claim in claims
        if (claim.rank, claim.since_us, claim.claimant) < place and claim.claimant != attempt.claimant
    )


def claims_after(
    claims: LimitClaims, attempt: ClaimAttempt, now_us: int, units: int, wait_us: int
) -> LimitClaims:
    """Return the claims after an attempt that has to wait for ``wait_us``; 0 means that it was granted.

    A caller that was granted, or that will not wait that long, withdraws its claim.
    """
    others = tuple(claim for claim in claims if claim.claimant != attempt.claimant)
    if not 0 < wait_us <= attempt.left_us or len(others) >= CLAIMS_MAX:
        return others
    since_us = now_us - attempt.waited_us
    ends_us = now_us + min(wait_us, RETRY_EVERY_US) + CLAIM_TTL_US
    return (*others, LimitClaim(attempt.claimant, attempt.rank, since_us, units, ends_us))


class _ClaimsCodec:
    """The number of claims, then five numbers of each."""

    _count = Struct("<H")
    _entry = Struct("<QBqIq")
    size = _count.size + CLAIMS_MAX * _entry.size

    def pack(self, /, *state: Any) -> bytes:
        return self._count.pack(len(state)) + b"".join(self._entry.pack(*claim) for claim in state)

    def unpack_from(self, buffer: Any, /, offset: int = 0) -> State:
        [count] = self._count.unpack_from(buffer, offset)
        start = offset + self._count.size
        entries = self._entry.iter_unpack(buffer[start : start + count * self._entry.size])
        return tuple(LimitClaim(*entry) for entry in entries)


class _ClaimsStateType(StateType):
    """State: the claims on one key of a limit."""

    name = "claims"
    codec = _ClaimsCodec()

    def expires_us(self, state: State) -> int:
        """Return when the last claim has expired."""
        return max((claim.ends_us for claim in state), default=0)


CLAIMS = _ClaimsStateType()
