"""One plain connection to a server, to ask what comporta itself never asks.

Connecting, TLS and authentication are redis-py's, from the same URL as the store's; replies come as the
server sent them, whatever the URL says about decoding or protocols. Nothing is asked twice.
"""

from __future__ import annotations

from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

Word = str | int


class Line:
    """A connection that is made by ``connect``; what the URL says wrong is said by the constructor."""

    def __init__(self, url: str, seconds: float) -> None:
        pool = ConnectionPool.from_url(_normal(url))
        options: dict[str, Any] = {
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
        }
        self._connection: Any = pool.connection_class(**{**pool.connection_kwargs, **options})

    def connect(self) -> None:
        """Connect, greet and authenticate."""
        self._connection.connect()

    def ask(self, *words: Word) -> Any:
        """Send a command and return the reply; an error of the server is raised."""
        self._connection.send_command(*words)
        return self._connection.read_response()

    def pairs(self, *words: Word) -> dict[str, str]:
        """Return a reply of names and values by turns; empty if the server does not tell."""
        try:
            found = self.ask(*words)
        except ResponseError:
            return {}
        return {_text(name): _text(value) for name, value in zip(found[::2], found[1::2], strict=False)}

    def info(self, section: str) -> dict[str, str]:
        """Return a section of what INFO says; empty if the server does not tell."""
        try:
            lines = _text(self.ask("INFO", section)).splitlines()
        except ResponseError:
            return {}
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def close(self) -> None:
        """Close it; one that was never made is fine."""
        self._connection.disconnect()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _normal(url: str) -> str:
    """Return a URL as redis-py knows it: ``valkeys://`` is its ``rediss://``."""
    return "redis" + url.removeprefix("valkey") if url.startswith("valkey") else url
