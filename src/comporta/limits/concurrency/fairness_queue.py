"""Claims of processes that wait for a permit, so that no process starves another.

A process that releases a permit gives it to its own next waiter at once, while the waiters of other processes
only retry from time to time and could fail for seconds. A process whose waiter is refused therefore leaves a
claim: its owner, and since when it has been waiting. A claim that is old enough is *due*, and other processes
leave a permit free for it. A claim expires unless its owner retries. The module is pure: it reads no clock,
does no I/O and does not know permits.

Lua version: in ``permits.lua``.
"""

from __future__ import annotations

from typing import NamedTuple

CLAIM_TTL_US = 250_000
"""How long a claim outlives its owner's last attempt, and a killed process can block the others."""

CLAIM_DUE_US = 200_000
"""How long the owner must have been retrying before its claim is due.

Its age alone does not count, because then a permit would stay unused for an owner that does not retry.
"""

CLAIMS_MAX = 64
"""How many claims a limit keeps. A process without room for a claim retries without one."""


class Claim(NamedTuple):
    """The claim of a process: when it began to wait, its name (``host:pid``), and when the claim expires."""

    since_us: int
    owner: str
    ends_us: int

    @property
    def is_due(self) -> bool:
        """Whether other processes let this one go first."""
        return self.ends_us - CLAIM_TTL_US - self.since_us >= CLAIM_DUE_US


Claims = tuple[Claim, ...]
"""One claim per owner, the oldest first."""


def live_claims(claims: Claims, now_us: int) -> Claims:
    """Return the claims that have not expired; a future one (the clock was set back) starts now."""
    latest_us = now_us + CLAIM_TTL_US
    return tuple(
        Claim(min(since_us, now_us), owner, min(ends_us, latest_us))
        for since_us, owner, ends_us in claims
        if ends_us > now_us
    )


def waiting_since_us(claims: Claims, owner: str, now_us: int) -> int:
    """Return since when an owner has been waiting; now, if it has no claim."""
    return next((claim.since_us for claim in claims if claim.owner == owner), now_us)


def other_claims(claims: Claims, owner: str) -> Claims:
    """Return the claims of all other owners."""
    return tuple(claim for claim in claims if claim.owner != owner)


def due_claims_ahead(claims: Claims, owner: str, since_us: int) -> int:
    """Return how many due claims of other owners are older."""
    return sum(claim.is_due and claim[:2] < (since_us, owner) for claim in other_claims(claims, owner))


def renew_claim(claims: Claims, owner: str, since_us: int, now_us: int) -> Claims:
    """Return the claims with a renewed or new claim of an owner that retries, if there is room for it."""
    others = other_claims(claims, owner)
    if len(others) >= CLAIMS_MAX:
        return others
    return tuple(sorted((*others, Claim(since_us, owner, now_us + CLAIM_TTL_US))))
