"""Reading the change log (``changes.py``) as an operation, alone or in one call with a heartbeat.

Lua version: ``read_changes.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Generic, NamedTuple

from comporta.stores.base import Operation, R, Script, State, StateKey
from comporta.stores.changes import CHANGES_KEY, CHANGES_STATE_KEY, Changes, changes_since
from comporta.stores.lua import lua


class ReplyAndChanges(NamedTuple, Generic[R]):
    """The reply to an operation (``None`` without one), and the changes in the store."""

    reply: R | None
    changes: Changes


class ReadChanges(Operation[ReplyAndChanges[R]], Generic[R]):
    """Return what changed since ``version``, and apply another operation in the same call.

    The other operation must be neither one that is sent in batches nor one that records changes.
    """

    __slots__ = ("operation", "script", "version")

    script: Script

    def __init__(self, version: int, operation: Operation[R] | None = None) -> None:
        self.version = version
        self.operation = operation
        self.script = _script(None if operation is None else operation.script)

    @property
    def state_keys(self) -> list[StateKey]:
        """The states of the operation, and the log."""
        return [*(self.operation.state_keys if self.operation else ()), CHANGES_STATE_KEY]

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], ReplyAndChanges[R]]:
        """Apply the operation and read the log, which is created if there is none."""
        *others, log = states
        new_states: Sequence[State | None] = ()
        reply: R | None = None
        if self.operation is not None:
            new_states, reply = self.operation.step(others, now_us)
        new_log, changes = changes_since(log, self.version, now_us)
        return [*new_states, new_log], ReplyAndChanges(reply, changes)

    def script_keys(self) -> list[str]:
        """Return the keys of the operation, and the log."""
        return [*(self.operation.script_keys() if self.operation else ()), CHANGES_KEY]

    def script_args(self) -> list[int | str | bytes]:
        """Return the arguments of the operation, and the version."""
        return [*(self.operation.script_args() if self.operation else ()), self.version]

    def parse(self, raw: Sequence[Any]) -> ReplyAndChanges[R]:
        """Read the reply of the operation, the version, whether the log is complete, and the names."""
        inner, version, is_complete, *rest = raw
        names = {
            name.decode("utf-8", "surrogatepass"): int(each)
            for name, each in zip(rest[::2], rest[1::2], strict=True)
        }
        reply = None if self.operation is None else self.operation.parse(inner)
        return ReplyAndChanges(reply, Changes(int(version), names if is_complete else None))


@cache
def _script(inner: Script | None) -> Script:
    if inner is None:
        return Script("changes", partial(_text, None))
    return Script(f"changes after {inner.name}", partial(_text, inner))


def _text(inner: Script | None) -> str:
    operation = "local operation" if inner is None else f"local function operation()\n{inner.text()}\nend"
    return f"{operation}\n{lua('stores/failover/read_changes')}"
