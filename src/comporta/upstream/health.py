"""The state of an upstream for health pages and dashboards, read from the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from comporta.flow import Flow
from comporta.limits.overrides.degradation import limiter_rates
from comporta.limits.overrides.record import rate_per_second
from comporta.stores.base import Fallback

if TYPE_CHECKING:
    from comporta.breaker.admission import BreakerState
    from comporta.limits.concurrency.operation import PermitHolder
    from comporta.limits.decision import Stats
    from comporta.upstream.policies import Policies


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """The state of an upstream; policies that it does not use are ``None``.

    ``limit``, ``original`` and ``configured`` are requests per second: the current limit, the limit without
    degradation, and the limit without an operator's override. ``holders`` is the number of calls in flight of
    each worker. ``shadow`` names the policies that refuse nothing: ``"limit"``, ``"breaker"``.
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
    shadow: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the state as plain values, for JSON."""
        plain = asdict(self)
        plain["breaker"] = None if self.breaker is None else self.breaker.as_dict()
        plain["fallback"] = None if self.fallback is None else self.fallback._asdict()
        plain["limiter"]["fallback"] = plain["fallback"]
        return plain


def upstream_health_flow(policies: Policies) -> Flow[UpstreamState]:
    """Read the state of all policies of an upstream."""
    breaker: BreakerState | None = None
    holders: list[PermitHolder] | None = None
    usage: Any = None
    if policies.breaker is not None:
        breaker = yield from policies.breaker.flows.state_flow()
    stats: Stats = yield from policies.limiter._flows.stats_flow(None)
    if policies.permits is not None:
        holders = yield from policies.permits._holders_flow()
    if policies.budget is not None:
        usage = yield from policies.budget._usage_flow()
    limit, original = limiter_rates(policies.limiter)
    return UpstreamState(
        policies.name,
        breaker,
        stats,
        limit,
        original,
        None if holders is None else len(holders),
        None if usage is None else usage.retries,
        policies.limiter.store.fallback,
        None if holders is None else dict(Counter(holder.owner for holder in holders)),
        rate_per_second(policies.limiter._flows.params),
        _shadow_policies(policies),
    )


def _shadow_policies(policies: Policies) -> tuple[str, ...]:
    breaker = policies.breaker
    in_shadow = {
        "limit": policies.limiter.config.shadow,
        "breaker": breaker is not None and breaker.view.config.shadow,
    }
    return tuple(name for name, is_shadow in in_shadow.items() if is_shadow)
