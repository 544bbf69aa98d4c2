"""A plain connection to a Redis server, for diagnostic commands that the store never sends.

redis-py connects, negotiates TLS and authenticates, with the URL of the store. Replies are raw:
options of the URL about decoding and protocols have no effect. The connection never retries a command.
"""

from __future__ import annotations

from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

CommandWord = str | int


class DiagnosticConnection:
    """A connection that ``connect`` opens; the constructor raises an error for a wrong URL."""

    def __init__(self, url: str, seconds: float) -> None:
        pool = ConnectionPool.from_url(_redis_py_url(url))
        options: dict[str, Any] = {
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
        }
        self._connection: Any = pool.connection_class(**{**pool.connection_kwargs, **options})

    def connect(self) -> None:
        """Connect and authenticate."""
        self._connection.connect()

    def call(self, *words: CommandWord) -> Any:
        """Send a command and return the reply; raise an error reply of the server."""
        self._connection.send_command(*words)
        return self._connection.read_response()

    def call_pairs(self, *words: CommandWord) -> dict[str, str]:
        """Return a reply of alternating names and values; empty if the server rejects the command."""
        try:
            reply = self.call(*words)
        except ResponseError:
            return {}
        return {_text(name): _text(value) for name, value in zip(reply[::2], reply[1::2], strict=False)}

    def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO; empty if the server rejects the command."""
        try:
            lines = _text(self.call("INFO", section)).splitlines()
        except ResponseError:
            return {}
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def close(self) -> None:
        """Close the connection, if it is open."""
        self._connection.disconnect()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _redis_py_url(url: str) -> str:
    """Return a URL with the scheme that redis-py knows: ``rediss://`` for ``valkeys://``."""
    return "redis" + url.removeprefix("valkey") if url.startswith("valkey") else url
