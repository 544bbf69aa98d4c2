"""The decision whether an inbound request may pass, and the headers that describe it to the client.

This module knows no web framework. An unusable store never causes a 500: limiters fall back to a local share
during an outage, and if even that is impossible, ``on_error`` decides whether requests pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from inspect import isawaitable
from typing import Any, Final, NamedTuple

from comporta import events
from comporta.clock import SECOND_US, to_seconds
from comporta.errors import RefusedError, StateError
from comporta.flow import Flow, run, run_async
from comporta.headers import (
    RateLimitPolicy,
    RateLimitStatus,
    ratelimit_header,
    ratelimit_policy_header,
    retry_after_header,
)
from comporta.integrations.client_ip import ClientAddress
from comporta.limits.arguments import check_cost
from comporta.limits.config import LimitStrategy
from comporta.limits.fast_decision import fast_decider
from comporta.limits.flows import Key
from comporta.limits.group import LimitGroup
from comporta.limits.key import normalize_key
from comporta.limits.limiter import BaseLimiter
from comporta.limits.operation import LimitDemand
from comporta.limits.priority import NORMAL
from comporta.limits.reply import LimitReply
from comporta.limits.strategies.base import LimitParams
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.effects import Apply
from comporta.validators import require_choice

EVENT_INTERVAL_NS: Final = 60_000_000_000
"""The minimum time between two events about an unusable store."""

CLOSED_RETRY_AFTER_SECONDS: Final = 5
"""The ``Retry-After`` of a 503 because of an unusable store: about the interval at which stores reconnect."""

EMPTY_KEY: Final = "(empty)"
"""The key of all clients that send an empty one: an empty header must neither fail nor evade the limit."""

ON_ERROR = ("open", "closed")

_POLICY_CACHE_SIZE = 256

Headers = list[tuple[str, str]]
Limits = BaseLimiter | Sequence[BaseLimiter]
Keys = Key | Sequence[Key]


class RefusalProblem(NamedTuple):
    """A refusal in the format of RFC 9457; ``retry_after`` is in whole seconds, ``None`` if it is unknown."""

    status: int
    title: str
    detail: str
    retry_after: int | None

    @property
    def body(self) -> dict[str, str | int]:
        """The members of the JSON document."""
        known = {name: value for name, value in self._asdict().items() if value is not None}
        return {"type": "about:blank", **known}

    @property
    def content(self) -> bytes:
        """The JSON document as bytes."""
        return json.dumps(self.body).encode()

    @property
    def headers(self) -> Headers:
        """The headers of every response with this problem."""
        content_type = ("content-type", "application/problem+json")
        if self.retry_after is None:
            return [content_type]
        return [content_type, ("retry-after", str(self.retry_after))]


class InboundDecision(NamedTuple):
    """The headers for the client, and the problem to respond with if the request is refused."""

    headers: Headers
    problem: RefusalProblem | None = None


def refusal_problem(error: RefusedError) -> RefusalProblem:
    """Return the response to a refused call of an upstream. It does not reveal the upstream or the reason."""
    if error.forced:  # by an operator, until further notice
        detail = "A service that this one needs is not available."
        return RefusalProblem(503, "Service Unavailable", detail, None)
    wait = max(1, retry_after_header(error.retry_after))
    detail = f"A service that this one needs is not available, try again in {wait} s."
    return RefusalProblem(503, "Service Unavailable", detail, wait)


class InboundLimit:
    """One or several limits on inbound requests.

    ``key`` receives the request (a mapping such as an ASGI scope) and may be a coroutine function. It returns
    the key of the limit, or ``None`` if the request is not limited. For several limiters it returns a list
    with a key for each, where ``None`` means that limit as a whole. ``address`` is the class of the default
    key function, which returns the client's address.
    """

    def __init__(
        self,
        limiter: Limits,
        *,
        key: Callable[[Any], Any] | None,
        trusted_proxies: Iterable[str],
        cost: int,
        name: str | None,
        on_error: str,
        address: type[ClientAddress] = ClientAddress,
    ) -> None:
        self._limiters = _limiters(limiter)
        self._group = LimitGroup(*self._limiters)
        self._configured_params = [limiter.config.build_strategy().params for limiter in self._limiters]
        self._is_single = isinstance(limiter, BaseLimiter)
        self._decide_fast = fast_decider(self._limiters[0]) if self._is_single else None
        self._key = self._key_function(key, trusted_proxies, address)
        self._names = self._policy_names(name)
        self._cost = _validate_cost(cost, self._limiters)
        self._fails_open = require_choice("on_error", on_error, ON_ERROR) == "open"
        self._last_event_ns: int | None = None

    async def admit(self, request: Any) -> InboundDecision:
        """Charge the cost of the request to its limits, all of them or none, and return the decision."""
        keys = self._key(request)
        decision = self._decide_now(keys)
        if decision is not None:
            return decision
        if isawaitable(keys):
            keys = await keys
        if keys is None:
            return InboundDecision([])
        try:
            return await run_async(self._decide_flow(self._key_texts(keys)))
        except StateError as error:
            return self._decide_without_state(error)

    def admit_sync(self, request: Any) -> InboundDecision:
        """Do the same as ``admit``, blocking. ``key`` must return keys, not an awaitable."""
        keys = self._key(request)
        decision = self._decide_now(keys)
        if decision is not None:
            return decision
        if keys is None:
            return InboundDecision([])
        try:
            return run(self._decide_flow(self._key_texts(keys)))
        except StateError as error:
            return self._decide_without_state(error)

    def _decide_now(self, keys: Any) -> InboundDecision | None:
        """Decide without a flow if one limit's state is in this process; ``None`` if that is not possible."""
        if type(keys) is not str or self._decide_fast is None:
            return None
        try:
            reply, params = self._decide_fast(keys or EMPTY_KEY, self._cost)
        except (WouldBlock, StateError):
            return None  # the flow waits, or raises the error with its details
        policy = self._policy(0, params, reply)
        return _inbound_decision((policy,), policy, reply)

    def _decide_flow(self, texts: Sequence[str]) -> Flow[InboundDecision]:
        flows = self._group._flows
        operation = yield from flows.passing_operation_flow(texts, [self._cost] * len(texts), NORMAL)
        replies: list[LimitReply] = yield Apply(self._limiters[0].store, operation)
        flows.count_would_refuse(operation, replies)
        in_force = [index for index, demand in enumerate(operation.demands) if not demand.shadow]
        if not in_force:
            return InboundDecision([])  # in shadow mode clients see nothing of the limit
        policies = tuple(
            self._policy(index, self._effective_params(index, operation.demands[index]), replies[index])
            for index in in_force
        )
        binding, policy = max(
            zip([replies[index] for index in in_force], policies, strict=True),
            key=lambda pair: (pair[0].wait_us, -pair[0].remaining),
        )
        return _inbound_decision(policies, policy, binding)

    def _effective_params(self, index: int, demand: LimitDemand) -> LimitParams:
        """Return the parameters that the decision used.

        On a server an override is not part of the demand, so this uses the last one that this process saw.
        """
        last_seen = self._limiters[index]._flows.current_strategy().params
        return demand.strategy.params if last_seen == self._configured_params[index] else last_seen

    def _policy(self, index: int, params: LimitParams, reply: LimitReply) -> RateLimitPolicy:
        """Return the limit in force. The window of a bucket is the time in which it fills."""
        limiter, name = self._limiters[index], self._names[index]
        if not params.window_us:
            fill_us = reply.capacity * params.unit / params.per_us
            # Without rounding to milliseconds, a tiny excess would be reported as another whole second.
            return RateLimitPolicy(name, reply.capacity, round(fill_us / SECOND_US, 3))
        sliding = limiter.strategy is LimitStrategy.SLIDING_WINDOW
        # A leased sliding window counts requests longer than it promises, by the length of a lease.
        lease_us = limiter.config.lease_us if sliding else 0
        return RateLimitPolicy(name, reply.capacity, to_seconds(params.window_us - lease_us))

    def _decide_without_state(self, error: StateError) -> InboundDecision:
        now_ns, name = self._limiters[0].store.clock.now_ns(), ", ".join(self._names)
        if self._last_event_ns is None or now_ns - self._last_event_ns >= EVENT_INTERVAL_NS:
            self._last_event_ns = now_ns
            effect = "pass without a limit" if self._fails_open else "are refused"
            events.publish("inbound_undecided", name, f"requests that cannot be counted {effect}: {error}")
        if self._fails_open:
            return InboundDecision([])
        detail = f"Requests cannot be counted at the moment, try again in {CLOSED_RETRY_AFTER_SECONDS} s."
        return InboundDecision(
            [], RefusalProblem(503, "Service Unavailable", detail, CLOSED_RETRY_AFTER_SECONDS)
        )

    def _key_texts(self, keys: Any) -> list[str]:
        key_list: Sequence[Key] = [keys] if self._is_single else keys
        if not isinstance(key_list, list | tuple) or len(key_list) != len(self._limiters):
            raise ValueError(
                f"key must return a list with a key for each of {len(self._limiters)} limiters, "
                f"got {keys!r:.100}"
            )
        return [normalize_key(EMPTY_KEY if key == "" else key) for key in key_list]

    def _key_function(
        self, key: Callable[[Any], Any] | None, trusted_proxies: Iterable[str], address: type[ClientAddress]
    ) -> Callable[[Any], Any]:
        if key is None:
            if not self._is_single:
                raise ValueError(
                    "key is required for several limiters: it returns a list with a key for each"
                )
            return address(trusted_proxies)
        if not callable(key):
            raise TypeError(f"key must be a function of the request, got {key!r:.100}")
        if list(trusted_proxies):
            raise ValueError("trusted_proxies cannot be combined with key: pass them to ClientAddress")
        return key

    def _policy_names(self, name: str | None) -> list[str]:
        if name is None:
            return [limiter.name for limiter in self._limiters]
        if not self._is_single:
            raise ValueError(
                f"name cannot be combined with several limiters: each uses its own, got {name!r:.100}"
            )
        ratelimit_policy_header([RateLimitPolicy(name, 0)])  # raises if the name cannot be sent in a header
        return [name]


