"""The in-process cache (L1) in front of the database: a hit takes a fraction of a microsecond.

A hit takes no lock: it is one dictionary lookup, and the counters that it changes may lose a count when two
threads change them at once. A full cache evicts entries that were not used since the last time it considered
them.

An entry that was read from the database before its key was invalidated must not be stored afterwards. A
caller therefore reads the ``version`` of the cache first, and passes it to ``put``.
"""

from __future__ import annotations

from collections import deque
from threading import Lock

from comporta import fork_safety
from comporta.cache.entry import Cached
from comporta.cache.health import FRESH
from comporta.clock import Clock

MEMORY = "memory"
DIGEST_CHARS = 16
HASH_CHARS = 64
ACCESSED_MAX = 10_000
"""For how many rows accesses are counted between two flushes; accesses to more rows are not counted."""

_DIGEST_END = DIGEST_CHARS - HASH_CHARS
_INVALIDATED_MAX = 1000


class LocalEntry:
    """A cached result, the time until which it may be served, and the hits since the last flush.

    A removed entry loses its ``cached``: the list of uncounted hits must not keep the value in memory.
    """

    __slots__ = ("cached", "expires_ns", "hits", "is_stale", "row", "size", "used")

    def __init__(self, cached: Cached, expires_ns: int, size: int) -> None:
        self.cached: Cached | None = cached
        self.expires_ns = expires_ns
        self.size = size
        self.hits = 0
        self.used = False

    def record_first_hit(self, cached: Cached) -> LocalEntry:
        """Store what counting the hits needs, which may happen after the entry was removed."""
        self.row = cached.user_id, cached.params_hash
        self.is_stale = cached.freshness != FRESH
        return self


def key_digest(key: str) -> str:
    """Return the characters that name a key in invalidations: the start of its parameters' hash."""
    return key[-HASH_CHARS:_DIGEST_END]


class LocalCache:
    """At most ``entries_max`` entries and ``bytes_max`` bytes; every key ends with its parameters' hash.

    ``version`` changes with every invalidation: read it before you read elsewhere, and pass it to ``put``.
    After ``latest_expiry_ns`` no entry can be served.
    """

    def __init__(self, entries_max: int, bytes_max: int, clock: Clock) -> None:
        self.latest_expiry_ns = 0
        self.stale_hits = 0
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.now_ns = clock.now_ns
        self._entries: dict[str, LocalEntry] = {}
        self._by_digest: dict[str, str | set[str]] = {}  # a set where several keys share a digest
        self._accessed: deque[LocalEntry] = deque(maxlen=ACCESSED_MAX)
        self._served: dict[tuple[str, str], int] = {}
        self.version = self._version_floor = 0
        self._invalidated: dict[str, int] = {}
        self._lock = Lock()
        fork_safety.register(self)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Cached | None:
        """Return an entry that has not expired, and count the hit."""
        entry = self._entries.get(key)
        if entry is None or self.now_ns() >= entry.expires_ns:
            return None
        cached = entry.cached
        if not entry.hits and cached is not None:
            self._accessed.append(entry.record_first_hit(cached))
            if cached.source != MEMORY:
                cached = entry.cached = cached._replace(source=MEMORY)
        entry.hits += 1
        entry.used = True
        return cached

    def peek(self, key: str) -> tuple[Cached, int] | None:
        """Return a result and its size even if it has expired, for when the database cannot be read."""
        entry = self._entries.get(key)
        if entry is None or (cached := entry.cached) is None:
            return None
        return cached, entry.size

    def put(
        self, key: str, cached: Cached, expires_ns: int, size: int, version: int, *, served: bool = False
    ) -> bool:
        """Store an entry, unless its key was invalidated since ``version`` or it is too large.

        ``served`` counts an access as well, by row and not in the entry. The entry may be removed
        immediately, and one leftover entry for each access would fill the memory.
        """
        if size > self._bytes_max:
            return False
        entry = LocalEntry(cached, expires_ns, size)
        digest = key[-HASH_CHARS:_DIGEST_END]
        with self._lock:
            if version != self.version and self._invalidated.get(digest, self._version_floor) > version:
                return False
            entries = self._entries
            if key in entries:
                self._remove(key)
            entries[key] = entry
            self._bytes += size
            others = self._by_digest.setdefault(digest, key)
            if others is not key:
                self._share_digest(others, digest, key)
            if expires_ns > self.latest_expiry_ns:
                self.latest_expiry_ns = expires_ns
            while self._bytes > self._bytes_max or len(entries) > self._entries_max:
                self._evict_one()
            if served:
                row = cached.user_id, key[-HASH_CHARS:]  # the hash of this string is cached already
                before = self._served.get(row, 0)
                if before or len(self._served) < ACCESSED_MAX:
                    self._served[row] = before + 1
        return True

    def invalidate(self, digest: str) -> None:
        """Remove all keys with this digest, and keep readers from storing what they read before."""
        with self._lock:
            self.version += 1
            self._invalidated.pop(digest, None)
            self._invalidated[digest] = self.version
            if len(self._invalidated) > _INVALIDATED_MAX:
                self._version_floor = self._invalidated.pop(next(iter(self._invalidated)))
            keys = self._by_digest.get(digest, ())
            for key in (keys,) if isinstance(keys, str) else tuple(keys):
                self._remove(key)

    def is_invalidated(self, key: str, version: int) -> bool:
        """Whether a key was invalidated since ``version``."""
        return self._invalidated.get(key_digest(key), self._version_floor) > version

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self.version += 1
            self._version_floor = self.version
            self._invalidated.clear()
            for entry in self._entries.values():
                entry.cached = None
            self._entries.clear()
            self._by_digest.clear()
            self._bytes = 0

    def drain_accesses(self) -> dict[tuple[str, str], int]:
        """Return the accesses by row since the last call, and reset them."""
        with self._lock:
            accesses, self._served = self._served, {}
        while self._accessed:
            entry = self._accessed.popleft()
            hits, entry.hits = entry.hits, 0
            accesses[entry.row] = accesses.get(entry.row, 0) + hits
            if entry.is_stale:
                self.stale_hits += hits
        return accesses

    def after_fork(self) -> None:
        """Start empty in a forked child: the parent flushes its counts, and the child polls nothing yet."""
        fork_safety.reinit_lock(self._lock)
        self._accessed.clear()
        self._served.clear()
        self.clear()

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:  # a signal handler raised while the entry was half removed
            return
        entry.cached = None
        self._bytes -= entry.size
        digest = key[-HASH_CHARS:_DIGEST_END]
        keys = self._by_digest[digest]
        if not isinstance(keys, str):
            keys.discard(key)
        if not keys or keys == key:
            del self._by_digest[digest]

    def _share_digest(self, others: str | set[str], digest: str, key: str) -> None:
        if isinstance(others, str):
            self._by_digest[digest] = {others, key}
        else:
            others.add(key)

    def _evict_one(self) -> None:
        """Remove the first entry, or move it to the end if it was used since it was last considered."""
        key = next(iter(self._entries))
        entry = self._entries[key]
        if entry.used:
            entry.used = False
            del self._entries[key]
            self._entries[key] = entry
        else:
            self._remove(key)
