"""Limits how many tokens clients may try, per client and in total, across all workers.

An attempt is charged in the shared store before the token is compared, so concurrent guesses count like
sequential ones; the attempt of a correct token is refunded. Each client has a small limit of its own that
other clients cannot use up, so a flood of guesses from many addresses never locks out a correct token from
another address. After a client has sent the correct token, its tokens are compared without the store until it
sends a wrong one: the many requests of one page cost nothing, and a signed-in client stays signed in during
an outage.

While the store is unreachable, each worker applies its share of these limits. If attempts cannot be counted
at all, no token is compared.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request

from comporta.clock import MONOTONIC
from comporta.integrations.client_ip import ClientAddress
from comporta.limits.group import LimitGroup
from comporta.limits.limiter import BaseLimiter
from comporta.service.auth_log import AuthFailureLog
from comporta.service.problems import HttpProblem

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig
    from comporta.stores.base import Store

OWN_LIMIT: Final = "1/10s"
"""Attempts that each client has regardless of other clients."""

CLIENT_LIMIT: Final = "3/s burst 9"
"""Further attempts of a client, while ``TOTAL_LIMIT`` has room."""

TOTAL_LIMIT: Final = "30/s burst 100"
"""Attempts of all clients together, beyond each client's ``OWN_LIMIT``."""

VERIFIED_MAX: Final = 1000
"""How many clients with a correct token are remembered; the oldest is forgotten first."""

_Refund = Callable[[], Coroutine[Any, Any, None]]


class AuthThrottle:
    """Checks one token in one worker; ``name`` is the name of the token, ``protected`` what it protects."""

    def __init__(self, name: str, protected: str, config: ServiceConfig, store: Store) -> None:
        # One prefix before the dot: on a Redis Cluster the keys of one token share a slot.
        self._own_limiter = BaseLimiter(OWN_LIMIT, store, f"{name}_tries.own")
        per_client = BaseLimiter(CLIENT_LIMIT, store, f"{name}_tries.each")
        self._shared_limits = LimitGroup(per_client, BaseLimiter(TOTAL_LIMIT, store, f"{name}_tries.all"))
        self._address = ClientAddress(config.trusted_proxies)
        self._verified: OrderedDict[str, None] = OrderedDict()
        self._failure_log = AuthFailureLog(f"{name}_refused", protected)

    def client_address(self, request: Request) -> str:
        """Return the client's address, as the client limit determines it."""
        return self._address(request.scope)

    async def verify(self, client: str, given: str, token: str) -> bool:
        """Return whether ``given`` is the token. Raises a 429 problem if the client has no attempt left."""
        if client in self._verified and _tokens_match(given, token):
            return True
        self._verified.pop(client, None)  # before the await: concurrent wrong tokens must not all be free
        refund = await self._take_attempt(client)
        if not _tokens_match(given, token):
            self.record_failure(client)
            return False
        self._remember(client)
        await refund()
        return True

    def record_failure(self, client: str) -> None:
        """Report a client without the correct token."""
        self._failure_log.record(client, MONOTONIC.now_ns() / 1e9)

    async def _take_attempt(self, client: str) -> _Refund:
        """Charge an attempt and return a function that refunds it."""
        own = await self._own_limiter.decide(client)
        if own.allowed:
            return partial(self._own_limiter.release, client)
        shared = await self._shared_limits.decide([client, None])
        if shared.allowed:
            return partial(self._shared_limits.release, [client, None])
        wait = min(own.retry_after, shared.retry_after)
        raise HttpProblem(429, "Too Many Requests", "too many wrong tokens", retry_after=wait)

    def _remember(self, client: str) -> None:
        self._verified[client] = None
        while len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)


def _tokens_match(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())
