"""Keeps a worker in touch with the others: one quiet thread for each shared state that is in use.

While all is well it gives a sign of life once a second, learns how many workers there are, and reads what
operators changed. While the shared state is out of reach it looks for its return, with jitter, so that a
fleet does not knock all at once; when the state is back in order it first reports what this worker granted
on its own, and only then lets it join the others again, all at one moment: whoever drew on a bucket that the
others have not reported to yet would get their tokens once more. If the first look finds the state in order
right away, the trouble was this worker's own (a reply was lost, its machine stood still) and it goes back at
once: the others use the whole limit meanwhile, and its share would come on top.

It is a thread, not a task, so that one text serves programs with an event loop and without.
"""

from __future__ import annotations

import atexit
import random
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from comporta import events, forks
from comporta.clock import MONOTONIC
from comporta.errors import StateDeniedError, StateError, StateFullError, StateTypeError
from comporta.stores.known import at_least, recalled, remember
from comporta.stores.records import Read
from comporta.stores.workers import BEAT_SECONDS, DEAD_SECONDS, Beat, Gather, Leave, Worker

if TYPE_CHECKING:
    from comporta.stores.base import Operation, Store
    from comporta.stores.failover import Alone, FailoverStore

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
_GOODBYE_SECONDS = 1.0


class Census:
    """How many workers there are: the most of what was heard in the last few seconds.

    A count that falls is believed only after ``DEAD_SECONDS``, and not at all while nobody can be heard: a
    registry that was just lost, or a clock that jumped, makes the fleet look small, and a share that is too
    large breaks the limit.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._least = at_least()
        self._recalled: int | None = None
        self._latest = self._most = self._before = 0
        self._noted = 0
        self._turn_ns = MONOTONIC.now_ns()

    @property
    def workers(self) -> int:
        """How many there are, as far as this process can know; itself at the least."""
        if self._recalled is None:
            self._recalled = recalled(self._address)
        return max(self._least, self._recalled, self._most, self._before)

    def heard(self, count: int) -> None:
        """Take note of a count that came with a reply."""
        self._latest = count
        if count > self._most:
            self._most = count

    def turn(self) -> None:
        """Let go of what was heard longer ago than workers can be silent; called while all is well."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._turn_ns >= DEAD_SECONDS * 1e9:
            self._turn_ns = now_ns
            if self._before:
                self._recalled = 1
            self._before, self._most = self._most, self._latest
        if self._latest and self._latest != self._noted:
            self._noted = self._latest
            remember(self._address, self._latest)


