"""Whether two processes together get what one limit allows: never more, and hardly less."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import ours, server
from benchmarks.measure import Contender, Effort
from benchmarks.pair import Pair
from benchmarks.report import Goal, Section, Table
from benchmarks.state import shared_state
from comporta import LimitConfig, TokenBucketLimiter

_RATE, _BURST = 1000, 100


def contenders(state: str, url: str) -> list[Contender]:
    """Return comporta's limiters: 1000/s with a small burst, so that the burst does not hide the rate."""
    exact = LimitConfig(_RATE, _BURST)
    places = (("shared://", state), ("redis://", ours.with_long_timeout(url)))
    kinds = (("", exact), (", leased", replace(exact, lease=True)))
    return [
        Contender(
            ours.COMPORTA, scheme + how, TokenBucketLimiter(config, where, f"limit{how[2:]}").sync.acquire
        )
        for how, config in kinds
        for scheme, where in places
    ]


def _contender(variant: str, limiter: TokenBucketLimiter) -> Contender:
    return Contender(ours.COMPORTA, variant, limiter.sync.acquire)


def run(effort: Effort) -> Section:
    """Let two processes call far more often than the limit allows."""
    rows, goals = [], []
    with shared_state() as state, server.start() as running, Pair(contenders, state, running.url) as pair:
        for name in (contender.name for contender in contenders(state, running.url)):
            pair.run(name, "warm up", 0.05)
            work = pair.run(name, "user:1", effort.seconds, counting=True)
            seconds = max(w.last for w in work) - min(w.first for w in work)
            due = _BURST + _RATE * seconds
            granted, call_count = sum(w.granted for w in work), sum(w.decisions for w in work)
            if name.endswith("leased"):
                promise = f"{name}: never above what is due, at most 1 % below"
                goals.append(Goal(promise, f"{100 * granted / due:.2f} %", 0.99 * due <= granted <= due))
            rows.append(
                [name, f"{call_count:,}", f"{granted:,}", f"{due:,.1f}", f"{100 * granted / due:.2f} %"]
            )
    return Section(
        "Accuracy",
        f"Token bucket, {_RATE}/s with a burst of {_BURST}; two processes use one key as fast as they can "
        f"for {effort.seconds:g} s. Due is the burst plus the rate from the first call to the last.",
        [Table("Two processes, one limit", ["", "calls", "granted", "due", "granted of due"], rows)],
        goals,
    )
