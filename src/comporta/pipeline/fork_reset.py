"""Resets an object in a forked child through one of its private methods.

``fork_safety`` calls a public method. An object that users handle registers a ``ForkReset`` instead, so that
it has only the members that users need.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakMethod

from comporta import fork_safety


class ForkReset:
    """Calls a method of its owner in every forked child; the owner has to keep a reference to it."""

    def __init__(self, method: Callable[[], None]) -> None:
        self._method = WeakMethod(method)  # a strong reference would be a cycle
        fork_safety.register(self)

    def after_fork(self) -> None:
        """Call the method, if its owner still exists."""
        method = self._method()
        if method is not None:
            method()
