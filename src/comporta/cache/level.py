"""What this process keeps in front of the table: so many answers, each found in a fraction of a microsecond.

A hit takes no lock: it is one look into a dictionary, and what it changes (this was used, so often) may lose
a count when threads meet. When there is no room, what was not used since it was last looked at goes first.

What was read before somebody said that it has changed must not be kept after that: whoever wants to keep
something says at which ``stamp`` it began to read.
"""

from __future__ import annotations

from collections import deque
from threading import Lock

from comporta import forks
from comporta.cache.cached import Cached
from comporta.cache.health import FRESH
from comporta.clock import Clock

MEMORY = "memory"
DIGEST_CHARS = 16
HASH_CHARS = 64
TOUCHED_MAX = 10_000
"""Of how many rows accesses are counted between two times that they are written down; then no more."""

_DROPPED_MAX = 1000


class Slot:
    """An answer, until when it may be given without asking anybody, and how often that happened.

    One that was taken out has none, so that what is counted does not keep it in memory.
    """

    __slots__ = ("cached", "hits", "row", "size", "stale", "until_ns", "used")

    def __init__(self, cached: Cached, until_ns: int, size: int) -> None:
        self.cached: Cached | None = cached
        self.until_ns = until_ns
        self.size = size
        self.hits = 0
        self.used = False

    def first_used(self, cached: Cached) -> Slot:
        """Note what is to be counted, which may be after it was taken out."""
        self.row = cached.user_id, cached.params_hash
        self.stale = cached.freshness != FRESH
        return self


def digest_of(key: str) -> str:
    """Return the few characters by which changes are told: the beginning of the parameters' name."""
    return key[-HASH_CHARS:][:DIGEST_CHARS]


class Level:
    """At most ``entries_max`` answers and ``bytes_max`` bytes; a key ends with the name of its parameters.

    ``stamp`` is the mark to be shown with ``put``, taken before reading elsewhere. After ``until_ns`` nothing
    is given without asking.
    """

    def __init__(self, entries_max: int, bytes_max: int, clock: Clock) -> None:
        self.until_ns = 0
        self.stale_touches = 0
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.now_ns = clock.now_ns
        self._slots: dict[str, Slot] = {}
        self._by_digest: dict[str, str | set[str]] = {}  # a set where there is more than one
        self._touched: deque[Slot] = deque(maxlen=TOUCHED_MAX)
        self._served: dict[tuple[str, str], int] = {}
        self.stamp = self._floor = 0
        self._dropped: dict[str, int] = {}
        self._lock = Lock()
        forks.register(self)

    def __len__(self) -> int:
        return len(self._slots)

    def hit(self, key: str) -> Cached | None:
        """Return an answer that may be given at once."""
        slot = self._slots.get(key)
        if slot is None or self.now_ns() >= slot.until_ns:
            return None
        cached = slot.cached
        if not slot.hits and cached is not None:
            self._touched.append(slot.first_used(cached))
            if cached.source != MEMORY:
                cached = slot.cached = cached.but(source=MEMORY)
        slot.hits += 1
        slot.used = True
        return cached

    def leftover(self, key: str) -> Cached | None:
        """Return what is here, however old: for those who cannot ask anybody else."""
        slot = self._slots.get(key)
        return None if slot is None else slot.cached

    def put(
        self, key: str, cached: Cached, until_ns: int, size: int, stamp: int, *, served: bool = False
    ) -> bool:
        """Keep an answer, unless its parameters were dropped since ``stamp`` or it is too large.

        ``served``: this is an access, which is counted: by its row, as the slot may be gone in a moment, and
        one for each access would fill the memory with what is left of them.
        """
        if size > self._bytes_max:
            return False
        slot = Slot(cached, until_ns, size)
        digest = key[-HASH_CHARS:][:DIGEST_CHARS]
        with self._lock:
            if stamp != self.stamp and self._dropped.get(digest, self._floor) > stamp:
                return False
            slots = self._slots
            if key in slots:
                self._remove(key)
            slots[key] = slot
            self._bytes += size
            others = self._by_digest.setdefault(digest, key)
            if others is not key:
                self._beside(others, digest, key)
            if until_ns > self.until_ns:
                self.until_ns = until_ns
            while self._bytes > self._bytes_max or len(slots) > self._entries_max:
                self._make_room()
            if served:
                row = cached.user_id, cached.params_hash
                before = self._served.get(row, 0)
                if before or len(self._served) < TOUCHED_MAX:
                    self._served[row] = before + 1
        return True

    def drop_digest(self, digest: str) -> None:
        """Forget all keys of some parameters, also for those who are reading one and keep it in a moment."""
        with self._lock:
            self.stamp += 1
            self._dropped.pop(digest, None)
            self._dropped[digest] = self.stamp
            if len(self._dropped) > _DROPPED_MAX:
                self._floor = self._dropped.pop(next(iter(self._dropped)))
            keys = self._by_digest.get(digest, ())
            for key in (keys,) if isinstance(keys, str) else tuple(keys):
                self._remove(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.stamp += 1
            self._floor = self.stamp
            self._dropped.clear()
            for slot in self._slots.values():
                slot.cached = None
            self._slots.clear()
            self._by_digest.clear()
            self._bytes = 0

    def touches(self) -> dict[tuple[str, str], int]:
        """Return how often which rows were used since this was last asked, and begin to count anew."""
        with self._lock:
            found, self._served = self._served, {}
        while self._touched:
            slot = self._touched.popleft()
            hits, slot.hits = slot.hits, 0
            found[slot.row] = found.get(slot.row, 0) + hits
            if slot.stale:
                self.stale_touches += hits
        return found

    def after_fork(self) -> None:
        """Begin with nothing: the parent counts its own, and nobody here listens for changes yet."""
        forks.renew(self._lock)
        self._touched.clear()
        self._served.clear()
        self.clear()

    def _remove(self, key: str) -> None:
        slot = self._slots.pop(key, None)
        if slot is None:  # a handler of a signal raised when it was half gone
            return
        slot.cached = None
        self._bytes -= slot.size
        digest = key[-HASH_CHARS:][:DIGEST_CHARS]
        keys = self._by_digest[digest]
        if not isinstance(keys, str):
            keys.discard(key)
        if not keys or keys == key:
            del self._by_digest[digest]

    def _beside(self, others: str | set[str], digest: str, key: str) -> None:
        if isinstance(others, str):
            self._by_digest[digest] = {others, key}
        else:
            others.add(key)

    def _make_room(self) -> None:
        """Take out the first that was not used since it was last looked at; each is passed over once."""
        key = next(iter(self._slots))
        slot = self._slots[key]
        if slot.used:
            slot.used = False
            del self._slots[key]
            self._slots[key] = slot
        else:
            self._remove(key)
