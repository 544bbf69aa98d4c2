"""Guarded functions that follow new policies, for upstreams whose settings may be reloaded.

A guarded function has its policies as local names, for speed. Where they can change, callers hold a thin
wrapper, behind which a new guarded function replaces the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from comporta.signatures import is_coroutine_callable
from comporta.weak_registry import WeakRegistry


class ReplaceableGuards:
    """The guarded functions of one upstream that the program uses.

    ``owner`` is the object that applies new settings; it lives as long as the upstream does.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._guards: WeakRegistry[_Guard] = WeakRegistry()

    def add(self, function: Callable[..., Any], make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """Return a function that calls what ``make`` returned last."""
        guard = _Guard(make)
        self._guards.add(guard)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return guard.call(*args, **kwargs)

        @wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await guard.call(*args, **kwargs)

        return call_async if is_coroutine_callable(function) else call

    def make_again(self) -> None:
        """Make every guarded function again, with the current policies."""
        for guard in self._guards.live():
            guard.call = guard.make()


class _Guard:
    """How to make a guarded function, and the one in use."""

    __slots__ = ("__weakref__", "call", "make")

    def __init__(self, make: Callable[[], Callable[..., Any]]) -> None:
        self.make = make
        self.call = make()
