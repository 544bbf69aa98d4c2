"""Who may look: everybody, or, where a token is configured, who has it.

A browser has it as a cookie that is made of the token and nothing else: every worker knows it, also after a
restart, and no other token makes the same. How many wrong ones are looked at is told by ``tries.py``.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from fastapi import Request, Response

from comporta.integrations.addresses import ClientAddress
from comporta.service.problems import Problem
from comporta.service.tries import Tries

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig
    from comporta.stores.base import Store

COOKIE: Final = "comporta_dashboard"
FORM_BYTES_MAX: Final = 4096

_SEALED = b"comporta dashboard cookie 1"
_OURS = ("same-origin", "none")


class Doors:
    """Of one worker. ``token`` left out: they stand open."""

    def __init__(self, config: ServiceConfig, store: Store) -> None:
        self._token = config.dashboard_token
        self._seal = "" if self._token is None else seal(self._token)
        self._address = ClientAddress(config.trusted_proxies)
        self._tries = Tries("dashboard", "the dashboard", config, store)

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
        return await self._tries.is_right(self._tries.client_of(request), given, right)


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
