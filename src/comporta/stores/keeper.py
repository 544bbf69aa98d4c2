"""Keeps a worker in touch with the others: one quiet thread for each shared state that is in use.

While all is well it gives a sign of life once a second, learns how many workers there are, reads what
operators changed, and between two signs asks what has to be known sooner (:class:`Watcher`). While the shared
state is out of reach it looks for its return, with jitter, so that a fleet does not knock all at once; when
the state is back in order it first reports what this worker granted on its own, and only then lets it join
the others again, all at one moment: whoever drew on a bucket that the others have not reported to yet would
get their tokens once more. If the first look finds the state in order right away, the trouble was this
worker's own (a reply was lost, its machine stood still) and it goes back at once: the others use the whole
limit meanwhile, and its share would come on top.

It is a thread, not a task, so that one text serves programs with an event loop and without.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from weakref import WeakSet, ref

from comporta import events, forks
from comporta.chance import uniform
from comporta.clock import MONOTONIC
from comporta.errors import (
    StateDeniedError,
    StateError,
    StateFullError,
    StateTypeError,
)
from comporta.stores.census import Census
from comporta.stores.effects import asked
from comporta.stores.records import Read
from comporta.stores.workers import BEAT_SECONDS, GATHER_US, Beat, Gather, Leave, Worker
from comporta.threads import Run

if TYPE_CHECKING:
    from comporta.stores.base import Operation, Store
    from comporta.stores.failover import Alone, FailoverStore

Follower = ref["Callable[[bytes | None], None]"]

WATCH_SECONDS = 0.2
"""How often watchers are asked what they want to know."""

PROBE_FIRST_SECONDS = 0.05
PROBE_LONGEST_SECONDS = 0.3
_GOOD_SIGNS = 2
"""How many calls in a row have to come back in time before a server counts as being in order."""

_REPORTED_AHEAD_NS = 150_000_000
_RIGHT_AWAY_NS = 50_000_000
_CALM_NS = 10_000_000_000
_LOUD_EVERY_NS = 60_000_000_000
_REPORTS_AT_ONCE = 256
_REPORTS_MAX = 100_000
_CHANGES_PER_BEAT = 100
_WATCHED_AT_ONCE = 256
_GOODBYE_SECONDS = 1.0


class Watcher(Protocol):
    """Something that has to be known, or told, sooner than the next sign of life; a view of a breaker."""

    def due(self) -> Operation[Any] | None:
        """Return what to ask now; nothing if nobody needs to know."""

    def told(self, reply: Any) -> None:
        """Take the answer, on the keeper's thread; it must not raise."""


@runtime_checkable
class Carrier(Protocol):
    """A watcher that knows something which the shared state may have forgotten when it is back."""

    def carried(self) -> Operation[Any] | None:
        """Return what notes it in this worker's own state, from which it is reported; nothing if it has."""


class Life(Run):
    """One life of the thread: who it is to the others, and whether it says goodbye at the end."""

    __slots__ = ("goodbye", "worker")

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker
        self.goodbye = False

    def waited(self, moment_ns: int) -> bool:
        """Wait until a moment; false if told to end before."""
        while not self.over:
            left_ns = moment_ns - MONOTONIC.now_ns()
            if left_ns <= 0:
                return True
            self.wake.wait(left_ns / 1e9)
        return False