def _inbound_decision(
    policies: tuple[RateLimitPolicy, ...], binding: RateLimitPolicy, reply: LimitReply
) -> InboundDecision:
    """Return headers with all policies and the quota of the binding one, and the problem if refused."""
    status = ratelimit_header([_remaining_quota(binding.name, reply)])
    headers = [("ratelimit-policy", _policy_text(policies)), ("ratelimit", status)]
    return InboundDecision(headers, _limit_problem(binding, reply) if reply.wait_us else None)


@lru_cache(maxsize=_POLICY_CACHE_SIZE)
def _policy_text(policies: tuple[RateLimitPolicy, ...]) -> str:
    """Return the header for these policies, cached because they rarely change."""
    return ratelimit_policy_header(policies)


def _limiters(limiter: Limits) -> list[BaseLimiter]:
    limiters = [limiter] if isinstance(limiter, BaseLimiter) else limiter
    if not isinstance(limiters, list | tuple) or not all(isinstance(one, BaseLimiter) for one in limiters):
        raise TypeError(f"limiter must be a limiter or a list of limiters, got {limiter!r:.100}")
    return list(limiters)


def _validate_cost(cost: int, limiters: Sequence[BaseLimiter]) -> int:
    check_cost(cost)
    capacity = min(limiter.config.capacity for limiter in limiters)
    if cost > capacity:
        raise ValueError(f"cost must be at most the smallest capacity, {capacity}, got {cost}")
    return cost


def _remaining_quota(name: str, reply: LimitReply) -> RateLimitStatus:
    """Return what the client can still use: nothing during a pause, regardless of the limit's tokens."""
    remaining = 0 if reply.paused_us else reply.remaining
    return RateLimitStatus(name, remaining, to_seconds(max(reply.reset_us, reply.retry_us)))


def _limit_problem(policy: RateLimitPolicy, reply: LimitReply) -> RefusalProblem:
    wait = max(1, retry_after_header(to_seconds(reply.retry_us)))
    return RefusalProblem(
        429, "Too Many Requests", f"The limit {policy.name!r} is used up, try again in {wait} s.", wait
    )
