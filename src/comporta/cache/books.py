"""The table, asked by flows; what it cannot do is said aloud and lived with.

A database that is locked, full, read-only or gone costs what it would have kept, never the caller's request.
Only a missing migration is an error for everybody: it would lose things silently, for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from comporta import events, forks
from comporta.cache import requests
from comporta.cache.health import calculate_backoff_minutes
from comporta.cache.requests import Request
from comporta.cache.rows import Health
from comporta.clock import MONOTONIC, Clock
from comporta.errors import DatabaseError, DatabaseSchemaError
from comporta.flow import Flow, run

if TYPE_CHECKING:
    from comporta.cache.rows import Answers, Claim, Due, Entry, Touch
    from comporta.cache.table import CacheTable

T = TypeVar("T")

KEYS_ALONE_MAX = 10_000
"""How many failing keys a worker remembers by itself while the database cannot."""

AWAY_NS = 1_000_000_000
"""For so long after an error nobody waits for the database: each call may take seconds to find out."""

READ, WRITE = "read", "write"
_KINDS = {READ: "cache_unreadable", WRITE: "cache_not_kept"}

_SAY_EVERY_NS = 60_000_000_000


class Lost(Enum):
    """In the place of an answer: there was nobody to give one."""

    LOST = "lost"


LOST: Final = Lost.LOST


class Later(Enum):
    """In the place of an answer: it takes a wait to have one."""

    LATER = "later"


LATER: Final = Later.LATER


class Ask:
    """Effect: one request to the table."""

    __slots__ = ("_request", "_table")

    def __init__(self, table: CacheTable, request: Request[Any]) -> None:
        self._table = table
        self._request = request

    def block(self) -> Any:
        """Ask, holding the thread."""
        return self._table.ask(self._request)

    async def wait(self) -> Any:
        """Ask, holding nothing."""
        return await self._table.ask_async(self._request)


class Books:
    """What a cache asks of its table, and what it remembers by itself while there is none."""

    def __init__(self, table: CacheTable, name: str, clock: Clock) -> None:
        self.table = table
        self.alone = Alone(clock)
        self._name = name
        self._said_ns: dict[str, int] = {}
        self._unreadable = ""
        self._failed_ns: dict[str, int] = {}

    def glance(self, user_id: str | None, params_hash: str) -> Entry | Lost | Later | None:
        """Read a row (of anybody, without a user) without a flow, which takes as long as all else in a hit.

        ``LOST`` if the table cannot be asked, ``LATER`` if that takes ``waiting``.
        """
        if user_id is None:
            return self._seen("read", requests.read_shared(params_hash))
        return self._seen("read", requests.read(user_id, params_hash))

    def waiting(self, user_id: str | None, params_hash: str) -> Flow[Entry | Lost | None]:
        """Read what could not be had at a glance."""
        return self._waited(READ, "read", _row(user_id, params_hash))

    def reading(self, user_id: str | None, params_hash: str) -> Flow[Entry | Lost | None]:
        """Read a row, at a glance or not."""
        return self._asked(READ, "read", _row(user_id, params_hash))

    def claiming(
        self, key: str, owner: str, seconds: float, *, forced: bool, not_within: float
    ) -> Flow[Claim | None]:
        """Ask for the turn to fetch; nothing if there is nobody to ask."""
        request = requests.claim(key, owner, seconds, forced=forced, not_within=not_within)
        claim = yield from self._asked(WRITE, "ask whose turn it is", request)
        if claim is LOST:
            return None
        self.alone.forget(key)
        return claim

    def leased(self, key: str) -> Flow[float]:
        """Return for how many seconds somebody's turn still lasts."""
        claim = yield from self._asked(READ, "look at a key", requests.look(key))
        return 0.0 if claim is LOST or claim.lease_until is None else claim.lease_until - claim.now

    def releasing(self, key: str, token: int | None) -> Flow[None]:
        """Give a turn back; where that cannot be said, it ends by itself."""
        if token is not None:
            yield from self._asked(WRITE, "give a turn back", requests.release(key, token))

    def succeeding(self, key: str, token: int | None, *row: Any) -> Flow[bool | None]:
        """Keep an answer; false if a later turn has begun, nothing if it could not be kept."""
        self.alone.forget(key)
        kept = yield from self._asked(WRITE, "keep an answer", requests.succeed(key, token, *row))
        return None if kept is LOST else bool(kept)

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
            WRITE, "note a failure", requests.fail(key, token, user_id, params_hash, text)
        )
        return self._alone(key, now) if health is LOST else health

    def _alone(self, key: str, now: float) -> Health:
        streak, seconds = self.alone.failed(key)
        return Health(streak, now + seconds, now)

    def degraded(self, key: str) -> Flow[bool]:
        """Whether a key is left alone for now."""
        claim = yield from self._asked(READ, "look at a key", requests.look(key))
        return (self.alone.left(key) if claim is LOST else left_of(claim)) > 0

    def evicting(self, user_id: str, keep: int, spared: str) -> Flow[None]:
        """Let go of what a user has too many of, but not of this."""
        yield from self._asked(WRITE, "evict", requests.evict(user_id, keep, spared))

    def due(self, limit: int, age: float) -> Flow[list[Due]]:
        """Return what is to be refreshed; nothing if nobody can tell."""
        found = yield from self._asked(READ, "look for what is due", requests.due(limit, age))
        return [] if found is LOST else found

    def figuring(self, fresh: float, stale: float) -> Flow[dict[str, Any]]:
        """Return how the table fares; what cannot be read is ``None``, and ``unreadable`` says why."""
        found = yield from self._asked(READ, "read the figures", requests.figures(fresh, stale))
        if found is LOST:
            return {**requests.NO_FIGURES, "unreadable": self._unreadable}
        return {**found, "unreadable": None}

    def renew(self, key: str, token: int, seconds: float) -> bool:
        """Hold a turn for longer; false if it is lost."""
        return self._done("renew a turn", requests.renew(key, token, seconds)) is not False

    def touch(self, rows: Sequence[Touch], answers: Answers | None = None) -> None:
        """Write down accesses and answers, all at once."""
        self._done("count accesses", requests.touch(rows, answers))

    def prune(self, older_than: float, limit: int) -> int:
        """Forget what nobody asks for any more; returns how much that was."""
        pruned = self._done("forget what is old", requests.prune(older_than, limit))
        return 0 if pruned is LOST else int(pruned)

    def _done(self, what: str, request: Request[T]) -> T | Lost:
        """Ask on a thread of the cache's own."""
        flow = self._asked(WRITE, what, request)
        return run(flow)

    def _asked(self, way: str, what: str, request: Request[T]) -> Flow[T | Lost]:
        """Ask the table, unless it failed just now; ``LOST`` if it cannot answer."""
        seen: T | Lost | Later = LATER
        if request.small:
            seen = self._seen(what, request)
        return (yield from self._waited(way, what, request)) if seen is LATER else seen

    def _seen(self, what: str, request: Request[T]) -> T | Lost | Later:
        """Ask something small, if the answer is to be had without waiting."""
        if self._failed_ns and self._is_away(READ):
            return LOST
        try:
            found = self.table.glance(request)
        except DatabaseError as error:
            return self._lost(READ, what, error)
        return LATER if found is None else request.parse(found)

    def _waited(self, way: str, what: str, request: Request[T]) -> Flow[T | Lost]:
        if self._is_away(way):
            return LOST
        try:
            answer: T = yield Ask(self.table, request)
        except DatabaseError as error:
            return self._lost(way, what, error)
        return answer

    def _is_away(self, way: str) -> bool:
        return MONOTONIC.now_ns() - self._failed_ns.get(way, -AWAY_NS) < AWAY_NS

    def _lost(self, way: str, what: str, error: DatabaseError) -> Lost:
        """Say what went wrong, and leave the database alone for a while."""
        if isinstance(error, DatabaseSchemaError):
            raise error
        if type(error) is not DatabaseError:  # that one is about what was asked, not about the database
            self._failed_ns[way] = MONOTONIC.now_ns()
        if way == READ:
            self._unreadable = str(error)
        self._say(_KINDS[way], f"could not {what}: {error}", what)
        return LOST

    def _say(self, kind: str, text: str, what: str) -> None:
        """Say it, but not each time."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._said_ns.get(what, -_SAY_EVERY_NS) >= _SAY_EVERY_NS:
            self._said_ns[what] = now_ns
            events.publish(kind, self._name, text, "error")


def _row(user_id: str | None, params_hash: str) -> Request[Entry | None]:
    return requests.read_shared(params_hash) if user_id is None else requests.read(user_id, params_hash)


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
