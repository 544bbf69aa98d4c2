"""Decides who may see the dashboard: every client, or only those with the token if one is configured.

A browser stores the token's HMAC in a cookie. Every worker can verify it, even after a restart, and it is
valid for no other token. ``auth_throttle`` limits the attempts.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from fastapi import Request, Response

from comporta.integrations.client_ip import ClientAddress
from comporta.service.auth_throttle import AuthThrottle
from comporta.service.problems import HttpProblem

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig
    from comporta.stores.base import Store

COOKIE: Final = "comporta_dashboard"
FORM_BYTES_MAX: Final = 4096

_COOKIE_CONTEXT = b"comporta dashboard cookie 1"
_SAME_SITE = ("same-origin", "none")


class DashboardAuth:
    """Authenticates dashboard requests at one worker; without a configured token it admits everyone."""

    def __init__(self, config: ServiceConfig, store: Store) -> None:
        self._token = config.dashboard_token
        self._cookie_value = "" if self._token is None else cookie_value(self._token)
        self._address = ClientAddress(config.trusted_proxies)
        self._throttle = AuthThrottle("dashboard", "the dashboard", config, store)

    @property
    def requires_token(self) -> bool:
        """Whether a token is configured."""
        return self._token is not None

    async def is_authorized(self, request: Request) -> bool:
        """Whether a request may see the dashboard. Raises a 429 problem after too many wrong tokens."""
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._verify(request, given, self._token)
        cookie = request.cookies.get(COOKIE)
        return cookie is not None and await self._verify(request, cookie, self._cookie_value)

    async def is_form_authorized(self, request: Request) -> bool:
        """Whether the submitted sign-in form has the token."""
        fields = parse_qs((await _read_form(request)).decode("utf-8", "replace"), max_num_fields=10)
        given = fields.get("token", [""])[0]
        return self._token is not None and await self._verify(request, given, self._token)

    def set_cookie(self, request: Request, response: Response) -> None:
        """Sign a browser in."""
        secure = self._is_secure(request)
        response.set_cookie(
            COOKIE, self._cookie_value, path="/", httponly=True, samesite="strict", secure=secure
        )

    def delete_cookie(self, request: Request, response: Response) -> None:
        """Sign a browser out."""
        secure = self._is_secure(request)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=secure)

    def _is_secure(self, request: Request) -> bool:
        """Whether the browser uses https, directly or according to a trusted proxy."""
        forwarded = request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip()
        is_proxied = forwarded == "https" and self._address.is_trusted_proxy(request.scope)
        return is_proxied or request.scope["scheme"] == "https"

    async def _verify(self, request: Request, given: str, expected: str) -> bool:
        return await self._throttle.verify(self._throttle.client_address(request), given, expected)


def cookie_value(token: str) -> str:
    """Return the cookie value for a token."""
    return hmac.new(token.encode(), _COOKIE_CONTEXT, sha256).hexdigest()


def require_same_origin(request: Request) -> None:
    """Refuse a request that another site made a browser send; other clients send neither header."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_same_origin = site in _SAME_SITE
    else:
        is_same_origin = origin is None or _origin_host(origin) == _request_host(request)
    if not is_same_origin:
        raise HttpProblem(403, "Forbidden", "only the service's own page may send this request")


async def _read_form(request: Request) -> bytes:
    body = await request.body()
    if len(body) > FORM_BYTES_MAX:
        raise HttpProblem(
            413, "Content Too Large", f"the form must be at most {FORM_BYTES_MAX} bytes, got more", "token"
        )
    return body


def _origin_host(origin: str) -> str:
    return urlsplit(origin).netloc.lower()


def _request_host(request: Request) -> str:
    return request.headers.get("host", "").lower()
