"""Tells the state what this worker counts, how its upstreams stand, and what happens: a thread, once in 2 s.

Nobody waits for it, and it stops nobody. Sums go into the histories (``stores/history.py``). How an upstream
stands is the same whoever looks, so of all workers one does it in each period: whoever is first to take the
turn. Events go into the journal (``stores/journal.py``).

While the shared state is out of reach nothing is asked of it. Figures of up to ``KEPT_SECONDS`` are told when
it is back, in the slot of that moment; older ones are dropped, or an hour's outage would stand there as one
peak. Figures that were under way when the state failed may have been told and are not told again; events are.
The latest ``EVENTS_MAX`` of those are kept; how many were left out is said in the journal.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakMethod, ref

from comporta import events, forks
from comporta.breaker.admission import owner
from comporta.errors import StateError
from comporta.flow import run
from comporta.limits.leased import on_lease
from comporta.stores.effects import OF_ONE_KEY, asked
from comporta.stores.failover import FailoverStore, fallback_of
from comporta.stores.history import SLOT_SECONDS, Tell, series_room
from comporta.stores.journal import ENTRY_BYTES_MAX, NOTED_AT_ONCE, Note
from comporta.stores.records import ABSENT, Write
from comporta.stores.table import Table
from comporta.threads import Run
from comporta.watching.card import most
from comporta.watching.fleet import (
    AT_ONCE,
    FLEET,
    JOURNAL,
    LEASES,
    STANDINGS,
    TURNS,
    bare_card,
    leases_key,
    remembering,
    turn_of,
    written,
)
from comporta.watching.series import CACHE, SERVICE, gauges_of, phase_after, phase_seen, series_of

if TYPE_CHECKING:
    from comporta.stores.base import Store
    from comporta.upstream.upstream import Upstream
    from comporta.watching.tallies import Tallies

EVERY_SECONDS: Final = 2.0
STANDING_SECONDS: Final = 30.0
"""How long a card is good that nobody renews."""

KEPT_SECONDS: Final = 60.0
EVENTS_MAX: Final = 200
UPSTREAMS_MAX: Final = 100
"""So many cards are told, of those that come first by name."""

LEASES_MAX: Final = 20
"""Of so many limits a worker says what it has on lease, of those with the most."""

LEASES_PERIODS: Final = 3
"""For so many periods that is good if nobody renews it."""

_TURN_PART = 0.8
"""A turn lasts for this part of a period: the next is free when the workers come again."""

_END_SECONDS = 1.0


class _Life(Run):
    """One life of the thread: whether it tells the rest at its end."""

    __slots__ = ("goodbye",)

    def __init__(self) -> None:
        super().__init__()
        self.goodbye = False


class Teller:
    """Tells a store of this worker, from ``start`` to ``close``.

    ``upstreams`` are those that are told of, ``tallies`` the sink they are counted in. In a forked child it
    starts again as soon as something is counted there.
    """

    def __init__(
        self,
        store: Store,
        upstreams: Mapping[str, Upstream],
        tallies: Tallies,
        *,
        every: float = EVERY_SECONDS,
    ) -> None:
        if not 0.01 <= every <= 10:
            raise ValueError(f"every must be 0.01 to 10 seconds, got {every}")
        self._store = store
        self._upstreams = upstreams
        self._tallies = tallies
        self._every = every
        self._lock = Lock()
        self._life: _Life | None = None
        self._open = False
        self._listening: Callable[[], None] | None = None
        self._events: deque[events.Event] = deque(maxlen=EVENTS_MAX)
        self._left_out = 0
        self._leasing = False
        self._said: set[str] = set()
        self._told_ns = self._store.clock.now_ns()
        forks.register(self)
        forks.register_thread(self)

    def start(self) -> None:
        """Begin, in this process; once more is no more."""
        self._open = True
        if self._listening is None:
            self._listening = events.listen(_hearing(self))
        self._tallies.stirred = _stirring(self)
        self._begin()

    def close(self) -> None:
        """Tell what is left, for a second at the most, and end."""
        self._open = False
        self._tallies.stirred = None
        listening, self._listening = self._listening, None
        if listening is not None:
            listening()
        with self._lock:
            life, self._life = self._life, None
        if life is not None:
            life.goodbye = True
            life.end(_END_SECONDS)

    def stirred(self) -> None:
        """See that the thread runs: something was counted, perhaps in a child."""
        life = self._life
        if self._open and (life is None or life.over or not life.lives()):
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            life = self._life
            if life is None or life.over or not life.lives():
                life = self._life = _Life()  # before it starts: interrupted in between, nobody starts another
                if not life.start(_tell, ref(self), life, self._every, name="comporta-teller"):
                    self._life = None

    def before_fork(self) -> None:
        """Let the thread end for the moment."""
        if self._life is not None:
            self._life.end(_END_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._open:
            self._begin()

    def after_fork(self) -> None:
        """Be nobody yet: the thread stayed with the parent, and so did what it has to tell."""
        forks.renew(self._lock)
        self._life = None
        self._events.clear()
        self._left_out = 0

    def heard(self, event: events.Event) -> None:
        """Keep an event for the journal; the oldest goes when there are too many."""
        if len(self._events) == EVENTS_MAX:
            self._left_out += 1
        self._events.append(event)

    def turn(self) -> None:
        """Tell what there is to tell, blocking; what fails is left for the next time, or out."""
        with suppress(StateError):
            if self._reached() and self._tell_all():
                self._told_ns = self._store.clock.now_ns()
                return
        self._drop_old()

    def _reached(self) -> bool:
        """Whether the state is there, as far as anybody in this process has noticed."""
        return fallback_of(self._store) is None

    def _tell_all(self) -> bool:
        """Tell everything; false if the state went meanwhile. What was not under way then can wait."""
        seen = self._changes_heard()
        sets = {}
        for name, shown in self._cards():
            sets[series_of(name)] = gauges_of(shown)
            seen.setdefault(series_of(name), set()).add(phase_seen(shown["phase"]))
        told = [one for one in dict.fromkeys([*sets, *seen, *self._tallies.series()]) if self._admits(one)]
        at_once = _at_once(self._store)
        for start in range(0, len(told), at_once):
            if not self._reached():
                return False
            some = told[start : start + at_once]
            tells = [Tell(one, self._tallies.taken(one), sets.get(one), seen.get(one, ())) for one in some]
            for series, reply in zip(some, asked(self._store, tells), strict=True):
                if isinstance(reply, StateError):
                    self._missing(series, reply)
        self._tried("leases", self._tell_leases)
        self._note_all()
        return True

    def _tell_leases(self) -> None:
        """Tell what this worker has on lease, or that it has nothing any more."""
        held = on_lease(self._store)
        if held or self._leasing:
            told = _packed(most(held, LEASES_MAX))
            self._store.apply(Write(FLEET, leases_key(owner()), told, LEASES_PERIODS * self._every))
            self._store.apply(Write(FLEET, LEASES, b"1", STANDING_SECONDS))
        self._leasing = bool(held)

    def _changes_heard(self) -> dict[str, set[tuple[int, int]]]:
        """Return how circuits stood since the last time by what happened: nobody may have looked then."""
        found: dict[str, set[tuple[int, int]]] = {}
        for event in self._events.copy():
            phase = phase_after(event.kind)
            if phase and event.source in self._upstreams and time.time() - event.at < SLOT_SECONDS:
                found.setdefault(series_of(event.source), set()).add(phase_seen(phase))
        return found

    def _admits(self, series: str) -> bool:
        """Whether a series is among those that the state should have room for; the same in all workers."""
        room = _room(self._store)
        if room is None:
            return True
        known = [CACHE, SERVICE, *map(series_of, sorted(self._upstreams))]
        admitted = series in known[:room]
        if not admitted:
            self.say_once(series, f"pages will not show its history: the table has room for {room}")
        return admitted

    def _cards(self) -> list[tuple[str, dict[str, Any]]]:
        """Return how our upstreams stand, after telling it, if the turn is ours."""
        ours = dict(sorted(self._upstreams.items())[:UPSTREAMS_MAX])
        if not ours or not self._tried("turns", self._mine, ours):
            return []
        found = []
        for name, upstream in ours.items():
            shown = self._tried(name, self._shown, name, upstream)
            if shown is not None:
                found.append((name, shown))
        if found:
            self._tried("upstreams", self._remember, [name for name, _ in found])
        return found

    def _mine(self, names: Iterable[str]) -> bool:
        """Take the turn among those who have the same upstreams, if it is free."""
        ttl = _TURN_PART * self._every
        return self._store.apply(Write(TURNS, turn_of(names), owner().encode(), ttl, ABSENT))

    def _shown(self, name: str, upstream: Upstream) -> dict[str, Any] | None:
        """Tell how an upstream stands; if the state fell meanwhile, that is how this worker stands alone."""
        shown = run(bare_card(upstream))
        if fallback_of(upstream.store) is not None:
            return None
        self._store.apply(Write(STANDINGS, name, written(shown), STANDING_SECONDS))
        return shown

    def _remember(self, names: list[str]) -> None:
        for name in run(remembering(self._store, names)):
            self.say_once("upstreams", f"there are too many names: pages will not show {name}")

    def _note_all(self) -> None:
        while self._events and self._reached():
            some = [self._events.popleft() for _ in range(min(NOTED_AT_ONCE, len(self._events)))]
            try:
                self._note(*some)
            except StateError:
                self._put_back(some)  # who reads leaves out what was told twice
                raise
        if self._left_out and self._reached():
            left_out, self._left_out = self._left_out, 0
            text = f"{left_out} events of this worker were left out: more than {EVENTS_MAX} waited"
            self._note(events.Event(time.time(), "events_left_out", "comporta", text, "warning"))

    def _put_back(self, some: list[events.Event]) -> None:
        """Keep what may not have been told, the latest of it where there is no room for all."""
        room = max(0, EVENTS_MAX - len(self._events))
        self._left_out += max(0, len(some) - room)
        self._events.extendleft(reversed(some[len(some) - min(room, len(some)) :]))

    def _note(self, *happened: events.Event) -> None:
        entries = [entry_of(event) for event in happened]
        self._tried("events", self._store.apply, Note(JOURNAL, *entries))

    def _tried(self, what: str, telling: Callable[..., Any], *about: Any) -> Any:
        """Tell something; where its key has no room, or is somebody else's, the rest is told without it."""
        try:
            return telling(*about)
        except StateError as error:
            self._missing(what, error)
        except Exception as error:  # a mistake of ours with one thing: the others are told all the same
            self.say_once(what, f"pages will not show all of it: {error!r:.200}")
        return None

    def _missing(self, what: str, error: StateError) -> None:
        """Say that one thing cannot be told, where it is only that."""
        cause = error if isinstance(error, OF_ONE_KEY) else error.__cause__
        if not isinstance(cause, OF_ONE_KEY):
            raise error
        self.say_once(what, f"pages will not show all of it: {cause}")

    def say_once(self, what: str, text: str) -> None:
        """Say what cannot be told; the first time only."""
        if what not in self._said and len(self._said) < EVENTS_MAX:
            self._said.add(what)
            events.publish("telling_failed", what, text)

    def _drop_old(self) -> None:
        """Drop figures that are too old to be told as if they were new."""
        if self._store.clock.now_ns() - self._told_ns > KEPT_SECONDS * 1e9:
            self._told_ns = self._store.clock.now_ns()
            for series in self._tallies.series():
                self._tallies.taken(series)