class Keeper:
    """The thread, and what it knows. It does not keep its store alive."""

    def __init__(self, store: FailoverStore) -> None:
        self.census = Census(store.address)
        self.worker: Worker | None = None
        self._store = ref(store)
        self._followers: dict[tuple[str, str], ref[Callable[[bytes | None], None]]] = {}
        self._lock = Lock()
        self._wake = Event()
        self._thread: Thread | None = None
        self._stopping = self._resting = False
        self._pause = PROBE_FIRST_SECONDS
        self._own_trouble = False  # until a look at the shared state shows that it is not
        self._fell_ns = self._loud_ns = -_LOUD_EVERY_NS
        forks.register(self)
        forks.register_thread(self)

    def start(self) -> None:
        """See that the thread runs, in this process."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stopping = False
                self.worker = Worker.here()
                self._run()
                _running.add(self)

    def _run(self) -> None:
        thread = Thread(target=_keep, args=(self._store, self._wake), name="comporta-keeper", daemon=True)
        thread.start()
        self._thread = thread

    def wake(self) -> None:
        """Have it look at once: something happened."""
        now_ns = MONOTONIC.now_ns()
        calm = now_ns - self._fell_ns > _CALM_NS  # a server that comes and goes is asked less and less often
        self._pause = PROBE_FIRST_SECONDS if calm else min(PROBE_LONGEST_SECONDS, 2 * self._pause)
        self._fell_ns = now_ns
        self._own_trouble = calm
        self._wake.set()

    def stop(self) -> None:
        """Say goodbye and end; it can be started again."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopping = True
        if thread is not None:
            self._wake.set()
            thread.join(_GOODBYE_SECONDS)
            _running.discard(self)

    def follow(self, space: str, key: str, revise: ref[Callable[[bytes | None], None]]) -> None:
        """Tell ``revise`` what is recorded at a key, once a second, as long as it lives."""
        self._followers[space, key] = revise

    def before_fork(self) -> None:
        """Let the thread end for the moment, without a goodbye."""
        if self._thread is not None:
            self._resting = True
            self._wake.set()
            self._thread.join(_GOODBYE_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Go on; a thread that was too busy to notice just goes on itself."""
        self._resting = False
        if self._thread is not None and not self._thread.is_alive():
            self._run()

    def after_fork(self) -> None:
        """Be nobody yet: the thread stayed with the parent, and so did its name."""
        self._thread = self.worker = None
        self._resting = False
        self._wake = Event()
        forks.renew(self._lock)

    def turn(self, store: FailoverStore) -> float | None:
        """Do what is due; returns the seconds until the next turn, or nothing at the end."""
        if self._resting:
            return None
        if self._stopping:
            self._goodbye(store)
            return None
        pause = self._beat(store) if store.alone is None else self._probe(store, store.alone)
        return pause * random.uniform(0.5, 1.5) if store.alone else pause

    def _beat(self, store: FailoverStore) -> float:
        try:
            self._sign(store.primary)
            self._read_changes(store.primary)
        except StateError as error:
            with suppress(StateError):  # one that must be loud is loud where somebody asks
                store.fell(error)
        else:
            self.census.turn()
        return BEAT_SECONDS

    def _sign(self, primary: Store) -> None:
        try:
            self.census.heard(primary.apply(Beat(self.worker)))
        except StateTypeError as error:  # somebody's key of that name: then nobody is counted
            self._loudly(primary, error)

    def _read_changes(self, primary: Store) -> None:
        for (space, key), revise in list(self._followers.items())[:_CHANGES_PER_BEAT]:
            tell = revise()
            del self._followers[space, key]
            if tell is not None:
                self._followers[space, key] = revise  # at the end: next time it is others' turn
                tell(primary.apply(Read(space, key)))

    def _probe(self, store: FailoverStore, alone: Alone) -> float:
        """Look whether the shared state is in order again, and if so go back to it."""
        self._pause = min(PROBE_LONGEST_SECONDS, 2 * self._pause)
        own_trouble, self._own_trouble = self._own_trouble, False
        try:
            primary = store.primary
            if hasattr(primary, "reach"):
                primary.reach()
            for _ in range(_GOOD_SIGNS):
                self._sign(primary)
            if own_trouble and MONOTONIC.now_ns() - self._fell_ns < _RIGHT_AWAY_NS:
                _report(primary, alone)
            elif not self._gather(primary, alone):
                return 0.0
        except StateDeniedError as error:
            self._loudly(store, error)
            return self._pause
        except StateError:
            return self._pause
        store.returned()
        with suppress(StateError):  # what was granted while the others were being reported
            _report(primary, alone)
        return BEAT_SECONDS

    def _gather(self, primary: Store, alone: Alone) -> bool:
        """Report what was granted, and wait until the others have, too; false if told to end meanwhile."""
        moment_ns = MONOTONIC.now_ns() + 1000 * primary.apply(Gather())
        if not self._waited(moment_ns - _REPORTED_AHEAD_NS):
            return False
        _report(primary, alone)
        if not self._waited(moment_ns):
            return False
        self._sign(primary)
        _report(primary, alone)
        return True

    def _waited(self, moment_ns: int) -> bool:
        while not (self._stopping or self._resting):
            left_ns = moment_ns - MONOTONIC.now_ns()
            if left_ns <= 0:
                return True
            self._wake.wait(left_ns / 1e9)
            self._wake.clear()
        return False

    def _loudly(self, source: object, error: StateError) -> None:
        """Say what somebody has to mend, again and again but not too often."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._loud_ns >= _LOUD_EVERY_NS:
            self._loud_ns = now_ns
            events.publish("state_denied", getattr(source, "address", "state"), str(error), "error")

    def _goodbye(self, store: FailoverStore) -> None:
        """Leave the others, even if on its own: it may be listed all the same, as one about to come back."""
        with suppress(StateError):
            store.primary.apply(Leave(self.worker))


def _report(primary: Store, alone: Alone) -> None:
    """Tell the shared state what was granted without it; what may have been told is not told again."""
    alone.unsent = [*alone.unsent, *alone.owed()][-_REPORTS_MAX:]
    while alone.unsent:
        batch = alone.unsent[:_REPORTS_AT_ONCE]
        del alone.unsent[:_REPORTS_AT_ONCE]
        if hasattr(primary, "apply_all"):
            primary.apply_all(batch)
        else:
            _one_by_one(primary, batch)


def _one_by_one(primary: Store, operations: list[Operation[object]]) -> None:
    for operation in operations:
        with suppress(StateTypeError, StateFullError):  # a key that cannot be used concerns nobody else
            primary.apply(operation)


def _keep(store_ref: ref[FailoverStore], wake: Event) -> None:
    """Run until the store is gone or says stop; between two turns nothing here holds the store."""
    while True:
        store = store_ref()
        try:
            pause = None if store is None else store.keeper.turn(store)
        except Exception as error:  # a mistake of ours: nobody else would notice that the thread is gone
            events.publish("keeper_failed", "comporta", repr(error), "error")
            pause = BEAT_SECONDS
        del store
        if pause is None:
            return
        wake.wait(pause)
        wake.clear()


_running: WeakSet[Keeper] = WeakSet()


@atexit.register
def _stop_all() -> None:
    """Let the others know at once that this worker has ended."""
    for keeper in list(_running):
        keeper.stop()
