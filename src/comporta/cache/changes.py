"""How workers hear that a key has changed: a short log on the state engine, looked at a few times a second.

The log holds the latest changes as the beginnings of parameters' names, and the number of the last one. Who
finds that more has happened than the log still holds forgets everything it keeps. The numbers of a new log
begin at the clock's microseconds, far above those of one that ended: that looks like a gap, and it is one.

Twin: ``changes.lua``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from comporta.cache.level import DIGEST_CHARS, Level
from comporta.errors import StateError
from comporta.flow import Flow
from comporta.stores.base import Part, Script, State, Store, key_text
from comporta.stores.effects import Apply
from comporta.stores.failover import FailoverStore
from comporta.stores.lua import lua
from comporta.stores.records import RECORD, Read

SPACE = "cache_changes"
LOG_MAX = 200
TTL_US = 300_000_000

_LOG = re.compile(rb"([0-9]{1,16}) ((?:[0-9a-f]{16}){1,200})")
_TTL_NS = TTL_US * 1000


class Log(NamedTuple):
    """The latest changes, the newest last, and its number."""

    number: int
    digests: list[str]


class Announce:
    """Add a change to the log; returns its number."""

    __slots__ = ("_digest", "_name")

    script = Script("cache_changes", partial(lua, "cache", "changes"))
    followed = False
    fields = 1

    def __init__(self, name: str, digest: str) -> None:
        self._name = name
        self._digest = digest

    @property
    def parts(self) -> list[Part]:
        """The one log."""
        return [Part(SPACE, self._name, RECORD)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], int]:
        """Append, and let go of the oldest."""
        state = states[0]
        log = read_log(None if state is None or state[0] <= now_us else state[1])
        before = log or Log(now_us, [])
        digests = [*before.digests, self._digest][-LOG_MAX:]
        number = before.number + 1
        return [(now_us + TTL_US, f"{number} {''.join(digests)}".encode())], number

    def key_names(self) -> tuple[str]:
        """The one log."""
        return (key_text(SPACE, self._name),)

    def arguments(self) -> list[int | str | bytes]:
        """What changed, how much the log holds, and how many milliseconds it lives."""
        return [self._digest, LOG_MAX * DIGEST_CHARS, TTL_US // 1000]

    @staticmethod
    def undo(reply: object) -> None:
        """What changed has changed."""

    @staticmethod
    def alone(outage: object) -> None:
        """Nobody would hear it."""

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """One number."""
        return int(raw[0])


def read_log(text: bytes | None) -> Log | None:
    """Read a log; nothing if there is none, or something else."""
    found = _LOG.fullmatch(text or b"")
    if found is None:
        return None
    joined = found[2].decode()
    digests = [joined[at : at + DIGEST_CHARS] for at in range(0, len(joined), DIGEST_CHARS)]
    return Log(int(found[1]), digests)


class Changes:
    """Tells others what changed here, and drops from the level what changed elsewhere."""

    def __init__(self, name: str, store: Store, level: Level) -> None:
        self._name = name
        self._store = store
        self._level = level
        self._number: int | None = None
        self._looked_ns = 0
        self._own: deque[int] = deque(maxlen=LOG_MAX)
        self._shared = store if isinstance(store, FailoverStore) else None
        if self._shared is not None:
            self._shared.keeper.watch(self)

    def telling(self, digest: str) -> Flow[None]:
        """Say that a key has changed; where that cannot be said, others find out when what they keep ends."""
        if self._shared is not None:
            with suppress(StateError):
                number: int = yield Apply(self._store, Announce(self._name, digest))
                self._own.append(number)

    def listen(self) -> None:
        """See that somebody listens: there is something to drop from now on."""
        if self._shared is not None:
            self._shared.keeper.start()

    def due(self) -> Read | None:
        """Return a look at the log, as long as anything may be given without asking."""
        if self._level.now_ns() >= self._level.until_ns:
            return None
        return Read(SPACE, self._name)

    def told(self, reply: bytes | None) -> None:
        """Drop what has changed since the last look."""
        now_ns = self._level.now_ns()
        before, log = self._number, read_log(reply)
        long_ago = now_ns - self._looked_ns >= _TTL_NS // 2
        self._looked_ns = now_ns
        self._number = None if log is None else log.number
        if log is None:
            missed = long_ago or before is not None
        else:
            news = log.number - (before if before is not None else log.number - len(log.digests))
            missed = not 0 <= news <= len(log.digests)
        if missed:
            self._level.clear()
        elif log is not None and news:
            self._drop(log, news)

    def _drop(self, log: Log, news: int) -> None:
        for back, digest in enumerate(reversed(log.digests[-news:])):
            if log.number - back not in self._own:
                self._level.drop_digest(digest)