def _room(store: Store) -> int | None:
    """Return how many series a table of this machine should hold, which has other things to keep."""
    table = getattr(_primary(store), "table", None)
    return series_room(table.large_slots) if isinstance(table, Table) else None


def _at_once(store: Store) -> int:
    """Return how many series are told together; where that saves nothing one by one: less can be lost."""
    return AT_ONCE if hasattr(_primary(store), "apply_all") else 1


def _primary(store: Store) -> Store:
    return store.primary if isinstance(store, FailoverStore) else store


def entry_of(event: events.Event) -> bytes:
    """Return an event as it stands in the journal; a text that is too long is cut."""
    plain = {**event._asdict(), "at": round(event.at, 3), "worker": owner()}
    entry = _packed(plain)
    while len(entry) > ENTRY_BYTES_MAX:
        longest = max(("text", "source", "kind"), key=lambda field: len(plain[field]))
        plain[longest] = plain[longest][: len(plain[longest]) // 2]
        entry = _packed(plain)
    return entry


def _packed(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _hearing(teller: Teller) -> events.Listener:
    """Return a listener that does not keep its teller alive."""
    hears = WeakMethod(teller.heard)

    def heard(event: events.Event) -> None:
        hear = hears()
        if hear is not None:
            hear(event)

    return heard


def _stirring(teller: Teller) -> Callable[[], None]:
    stirs = WeakMethod(teller.stirred)

    def stirred() -> None:
        stir = stirs()
        if stir is not None:
            stir()

    return stirred


def _tell(teller_ref: ref[Teller], life: _Life, every: float) -> None:
    """Run until the teller is gone or says stop; between two turns nothing here holds it."""
    while True:
        life.wake.wait(every)
        last = life.over  # asked before the turn: what is counted during it is left for one more
        teller = teller_ref()
        if teller is None or (last and not life.goodbye):
            return
        try:
            teller.turn()
        except Exception as error:  # a mistake of ours: nobody else would notice that the thread is gone
            teller.say_once("comporta", repr(error))
        del teller
        if last:
            return
