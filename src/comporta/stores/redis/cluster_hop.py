"""One hop of an operation through a cluster: the target node, the form in which it is sent, and redirects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from comporta.errors import StateUnavailableError
from comporta.stores.base import Operation, Script, State, StateKey
from comporta.stores.lua import lua
from comporta.stores.redis.cluster_slots import state_names
from comporta.stores.redis.connection import HostPort

R = TypeVar("R")


class ClusterRedirectError(StateUnavailableError):
    """A node redirects a call to another node; the call had no effect."""

    def __init__(self, text: str, code: str, target: HostPort | None) -> None:
        super().__init__(text)
        self.code = code
        self.target = target


class JoinedReadsRefusedError(StateUnavailableError):
    """A node refuses a call that declares none of its keys, such as reads of several slots."""


class Hop(NamedTuple):
    """The next node for an operation, and what the operation carries for it.

    ``override`` is the override record to use if the operation's key is spread. ``asking`` and
    ``states_only`` are the attributes of a script, for a slot that is being moved.
    """

    host_port: HostPort
    operation: Operation[Any]
    override: bytes | None = None
    asking: bool = False
    states_only: bool = False

    def declared_names(self) -> list[str]:
        """Return the keys that the operation declares, unless the hop is ``asking``."""
        if self.states_only:
            return state_names(self.operation)
        return [*self.operation.script.keys, *self.operation.script_keys()]

    def operation_to_send(self) -> Operation[Any]:
        """Return the operation as it is sent to the node."""
        if self.override is None and not (self.asking or self.states_only):
            return self.operation
        return RewrittenOperation(
            self.operation, override=self.override, asking=self.asking, states_only=self.states_only
        )


class RewrittenOperation(Operation[R]):
    """An operation with another script, so that it is not sent in a batch with others."""

    __slots__ = ("_operation", "script")

    script: Script

    def __init__(
        self,
        operation: Operation[R],
        *,
        override: bytes | None = None,
        asking: bool = False,
        states_only: bool = False,
    ) -> None:
        self._operation = operation
        self.script = operation.script._replace(override=override, asking=asking, states_only=states_only)

    @property
    def state_keys(self) -> Sequence[StateKey]:
        """The state keys of the operation itself."""
        return self._operation.state_keys

    @property
    def reply_size(self) -> int:
        """The reply size of the operation itself."""
        return self._operation.reply_size

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], R]:
        """Apply the operation itself."""
        return self._operation.step(states, now_us)

    def script_keys(self) -> Sequence[str]:
        """Return what the operation itself returns."""
        return self._operation.script_keys()

    def script_args(self) -> Sequence[int | str | bytes]:
        """Return what the operation itself returns."""
        return self._operation.script_args()

    def undo(self, reply: Any) -> Operation[Any] | None:
        """Return the operation that releases what this one granted, under the same override."""
        undo, override = self._operation.undo(reply), self.script.override
        return undo if undo is None or override is None else RewrittenOperation(undo, override=override)

    def parse(self, raw: Sequence[Any]) -> R:
        """Read the reply as the operation does."""
        return self._operation.parse(raw)


class CountKeys(Operation[int]):
    """Count those of an operation's keys that a node has, although it is giving their slot away.

    ``redis/count_keys.lua`` says why. Only nodes of a cluster apply it, so ``step`` does nothing.
    """

    __slots__ = ("_names",)

    script = Script("count_keys", partial(lua, "stores/redis/count_keys"), across_slots=True)
    state_keys: Sequence[StateKey] = ()

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def script_keys(self) -> Sequence[str]:
        """Return the names of the keys."""
        return self._names

    @staticmethod
    def script_args() -> list[int | str | bytes]:
        """No arguments."""
        return []

    @staticmethod
    def step(states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Do nothing."""
        return [], 0

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """Read the single number of the reply."""
        return int(raw[0])
