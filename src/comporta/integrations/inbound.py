"""Whether a request of a client may pass, and what to tell the client: what every web framework needs alike.

Nothing here knows a framework. A limit's state that cannot be used is no reason for a 500: limiters go on by
themselves, and where even that is impossible ``on_error`` says whether requests pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from inspect import isawaitable
from typing import Any, Final, NamedTuple

from comporta import events
from comporta.clock import SECOND_US, to_seconds
from comporta.errors import RefusedError, StateError
from comporta.flow import Flow, run_async
from comporta.headers import Policy, Standing, ratelimit, ratelimit_policy, whole_seconds
from comporta.integrations.addresses import ClientAddress
from comporta.limits.answering import answers_at_once
from comporta.limits.config import LimitStrategy
from comporta.limits.group import LimitGroup
from comporta.limits.key import state_key
from comporta.limits.limiter import BaseLimiter
from comporta.limits.operation import Answer, Question
from comporta.limits.rule import Numbers
from comporta.limits.verbs import Key, check_cost
from comporta.stores.base import Busy
from comporta.stores.effects import Apply

EVENT_EVERY_NS: Final = 60_000_000_000
"""The least time between two events about a limit that cannot be asked."""

CLOSED_RETRY_SECONDS: Final = 5
"""When to come back if the limit cannot be asked and nobody passes: about when a state is looked at again."""

EMPTY: Final = "(empty)"
"""The key of all who send an empty one: an empty header must neither fail nor be a way around the limit."""

ON_ERROR = ("open", "closed")

_KNOWN = 256

Headers = list[tuple[str, str]]
Limits = BaseLimiter | Sequence[BaseLimiter]
Keys = Key | Sequence[Key]


class Problem(NamedTuple):
    """A refusal as RFC 9457 has it; ``retry_after`` is in whole seconds."""

    status: int
    title: str
    detail: str
    retry_after: int

    @property
    def body(self) -> dict[str, str | int]:
        """The members of the document."""
        return {"type": "about:blank", **self._asdict()}

    @property
    def content(self) -> bytes:
        """The document as it is sent."""
        return json.dumps(self.body).encode()

    @property
    def headers(self) -> Headers:
        """What every answer with this problem carries."""
        return [("content-type", "application/problem+json"), ("retry-after", str(self.retry_after))]


class Verdict(NamedTuple):
    """What to tell the client, and the problem to answer with if the request may not pass."""

    headers: Headers
    problem: Problem | None = None


def refusal_problem(error: RefusedError) -> Problem:
    """Return the answer for a call to an upstream that was not tried; why is nobody's business outside."""
    wait = max(1, whole_seconds(error.retry_after))
    detail = f"A service that this one needs is not available, try again in {wait} s."
    return Problem(503, "Service Unavailable", detail, wait)


