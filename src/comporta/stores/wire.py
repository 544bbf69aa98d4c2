"""What goes over the wire to a Redis or Valkey server, and what may come back.

Both faces of the Redis store speak through this file: commands are packed here, several operations
joined into one script call, and replies cut apart again. It opens no connection; what an error is called
is in ``naming.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any, NamedTuple, cast

from comporta.errors import StateError, StateUnavailableError
from comporta.stores.base import Operation, Script

JOINED_MAX = 256
"""The most operations in one script call: a script holds up the server for a millisecond at the most."""

WORKERS_KEY = "comporta_workers"
"""The sorted set in which live workers report; the last of the KEYS of a script that counts them."""

Argument = int | str | bytes


class Call(NamedTuple):
    """One script call and the operations it serves; ``counts``: the server can tell how many workers live."""

    script: Script
    operations: list[Operation[Any]]
    counts: bool = True

    def packed(self, now_us: int, *, with_text: bool = False) -> bytes:
        """Return the command; with the script's text after the server said that it has forgotten it."""
        script = self.script
        names = [*script.keys]
        arguments: list[Argument] = [now_us, *script.arguments]
        for operation in self.operations:
            names += operation.key_names()
            arguments += operation.arguments()
        if self.counts and script.counted:
            names.append(WORKERS_KEY)
        keys = [name.encode("utf-8", "surrogatepass") for name in names]
        sha, text = loaded(script, counts=self.counts)
        if with_text:
            return pack(("EVAL", text, len(keys), *keys, *arguments))
        return pack(("EVALSHA", sha, len(keys), *keys, *arguments))

    def replies(self, raw: Any, heard: Callable[[int], None]) -> list[Any]:
        """Return for each operation its reply, or the error that is its own; tell how many workers live.

        A reply of the wrong shape means that what comes over this connection is not what was asked for:
        then nothing of it is an answer.
        """
        try:
            return self._cut(raw, heard)
        except Exception as error:
            name = self.script.name
            raise StateUnavailableError(f"a reply to {name} has the wrong shape: {raw!r:.200}") from error

    def _cut(self, raw: Any, heard: Callable[[int], None]) -> list[Any]:
        if not isinstance(raw, list):
            raise TypeError("no list")
        workers = raw.pop() if self.counts and self.script.counted else 0
        if not isinstance(workers, int):
            raise TypeError("no count of workers")
        found: list[Any] = []
        start = 0
        for operation in self.operations:
            end = start + operation.fields if self.script.joins else len(raw)
            found.append(_parsed(operation, raw[start:end]))
            start = end
        if start != len(raw):
            raise ValueError("too long")
        if self.counts and self.script.counted:
            heard(workers)
        return found

    def names(self) -> str:
        """Return the keys, for an error message."""
        keys = [key for operation in self.operations for key in operation.key_names()]
        return ", ".join(repr(key) for key in keys[:3]) + (", …" if len(keys) > 3 else "")


def _parsed(operation: Operation[Any], raw: list[Any]) -> Any:
    try:
        return operation.parse(raw)
    except StateError as error:
        return error


def calls_for(operations: Sequence[Operation[Any]], *, counts: bool = True) -> list[Call]:
    """Join neighbours that may be joined; order is kept."""
    calls: list[Call] = []
    for operation in operations:
        script = operation.script
        last = calls[-1] if calls else None
        if last and script.joins and last.script is script and len(last.operations) < JOINED_MAX:
            last.operations.append(operation)
        else:
            calls.append(Call(script, [operation], counts))
    return calls


_loaded: dict[tuple[str, bool], tuple[str, str]] = {}


def loaded(script: Script, *, counts: bool) -> tuple[str, str]:
    """Return the name under which the server knows a script, and its text.

    Both are read once: an upgrade of the files under a running program must not mix versions.
    """
    found = _loaded.get((script.name, counts))
    if found is None:
        text = script.text()
        if script.counted:
            text = f"{text}\n{_count_text() if counts else 'return reply'}"
        sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        found = _loaded[script.name, counts] = (sha, text)
    return found


def _count_text() -> str:
    from importlib.resources import files  # noqa: PLC0415 - see limits/operation.py

    return files("comporta.stores").joinpath("counted.lua").read_text("utf-8")


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
