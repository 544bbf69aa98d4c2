"""What a cache does beside its callers, in one quiet thread: turns are renewed, accesses written down.

It does not keep its cache alive, and begins with the first thing there is to do.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from comporta import events, forks
from comporta.cache.figures import FRESH_HIT, STALE_HIT, Rates
from comporta.cache.rows import Touch
from comporta.chance import fraction
from comporta.threads import Run

if TYPE_CHECKING:
    from comporta.cache.books import Books
    from comporta.cache.level import Level

TOUCH_SECONDS = 5.0
"""How often accesses are written down, at the most."""

TOUCHES_AT_ONCE = 100
"""How many rows are written in one statement."""

PRUNE_SECONDS = 3600.0
"""How often what is old is looked for."""

KEPT_SECONDS = 30 * 86_400.0
"""What nobody asked for in so long is forgotten, unless it is saved, or may be served for longer.

Not for the answers, which have long expired: for what is known of the keys, over a month's holiday.
"""

PRUNED_AT_ONCE = 1000
"""Of what is old so much is removed in one transaction; if there was more, again with the next accesses."""

ROWS_MAX = 10_000
"""Of how many rows accesses are remembered until then; of more they are not counted."""


class Held(NamedTuple):
    """A turn that is renewed: its number, when, and whether anybody still carries it out."""

    token: int
    at: float
    runs: Callable[[], bool]


class Chores:
    """The thread, and what it looks after."""

    def __init__(
        self,
        books: Books,
        level: Level,
        lease_seconds: float,
        wall: Callable[[], float],
        rates: Rates,
        *,
        stale: float,
    ) -> None:
        self._books = books
        self._level = level
        self._lease_seconds = lease_seconds
        self._kept_seconds = max(KEPT_SECONDS, stale)
        self._wall = wall
        self._rates = rates
        self._held: dict[str, Held] = {}
        self._accesses: dict[tuple[str, str], int] = {}
        self._saved: dict[tuple[str, str], bool] = {}
        self._lock = Lock()
        self._run: Run | None = None
        self._touch_at = 0.0
        self._prune_at = monotonic() + PRUNE_SECONDS * fraction()
        self._closed = False
        forks.register(self)

    def hold(self, key: str, token: int | None, runs: Callable[[], bool]) -> None:
        """Renew a turn from now on, as long as somebody carries it out."""
        if token is not None:
            with self._lock:
                self._held[key] = Held(token, monotonic() + self._lease_seconds / 3, runs)
            self.start()
            if self._run is not None:
                self._run.wake.set()

    def note(self, user_id: str, params_hash: str) -> None:
        """Count an access to a row that is not kept in memory."""
        row = user_id, params_hash
        with self._lock:
            if row in self._accesses or len(self._accesses) < ROWS_MAX:
                self._accesses[row] = self._accesses.get(row, 0) + 1
        self.start()

    def save(self, user_id: str, params_hash: str, *, saved: bool) -> None:
        """Note whether a user keeps a search."""
        with self._lock:
            if len(self._saved) < ROWS_MAX:
                self._saved[user_id, params_hash] = saved
        self.start()

    def drop(self, key: str, token: int | None) -> None:
        """Let a turn end, unless the key is held anew by now."""
        with self._lock:
            if key in self._held and self._held[key].token == token:
                del self._held[key]

    def start(self) -> None:
        """See that the thread runs."""
        if self._closed or (self._run is not None and self._run.lives()):
            return
        with self._lock:
            if self._run is not None and self._run.lives():
                return
            self._touch_at = monotonic() + TOUCH_SECONDS
            self._run = run = Run()
        run.start(_work, ref(self), run, name="comporta-cache")

    def close(self, seconds: float) -> None:
        """End the thread, and write down what there is."""
        self._closed = True
        if self._run is not None:
            self._run.end(seconds)
        self.flush()

    def flush(self) -> None:
        """Write accesses and answers down now."""
        touches = self._level.touches()
        stale, self._level.stale_touches = self._level.stale_touches, 0
        self._rates.count(STALE_HIT, stale)
        self._rates.count(FRESH_HIT, sum(touches.values()) - stale)
        with self._lock:
            more, self._accesses = self._accesses, {}
            saved, self._saved = self._saved, {}
        for row, accesses in more.items():
            touches[row] = touches.get(row, 0) + accesses
        at = self._wall()
        rows = [
            Touch(*row, touches.get(row, 0), at, saved.get(row)) for row in dict.fromkeys((*touches, *saved))
        ]
        answers = self._rates.taken()
        for start in range(0, max(len(rows), 1 if answers else 0), TOUCHES_AT_ONCE):
            self._books.touch(rows[start : start + TOUCHES_AT_ONCE], answers)
            answers = None

    def turn(self) -> float | None:
        """Do what is due; returns the seconds until there may be more, or nothing at the end."""
        if self._closed:
            return None
        now = monotonic()
        if now >= self._touch_at:
            self._touch_at = now + TOUCH_SECONDS
            self.flush()
            if now >= self._prune_at:
                self._prune(now)
        with self._lock:
            due = [(key, held) for key, held in self._held.items() if now >= held.at]
        for key, held in due:
            self._renew(key, held)
        with self._lock:
            moments = [held.at for held in self._held.values()]
        return max(0.01, min([self._touch_at, *moments]) - monotonic())

    def _prune(self, now: float) -> None:
        pruned = self._books.prune(self._kept_seconds, PRUNED_AT_ONCE)
        if pruned < PRUNED_AT_ONCE:
            self._prune_at = now + PRUNE_SECONDS

    def after_fork(self) -> None:
        """Leave the parent's turns to the parent."""
        forks.renew(self._lock)
        self._run = None
        self._held.clear()
        self._accesses.clear()
        self._saved.clear()

    def _renew(self, key: str, held: Held) -> None:
        """Renew a turn; one that nobody carries out, for now, is left to end by itself."""
        renewed = not held.runs() or self._books.renew(key, held.token, self._lease_seconds)
        with self._lock:
            if self._held.get(key) is held:
                if renewed:
                    self._held[key] = held._replace(at=monotonic() + self._lease_seconds / 3)
                else:  # it is another's by now; whoever fetched finds out when it is done
                    del self._held[key]


def _work(chores_ref: ref[Chores], run: Run) -> None:
    while True:
        chores = chores_ref()
        try:
            pause = None if chores is None else chores.turn()
        except BaseException as error:  # nobody else would notice that the thread is gone
            events.publish("cache_chores_failed", "cache", repr(error), "error")
            pause = 1.0
        del chores
        if pause is None:
            return
        run.wake.wait(pause)
