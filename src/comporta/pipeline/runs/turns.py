"""Items of one key one after another, those of different keys at the same time. Pure.

A key is busy from its first item until none is left; what comes meanwhile waits behind it, and
is taken by whoever has just done the one before. So no worker ever waits for a key, and nobody sorts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Who is under way and who waits behind them. How many may wait is for the caller to see to."""

    __slots__ = ("_busy", "waiting")

    def __init__(self) -> None:
        self._busy: dict[Hashable, deque[T]] = {}
        self.waiting = 0

    def enter(self, key: Hashable, item: T) -> bool:
        """Whether an item may go at once; if not it waits in its lane."""
        lane = self._busy.get(key)
        if lane is None:
            self._busy[key] = deque()
            return True
        lane.append(item)
        self.waiting += 1
        return False

    def leave(self, key: Hashable) -> T | None:
        """Say that the item of a key is done; returns the next of its lane, which may go now."""
        lane = self._busy[key]
        if not lane:
            del self._busy[key]
            return None
        self.waiting -= 1
        return lane.popleft()
