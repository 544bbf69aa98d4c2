"""A set of weak references that threads may extend while others read it.

``WeakSet`` raises ``RuntimeError`` if another thread adds an object while it is read.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """Objects that are registered for as long as they live, in the order in which they were added."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: WeakKeyDictionary[T, None] = WeakKeyDictionary()

    def add(self, item: T) -> None:
        """Register an object, unless it is registered."""
        self._references[item] = None

    def discard(self, item: T) -> None:
        """Remove an object if it is registered."""
        self._references.pop(item, None)

    def clear(self) -> None:
        """Remove all objects."""
        self._references.clear()

    def live(self) -> list[T]:
        """Return the objects that are still alive."""
        references = self._references.keyrefs()  # one step: other threads cannot change them meanwhile
        return [item for reference in references if (item := reference()) is not None]
