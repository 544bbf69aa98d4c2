"""Background thread of a cache: renews fetch leases, writes access counts, prunes old rows.

The thread starts when there is work for the first time, and does not keep its cache alive.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from comporta import events, fork_safety
from comporta.cache.rows import AccessRecord
from comporta.cache.stats import FRESH_HIT, MISS, STALE_HIT, AnswerCounter
from comporta.jitter import fraction
from comporta.runtime import RUNTIME
from comporta.threads import BackgroundThread

if TYPE_CHECKING:
    from comporta.cache.backoff_memory import Refusals
    from comporta.cache.local import LocalCache
    from comporta.cache.repository import CacheRepository

FLUSH_SECONDS = 5.0
"""How often accesses are written to the database."""

FLUSH_ROWS_MAX = 100
"""Rows that one statement updates."""

PRUNE_SECONDS = 3600.0
"""How often the thread looks for rows to prune."""

RETENTION_SECONDS = 30 * 86_400.0
"""Rows that were not used for this long are pruned, unless they are saved or ``stale`` is longer.

Their results expired long before; for the rest of the time only the health of their keys is kept.
"""

PRUNE_ROWS_MAX = 1000
"""Rows that one transaction removes; if there are more, the next flush continues."""

ACCESSED_ROWS_MAX = 10_000
"""For how many rows accesses are remembered until the next flush; accesses to more are not counted."""


class HeldLease(NamedTuple):
    """A fetch lease that the thread renews: its token, its next renewal, and whether its fetch still runs."""

    token: int
    renew_at: float
    is_running: Callable[[], bool]


class CacheMaintenance:
    """The thread and the work that it has to do."""

    def __init__(
        self,
        repository: CacheRepository,
        local: LocalCache,
        lease_seconds: float,
        wall_time: Callable[[], float],
        answer_counter: AnswerCounter,
        *,
        refusals: Refusals,
        stale: float,
    ) -> None:
        self._repository = repository
        self._local = local
        self._refusals = refusals
        self._lease_seconds = lease_seconds
        self._retention_seconds = max(RETENTION_SECONDS, stale)
        self._wall_time = wall_time
        self._answer_counter = answer_counter
        self._leases: dict[str, HeldLease] = {}
        self._accesses: dict[tuple[str, str], int] = {}
        self._saved: dict[tuple[str, str], bool] = {}
        self._lock = Lock()
        self._thread: BackgroundThread | None = None
        self._flush_at = 0.0
        self._prune_at = RUNTIME.monotonic() + PRUNE_SECONDS * fraction()
        self._closed = False
        fork_safety.register(self)

    def hold_lease(self, key: str, token: int | None, is_running: Callable[[], bool]) -> None:
        """Renew a fetch lease from now on, while its fetch runs."""
        if token is not None:
            with self._lock:
                renew_at = RUNTIME.monotonic() + self._lease_seconds / 3
                self._leases[key] = HeldLease(token, renew_at, is_running)
            self.start()
            if self._thread is not None:
                self._thread.wake.set()

    def drop_lease(self, key: str, token: int | None) -> None:
        """Stop renewing a lease, unless the key has a later one."""
        with self._lock:
            if key in self._leases and self._leases[key].token == token:
                del self._leases[key]

    def record_access(self, user_id: str, params_hash: str) -> None:
        """Count an access to a row that is not in the local cache."""
        row = user_id, params_hash
        with self._lock:
            if row in self._accesses or len(self._accesses) < ACCESSED_ROWS_MAX:
                self._accesses[row] = self._accesses.get(row, 0) + 1
        self.start()

    def record_saved(self, user_id: str, params_hash: str, *, saved: bool) -> None:
        """Record whether a user keeps a search."""
        with self._lock:
            if len(self._saved) < ACCESSED_ROWS_MAX:
                self._saved[user_id, params_hash] = saved
        self.start()

    def start(self) -> None:
        """Start the thread if it is not running."""
        if self._closed or (self._thread is not None and self._thread.is_alive()):
            return
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._flush_at = RUNTIME.monotonic() + FLUSH_SECONDS
            self._thread = thread = BackgroundThread()
        thread.start(_run_loop, ref(self), thread, name="comporta-cache")

    def close(self, seconds: float) -> None:
        """End the thread within ``seconds``, and flush."""
        self._closed = True
        if self._thread is not None:
            self._thread.stop(seconds)
        self.flush()

    def flush(self) -> None:
        """Write accesses and answer counts to the database."""
        accesses = self._local.drain_accesses()
        stale, self._local.stale_hits = self._local.stale_hits, 0
        self._answer_counter.count(STALE_HIT, stale)
        refused, self._refusals.count = self._refusals.count, 0
        self._answer_counter.count(MISS, refused)
        self._answer_counter.count(FRESH_HIT, sum(accesses.values()) - stale)
        with self._lock:
            more, self._accesses = self._accesses, {}
            saved, self._saved = self._saved, {}
        for row, count in more.items():
            accesses[row] = accesses.get(row, 0) + count
        at = self._wall_time()
        records = [
            AccessRecord(*row, accesses.get(row, 0), at, saved.get(row))
            for row in dict.fromkeys((*accesses, *saved))
        ]
        answers = self._answer_counter.drain()
        for start in range(0, max(len(records), 1 if answers else 0), FLUSH_ROWS_MAX):
            self._repository.record_accesses(records[start : start + FLUSH_ROWS_MAX], answers)
            answers = None

    def run_once(self) -> float | None:
        """Do the work that is due; return the seconds until more is, or ``None`` once the cache is closed."""
        if self._closed:
            return None
        now = RUNTIME.monotonic()
        if now >= self._flush_at:
            self._flush_at = now + FLUSH_SECONDS
            self.flush()
            if now >= self._prune_at:
                self._prune(now)
        with self._lock:
            due = [(key, lease) for key, lease in self._leases.items() if now >= lease.renew_at]
        for key, lease in due:
            self._renew(key, lease)
        with self._lock:
            renewals = [lease.renew_at for lease in self._leases.values()]
        return max(0.01, min([self._flush_at, *renewals]) - RUNTIME.monotonic())

    def after_fork(self) -> None:
        """Drop the parent's work in a forked child."""
        fork_safety.reinit_lock(self._lock)
        self._thread = None
        self._leases.clear()
        self._accesses.clear()
        self._saved.clear()

    def _prune(self, now: float) -> None:
        pruned = self._repository.prune(self._retention_seconds, PRUNE_ROWS_MAX)
        if pruned < PRUNE_ROWS_MAX:
            self._prune_at = now + PRUNE_SECONDS

    def _renew(self, key: str, lease: HeldLease) -> None:
        """Renew a lease; while its fetch does not run, let it expire, so that another worker takes over."""
        renewed = not lease.is_running() or self._repository.renew(key, lease.token, self._lease_seconds)
        with self._lock:
            if self._leases.get(key) is lease:
                if renewed:
                    self._leases[key] = lease._replace(renew_at=RUNTIME.monotonic() + self._lease_seconds / 3)
                else:  # another worker has the key; the fetcher finds out when it stores its result
                    del self._leases[key]


def _run_loop(maintenance_ref: ref[CacheMaintenance], thread: BackgroundThread) -> None:
    while True:
        maintenance = maintenance_ref()
        try:
            pause = None if maintenance is None else maintenance.run_once()
        except BaseException as error:  # without the event, the end of the thread would go unnoticed
            events.publish("cache_maintenance_failed", "cache", repr(error), "error")
            pause = 1.0
        del maintenance
        if pause is None:
            return
        thread.wake.wait(pause)
