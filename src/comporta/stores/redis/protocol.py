"""Script calls as bytes: packing commands, joining operations into one call, splitting replies.

Both the blocking and the async side of the Redis store use this module. It opens no connection, and
``errors.py`` translates errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any, NamedTuple, cast

from comporta.errors import StateError, StateUnavailableError
from comporta.stores.base import Operation, Script
from comporta.stores.changes import CHANGES_KEY
from comporta.stores.lua import lua
from comporta.stores.redis.cluster_slots import operation_slot, spread_tag, state_names, tagged_names

BATCHED_MAX = 256
"""The most operations in one script call, so that it blocks the server for at most about 1 ms."""

_NOTES_NOTHING = "local function note_change() end"

Argument = int | str | bytes


class ScriptCall(NamedTuple):
    """One script call and the operations it serves.

    ``uses_hash_tags`` is true if the call goes to a node of a cluster. Keys then carry a hash tag
    (``cluster_slots.py``), and there is no change log, because another node may own it.
    """

    script: Script
    operations: list[Operation[Any]]
    uses_hash_tags: bool = False

    def command_bytes(self, now_us: int, *, with_text: bool = False) -> bytes:
        """Return the command: by the script's hash, or ``with_text`` if the server does not know the hash."""
        script = self.script
        arguments: list[Argument] = [now_us, *script.arguments]
        for operation in self.operations:
            arguments += operation.script_args()
        keys = [name.encode("utf-8", "surrogatepass") for name in self._key_names()]
        if script.override is not None:
            arguments.append(script.override)
        if script.asking or script.states_only or script.across_slots:
            arguments += [*keys, len(keys)]
            keys = self._declared_keys(keys)
        sha, text = script_text(script, has_change_log=not self.uses_hash_tags)
        if with_text:
            packed = pack(("EVAL", text, len(keys), *keys, *arguments))
        else:
            packed = pack(("EVALSHA", sha, len(keys), *keys, *arguments))
        return _ASKING + packed if script.asking else packed

    def _key_names(self) -> list[str]:
        """Return the keys of the script, of each operation, and of the change log if the script uses it."""
        names = [*self.script.keys]
        if not self.uses_hash_tags:
            for operation in self.operations:
                names += operation.script_keys()
            return [*names, CHANGES_KEY] if self.script.notes_changes else names
        tagged = tagged_names(names, spread_tag(self.operations[0]))
        for operation in self.operations:
            tagged += tagged_names(operation.script_keys(), spread_tag(operation))
        return tagged

    def _declared_keys(self, keys: list[bytes]) -> list[bytes]:
        """Return the keys to declare if all of them are among the arguments."""
        if self.script.across_slots:
            return []
        if self.script.asking:
            return keys[:1]
        [operation] = self.operations  # a rewritten operation is never sent in a batch
        names = tagged_names(state_names(operation), spread_tag(operation))
        return [name.encode("utf-8", "surrogatepass") for name in names]

    def parse_replies(self, raw: Any) -> list[Any]:
        """Return the reply to each operation, or its own error.

        A reply of the wrong shape means that the connection carries something other than the replies, so no
        part of it can be trusted.
        """
        try:
            return self._split_replies(raw)
        except Exception as error:
            name = self.script.name
            raise StateUnavailableError(f"a reply to {name} has the wrong shape: {raw!r:.200}") from error

    def _split_replies(self, raw: Any) -> list[Any]:
        if not isinstance(raw, list):
            raise TypeError("expected a list")
        replies: list[Any] = []
        start = 0
        for operation in self.operations:
            end = start + operation.reply_size if self.script.batchable else len(raw)
            replies.append(_parse_one(operation, raw[start:end]))
            start = end
        if start != len(raw):
            raise ValueError("too many elements")
        return replies

    def key_summary(self) -> str:
        """Return the keys, for an error message."""
        keys = [key for operation in self.operations for key in operation.script_keys()]
        return ", ".join(repr(key) for key in keys[:3]) + (", …" if len(keys) > 3 else "")


def _parse_one(operation: Operation[Any], raw: list[Any]) -> Any:
    try:
        return operation.parse(raw)
    except StateError as error:
        return error


def script_calls(operations: Sequence[Operation[Any]], *, uses_hash_tags: bool = False) -> list[ScriptCall]:
    """Join neighbouring operations of one script into calls, in order; in a cluster only within a slot."""
    calls: list[ScriptCall] = []
    slot = last_slot = 0
    for operation in operations:
        script = operation.script
        last = calls[-1] if calls else None
        if uses_hash_tags:
            slot = operation_slot(operation)
        can_join = last and script.batchable and last.script is script and slot == last_slot
        if last and can_join and len(last.operations) < BATCHED_MAX:
            last.operations.append(operation)
        else:
            calls.append(ScriptCall(script, [operation], uses_hash_tags))
        last_slot = slot
    return calls


_script_texts: dict[tuple[str, bool, bool, bool, bool, bool], tuple[str, str]] = {}


def script_text(script: Script, *, has_change_log: bool) -> tuple[str, str]:
    """Return the hash under which the server knows a script, and its text.

    Both are read once: an upgrade of the files under a running program must not mix versions.
    """
    form = (
        script.name,
        has_change_log,
        script.asking,
        script.states_only,
        script.across_slots,
        script.override is not None,
    )
    cached = _script_texts.get(form)
    if cached is None:
        text = script.text()
        if script.notes_changes:
            text = f"{lua('stores/changes') if has_change_log else _NOTES_NOTHING}\n{text}"
        if script.override is not None:
            text = f"{lua('stores/redis/override_from_args')}\n{text}"
        if script.asking or script.across_slots:
            text = f"{lua('stores/redis/keys_from_args', 'stores/redis/keys_across_slots')}\n{text}"
        elif script.states_only:
            text = f"{lua('stores/redis/keys_of_leaving_slot')}\n{text}"
        sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        cached = _script_texts[form] = (sha, text)
    return cached


def _pack_python(arguments: tuple[Argument, ...]) -> bytes:
    """Pack a command without hiredis."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _packer() -> Callable[[tuple[Argument, ...]], bytes]:
    try:
        from hiredis import pack_command  # noqa: PLC0415 - used if it is installed
    except ImportError:
        return _pack_python
    return cast(Callable[[tuple[Argument, ...]], bytes], pack_command)


pack = _packer()

_ASKING = pack(("ASKING",))
