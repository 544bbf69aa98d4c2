"""The change log: what has changed in a store, so that workers need not read everything to find out.

Every override of a limit, every transition of a circuit and every pause records its name in the log, with a
version. A worker remembers the version up to which it knows all changes, and asks for the names with a later
one: usually there are none, and one read replaces one for each limit and circuit. Versions are times of the
store in microseconds, each later than the one before it, so that new versions of a server that lost its
memory are never mistaken for old ones. Each name is in the log once, with its last change. The log keeps at
most ``CHANGES_MAX`` names and records since which version it is complete; a worker with an older version
reads everything.

Changes without an operation (a key written by hand, a mark that expires) are not in the log.

This module is pure. Lua versions: ``changes.lua`` writes the log, ``failover/read_changes.lua`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from comporta.stores.base import State, StateKey
from comporta.stores.records import RECORD

CHANGES_KEY = "comporta_changes"
"""The key of the log: on a server a sorted set of names, by version."""

CHANGES_MAX = 1000
_DROPPED = 500
_TTL_US = 86_400_000_000

CHANGES_STATE_KEY = StateKey(CHANGES_KEY, "", RECORD)


class Changes(NamedTuple):
    """The version of the log, and the names that changed since the version that a worker knew.

    ``names`` is ``None`` if the log does not go back that far: anything may have changed.
    """

    version: int
    names: Mapping[str, int] | None


def note_change(state: State | None, name: str, now_us: int) -> State:
    """Return the log after a change of ``name``."""
    complete_since, versions = _parse(state) or (now_us, {})
    latest = max(complete_since, *versions.values(), 0)
    versions.pop(name, None)
    versions[name] = max(now_us, latest + 1)
    if 1 + len(versions) > CHANGES_MAX:
        dropped = sorted(versions, key=lambda each: versions[each])[: _DROPPED - 1]
        complete_since = versions[dropped[-1]]
        for each in dropped:
            del versions[each]
    return _state(complete_since, versions, now_us)


def changes_since(state: State | None, version: int, now_us: int) -> tuple[State | None, Changes]:
    """Return the log if it had to be created (else ``None``), and the changes after a version."""
    log = _parse(state)
    if log is None:
        return _state(now_us, {}, now_us), Changes(now_us, None)
    complete_since, versions = log
    latest = max(complete_since, *versions.values(), 0)
    if not complete_since <= version <= latest:
        return None, Changes(latest, None)
    return None, Changes(latest, {name: each for name, each in versions.items() if each > version})


def _parse(state: State | None) -> tuple[int, dict[str, int]] | None:
    if state is None:
        return None
    first, *lines = bytes(state[1]).decode("utf-8", "surrogatepass").split("\n")
    rows = (line.split(" ", 1) for line in lines)
    return int(first), {name: int(version) for version, name in rows}


def _state(complete_since: int, versions: Mapping[str, int], now_us: int) -> State:
    lines = [f"{complete_since}", *(f"{version} {name}" for name, version in versions.items())]
    return now_us + _TTL_US, "\n".join(lines).encode("utf-8", "surrogatepass")
