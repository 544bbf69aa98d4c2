"""Identifies the user of a request according to ``service.auth``: by a token, by a proxy, or not at all.

- ``none``: everyone may do everything, and a request names its user itself.
- ``tokens``: a request needs an API token (``tokens``).
- ``header``: a proxy in ``trusted_proxies`` has authenticated the user and names it in a header.

With an identity a request may name no other user, and sees only what belongs to its user; an admin sees
everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastapi import Request

from comporta.integrations.client_ip import ClientAddress
from comporta.service.problems import HttpProblem
from comporta.service.tokens import NAME_CHARS_MAX, TokenOwner, TokenRegistry

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.service.config import ServiceConfig

_CHALLENGE = {"www-authenticate": "Bearer"}


class Identity(NamedTuple):
    """The user of a request."""

    user: str
    is_admin: bool = False

    def may_see(self, owner: str) -> bool:
        """Whether the user may see what belongs to ``owner``."""
        return self.is_admin or self.user == owner


class Authenticator:
    """Identifies the users of requests at one worker."""

    def __init__(self, config: ServiceConfig, database: Database) -> None:
        self.tokens = TokenRegistry(database) if config.auth == "tokens" else None
        self._mode = config.auth
        self._header = config.identity_header
        self._address = ClientAddress(config.trusted_proxies)

    async def identify(self, request: Request) -> Identity | None:
        """Return the user of a request, ``None`` without authentication. Raises a 401 problem."""
        if self._mode == "none":
            return None
        if self._mode == "header":
            return self._identify_by_header(request)
        owner = await self.find_token_owner(request)
        if owner is None:
            detail = "a valid API token must be sent as Authorization: Bearer <token>"
            raise HttpProblem(401, "Unauthorized", detail, headers=_CHALLENGE)
        return Identity(owner.user, owner.is_admin)

    async def find_token_owner(self, request: Request) -> TokenOwner | None:
        """Return whom the API token of a request stands for, if it has one and it is valid."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if self.tokens is None or scheme.lower() != "bearer":
            return None
        return await self.tokens.find(token.strip())

    def _identify_by_header(self, request: Request) -> Identity:
        values = request.headers.getlist(self._header)
        is_valid = len(values) == 1 and 1 <= len(values[0]) <= NAME_CHARS_MAX and values[0].isprintable()
        if not is_valid or not self._address.is_trusted_proxy(request.scope):
            detail = f"the header {self._header} must come from a trusted proxy and name one user"
            raise HttpProblem(401, "Unauthorized", detail)
        return Identity(values[0])


def resolve_user(identity: Identity | None, given: str | None, field: str = "user_id") -> str | None:
    """Return the user of a request that names ``given``. Raises a 403 problem if that is a different user."""
    if identity is None:
        return given
    if given is not None and given != identity.user:
        raise HttpProblem(403, "Forbidden", f"{field} must be that of the client, or be left out", field)
    return identity.user
