"""The states of one space of ``memory://``, in dictionaries that stay small.

The keys of a limit that were not used recently move from one dictionary to many smaller ones, so that growing
a dictionary, or searching it for expired states, never takes more than a few milliseconds. The module takes
no lock and does not count keys; the store does (``memory.py``).
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from struct import error as StructError  # noqa: N812 - a class
from typing import Any

from comporta.stores.base import State, StateType

_RECENT_MAX = 2048
_RECENT_MOVED = 256


class MemorySpace:
    """The states of one space, and their type.

    ``table`` holds the recently used keys, the only ones that fast paths see. The space moves the oldest keys
    to the ``older`` dictionaries, by hash and as bytes, and moves a key back when it is written again. A
    space whose type is not ``evictable`` keeps all its keys in ``table``.
    """

    __slots__ = ("older", "older_count", "state_type", "table")

    def __init__(self, state_type: StateType, older_count: int) -> None:
        self.state_type = state_type
        self.table: dict[str, State] = {}
        self.older: list[dict[str, bytes | State]] = []
        self.older_count = older_count

    def get(self, key: str) -> State | None:
        """Return the state of a key."""
        state = self.table.get(key)
        if state is None and self.older:
            older = self._older(key).get(key)
            return None if older is None else self._unpack(older)
        return state

    def put(self, key: str, state: State) -> None:
        """Write a state; the key counts as recently used."""
        self.table[key] = state
        if self.older:
            self._older(key).pop(key, None)
        if len(self.table) > _RECENT_MAX and self.state_type.evictable:
            self._move_oldest()

    def remove(self, key: str) -> None:
        """Delete a key."""
        if self.table.pop(key, None) is None:
            del self._older(key)[key]

    def parts(self) -> list[dict[str, Any]]:
        """Return all dictionaries of this space."""
        return [self.table, *self.older]

    def clear(self) -> None:
        """Delete all keys."""
        for part in self.parts():
            part.clear()

    def remove_expired(self, part: dict[str, Any], now_us: int) -> int:
        """Delete the expired states of one of the parts; returns how many."""
        expires_us, unpack = self.state_type.expires_us, self._unpack
        expired = [key for key, state in part.items() if expires_us(unpack(state)) <= now_us]
        for key in expired:
            del part[key]
        if not part:
            part.clear()  # frees the memory of the dictionary itself
        return len(expired)

    def _unpack(self, state: bytes | State) -> State:
        return self.state_type.codec.unpack_from(state) if isinstance(state, bytes) else state

    def _move_oldest(self) -> None:
        if not self.older:
            self.older = [{} for _ in range(self.older_count)]
        pack = self.state_type.codec.pack
        for key in list(islice(self.table, _RECENT_MOVED)):
            state: bytes | State = self.table.pop(key)
            with suppress(StructError):  # a number too large for the layout: it stays a tuple
                state = pack(*state)
            self._older(key)[key] = state

    def _older(self, key: str) -> dict[str, bytes | State]:
        return self.older[hash(key) % self.older_count]
