"""Notifies other workers through the store that a key has changed, so that they drop their local copies.

The store keeps a short log of the latest invalidations, each the start of a parameters' hash, with the number
of the last one. The heartbeat thread polls it a few times a second. A worker that has missed more
invalidations than the log holds drops all its local entries. A new log starts its numbers at the clock's
microseconds, far above those of an expired one, so workers treat it as a gap, which it is.

Twin: ``invalidation.lua``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from comporta.cache.local import DIGEST_CHARS, LocalCache
from comporta.errors import StateError
from comporta.flow import Flow
from comporta.stores.base import Operation, Script, State, StateKey, Store
from comporta.stores.effects import Apply
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber
from comporta.stores.lua import lua
from comporta.stores.records import RECORD, ReadRecord
from comporta.threads import snapshot

NAMESPACE = "cache_changes"
LOG_MAX = 200
TTL_US = 300_000_000

_LOG = re.compile(rb"([0-9]{1,16}) ((?:[0-9a-f]{16}){1,200})")
_TTL_NS = TTL_US * 1000


class InvalidationLog(NamedTuple):
    """The latest invalidations, the newest last, and the number of the newest."""

    number: int
    digests: list[str]


class PublishInvalidation(Operation[int]):
    """Append an invalidation to the log; the reply is its number."""

    __slots__ = ("_digest", "_name")

    script = Script("cache_changes", partial(lua, "cache/invalidation"))

    def __init__(self, name: str, digest: str) -> None:
        self._name = name
        self._digest = digest

    @property
    def state_keys(self) -> list[StateKey]:
        """The log of the cache of this name."""
        return [StateKey(NAMESPACE, self._name, RECORD)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], int]:
        """Append, and drop the oldest invalidation if the log is full."""
        state = states[0]
        log = parse_log(None if state is None or state[0] <= now_us else state[1])
        before = log or InvalidationLog(now_us, [])
        digests = [*before.digests, self._digest][-LOG_MAX:]
        number = before.number + 1
        return [(now_us + TTL_US, f"{number} {''.join(digests)}".encode())], number

    def script_args(self) -> list[int | str | bytes]:
        """Return the digest, the length of a full log, and the log's TTL in milliseconds."""
        return [self._digest, LOG_MAX * DIGEST_CHARS, TTL_US // 1000]

    def parse(self, raw: Sequence[Any]) -> int:
        """Return the number of the invalidation."""
        return int(raw[0])


def parse_log(text: bytes | None) -> InvalidationLog | None:
    """Return the log in a record; ``None`` if there is no record, or it is malformed."""
    match = _LOG.fullmatch(text or b"")
    if match is None:
        return None
    joined = match[2].decode()
    digests = [joined[at : at + DIGEST_CHARS] for at in range(0, len(joined), DIGEST_CHARS)]
    return InvalidationLog(int(match[1]), digests)


class Invalidations(HeartbeatSubscriber):
    """Publishes this worker's invalidations, and applies those of others to the local cache."""

    def __init__(self, name: str, store: Store, local: LocalCache) -> None:
        self._name = name
        self._store = store
        self._local = local
        self._last_number: int | None = None
        self._polled_ns = 0
        self._published: deque[int] = deque(maxlen=LOG_MAX)
        store.subscribe(self)

    def publish_flow(self, digest: str) -> Flow[None]:
        """Publish an invalidation; without a store, other workers serve their copies until they expire."""
        if self._store.has_heartbeat:
            with suppress(StateError):
                number: int = yield Apply(self._store, PublishInvalidation(self._name, digest))
                self._published.append(number)

    def ensure_listening(self) -> None:
        """Start polling the log, because the local cache has an entry from now on."""
        self._store.start_heartbeat()

    def heartbeat_operation(self) -> ReadRecord | None:
        """Return the read of the log; ``None`` while the local cache has nothing to serve."""
        if self._local.now_ns() >= self._local.latest_expiry_ns:
            return None
        return ReadRecord(NAMESPACE, self._name)

    def on_heartbeat_reply(self, reply: bytes | None) -> None:
        """Drop the entries that have changed since the last poll."""
        now_ns = self._local.now_ns()
        before, log = self._last_number, parse_log(reply)
        log_may_have_expired = now_ns - self._polled_ns >= _TTL_NS // 2
        self._polled_ns = now_ns
        self._last_number = None if log is None else log.number
        if log is None:
            missed = log_may_have_expired or before is not None
        else:
            news = log.number - (before if before is not None else log.number - len(log.digests))
            missed = not 0 <= news <= len(log.digests)
        if missed:
            self._local.clear()
        elif log is not None and news:
            self._invalidate(log, news)

    def _invalidate(self, log: InvalidationLog, news: int) -> None:
        published = set(snapshot(self._published))
        for back, digest in enumerate(reversed(log.digests[-news:])):
            if log.number - back not in published:
                self._local.invalidate(digest)
