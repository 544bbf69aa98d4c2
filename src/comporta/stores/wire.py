"""What goes over the wire to a Redis or Valkey server, and what may come back.

Both faces of the Redis store speak through this file: commands are packed here, several operations
joined into one script call, replies cut apart again, and errors given their names. It opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any, NamedTuple, cast

from comporta.errors import (
    StateError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.stores.base import Operation, Script

JOINED_MAX = 256
"""The most operations in one script call: a script holds up the server for a millisecond at the most."""

Argument = int | str | bytes


class Call(NamedTuple):
    """One script call and the operations it serves."""

    script: Script
    operations: list[Operation[Any]]

    def packed(self, now_us: int, *, with_text: bool = False) -> bytes:
        """Return the command; with the script's text after the server said that it has forgotten it."""
        script = self.script
        names = [*script.keys]
        arguments: list[Argument] = [now_us, *script.arguments]
        for operation in self.operations:
            names += operation.key_names()
            arguments += operation.arguments()
        keys = [name.encode("utf-8", "surrogatepass") for name in names]
        sha, text = loaded(script)
        if with_text:
            return pack(("EVAL", text, len(keys), *keys, *arguments))
        return pack(("EVALSHA", sha, len(keys), *keys, *arguments))

    def replies(self, raw: Any) -> list[Any]:
        """Return for each operation its reply, or the error that is its own."""
        expected = sum(operation.fields for operation in self.operations)
        if not isinstance(raw, list) or (self.script.joins and len(raw) != expected):
            return [self._odd(raw)] * len(self.operations)
        found: list[Any] = []
        start = 0
        for operation in self.operations:
            mine = raw[start : start + operation.fields] if self.script.joins else raw
            start += operation.fields
            try:
                found.append(operation.parse(mine))
            except StateError as error:
                found.append(error)
            except (ValueError, TypeError, IndexError):
                found.append(self._odd(raw))
        return found

    def _odd(self, raw: Any) -> StateUnavailableError:
        return StateUnavailableError(f"a reply to {self.script.name} has the wrong shape: {raw!r:.200}")

    def names(self) -> str:
        """Return the keys, for an error message."""
        keys = [key for operation in self.operations for key in operation.key_names()]
        return ", ".join(repr(key) for key in keys[:3]) + (", …" if len(keys) > 3 else "")


def calls_for(operations: Sequence[Operation[Any]]) -> list[Call]:
    """Join neighbours that may be joined; order is kept."""
    calls: list[Call] = []
    for operation in operations:
        script = operation.script
        last = calls[-1] if calls else None
        if last and script.joins and last.script is script and len(last.operations) < JOINED_MAX:
            last.operations.append(operation)
        else:
            calls.append(Call(script, [operation]))
    return calls


_loaded: dict[str, tuple[str, str]] = {}


def loaded(script: Script) -> tuple[str, str]:
    """Return the name under which the server knows a script, and its text.

    Both are read once: an upgrade of the files under a running program must not mix versions.
    """
    found = _loaded.get(script.name)
    if found is None:
        text = script.text()
        sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        found = _loaded[script.name] = (sha, text)
    return found


def _pack_here(arguments: tuple[Argument, ...]) -> bytes:
    """Pack a command without hiredis."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _packer() -> Callable[[tuple[Argument, ...]], bytes]:
    try:
        from hiredis import pack_command  # noqa: PLC0415 - used when it is there
    except ImportError:
        return _pack_here
    return cast(Callable[[tuple[Argument, ...]], bytes], pack_command)


pack = _packer()


def named(error: Exception, address: str, keys: str = "") -> StateError:
    """Return comporta's error for one of redis-py's; neither shows a password."""
    import redis  # noqa: PLC0415 - an extra

    text = str(error)
    if isinstance(error, redis.TimeoutError | TimeoutError):
        return StateTimeoutError(f"{address} did not answer in time; it may have been carried out: {text}")
    if isinstance(error, redis.ResponseError) and text.startswith("WRONGTYPE"):
        return StateTypeError(f"one of {keys} holds something else, left as it is: {text}")
    return StateUnavailableError(f"{address} cannot be used: {text or type(error).__name__}")
