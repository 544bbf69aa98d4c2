"""What one worker knows about changes in a store, and to whom it passes them on.

A store that keeps a change log (``changes.py``) reports what changed since this worker's version. The
follower reads only those records, and notifies subscribers whose copies are outdated. It also reads all
records every ``FULL_READ_SECONDS``, because a person may write a key by hand, and a record may expire. On a
store without a log it reads all of them at every heartbeat. Many records are read in one call.

This module does not depend on threads or limits. The heartbeat calls it from its own thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from comporta import fork_safety
from comporta.errors import StateError
from comporta.stores.base import OverrideListener, Store, key_text
from comporta.stores.changes import Changes
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber
from comporta.stores.records import ReadRecord

FULL_READ_SECONDS = 5.0
"""How often everything is read, whatever the change log says."""

RECORDS_MAX = 256
"""The most records that are read at once; the others are read at the next heartbeat or poll."""

_FULL_READ_NS = round(FULL_READ_SECONDS * 1e9)


class ChangeFollower:
    """The version up to which this worker knows all changes, and the records that it follows."""

    def __init__(self) -> None:
        self.version = 0
        self._listeners: dict[str, tuple[str, str, list[OverrideListener]]] = {}
        self._due: dict[str, None] = {}
        self._full_read_ns = -_FULL_READ_NS
        self._lock = Lock()

    def follow(self, space: str, key: str, listener: OverrideListener) -> None:
        """Pass the record at a key to ``listener`` when it changes, for as long as the listener is alive."""
        name = key_text(space, key)
        with self._lock:
            self._listeners.setdefault(name, (space, key, []))[2].append(listener)
            self._due[name] = None

    def pass_on(self, changes: Changes, asked_ns: int, subscribers: Iterable[HeartbeatSubscriber]) -> None:
        """Record which records are due, and notify subscribers; ``asked_ns`` is when the log was read.

        If all records are due, nothing is confirmed to subscribers, so that they read again, too.
        """
        self.version = changes.version
        names = changes.names
        is_full = names is None or asked_ns - self._full_read_ns >= _FULL_READ_NS
        if is_full:
            self._full_read_ns = asked_ns
            self.mark_all_due()
        elif names:
            self._due.update((name, None) for name in names if name in self._listeners)
        for subscriber in subscribers:
            name = subscriber.change_name
            if name is not None:
                version_us = changes.version if names is None else names.get(name)
                if version_us is not None:
                    subscriber.on_changed(version_us)
                if not is_full:
                    subscriber.on_confirmed(asked_ns)

    def is_current(self, changes: Changes, asked_ns: int) -> bool:
        """Whether a read of the log found no change since this worker's version, and no full read is due."""
        is_unchanged = changes.names is not None and not changes.names and changes.version == self.version
        return is_unchanged and asked_ns - self._full_read_ns < _FULL_READ_NS

    def mark_all_due(self) -> None:
        """Mark all records to be read next."""
        self._due.update(dict.fromkeys(list(self._listeners)))

    def read_due(self, primary: Store) -> None:
        """Read the records that are due, up to ``RECORDS_MAX``, and call their listeners.

        A key that is not a record is skipped, because it holds no override of an operator.
        """
        if not self._due:
            return
        due = [reading for reading in map(self._take_due, list(self._due)[:RECORDS_MAX]) if reading]
        if not due:
            return
        replies = primary.apply_many([ReadRecord(space, key) for space, key, _ in due])
        for (_, _, listeners), reply in zip(due, replies, strict=True):
            if not isinstance(reply, StateError):
                for listener in listeners:
                    callback = listener()
                    if callback is not None:
                        callback(reply)

    def _take_due(self, name: str) -> tuple[str, str, list[OverrideListener]] | None:
        """Return a due record and its listeners; if all are gone, return ``None`` and stop following it."""
        with self._lock:
            self._due.pop(name, None)
            space, key, listeners = self._listeners[name]
            alive = [listener for listener in listeners if listener() is not None]
            if not alive:
                del self._listeners[name]
                return None
            self._listeners[name] = (space, key, alive)
            return space, key, list(alive)

    def after_fork(self) -> None:
        """Reset the lock in a forked child."""
        fork_safety.reinit_lock(self._lock)
