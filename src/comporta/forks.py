"""What a forked child must not share with its parent.

A lock that another thread of the parent held at the moment of the fork stays locked in the child for ever;
a connection would be written to by both. Whoever has such things registers here, and is told in the child.
Whoever has a thread registers it too: it rests during the fork, so that it holds nothing at that moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something with locks or connections."""

    def after_fork(self) -> None:
        """Start anew, in the child."""


class Resting(Protocol):
    """Something with a thread."""

    def before_fork(self) -> None:
        """End the thread, or at least see that it holds nothing."""

    def after_fork_in_parent(self) -> None:
        """Start it again."""


_registered: WeakSet[Forkable] = WeakSet()
_resting: WeakSet[Resting] = WeakSet()
_locks: list[Any] = []


def register(thing: Forkable) -> None:
    """Tell this one after a fork, as long as it lives."""
    _registered.add(thing)


def register_thread(thing: Resting) -> None:
    """Have this one rest during every fork, as long as it lives."""
    _resting.add(thing)


def renew(lock: Any) -> None:
    """Make a lock free again, in place; the standard library does the same to its own."""
    lock._at_fork_reinit()  # noqa: SLF001 - there is no public way


def renew_after_fork(lock: Any) -> None:
    """Free a lock of a module in every child: another thread of the parent may have held it."""
    _locks.append(lock)


def _tell_all() -> None:
    for lock in _locks:
        renew(lock)
    _each(thing.after_fork for thing in list(_registered))


def _each(calls: Iterable[Callable[[], None]]) -> None:
    """Call all of them, whatever one of them raises; Python shows the last that did."""
    failed: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            failed = error
    if failed is not None:
        raise failed


def _rest_all() -> None:
    _each(thing.before_fork for thing in list(_resting))


def _resume_all() -> None:
    _each(thing.after_fork_in_parent for thing in list(_resting))


os.register_at_fork(before=_rest_all, after_in_parent=_resume_all, after_in_child=_tell_all)
