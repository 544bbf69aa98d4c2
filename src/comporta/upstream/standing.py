"""How an upstream stands, for health pages and dashboards."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from comporta.flow import Flow
from comporta.limits.degradation import rates_of
from comporta.limits.in_force import per_second
from comporta.stores.failover import Fallback, fallback_of

if TYPE_CHECKING:
    from comporta.breaker.admission import BreakerState
    from comporta.limits.decision import Stats
    from comporta.limits.holding import Holder
    from comporta.upstream.parts import Parts


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """What the shared state says of an upstream now; what it does not use is ``None``.

    ``limit``, ``original`` and ``configured`` are requests per second: in force, if it were not degraded, and
    if no operator had changed it. ``holders`` is how many of the calls in flight are whose.
    """

    name: str
    breaker: BreakerState | None
    limiter: Stats
    limit: float
    original: float
    calls_in_flight: int | None
    retries_last_minute: int | None
    fallback: Fallback | None
    holders: dict[str, int] | None = None
    configured: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        plain = asdict(self)
        plain["breaker"] = None if self.breaker is None else self.breaker.as_dict()
        plain["fallback"] = None if self.fallback is None else self.fallback._asdict()
        plain["limiter"]["fallback"] = plain["fallback"]
        return plain


def standing(parts: Parts) -> Flow[UpstreamState]:
    """Ask the state about all parts of an upstream."""
    breaker: BreakerState | None = None
    holders: list[Holder] | None = None
    spent: Any = None
    if parts.breaker is not None:
        breaker = yield from parts.breaker.verbs.telling()
    stats: Stats = yield from parts.limiter.verbs.stats(None)
    if parts.permits is not None:
        holders = yield from parts.permits.listing()
    if parts.budget is not None:
        spent = yield from parts.budget.spending()
    limit, original = rates_of(parts.limiter)
    return UpstreamState(
        parts.name,
        breaker,
        stats,
        limit,
        original,
        None if holders is None else len(holders),
        None if spent is None else spent.retries,
        fallback_of(parts.limiter.store),
        None if holders is None else dict(Counter(holder.owner for holder in holders)),
        per_second(parts.limiter.verbs.numbers),
    )