class Keeper:
    """What the thread does, and what it knows. It does not keep its store alive."""

    def __init__(self, store: FailoverStore) -> None:
        self.census = Census(store.address)
        self._store = ref(store)
        self._followers: dict[tuple[str, str], list[Follower]] = {}
        self._watchers: WeakSet[Watcher] = WeakSet()
        self._beat_ns = -_LOUD_EVERY_NS
        self._lock = Lock()
        self._life: Life | None = None
        self._pause = PROBE_FIRST_SECONDS
        self._own_trouble = False  # until a look at the shared state shows that it is not
        self._fell_ns = self._loud_ns = -_LOUD_EVERY_NS
        forks.register(self)
        forks.register_thread(self)

    def start(self) -> bool:
        """See that the thread runs, in this process; false if none can be had."""
        life = self._life
        if life is None or not life.lives():
            with self._lock:
                if self._life is life:
                    self._begin(Worker.here())
        return self._life is not None

    def _begin(self, worker: Worker) -> None:
        life = self._life = Life(worker)  # before it starts: interrupted in between, nobody starts another
        if life.start(_keep, self._store, life, name="comporta-keeper"):
            _running.add(self)
        else:
            self._life = None

    def wake(self) -> None:
        """Have it look at once: something happened."""
        now_ns = MONOTONIC.now_ns()
        calm = now_ns - self._fell_ns > _CALM_NS  # a server that comes and goes is asked less and less often
        self._pause = PROBE_FIRST_SECONDS if calm else min(PROBE_LONGEST_SECONDS, 2 * self._pause)
        self._fell_ns = now_ns
        self._own_trouble = calm
        life = self._life
        if life is not None:
            life.wake.set()

    def stop(self) -> None:
        """Say goodbye and end; it can be started again."""
        with self._lock:
            life, self._life = self._life, None
        _running.discard(self)
        if life is not None:
            life.goodbye = True
            life.end(_GOODBYE_SECONDS)

    def follow(self, space: str, key: str, revise: Follower) -> None:
        """Tell ``revise`` what is recorded at a key, once a second, as long as it lives."""
        with self._lock:
            self._followers.setdefault((space, key), []).append(revise)

    def watch(self, watcher: Watcher) -> None:
        """Ask this one every ``WATCH_SECONDS``, as long as it lives and the shared state can be reached."""
        with self._lock:
            self._watchers.add(watcher)

    def stir(self) -> None:
        """Have watchers asked now: one has something to ask that had not."""
        life = self._life
        if life is not None:
            life.wake.set()

    def before_fork(self) -> None:
        """Let the thread end for the moment, without a goodbye."""
        if self._life is not None:
            self._life.end(_GOODBYE_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Go on, as the same worker, unless another fork or a caller was first."""
        with self._lock:
            if self._life is not None and self._life.over:
                self._begin(self._life.worker)

    def after_fork(self) -> None:
        """Be nobody yet: the thread stayed with the parent, and so did its name."""
        self._life = None
        forks.renew(self._lock)

    def turn(self, store: FailoverStore, life: Life) -> float | None:
        """Do what is due; returns the seconds until the next turn, or nothing at the end."""
        if life.over:
            if life.goodbye:
                _say_goodbye(store, life.worker)
            return None
        if life is not self._life:  # another took its place, thinking that it would never begin
            return None
        pause = self._well(store, life) if store.alone is None else self._probe(store, store.alone, life)
        return pause * uniform(0.5, 1.5) if store.alone else pause

    def _well(self, store: FailoverStore, life: Life) -> float:
        try:
            since_ns = MONOTONIC.now_ns() - self._beat_ns
            if since_ns >= BEAT_SECONDS * 1e9:
                self._beat_ns, since_ns = MONOTONIC.now_ns(), 0
                self._beat(store, life)
            watched = self._watch(store.primary)
        except StateError as error:
            with suppress(StateError):  # one that must be loud is loud where somebody asks
                store.fell(error, everywhere=True)
            return BEAT_SECONDS
        left = BEAT_SECONDS - since_ns / 1e9
        return min(left, WATCH_SECONDS) if watched else left

    def _beat(self, store: FailoverStore, life: Life) -> None:
        self._sign(store, life)
        self._read_changes(store.primary)
        self.census.turn()

    def _watch(self, primary: Store) -> bool:
        """Ask what watchers want to know; returns whether there was anything."""
        with self._lock:
            watchers = list(self._watchers)
        wanted = [(watcher, operation) for watcher in watchers if (operation := watcher.due())]
        for start in range(0, len(wanted), _WATCHED_AT_ONCE):
            some = wanted[start : start + _WATCHED_AT_ONCE]
            replies = asked(primary, [operation for _, operation in some])
            for (watcher, _), reply in zip(some, replies, strict=True):
                if not isinstance(reply, StateError):  # of one key: whoever uses it is told
                    watcher.told(reply)
        return bool(wanted)

    def _sign(self, store: FailoverStore, life: Life) -> None:
        self._tried(store, Beat(life.worker), self.census.heard)

    def _tried(self, store: FailoverStore, operation: Operation[int], told: Callable[[int], None]) -> None:
        """Ask the registry; where its key is somebody else's, or has no room, the fleet does without it."""
        try:
            told(store.primary.apply(operation))
        except (StateTypeError, StateFullError) as error:
            self._loudly(store, error)

    def _read_changes(self, primary: Store) -> None:
        for place in list(self._followers)[:_CHANGES_PER_BEAT]:
            with self._lock:
                followers = [(revise, tell) for revise in self._followers.pop(place) if (tell := revise())]
                if not followers:
                    continue
                self._followers[place] = [revise for revise, _ in followers]  # last: others' turn comes first
            with suppress(StateTypeError):  # nothing that an operator wrote
                change = primary.apply(Read(*place))
                for _, tell in followers:
                    tell(change)

    def _probe(self, store: FailoverStore, alone: Alone, life: Life) -> float:
        """Look whether the shared state is in order again, and if so go back to it."""
        self._pause = min(PROBE_LONGEST_SECONDS, 2 * self._pause)
        own_trouble, self._own_trouble = self._own_trouble, False
        try:
            primary = store.primary
            if hasattr(primary, "reach"):
                primary.reach()
            for _ in range(_GOOD_SIGNS):
                self._sign(store, life)
            self._carry(alone)
            if own_trouble and self._right_away(store):
                _report(primary, alone)
            elif not self._gathered(store, alone, life):
                return 0.0
        except StateDeniedError as error:
            store.denied(error)
            self._loudly(store, error)
            return self._pause
        except StateError:
            return self._pause
        store.returned()
        with suppress(StateError):  # what was granted while the others were being reported
            _report(primary, alone)
        return BEAT_SECONDS

    def _gathered(self, store: FailoverStore, alone: Alone, life: Life) -> bool:
        """Report what was granted, and wait until the others have, too; false if told to end meanwhile."""
        left_us = [GATHER_US]
        self._tried(store, Gather(), left_us.append)
        moment_ns = MONOTONIC.now_ns() + 1000 * left_us[-1]
        if not life.waited(moment_ns - _REPORTED_AHEAD_NS):
            return False
        _report(store.primary, alone)
        if not life.waited(moment_ns):
            return False
        self._sign(store, life)
        _report(store.primary, alone)
        return True

    def _carry(self, alone: Alone) -> None:
        """Have what watchers know noted where it is reported from."""
        with self._lock:
            carriers = [watcher for watcher in self._watchers if isinstance(watcher, Carrier)]
        for carrier in carriers:
            operation = carrier.carried()
            if operation is not None:
                with suppress(StateError):  # nothing can be noted there while the server shuts it out
                    alone.apply(operation)

    def _right_away(self, store: FailoverStore) -> bool:
        """Whether nobody else can have been away: not that long ago, or this worker is only just starting."""
        return not store.reached or MONOTONIC.now_ns() - self._fell_ns < _RIGHT_AWAY_NS

    def _loudly(self, source: object, error: StateError) -> None:
        """Say what somebody has to mend, again and again but not too often."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._loud_ns >= _LOUD_EVERY_NS:
            self._loud_ns = now_ns
            events.publish("state_denied", getattr(source, "address", "state"), str(error), "error")


def _say_goodbye(store: FailoverStore, worker: Worker) -> None:
    """Leave the others, even if on its own: it may be listed all the same, as one about to come back."""
    with suppress(StateError):
        store.primary.apply(Leave(worker))


def _report(primary: Store, alone: Alone) -> None:
    """Tell the shared state what was granted without it; what may have been told is not told again."""
    alone.unsent = [*alone.unsent, *alone.owed()][-_REPORTS_MAX:]
    at_once = _REPORTS_AT_ONCE if hasattr(primary, "apply_all") else 1
    while alone.unsent:
        batch = alone.unsent[:at_once]
        del alone.unsent[:at_once]
        asked(primary, batch)  # what one key does not allow is nobody else's concern


def _keep(store_ref: ref[FailoverStore], life: Life) -> None:
    """Run until the store is gone or says stop; between two turns nothing here holds the store."""
    while True:
        store = store_ref()
        try:
            pause = None if store is None else store.keeper.turn(store, life)
        except Exception as error:  # a mistake of ours: nobody else would notice that the thread is gone
            if life.over:
                return
            events.publish("keeper_failed", "comporta", repr(error), "error")
            pause = BEAT_SECONDS
        del store
        if pause is None:
            return
        life.wake.wait(pause)


_running: WeakSet[Keeper] = WeakSet()


@atexit.register
def _stop_all() -> None:
    """Let the others know at once that this worker has ended."""
    for keeper in list(_running):
        keeper.stop()
