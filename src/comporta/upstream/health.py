"""The state of an upstream for health pages and dashboards, read from the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from comporta.flow import Flow
from comporta.limits.overrides.degradation import limiter_params
from comporta.limits.overrides.record import limit_text, rate_per_second
from comporta.stores.outage_info import Fallback

if TYPE_CHECKING:
    from comporta.breaker.admission import BreakerState
    from comporta.limits.concurrency.permits import PermitHolder
    from comporta.limits.decision import Stats
    from comporta.upstream.policies import Policies


@dataclass(frozen=True, slots=True)
class LimitState:
    """One of several limits of an upstream: its use, and its rates and texts as in :class:`UpstreamState`."""

    name: str
    stats: Stats
    limit: float
    original: float
    configured: float | None = None
    strategy: str = "token_bucket"
    limit_text: str = ""
    configured_text: str = ""


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """The state of an upstream; policies that it does not use are ``None``.

    ``limit``, ``original`` and ``configured`` are requests per second: the current limit, the limit without
    degradation, and the limit without an operator's override. ``limit_text`` and ``configured_text`` are the
    last two as people write them, with their bursts. ``holders`` is the number of calls in flight of
    each worker. ``shadow`` names the policies that refuse nothing: ``"limit"``, ``"breaker"``. ``limits`` are
    all limits of an upstream that has several; ``limiter``, ``strategy`` and the rates are then those of the
    first.
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
    limits: tuple[LimitState, ...] = ()
    strategy: str = "token_bucket"
    limit_text: str = ""
    configured_text: str = ""

    @property
    def paused(self) -> float:
        """The number of seconds for which a limit grants nothing."""
        return max((limit.stats.paused for limit in self.limits), default=self.limiter.paused)

    def as_dict(self) -> dict[str, Any]:
        """Return the state as plain values, for JSON."""
        plain = asdict(self)
        plain["breaker"] = None if self.breaker is None else self.breaker.as_dict()
        plain["fallback"] = None if self.fallback is None else self.fallback._asdict()
        for limiter in (plain["limiter"], *(limit["stats"] for limit in plain["limits"])):
            limiter["fallback"] = plain["fallback"]
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
    current, original = limiter_params(policies.limiter)
    configured = policies.limiter._flows.params
    limits = yield from _limit_states_flow(policies)
    return UpstreamState(
        policies.name,
        breaker,
        stats,
        rate_per_second(current),
        rate_per_second(original),
        None if holders is None else len(holders),
        None if usage is None else usage.retries,
        policies.limiter.store.fallback,
        None if holders is None else dict(Counter(holder.owner for holder in holders)),
        rate_per_second(configured),
        _shadow_policies(policies),
        limits,
        policies.limiter.config.strategy_name,
        limit_text(original),
        limit_text(configured),
    )


def _limit_states_flow(policies: Policies) -> Flow[tuple[LimitState, ...]]:
    """Read the use of each limit of an upstream that has several."""
    states = []
    limiters = {} if policies.group is None else policies.group.limiters
    for name, limiter in limiters.items():
        stats = yield from limiter._flows.stats_flow(None)
        current, original = limiter_params(limiter)
        configured = limiter._flows.params
        states.append(
            LimitState(
                name,
                stats,
                rate_per_second(current),
                rate_per_second(original),
                rate_per_second(configured),
                limiter.config.strategy_name,
                limit_text(original),
                limit_text(configured),
            )
        )
    return tuple(states)


def _shadow_policies(policies: Policies) -> tuple[str, ...]:
    breaker = policies.breaker
    limiters = [policies.limiter] if policies.group is None else policies.group.limiters.values()
    in_shadow = {
        "limit": any(limiter.config.shadow for limiter in limiters),
        "breaker": breaker is not None and breaker.view.config.shadow,
    }
    return tuple(name for name, is_shadow in in_shadow.items() if is_shadow)
