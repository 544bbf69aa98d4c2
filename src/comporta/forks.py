"""What a forked child must not share with its parent.

A lock that another thread of the parent held at the moment of the fork stays locked in the child for ever;
a connection would be written to by both. Whoever has such things registers here, and is told in the child.
"""

from __future__ import annotations

import os
from typing import Any, Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something with locks or connections."""

    def after_fork(self) -> None:
        """Start anew, in the child."""


_registered: WeakSet[Forkable] = WeakSet()


def register(thing: Forkable) -> None:
    """Tell this one after a fork, as long as it lives."""
    _registered.add(thing)


def renew(lock: Any) -> None:
    """Make a lock free again, in place; the standard library does the same to its own."""
    lock._at_fork_reinit()  # noqa: SLF001 - there is no public way


def _tell_all() -> None:
    for thing in list(_registered):
        thing.after_fork()


os.register_at_fork(after_in_child=_tell_all)
