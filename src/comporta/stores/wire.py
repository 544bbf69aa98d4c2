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
from comporta.stores.base import Operation, Script, key_text
from comporta.stores.lua import lua
from comporta.stores.slots import slot_of, tagged

JOINED_MAX = 256
"""The most operations in one script call: a script holds up the server for a millisecond at the most."""

WORKERS_KEY = "comporta_workers"
"""The sorted set in which live workers report; the last of the KEYS of a script that counts them."""

Argument = int | str | bytes


class Call(NamedTuple):
    """One script call and the operations it serves.

    ``tagged``: it goes to a node of a cluster. There keys carry a tag (``slots.py``), and workers are not
    counted: their key is another node's.
    """

    script: Script
    operations: list[Operation[Any]]
    tagged: bool = False

    @property
    def counted(self) -> bool:
        """Whether the last element of the reply is the number of live workers."""
        return self.script.counted and not self.tagged

    def packed(self, now_us: int, *, with_text: bool = False) -> bytes:
        """Return the command; with the script's text after the server said that it has forgotten it."""
        script = self.script
        names = [*script.keys]
        arguments: list[Argument] = [now_us, *script.arguments]
        for operation in self.operations:
            names += operation.key_names()
            arguments += operation.arguments()
        if self.tagged:
            names = [tagged(name) for name in names]
        elif script.counted:
            names.append(WORKERS_KEY)
        keys = [name.encode("utf-8", "surrogatepass") for name in names]
        if script.stripped:
            arguments += [*keys, len(keys)]
            keys = self._states()
        sha, text = loaded(script, counted=self.counted)
        if with_text:
            packed = pack(("EVAL", text, len(keys), *keys, *arguments))
        else:
            packed = pack(("EVALSHA", sha, len(keys), *keys, *arguments))
        return _ASKING + packed if script.asking else packed

    def _states(self) -> list[bytes]:
        parts = [part for operation in self.operations for part in operation.parts]
        names = [tagged(key_text(part.space, part.key)) for part in parts]
        return [name.encode("utf-8", "surrogatepass") for name in names]

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
        joins, counted = self.script.joins, self.counted
        workers = raw.pop() if counted else 0
        found: list[Any] = []
        start = 0
        for operation in self.operations:
            end = start + operation.fields if joins else len(raw)
            found.append(_parsed(operation, raw[start:end]))
            start = end
        if start != len(raw):
            raise ValueError("too long")
        if counted:
            heard(_number(workers))
        return found

    def names(self) -> str:
        """Return the keys, for an error message."""
        keys = [key for operation in self.operations for key in operation.key_names()]
        return ", ".join(repr(key) for key in keys[:3]) + (", …" if len(keys) > 3 else "")


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError("no number")
    return value


def _parsed(operation: Operation[Any], raw: list[Any]) -> Any:
    try:
        return operation.parse(raw)
    except StateError as error:
        return error


def calls_for(operations: Sequence[Operation[Any]], *, tagged: bool = False) -> list[Call]:
    """Join neighbours that may be joined; order is kept. In a cluster they must live in one slot."""
    calls: list[Call] = []
    slot = last_slot = 0
    for operation in operations:
        script = operation.script
        last = calls[-1] if calls else None
        if tagged:
            slot = slot_of(operation)
        alike = last and script.joins and last.script is script and slot == last_slot
        if last and alike and len(last.operations) < JOINED_MAX:
            last.operations.append(operation)
        else:
            calls.append(Call(script, [operation], tagged))
        last_slot = slot
    return calls


_loaded: dict[tuple[str, bool, bool], tuple[str, str]] = {}


def loaded(script: Script, *, counted: bool) -> tuple[str, str]:
    """Return the name under which the server knows a script, and its text.

    Both are read once: an upgrade of the files under a running program must not mix versions.
    """
    found = _loaded.get((script.name, counted, script.stripped))
    if found is None:
        text = script.text()
        if script.counted:
            text = f"{text}\n{lua('stores', 'counted') if counted else 'return reply'}"
        if script.stripped:
            text = f"{lua('stores', 'stripped')}\n{text}"
        sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        found = _loaded[script.name, counted, script.stripped] = (sha, text)
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

_ASKING = pack(("ASKING",))
