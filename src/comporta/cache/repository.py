"""The database as flows use it: commands that never fail a caller.

If the database is locked, full, read-only or down, the cache loses what it would have stored, and publishes
an event; the caller's request continues. Only a missing migration is raised, because until it is run the
cache would lose data silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from comporta import events, fork_safety
from comporta.cache import commands, tags
from comporta.cache.health import calculate_backoff_minutes
from comporta.cache.rows import KeyHealth
from comporta.clock import MONOTONIC, Clock
from comporta.database.command import Command
from comporta.errors import DatabaseError, DatabaseSchemaError
from comporta.flow import Flow, Perform, run

if TYPE_CHECKING:
    from comporta.cache.rows import AccessRecord, AnswerCounts, DueRow, FetchClaim, ResultRow
    from comporta.cache.tables import CacheTables

T = TypeVar("T")

LOCAL_BACKOFF_KEYS_MAX = 10_000
"""How many failing keys a worker remembers while the database cannot store failures."""

ERROR_PAUSE_NS = 1_000_000_000
"""For this long after an error no call uses the database: each could wait for seconds to fail."""

READ, WRITE = "read", "write"
_EVENT_KINDS = {READ: "cache_read_failed", WRITE: "cache_write_failed"}

_TEXT_CHARS_MAX = 300
_EVENT_INTERVAL_NS = 60_000_000_000
"""An action that alternately fails and succeeds publishes at most one event in this time."""


class Unavailable(Enum):
    """Returned instead of a result: the database did not answer."""

    UNAVAILABLE = "unavailable"


UNAVAILABLE: Final = Unavailable.UNAVAILABLE


class MustWait(Enum):
    """Returned instead of a result: the database answers only after a wait."""

    MUST_WAIT = "must wait"


MUST_WAIT: Final = MustWait.MUST_WAIT


class CacheRepository:
    """The cache's commands, and the backoff that this process keeps while the database is unavailable."""

    def __init__(self, tables: CacheTables, name: str, clock: Clock) -> None:
        self.tables = tables
        self._reads_directly = tables.database.reads_directly
        self.local_backoff = LocalBackoff(clock)
        self._name = name
        self._published_ns: dict[str, int] = {}
        self._failing: set[str] = set()
        self._read_error = ""
        self._failed_ns: dict[str, int] = {}

    def try_read(self, user_id: str | None, params_hash: str) -> ResultRow | Unavailable | MustWait | None:
        """Read a row without a flow, which would take as long as the rest of a hit.

        ``user_id`` is ``None`` to read the row of any user. Returns ``MUST_WAIT`` if that would block; then
        use ``read_waiting_flow``.
        """
        if not self._reads_directly:
            return MUST_WAIT
        if self._failed_ns and self._is_paused(READ):
            return UNAVAILABLE
        try:
            rows = self.tables.try_read(*commands.result_query(user_id, params_hash))
        except DatabaseError as error:
            return self._handle_error(READ, "read", error)
        if rows is None:
            return MUST_WAIT
        if self._failing:
            self._failing.discard("read")
        return commands.parse_result(rows)

    def read_waiting_flow(
        self, user_id: str | None, params_hash: str
    ) -> Flow[ResultRow | Unavailable | None]:
        """Read a row for which ``try_read`` returned ``MUST_WAIT``."""
        return self._execute_waiting_flow(READ, "read", commands.read_result(user_id, params_hash))

    def read_flow(self, user_id: str | None, params_hash: str) -> Flow[ResultRow | Unavailable | None]:
        """Read a row, without waiting if possible."""
        return self._execute_flow(READ, "read", commands.read_result(user_id, params_hash))

    def claim_flow(
        self, key: str, owner: str, seconds: float, *, forced: bool, not_within: float
    ) -> Flow[FetchClaim | None]:
        """Claim the lease on a key; ``None`` if the database is unavailable."""
        command = commands.claim(key, owner, seconds, forced=forced, not_within=not_within)
        claim = yield from self._execute_flow(WRITE, "claim a fetch lease", command)
        if claim is UNAVAILABLE:
            return None
        self.local_backoff.forget(key)
        return claim

    def read_claim_flow(self, key: str) -> Flow[FetchClaim | None]:
        """Return the lease and the health of a key; ``None`` if the database is unavailable."""
        claim = yield from self._execute_flow(READ, "read a key", commands.read_claim(key))
        return None if claim is UNAVAILABLE else claim

    def lease_remaining_flow(self, key: str) -> Flow[float]:
        """Return for how many more seconds another worker's lease lasts."""
        claim = yield from self.read_claim_flow(key)
        return 0.0 if claim is None or claim.lease_until is None else claim.lease_until - claim.now

    def release_flow(self, key: str, token: int | None) -> Flow[None]:
        """End a lease; if the database is unavailable, the lease expires by its deadline."""
        if token is not None:
            yield from self._execute_flow(WRITE, "release a fetch lease", commands.release(key, token))

    def record_success_flow(self, key: str, token: int | None, *row: Any) -> Flow[bool | None]:
        """Store a result; false if a later lease was granted, ``None`` if it could not be stored."""
        self.local_backoff.forget(key)
        command = commands.record_success(key, token, *row)
        stored = yield from self._execute_flow(WRITE, "store a result", command)
        return None if stored is UNAVAILABLE else bool(stored)

    def record_failure_flow(
        self,
        key: str,
        token: int | None,
        user_id: str,
        params_hash: str,
        params_json: bytes | None,
        *,
        now: float,
    ) -> Flow[KeyHealth]:
        """Count a failure, in this process if the database is unavailable; ``now`` is this machine's time."""
        command = commands.record_failure(key, token, user_id, params_hash, params_json)
        health = yield from self._execute_flow(WRITE, "record a failure", command)
        return self._record_local_failure(key, now) if health is UNAVAILABLE else health

    def _record_local_failure(self, key: str, now: float) -> KeyHealth:
        streak, seconds = self.local_backoff.record_failure(key)
        return KeyHealth(streak, now + seconds, now)

    def is_degraded_flow(self, key: str) -> Flow[bool]:
        """Whether a key is in backoff."""
        claim = yield from self.read_claim_flow(key)
        remaining = self.local_backoff.remaining(key) if claim is None else backoff_remaining(claim)
        return remaining > 0

    def evict_flow(self, user_id: str, keep: int, protected: str) -> Flow[None]:
        """Remove a user's surplus rows, but not the ``protected`` one."""
        yield from self._execute_flow(WRITE, "evict rows", commands.evict(user_id, keep, protected))

    def evict_least_recently_used_flow(self, rows_max: int, bytes_max: int, limit: int) -> Flow[int]:
        """Remove the surplus rows of the whole table, at most ``limit``; return how many."""
        command = commands.evict_least_recently_used(rows_max, bytes_max, limit)
        evicted = yield from self._execute_flow(WRITE, "evict rows", command)
        return 0 if evicted is UNAVAILABLE else evicted

    def remove_flow(self, command: Command[list[str]]) -> Flow[list[str]]:
        """Remove rows, and return their hashes; raise if the database cannot, because they stay in use."""
        removed: list[str] = yield Perform(
            partial(self.tables.execute, command), partial(self.tables.execute_async, command)
        )
        return removed

    def read_many_flow(self, user_id: str | None, hashes: list[str]) -> Flow[dict[str, ResultRow] | None]:
        """Return the rows of some hashes; ``None`` if the database is unavailable."""
        rows = yield from self._execute_flow(READ, "read rows", tags.read_many(user_id, hashes))
        return None if rows is UNAVAILABLE else rows

    def due_flow(self, limit: int, age: float) -> Flow[list[DueRow]]:
        """Return the rows to refresh; none if the database is unavailable."""
        rows = yield from self._execute_flow(READ, "read the due rows", commands.list_due(limit, age))
        return [] if rows is UNAVAILABLE else rows

    def stats_flow(self, fresh: float, stale: float) -> Flow[dict[str, Any]]:
        """Return statistics; if they cannot be read they are ``None``, and ``unreadable`` is the error."""
        stats = yield from self._execute_flow(READ, "read the statistics", commands.read_stats(fresh, stale))
        if stats is UNAVAILABLE:
            return {**commands.UNREADABLE_STATS, "unreadable": self._read_error}
        return {**stats, "unreadable": None}

    def renew(self, key: str, token: int, seconds: float) -> bool:
        """Extend a lease, blocking; false if another worker holds a later one."""
        return self._execute("renew a fetch lease", commands.renew(key, token, seconds)) is not False

    def record_accesses(self, records: Sequence[AccessRecord], answers: AnswerCounts | None = None) -> None:
        """Add accesses and answer counts, blocking."""
        self._execute("count accesses", commands.record_accesses(records, answers))

    def prune(self, older_than: float, limit: int) -> int:
        """Remove unused rows, blocking; return how many."""
        pruned = self._execute("prune old rows", commands.prune(older_than, limit))
        return 0 if pruned is UNAVAILABLE else int(pruned)

    def _execute(self, action: str, command: Command[T]) -> T | Unavailable:
        """Run a command on the maintenance thread."""
        flow = self._execute_flow(WRITE, action, command)
        return run(flow)

    def _execute_flow(self, mode: str, action: str, command: Command[T]) -> Flow[T | Unavailable]:
        """Run a command, unless the database has just failed."""
        result: T | Unavailable | MustWait = MUST_WAIT
        if command.single_row:
            result = self._try_execute(action, command)
        if result is MUST_WAIT:
            return (yield from self._execute_waiting_flow(mode, action, command))
        return result

    def _try_execute(self, action: str, command: Command[T]) -> T | Unavailable | MustWait:
        """Run a ``single_row`` command, if that does not block."""
        if self._failed_ns and self._is_paused(READ):
            return UNAVAILABLE
        try:
            rows = self.tables.try_read(command.statements[0], command.parameters)
        except DatabaseError as error:
            return self._handle_error(READ, action, error)
        if rows is None:
            return MUST_WAIT
        self._failing.discard(action)
        return command.parse([rows])

    def _execute_waiting_flow(self, mode: str, action: str, command: Command[T]) -> Flow[T | Unavailable]:
        if self._is_paused(mode):
            return UNAVAILABLE
        try:
            result: T = yield Perform(
                partial(self.tables.execute, command), partial(self.tables.execute_async, command)
            )
        except DatabaseError as error:
            return self._handle_error(mode, action, error)
        self._failing.discard(action)
        return result

    def _is_paused(self, mode: str) -> bool:
        return MONOTONIC.now_ns() - self._failed_ns.get(mode, -ERROR_PAUSE_NS) < ERROR_PAUSE_NS

    def _handle_error(self, mode: str, action: str, error: DatabaseError) -> Unavailable:
        """Publish an error, and pause the use of the database; raise a missing migration."""
        if isinstance(error, DatabaseSchemaError):
            raise error
        if type(error) is not DatabaseError:  # that one concerns the command and not the database
            self._failed_ns[mode] = MONOTONIC.now_ns()
        if mode == READ:
            self._read_error = str(error)
        if action not in self._failing:
            self._publish_failure(mode, action, error)
        return UNAVAILABLE

    def _publish_failure(self, mode: str, action: str, error: DatabaseError) -> None:
        """Publish that an action fails, once until the action succeeds."""
        if self._publish_event(_EVENT_KINDS[mode], f"could not {action}: {error}", action):
            self._failing.add(action)

    def publish_unreadable_row(self, params_hash: str, error: Exception) -> None:
        """Publish that a row is treated as missing, because its columns cannot be decoded."""
        text = f"could not decode the row of {params_hash[:16]}: {type(error).__name__}: {error}"
        self._publish_event(_EVENT_KINDS[READ], text[:_TEXT_CHARS_MAX], "decode a row")

    def _publish_event(self, kind: str, text: str, action: str) -> bool:
        """Publish an event, at most one a minute for each action; return whether it was published."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._published_ns.get(action, -_EVENT_INTERVAL_NS) < _EVENT_INTERVAL_NS:
            return False
        self._published_ns[action] = now_ns
        events.publish(kind, self._name, text, "error")
        return True


def backoff_remaining(health: FetchClaim | KeyHealth) -> float:
    """Return for how many more seconds a key is in backoff."""
    return 0.0 if health.degraded_until is None else max(0.0, health.degraded_until - health.now)


class LocalBackoff:
    """The backoff of keys that failed in this process while the database could not store it."""

    def __init__(self, clock: Clock) -> None:
        self._now_ns = clock.now_ns
        self._streaks: dict[str, tuple[int, int]] = {}
        self._lock = Lock()
        fork_safety.register(self)

    def record_failure(self, key: str) -> tuple[int, float]:
        """Count a failure; return the failures in a row and the seconds of backoff."""
        with self._lock:
            streak = self._streaks.pop(key, (0, 0))[0] + 1
            seconds = 60 * calculate_backoff_minutes(streak)
            self._streaks[key] = streak, self._now_ns() + seconds * 1_000_000_000
            if len(self._streaks) > LOCAL_BACKOFF_KEYS_MAX:
                del self._streaks[next(iter(self._streaks))]
        return streak, seconds

    def remaining(self, key: str) -> float:
        """Return for how many more seconds a key is in backoff."""
        until_ns = self._streaks.get(key, (0, 0))[1]
        return max(0, until_ns - self._now_ns()) / 1e9

    def forget(self, key: str) -> None:
        """Forget a key whose health the database stores again."""
        if key in self._streaks:
            with self._lock:
                self._streaks.pop(key, None)

    def after_fork(self) -> None:
        """Reset the lock in a forked child."""
        fork_safety.reinit_lock(self._lock)
