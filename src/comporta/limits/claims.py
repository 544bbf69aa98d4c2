"""Claims of those who wait for a permit, so that no process starves another.

A permit given back is taken by the next in line of the same process at once; other processes only come by
now and then, and could do so for seconds in vain. So whoever is refused and goes on waiting leaves a claim:
who, and since when. One that is old enough is *due*, and others leave a permit free for it. A claim ends by
itself unless its owner asks again. Pure: no clock, no I/O, and nothing of permits.

Twin: in ``permits.lua``.
"""

from __future__ import annotations

from typing import NamedTuple

LIFE_US = 250_000
"""For so long a claim outlives the last time its owner asked: a killed process blocks nobody any longer."""

DUE_US = 200_000
"""A claim is due when its owner has asked for so long; the asking counts, or a permit would lie idle."""

CLAIMS_MAX = 64
"""How many are kept for one limit; those who find no room wait without a claim, and ask again."""


class Claim(NamedTuple):
    """Since when somebody waits, who (``host:pid``), and when the claim ends."""

    since_us: int
    owner: str
    ends_us: int

    @property
    def due(self) -> bool:
        """Whether others let this one go first."""
        return self.ends_us - LIFE_US - self.since_us >= DUE_US


Claims = tuple[Claim, ...]
"""The first to come first, one of each owner."""


def live(claims: Claims, now_us: int) -> Claims:
    """Return the claims that have not ended; what lies ahead (a clock was set back) begins now."""
    latest_us = now_us + LIFE_US
    return tuple(
        Claim(min(since_us, now_us), owner, min(ends_us, latest_us))
        for since_us, owner, ends_us in claims
        if ends_us > now_us
    )


def since_us(claims: Claims, owner: str, now_us: int) -> int:
    """Return since when somebody waits: since now, if there is no claim."""
    return next((claim.since_us for claim in claims if claim.owner == owner), now_us)


def without(claims: Claims, owner: str) -> Claims:
    """Return the claims of all others."""
    return tuple(claim for claim in claims if claim.owner != owner)


def ahead(claims: Claims, owner: str, since_us: int) -> int:
    """Return how many others are due who came before."""
    return sum(claim.due and claim[:2] < (since_us, owner) for claim in without(claims, owner))


def renewed(claims: Claims, owner: str, since_us: int, now_us: int) -> Claims:
    """Return the claims with that of one who asks (again), if there is room for it."""
    others = without(claims, owner)
    if len(others) >= CLAIMS_MAX:
        return others
    return tuple(sorted((*others, Claim(since_us, owner, now_us + LIFE_US))))
