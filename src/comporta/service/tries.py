"""Tokens that are shown: how many are looked at, of one client and of all, on all workers together.

A try is paid for before anything is compared, in the state, so that guesses made at once are no more than
guesses made one after the other; whoever is right gets it back. Every client has a try of its own that no
guesses of others can use up: so many addresses may guess at once, and a right token still opens from yet
another one. A client that was right here is compared without asking the state, until it is wrong: so the
many requests of one page cost nothing, and who is in stays in when the state is away.

While the state is out of reach a worker goes by its share of these limits; where nothing can be counted at
all, nothing is compared.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request

from comporta.clock import MONOTONIC
from comporta.integrations.addresses import ClientAddress
from comporta.limits.group import LimitGroup
from comporta.limits.limiter import BaseLimiter
from comporta.service.problems import Problem
from comporta.service.refusals import Refusals

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig
    from comporta.stores.base import Store

OWN: Final = "1/10s"
"""What a client may try whatever others do."""

EACH: Final = "3/s burst 9"
"""What it may try beyond that, as long as there is something left of what all may."""

ALL: Final = "30/s burst 100"
KNOWN_MAX: Final = 1000
"""How many clients are remembered as having been right; more push out the first of them."""

_GiveBack = Callable[[], Coroutine[Any, Any, None]]


class Tries:
    """Of one worker, at one token: ``door`` names it, ``where`` is what it opens."""

    def __init__(self, door: str, where: str, config: ServiceConfig, store: Store) -> None:
        # alike before the dot: on a cluster those of one door live together
        self._own = BaseLimiter(OWN, store, f"{door}_tries.own")
        each = BaseLimiter(EACH, store, f"{door}_tries.each")
        self._more = LimitGroup(each, BaseLimiter(ALL, store, f"{door}_tries.all"))
        self._address = ClientAddress(config.trusted_proxies)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._refusals = Refusals(f"{door}_refused", where)

    def client_of(self, request: Request) -> str:
        """Return who shows something: an address, as for the limit of all requests."""
        return self._address(request.scope)

    async def is_right(self, client: str, given: str, token: str) -> bool:
        """Whether what a client shows is the token; a problem if it has no try left."""
        if client in self._known and _same(given, token):
            return True
        self._known.pop(client, None)  # before anything is waited for: a wrong one is compared free once
        give_back = await self._paid(client)
        if not _same(given, token):
            self.refused(client)
            return False
        self._remember(client)
        await give_back()
        return True

    def refused(self, client: str) -> None:
        """Tell of one who has not the token."""
        self._refusals.add(client, MONOTONIC.now_ns() / 1e9)

    async def _paid(self, client: str) -> _GiveBack:
        """Take a try, and return what gives it back."""
        own = await self._own.decide(client)
        if own.allowed:
            return partial(self._own.release, client)
        more = await self._more.decide([client, None])
        if more.allowed:
            return partial(self._more.release, [client, None])
        wait = min(own.retry_after, more.retry_after)
        raise Problem(429, "Too Many Requests", "too many wrong tokens", retry_after=wait)

    def _remember(self, client: str) -> None:
        self._known[client] = None
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())
