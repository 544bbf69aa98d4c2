"""The table, asked by flows; what it cannot do is said aloud and lived with.

A database that is locked, full, read-only or gone costs what it would have kept, never the caller's request.
Only a missing migration is an error for everybody: it would lose things silently, for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from comporta import events, forks
from comporta.cache.health import calculate_backoff_minutes
from comporta.cache.rows import Health
from comporta.clock import MONOTONIC, Clock
from comporta.errors import DatabaseError, DatabaseSchemaError
from comporta.flow import Flow, run

if TYPE_CHECKING:
    from comporta.cache.rows import Claim, Entry, Touch
    from comporta.cache.table import CacheTable

KEYS_ALONE_MAX = 10_000
"""How many failing keys a worker remembers by itself while the database cannot."""

AWAY_NS = 1_000_000_000
"""For so long after an error nobody waits for the database: each call may take seconds to find out."""

READ, WRITE = "read", "write"
_KINDS = {READ: "cache_unreadable", WRITE: "cache_not_kept"}
_LOST: Any = object()

_SAY_EVERY_NS = 60_000_000_000


class Ask:
    """Effect: one verb of the table."""

    __slots__ = ("_arguments", "_named", "_table", "_verb")

    def __init__(self, table: CacheTable, verb: str, *arguments: Any, **named: Any) -> None:
        self._table = table
        self._verb = verb
        self._arguments = arguments
        self._named = named

    def block(self) -> Any:
        """Ask, holding the thread."""
        return getattr(self._table, self._verb)(*self._arguments, **self._named)

    async def wait(self) -> Any:
        """Ask, holding nothing."""
        return await getattr(self._table, f"{self._verb}_async")(*self._arguments, **self._named)


class Books:
    """What a cache asks of its table, and what it remembers by itself while there is none."""

    def __init__(self, table: CacheTable, name: str, clock: Clock) -> None:
        self.table = table
        self.alone = Alone(clock)
        self._name = name
        self._said_ns: dict[str, int] = {}
        self._failed_ns = dict.fromkeys(_KINDS, -AWAY_NS)

    def reading(self, user_id: str | None, params_hash: str) -> Flow[tuple[Entry | None, bool]]:
        """Read a row (of anybody, without a user); also tells whether the table could be asked at all."""
        if user_id is None:
            entry = yield from self._asked(READ, "read", "read_shared", params_hash)
        else:
            entry = yield from self._asked(READ, "read", "read", user_id, params_hash)
        return (None, False) if entry is _LOST else (entry, True)

    def claiming(
        self, key: str, owner: str, seconds: float, *, forced: bool, not_within: float
    ) -> Flow[Claim | None]:
        """Ask for the turn to fetch; nothing if there is nobody to ask."""
        what = "ask whose turn it is"
        claim = yield from self._asked(
            WRITE, what, "claim", key, owner, seconds, forced=forced, not_within=not_within
        )
        if claim is _LOST:
            return None
        self.alone.forget(key)
        return claim  # type: ignore[no-any-return]  # a verb's answer is what that verb says

    def leased(self, key: str) -> Flow[float]:
        """Return for how many seconds somebody's turn still lasts."""
        claim = yield from self._asked(READ, "look at a key", "look", key)
        return 0.0 if claim is _LOST or claim.lease_until is None else claim.lease_until - claim.now

    def releasing(self, key: str, token: int | None) -> Flow[None]:
        """Give a turn back; where that cannot be said, it ends by itself."""
        if token is not None:
            yield from self._asked(WRITE, "give a turn back", "release", key, token)

    def succeeding(self, key: str, token: int | None, *row: Any) -> Flow[bool | None]:
        """Keep an answer; false if a later turn has begun, nothing if it could not be kept."""
        self.alone.forget(key)
        kept = yield from self._asked(WRITE, "keep an answer", "succeed", key, token, *row)
        return None if kept is _LOST else bool(kept)

    def failing(
        self,
        key: str,
        token: int | None,
        user_id: str,
        params_hash: str,
        text: bytes | None,
        *,
        now: float,
    ) -> Flow[Health]:
        """Note a failure, in this process if it cannot be noted for all; ``now`` is this machine's."""
        health = yield from self._asked(
            WRITE, "note a failure", "fail", key, token, user_id, params_hash, text
        )
        return self._alone(key, now) if health is _LOST else health

    def _alone(self, key: str, now: float) -> Health:
        streak, seconds = self.alone.failed(key)
        return Health(streak, now + seconds, now)

    def degraded(self, key: str) -> Flow[bool]:
        """Whether a key is left alone for now."""
        claim = yield from self._asked(READ, "look at a key", "look", key)
        return (self.alone.left(key) if claim is _LOST else left_of(claim)) > 0

    def evicting(self, user_id: str, keep: int, spared: str) -> Flow[None]:
        """Let go of what a user has too many of, but not of this."""
        yield from self._asked(WRITE, "evict", "evict", user_id, keep, spared)

    def renew(self, key: str, token: int, seconds: float) -> bool:
        """Hold a turn for longer; false if it is lost."""
        return run(self._asked(WRITE, "renew a turn", "renew", key, token, seconds)) is not False

    def touch(self, rows: Sequence[Touch]) -> None:
        """Write down accesses, all at once."""
        run(self._asked(WRITE, "count accesses", "touch", list(rows)))

    def prune(self, older_than: float, limit: int) -> int:
        """Forget what nobody asks for any more; returns how much that was."""
        pruned = run(self._asked(WRITE, "forget what is old", "prune", older_than, limit))
        return 0 if pruned is _LOST else int(pruned)

    def _asked(self, way: str, what: str, verb: str, *given: Any, **named: Any) -> Flow[Any]:
        """Ask the table, unless it failed just now; ``_LOST`` if it cannot answer."""
        if MONOTONIC.now_ns() - self._failed_ns[way] < AWAY_NS:
            return _LOST
        try:
            return (yield Ask(self.table, verb, *given, **named))
        except DatabaseSchemaError:
            raise
        except DatabaseError as error:
            if type(error) is not DatabaseError:  # that one is about what was asked, not about the database
                self._failed_ns[way] = MONOTONIC.now_ns()
            self._say(_KINDS[way], f"could not {what}: {error}", what)
            return _LOST

    def _say(self, kind: str, text: str, what: str) -> None:
        """Say it, but not each time."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._said_ns.get(what, -_SAY_EVERY_NS) >= _SAY_EVERY_NS:
            self._said_ns[what] = now_ns
            events.publish(kind, self._name, text, "error")


def left_of(told: Claim | Health) -> float:
    """Return for how many seconds a key is left alone."""
    return 0.0 if told.degraded_until is None else max(0.0, told.degraded_until - told.now)


class Alone:
    """The backoff of keys as far as this process knows, while it cannot be written where all see it."""

    def __init__(self, clock: Clock) -> None:
        self._now_ns = clock.now_ns
        self._streaks: dict[str, tuple[int, int]] = {}
        self._lock = Lock()
        forks.register(self)

    def failed(self, key: str) -> tuple[int, float]:
        """Count a failure; returns the streak and for how many seconds the key is left alone."""
        with self._lock:
            streak = self._streaks.pop(key, (0, 0))[0] + 1
            seconds = 60 * calculate_backoff_minutes(streak)
            self._streaks[key] = streak, self._now_ns() + seconds * 1_000_000_000
            if len(self._streaks) > KEYS_ALONE_MAX:
                del self._streaks[next(iter(self._streaks))]
        return streak, seconds

    def left(self, key: str) -> float:
        """Return for how many seconds a key is still left alone."""
        until_ns = self._streaks.get(key, (0, 0))[1]
        return max(0, until_ns - self._now_ns()) / 1e9

    def forget(self, key: str) -> None:
        """The key is known elsewhere again."""
        if key in self._streaks:
            with self._lock:
                self._streaks.pop(key, None)

    def after_fork(self) -> None:
        """Free the lock that another thread of the parent may have held."""
        forks.renew(self._lock)
