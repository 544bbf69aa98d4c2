"""Hooks that keep locks, connections and threads safe across ``os.fork``.

If another thread of the parent holds a lock at the moment of the fork, that lock stays locked in the child,
where no thread will release it. If both processes use one connection, their requests are interleaved. Objects
with locks or connections register here, and their ``after_fork`` runs in the child. Objects that own a thread
register with :func:`register_thread_owner`: the thread pauses during the fork, so that it holds no lock at
that moment.

This module does not know what the registered objects are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from comporta.weak_registry import WeakRegistry


class Forkable(Protocol):
    """An object with locks or connections."""

    def after_fork(self) -> None:
        """Replace locks and drop connections. Runs in the child."""


class ThreadOwner(Protocol):
    """An object that owns a thread."""

    def before_fork(self) -> None:
        """End the thread, or make sure that it holds no lock. Runs in the parent."""

    def after_fork_in_parent(self) -> None:
        """Start the thread again. Runs in the parent."""


_forkables: WeakRegistry[Forkable] = WeakRegistry()
_thread_owners: WeakRegistry[ThreadOwner] = WeakRegistry()
_module_locks: WeakRegistry[Any] = WeakRegistry()


def register(forkable: Forkable) -> None:
    """Call ``after_fork`` of this object in every forked child, as long as the object lives."""
    _forkables.add(forkable)


def register_thread_owner(owner: ThreadOwner) -> None:
    """Pause the thread of this object during every fork, as long as the object lives."""
    _thread_owners.add(owner)


def reinit_lock(lock: Any) -> None:
    """Unlock a lock in place. The standard library treats its own locks the same way."""
    lock._at_fork_reinit()  # the lock has no public method for this


def reinit_lock_after_fork(lock: Any) -> None:
    """Unlock a lock in every forked child, as long as the lock lives."""
    _module_locks.add(lock)


def _reset_child() -> None:
    for lock in _module_locks.live():
        reinit_lock(lock)
    _call_all(forkable.after_fork for forkable in _forkables.live())


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Make every call, even if some of them raise, then raise the last exception."""
    failure: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure


def _pause_threads() -> None:
    _call_all(owner.before_fork for owner in _thread_owners.live())


def _resume_threads() -> None:
    _call_all(owner.after_fork_in_parent for owner in _thread_owners.live())


os.register_at_fork(before=_pause_threads, after_in_parent=_resume_threads, after_in_child=_reset_child)
