"""Claims on a limit: the first waiter of each process keeps its place among those of other processes.

Without claims, a waiter that needs many units would starve: callers of other processes that need only one
would take each unit as it becomes available. The first waiter of a process therefore leaves a claim when it
is refused: its units, its class, and since when its process has been waiting. Later callers of the same or a
lower class leave those units untouched, whether they wait or not; higher classes ignore the claim. A claim
expires unless its process retries. The module is pure: it reads no clock and does no I/O.

Lua version: ``one_limit.lua``, ``claim_support.lua``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from comporta.limits.priority import NORMAL, step_above_floor
from comporta.limits.strategies.base import Strategy, ceil_div
from comporta.stores.base import GONE, State, StateType

CLAIMS_MAX = 16
"""How many claims a key keeps, for the processes that are first. The others retry less often."""

CLAIM_TTL_US = 250_000
"""How long a claim outlives the time of its process's next attempt."""

RETRY_EVERY_US = 1_000_000
"""A waiter retries at least this often: another machine may raise, reset or resume a limit."""


BLOCKED_US_MIN = 1_000
"""The shortest wait of a caller behind others, however much is available."""


class LimitClaim(NamedTuple):
    """A claim: who left it, its class, since when its process has waited, its units, and its expiry."""

    claimant: int
    rank: int
    since_us: int
    units: int
    ends_us: int


LimitClaims = tuple[LimitClaim, ...]


class ClaimAttempt(NamedTuple):
    """An attempt to take: who tries, its class, how long its process has waited, and how long it will wait.

    With a ``left_us`` below 0 the caller does not wait and leaves no claim; its claimant is 0, so that it
    does not withdraw the claim of its process.
    """

    claimant: int
    rank: int
    waited_us: int = 0
    left_us: int = -1


NO_ATTEMPT = ClaimAttempt(0, -1)
"""In the arguments of a script: no claim counts."""


def live_claims(claims: LimitClaims, now_us: int) -> LimitClaims:
    """Return the live claims; one that starts in the future (the clock was set back) starts now."""
    latest_us = now_us + RETRY_EVERY_US + CLAIM_TTL_US
    for _, _, since_us, _, ends_us in claims:
        if since_us > now_us or not now_us < ends_us <= latest_us:
            break
    else:
        return claims  # nearly always
    return tuple(
        claim._replace(since_us=min(claim.since_us, now_us), ends_us=min(claim.ends_us, latest_us))
        for claim in claims
        if claim.ends_us > now_us
    )


def units_ahead(claims: LimitClaims, attempt: ClaimAttempt, now_us: int) -> int:
    """Return the units that others claimed before: of a higher class, or earlier in the same class."""
    own, own_rank, waited_us, _ = attempt
    place, ahead = (own_rank, now_us - waited_us, own), 0
    for claimant, rank, since_us, units, _ in claims:
        if (rank, since_us, claimant) < place and claimant != own:
            ahead += units
    return ahead


def claims_after(
    claims: LimitClaims, attempt: ClaimAttempt, now_us: int, units: int, wait_us: int
) -> LimitClaims:
    """Return the claims after an attempt that has to wait for ``wait_us``; 0 means that it was granted.

    A caller that was granted its units, or that will not wait that long, withdraws its claim. If there is no
    room, the claim that is last in order is dropped.
    """
    others = claims
    if has_claim(claims, attempt.claimant):
        others = tuple(claim for claim in claims if claim.claimant != attempt.claimant)
    if not 0 < wait_us <= attempt.left_us:
        return others
    since_us = now_us - attempt.waited_us
    if len(others) >= CLAIMS_MAX:
        last = max(others, key=_place)
        if _place(last) < (attempt.rank, since_us, attempt.claimant):
            return others
        others = tuple(claim for claim in others if claim is not last)
    ends_us = now_us + min(wait_us, RETRY_EVERY_US) + CLAIM_TTL_US
    return (*others, LimitClaim(attempt.claimant, attempt.rank, since_us, units, ends_us))


def has_claim(claims: LimitClaims, claimant: int) -> bool:
    """Whether a claim of this claimant is among them."""
    return claimant in [each[0] for each in claims]


_place: Callable[[LimitClaim], tuple[int, int, int]] = itemgetter(1, 2, 0)
"""The sort key of claims: the class, since when the process has been waiting, and the claimant."""


def retry_wait_us(claims: LimitClaims, attempt: ClaimAttempt, now_us: int, wait_us: int) -> int:
    """Return when a caller that has to wait for ``wait_us`` retries, given the claims after its attempt.

    A caller without a claim retries after half of the time that it has waited, or after the time by which the
    first of its class has waited longer. All units until then go to those that are ahead, and the number of
    attempts does not grow with the fleet and the rate.
    """
    _, own_rank, waited_us, left_us = attempt
    if not 0 < wait_us <= left_us or has_claim(claims, attempt.claimant):
        return wait_us
    own_since_us = now_us - waited_us
    first_us = min([since_us for _, rank, since_us, _, _ in claims if rank == own_rank], default=own_since_us)
    return max(wait_us, min(max(waited_us, own_since_us - first_us) // 2, left_us // 2, RETRY_EVERY_US))


def changed_claims(old: LimitClaims | None, claims: LimitClaims) -> State | None:
    """Return the new state for some claims; ``None`` if they have not changed."""
    if claims == (old or ()):
        return None
    return claims or GONE


def take_in_order(
    strategy: Strategy,
    state: State | None,
    now_us: int,
    amount: int,
    *,
    floor: int,
    ahead: int,
    max_wait_us: int = 0,
) -> tuple[State | None, int]:
    """Take what neither the headroom of higher classes nor the claims of others reserve.

    Returns what :meth:`Strategy.step` returns.
    """
    missing = amount + floor + ahead - strategy.effective_at(now_us)[0].params.capacity
    if ahead and missing > 0:
        return _refuse_behind_claims(strategy, state, now_us, missing)
    return step_above_floor(strategy, state, now_us, amount, floor=floor + ahead, max_wait_us=max_wait_us)


def _refuse_behind_claims(
    strategy: Strategy, state: State | None, now_us: int, missing: int
) -> tuple[State | None, int]:
    """Refuse until the units ahead and those of this caller have become available, one after the other.

    Together they are ``missing`` units more than the limit can hold.
    """
    current, paused_us, _ = strategy.effective_at(now_us)
    capacity, per_us, unit, _ = current.params
    new, wait_us = current.step(state, now_us, capacity)
    more_us = ceil_div(missing * unit, per_us) if per_us else 0
    refused = new if wait_us else None  # a refusal only brings a state up to date
    return refused, max(wait_us + more_us, paused_us, BLOCKED_US_MIN)


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
    attached = True

    def expires_us(self, state: State) -> int:
        """Return when the last claim has expired."""
        return max([claim[4] for claim in state], default=0)

    def blocks_fast_path(self, state: State) -> bool:
        """Whether a claim applies to callers of the class "normal", the class of all fast paths."""
        return any(claim.rank <= NORMAL for claim in state)


CLAIMS = _ClaimsStateType()