class Inbound:
    """One limit or several on requests that come in.

    ``key`` is given the request (a mapping such as an ASGI scope), and may be a coroutine function. It
    returns whose limit it is, or ``None`` if the request is not limited; for several limiters a list with a
    key for each, where ``None`` is that limit as a whole.
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
    ) -> None:
        self._limiters = _limiters(limiter)
        self._group = LimitGroup(*self._limiters)
        self._configured = [limiter.config.rule().numbers for limiter in self._limiters]
        self._alone = isinstance(limiter, BaseLimiter)
        self._at_once = answers_at_once(self._limiters[0]) if self._alone else None
        self._key = self._key_function(key, trusted_proxies)
        self._names = self._checked_names(name)
        self._cost = _checked_cost(cost, self._limiters)
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error must be one of {', '.join(ON_ERROR)}, got {on_error!r:.50}")
        self._open = on_error == "open"
        self._told_ns: int | None = None

    async def admit(self, request: Mapping[str, Any]) -> Verdict:
        """Take what the request costs from its limits; all of them, or none is charged."""
        keys = self._key(request)
        if type(keys) is str and self._at_once is not None:
            try:
                answer, numbers = self._at_once(keys or EMPTY, self._cost)
            except (Busy, StateError):
                pass  # the long way waits, or finds out what is wrong
            else:
                policy = self._policy(0, numbers, answer)
                return _verdict((policy,), policy, answer)
        elif isawaitable(keys):
            keys = await keys
        if keys is None:
            return Verdict([])
        texts = self._texts(keys)
        try:
            return await run_async(self._deciding(texts))
        except StateError as error:
            return self._undecided(error)

    def _deciding(self, texts: Sequence[str]) -> Flow[Verdict]:
        operation = yield from self._group.operation(texts, self._cost)
        answers: list[Answer] = yield Apply(self._limiters[0].store, operation)
        numbers = map(self._in_force, range(len(answers)), operation.questions)
        policies = tuple(map(self._policy, range(len(answers)), numbers, answers))
        binding, policy = max(
            zip(answers, policies, strict=True), key=lambda pair: (pair[0].wait_us, -pair[0].remaining)
        )
        return _verdict(policies, policy, binding)

    def _in_force(self, index: int, question: Question) -> Numbers:
        """Return the numbers that a decision went by.

        On a server the rule in force is not in the question: what this process last heard of it has to do.
        """
        heard = self._limiters[index].verbs.known().numbers
        return question.rule.numbers if heard == self._configured[index] else heard

    def _policy(self, index: int, numbers: Numbers, answer: Answer) -> Policy:
        """Return the limit that is in force; a bucket's window is the time in which it fills."""
        limiter, name = self._limiters[index], self._names[index]
        if not numbers.window_us:
            filled_us = answer.capacity * numbers.unit / numbers.per_us
            return Policy(name, answer.capacity, round(filled_us / SECOND_US, 3))  # no second for a rounding
        sliding = limiter.strategy is LimitStrategy.SLIDING_WINDOW
        lent_us = limiter.config.lease_us if sliding else 0  # by so much it counts longer than it promises
        return Policy(name, answer.capacity, to_seconds(numbers.window_us - lent_us))

    def _undecided(self, error: StateError) -> Verdict:
        now_ns, name = self._limiters[0].store.clock.now_ns(), ", ".join(self._names)
        if self._told_ns is None or now_ns - self._told_ns >= EVENT_EVERY_NS:
            self._told_ns = now_ns
            what = "pass without a limit" if self._open else "are refused"
            events.publish("inbound_undecided", name, f"requests that cannot be counted {what}: {error}")
        if self._open:
            return Verdict([])
        detail = f"Requests cannot be counted at the moment, try again in {CLOSED_RETRY_SECONDS} s."
        return Verdict([], Problem(503, "Service Unavailable", detail, CLOSED_RETRY_SECONDS))

    def _texts(self, keys: Any) -> list[str]:
        found: Sequence[Key] = [keys] if self._alone else keys
        if not isinstance(found, list | tuple) or len(found) != len(self._limiters):
            raise ValueError(
                f"key must return a list, one for each of {len(self._limiters)} limiters, got {keys!r:.100}"
            )
        return [state_key(EMPTY if key == "" else key) for key in found]

    def _key_function(
        self, key: Callable[[Any], Any] | None, trusted_proxies: Iterable[str]
    ) -> Callable[[Any], Any]:
        if key is None:
            if not self._alone:
                raise ValueError("key must be given for several limiters: it returns a list, one for each")
            return ClientAddress(trusted_proxies)
        if not callable(key):
            raise TypeError(f"key must be a function of the request, got {key!r:.100}")
        if list(trusted_proxies):
            raise ValueError("trusted_proxies must be left out where key is given: ClientAddress takes them")
        return key

    def _checked_names(self, name: str | None) -> list[str]:
        if name is None:
            return [limiter.name for limiter in self._limiters]
        if not self._alone:
            raise ValueError(
                f"name must be left out for several limiters, which have names, got {name!r:.100}"
            )
        ratelimit_policy([Policy(name, 0)])  # raises for what cannot be written
        return [name]


def _verdict(policies: tuple[Policy, ...], binding: Policy, answer: Answer) -> Verdict:
    """Tell of all limits what they are, and of the one that binds how the client stands."""
    told = ratelimit([_standing(binding.name, answer)])
    headers = [("ratelimit-policy", _policy_text(policies)), ("ratelimit", told)]
    return Verdict(headers, _used_up(binding, answer) if answer.wait_us else None)


@lru_cache(maxsize=_KNOWN)
def _policy_text(policies: tuple[Policy, ...]) -> str:
    """Return what clients are told of limits, which seldom change."""
    return ratelimit_policy(policies)


def _limiters(limiter: Limits) -> list[BaseLimiter]:
    found = [limiter] if isinstance(limiter, BaseLimiter) else limiter
    if not isinstance(found, list | tuple) or not all(isinstance(one, BaseLimiter) for one in found):
        raise TypeError(f"limiter must be a limiter or a list of limiters, got {limiter!r:.100}")
    return list(found)


def _checked_cost(cost: int, limiters: Sequence[BaseLimiter]) -> int:
    check_cost(cost)
    capacity = min(limiter.config.capacity for limiter in limiters)
    if cost > capacity:
        raise ValueError(f"cost must be at most the smallest capacity, {capacity}, got {cost}")
    return cost


def _standing(name: str, answer: Answer) -> Standing:
    """Tell what a client can use: during a pause nothing, whatever the limit holds, until its end."""
    left = 0 if answer.paused_us else answer.remaining
    return Standing(name, left, to_seconds(max(answer.reset_us, answer.retry_us)))


def _used_up(policy: Policy, answer: Answer) -> Problem:
    wait = max(1, whole_seconds(to_seconds(answer.retry_us)))
    return Problem(
        429, "Too Many Requests", f"The limit {policy.name!r} is used up, try again in {wait} s.", wait
    )
