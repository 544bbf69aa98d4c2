"""Copies of override records, for limits whose keys are spread over the nodes of a cluster.

A decision on a key reads the override of its limit, which another node may own. Each worker therefore keeps a
copy of the record and sends it with the decision. A copy is used for at most ``COPY_SECONDS_MAX`` after it
was read, so an override is in effect in every worker within that time, even in a process that has just
started or whose heartbeat is late. Usually the heartbeat reads the record often enough that no decision has
to. (A copy of the record on every node would have to follow every slot that moves.)

Pure: the time is an argument.
"""

from __future__ import annotations

from typing import NamedTuple

COPY_SECONDS_MAX = 1.0
COPIES_MAX = 10_000

_MAX_NS = round(COPY_SECONDS_MAX * 1e9)
_REFRESH_NS = round(0.95e9)
"""From this age on, one caller reads the record again, and the others continue with the copy. It is longer
than the interval of heartbeats."""


class OverrideCopy(NamedTuple):
    """An override record (``None``: there is none) and when it was read.

    From ``refresh_ns`` on, one caller reads the record again. ``changed_ns`` is when this process last
    changed the record: a read that began before that is outdated.
    """

    record: bytes | None
    read_ns: int
    refresh_ns: int
    changed_ns: int


class OverrideCopies:
    """The copies of one process. Every update is one assignment, so threads need no lock."""

    def __init__(self) -> None:
        self._copies: dict[str, OverrideCopy] = {}

    def usable(self, name: str, now_ns: int) -> OverrideCopy | None:
        """Return the copy of a record; ``None`` if the caller has to read the record first."""
        copy = self._copies.get(name)
        if copy is None or now_ns < copy.refresh_ns:
            return copy
        if now_ns - copy.read_ns < _MAX_NS:
            self._copies[name] = copy._replace(refresh_ns=copy.read_ns + _MAX_NS)
        return None

    def store(self, name: str, record: bytes | None, began_ns: int) -> None:
        """Store what a read that began at ``began_ns`` returned."""
        copy = self._copies.get(name)
        changed_ns = began_ns if copy is None else copy.changed_ns
        if began_ns >= changed_ns:
            self._keep(name, OverrideCopy(record, began_ns, began_ns + _REFRESH_NS, changed_ns))

    def forget(self, name: str, now_ns: int) -> None:
        """Drop the copy of a record that this process has changed."""
        self._keep(name, OverrideCopy(None, now_ns - _MAX_NS, now_ns, now_ns))

    def _keep(self, name: str, copy: OverrideCopy) -> None:
        if len(self._copies) >= COPIES_MAX:
            self._copies = {}
        self._copies[name] = copy
