"""Who may look: everybody, or, where a token is configured, who has it.

A browser has it as a cookie that is made of the token and nothing else: every worker knows it, also after a
restart, and no other token makes the same. Whoever shows a wrong one may try a few times a second, on all
workers together; after that nothing is compared for a while, or a right guess would still be let in.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from fastapi import Request, Response

from comporta.clock import MONOTONIC
from comporta.integrations.addresses import ClientAddress
from comporta.limits.limiter import BaseLimiter
from comporta.service.problems import Problem
from comporta.service.refusals import Refusals

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig
    from comporta.stores.base import Store

COOKIE: Final = "comporta_dashboard"
TRIES: Final = "3/s burst 10"
SHUT_MAX: Final = 1000
"""How many clients are remembered as shut out; more push out the first of them."""

FORM_BYTES_MAX: Final = 4096

_SEALED = b"comporta dashboard cookie 1"
_OURS = ("same-origin", "none")


class Doors:
    """Of one worker. ``token`` left out: they stand open."""

    def __init__(self, config: ServiceConfig, store: Store) -> None:
        self._token = config.dashboard_token
        self._seal = "" if self._token is None else seal(self._token)
        self._address = ClientAddress(config.trusted_proxies)
        self._tries = BaseLimiter(TRIES, store, "dashboard_tries")
        self._shut: OrderedDict[str, float] = OrderedDict()
        self._refusals = Refusals("dashboard_refused", "the dashboard")

    @property
    def locked(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None

    async def admits(self, request: Request) -> bool:
        """Whether somebody may look; a problem if they try too often."""
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._tried(request, given, self._token)
        cookie = request.cookies.get(COOKIE)
        return cookie is not None and await self._tried(request, cookie, self._seal)

    async def opened(self, request: Request) -> bool:
        """Whether the form that was sent holds the token."""
        found = parse_qs((await _form(request)).decode("utf-8", "replace"), max_num_fields=10)
        given = found.get("token", [""])[0]
        return self._token is not None and await self._tried(request, given, self._token)

    def give(self, request: Request, response: Response) -> None:
        """Give a browser what it shows from now on."""
        secure = self._is_secure(request)
        response.set_cookie(COOKIE, self._seal, path="/", httponly=True, samesite="strict", secure=secure)

    def take(self, request: Request, response: Response) -> None:
        """Take it back."""
        secure = self._is_secure(request)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=secure)

    def _is_secure(self, request: Request) -> bool:
        """Whether the browser came by https, also where a trusted proxy says so."""
        said = request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip()
        proxied = said == "https" and self._address.is_proxy(request.scope)
        return proxied or request.scope["scheme"] == "https"

    async def _tried(self, request: Request, given: str, right: str) -> bool:
        client = self._address(request.scope)
        now = MONOTONIC.now_ns() / 1e9
        until = self._shut.get(client, 0.0)
        if now < until:
            raise _too_often(until - now)
        if hmac.compare_digest(given.encode("utf-8", "replace"), right.encode()):
            return True
        decision = await self._tries.decide(client)
        if not decision.allowed:
            self._shut_out(client, now + decision.retry_after)
            raise _too_often(decision.retry_after)
        self._refusals.add(client, now)
        return False

    def _shut_out(self, client: str, until: float) -> None:
        self._shut[client] = until
        self._shut.move_to_end(client)
        while len(self._shut) > SHUT_MAX:
            self._shut.popitem(last=False)


def seal(token: str) -> str:
    """Return what stands for a token in a cookie."""
    return hmac.new(token.encode(), _SEALED, sha256).hexdigest()


def refuse_strangers(request: Request) -> None:
    """Refuse a request that another site had a browser send; who is no browser says nothing about it."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    ours = site in _OURS if site is not None else origin is None or _host(origin) == _host_of(request)
    if not ours:
        raise Problem(403, "Forbidden", "this may only be asked for by the service's own page")


async def _form(request: Request) -> bytes:
    body = await request.body()
    if len(body) > FORM_BYTES_MAX:
        raise Problem(413, "Content Too Large", f"a form must be at most {FORM_BYTES_MAX} bytes", "token")
    return body


def _host(origin: str) -> str:
    return urlsplit(origin).netloc.lower()


def _host_of(request: Request) -> str:
    return request.headers.get("host", "").lower()


def _too_often(seconds: float) -> Problem:
    return Problem(429, "Too Many Requests", "too many wrong tokens", retry_after=seconds)
