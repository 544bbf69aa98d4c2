"""Runs items of one key one after another, and items of different keys at the same time. Pure.

A key is busy from its first item until it has no item left. Later items of the key wait, and the task that
has finished one takes the next. So no task ever waits for a key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyOrder(Generic[T]):
    """The items in progress and those that wait behind them; the caller bounds how many wait."""

    __slots__ = ("_busy", "waiting")

    def __init__(self) -> None:
        self._busy: dict[Hashable, deque[T]] = {}
        self.waiting = 0

    def try_start(self, key: Hashable, item: T) -> bool:
        """Return whether an item may start now; otherwise it waits behind the other items of its key."""
        queue = self._busy.get(key)
        if queue is None:
            self._busy[key] = deque()
            return True
        queue.append(item)
        self.waiting += 1
        return False

    def finish(self, key: Hashable) -> T | None:
        """Finish the item of a key; returns the next one of the key, which may start now."""
        queue = self._busy[key]
        if not queue:
            del self._busy[key]
            return None
        self.waiting -= 1
        return queue.popleft()
