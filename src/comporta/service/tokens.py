"""API tokens: named, each for one user, kept in the database as hashes.

A token has 32 random bytes, so a plain SHA-256 of it cannot be reversed. :class:`TokenRegistry` holds all
valid tokens of the database in memory and reads them again every 3 s: a revoked token is refused within 5 s,
and while the database is down the known tokens keep working.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from comporta.clock import MONOTONIC
from comporta.database.base import Statement
from comporta.errors import DatabaseError
from comporta.validators import require_text

if TYPE_CHECKING:
    from comporta.database.base import Database

PREFIX: Final = "comporta_"
"""The start of every token, by which scanners for leaked secrets can recognize one."""

TOKEN_BYTES: Final = 32
NAME_CHARS_MAX: Final = 100
TOKENS_MAX: Final = 10_000
"""How many valid tokens there may be: every worker holds all of them."""

REFRESH_SECONDS: Final = 3.0
RETRY_SECONDS: Final = 0.5
"""How soon an unknown token may cause another read: it may have been added just now."""

_ADD = Statement(
    """
    INSERT INTO service_tokens (name, digest, user_id, is_admin, created_at)
    SELECT CAST(:name AS TEXT), CAST(:digest AS TEXT), CAST(:user_id AS TEXT), CAST(:is_admin AS INTEGER),
        AT(:now)
    WHERE (SELECT count(*) FROM service_tokens WHERE revoked_at IS NULL) < CAST(:tokens_max AS INTEGER)
    ON CONFLICT (name) DO NOTHING RETURNING name
    """
)
_FIND = Statement("SELECT name FROM service_tokens WHERE name = :name")
_REVOKE = Statement(
    "UPDATE service_tokens SET revoked_at = AT(:now) WHERE name = :name AND revoked_at IS NULL RETURNING name"
)
_LIST = Statement(
    """
    SELECT name, user_id, is_admin, UNIX(created_at), UNIX(revoked_at) FROM service_tokens
    ORDER BY name LIMIT :count
    """
)
_READ_VALID = Statement("SELECT digest, name, user_id, is_admin FROM service_tokens WHERE revoked_at IS NULL")


class TokenRecord(NamedTuple):
    """A token without its secret; times are in Unix seconds."""

    name: str
    user: str
    is_admin: bool
    created_at: float
    revoked_at: float | None


class TokenOwner(NamedTuple):
    """The user that a valid token stands for, and the name of the token."""

    name: str
    user: str
    is_admin: bool


class TokenTable:
    """The tokens of a database, for operators; its methods block."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, user: str, *, is_admin: bool = False) -> str:
        """Add a token and return it: it is stored only as a hash and cannot be shown again."""
        token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        params = {
            "name": require_text("name", name, NAME_CHARS_MAX),
            "digest": digest(token),
            "user_id": require_text("user", user, NAME_CHARS_MAX),
            "is_admin": int(is_admin),
            "tokens_max": TOKENS_MAX,
        }
        [rows] = self._database.write((_ADD,), params)
        if not rows:
            raise ValueError(self._refusal(name))
        return token

    def _refusal(self, name: str) -> str:
        if self._database.read(_FIND, {"name": name}):
            return f"name must be new, got {name!r}: a token has it, and a revoked token keeps its name"
        return f"at most {TOKENS_MAX} tokens may be valid at once: revoke one before you add {name!r}"

    def revoke(self, name: str) -> bool:
        """Revoke a token; return whether there was a valid one."""
        [rows] = self._database.write((_REVOKE,), {"name": name})
        return bool(rows)

    def list_tokens(self, count: int) -> list[TokenRecord]:
        """Return up to ``count`` tokens, including revoked ones."""
        rows = self._database.read(_LIST, {"count": count})
        return [TokenRecord(row[0], row[1], bool(row[2]), row[3], row[4]) for row in rows]


class TokenRegistry:
    """The valid tokens, as one worker knows them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners: dict[str, TokenOwner] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def find(self, token: str) -> TokenOwner | None:
        """Return the owner of a token, or ``None``. Raises if the tokens were never read."""
        key = digest(token)
        if key not in self._owners:
            await self._read(RETRY_SECONDS)
        return self._owners.get(key)

    async def run_refresh_loop(self) -> None:
        """Read the tokens periodically until this task is cancelled."""
        while True:
            with suppress(DatabaseError):  # the known tokens keep working
                await self._read(0)
            await asyncio.sleep(REFRESH_SECONDS)

    async def _read(self, age_min: float) -> None:
        """Read all tokens, unless they were read less than ``age_min`` seconds ago."""
        async with self._reading:
            if _now() - self._read_at < age_min:
                return
            try:
                rows = await self._database.read_async(_READ_VALID, {})
            except DatabaseError:
                if self._read_at > float("-inf"):
                    return
                raise
            self._owners = {row[0]: TokenOwner(row[1], row[2], bool(row[3])) for row in rows}
            self._read_at = _now()


def digest(token: str) -> str:
    """Return the hash under which a token is stored."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()


def _now() -> float:
    return MONOTONIC.now_ns() / 1e9
