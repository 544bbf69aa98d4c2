"""Creates the policies of an upstream from its options, and rejects options of the wrong type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.breaker.registry import config_for
from comporta.limits.concurrency.limit import PERMIT_TTL_MAX
from comporta.limits.config import Limits, split_limits
from comporta.limits.group import LimitGroup
from comporta.limits.limiter import BaseLimiter
from comporta.limits.overrides.degradation import Degradation
from comporta.retry.budget import UNNAMED, RetryBudget
from comporta.retry.retry import Retry

if TYPE_CHECKING:
    from comporta.outcome import Classifier
    from comporta.stores.base import Store

DEGRADATION_RULE = "cubic"
"""The default rule of an upstream's degradation; a ``Degradation`` used on its own has ``"steps"``."""

_PERMIT_TTL_MARGIN_SECONDS = 10.0
"""A permit lasts longer than the longest call by this much: its time starts before the wait for the limit."""


def with_rules_of(breaker: CircuitBreaker | None, classify: Classifier) -> Classifier:
    """Return the classifier, or if the breaker was created with rules of its own, one that follows them."""
    return classify if breaker is None else breaker._guard.rules.apply_to(classify)


def make_limits(name: str, limit: Limits, store: Store) -> tuple[BaseLimiter, LimitGroup | None]:
    """Return the limiter of one limit, or the first of several and their group."""
    parts = split_limits(limit, name)
    if len(parts) == 1 and name in parts:
        return BaseLimiter(parts[name][1], store, name), None
    group = LimitGroup(limit=limit, state=store, name=name)
    return next(iter(group.limiters.values())), group


def make_breaker(
    name: str, breaker: CircuitBreaker | BreakerConfig | bool | None, store: Store
) -> CircuitBreaker | None:
    """Return the breaker of the option ``breaker``: that object, a new one, or none."""
    if isinstance(breaker, CircuitBreaker):
        return breaker
    if breaker is None or breaker is False:
        return None
    config = config_for(name) if breaker is True else breaker
    if not isinstance(config, BreakerConfig):
        raise TypeError(f"breaker must be a CircuitBreaker, a BreakerConfig or a bool, got {breaker!r:.50}")
    return CircuitBreaker(name, config=config, state=store)


def make_retry(retry: Retry | bool | None) -> Retry | None:
    """Return the retry of the option ``retry``: that object, one with the defaults, or none."""
    if retry is None or retry is False:
        return None
    if retry is True:
        return Retry()
    if not isinstance(retry, Retry):
        raise TypeError(f"retry must be a Retry or a bool, got {retry!r:.50}")
    return retry


def make_budget(name: str, retry: Retry | None, store: Store) -> RetryBudget | None:
    """Return the budget that all workers share; if the retry has a named budget, that one is kept."""
    budget = None if retry is None else retry.budget
    return budget if budget is None or budget.name != UNNAMED else RetryBudget(name, store, budget.budget)


def default_permit_ttl(max_wait: float, timeout: float | None) -> float:
    """Return the duration of the longest possible call, with a margin."""
    if timeout is None:
        return PERMIT_TTL_MAX
    return min(PERMIT_TTL_MAX, max_wait + timeout + _PERMIT_TTL_MARGIN_SECONDS)


def make_degradation(
    option: Callable[[BaseLimiter], Degradation] | bool | None, limiter: BaseLimiter
) -> Degradation | None:
    """Return the degradation of the option ``degradation``: one of the default rule, the user's, or none."""
    if option is None or option is False:
        return None
    make: object = partial(Degradation, rule=DEGRADATION_RULE) if option is True else option
    degradation = make(limiter) if callable(make) else None
    if not isinstance(degradation, Degradation):
        raise TypeError(
            f"degradation must be a bool or a function from a limiter to a Degradation, got {option!r:.50}"
        )
    return degradation
