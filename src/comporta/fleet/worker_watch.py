"""Publishes an event for each worker that left the fleet or stopped responding.

A worker that exits normally leaves a record in the store before it removes itself from the registry
(``stores/failover/registration.py``). A worker that is gone without a record has crashed, hangs, or cannot
reach the store. The first worker that notices changes the record, and publishes the event.

To keep the cost of a large fleet low, only the ``GUARDS`` workers with the lowest tokens compare the registry
every time; the others do so every ``TURNS`` times, in case all guards are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from comporta import events
from comporta.breaker.admission import format_worker_name
from comporta.runtime import RUNTIME
from comporta.stores.failover.worker_registry import (
    DEAD_SECONDS,
    DEPARTURE_TTL_SECONDS,
    DEPARTURES,
    LEFT,
    ListWorkers,
    Worker,
)
from comporta.stores.records import ABSENT, DeleteRecord, ReadRecord, WriteRecord

if TYPE_CHECKING:
    from comporta.stores.base import Store

GUARDS: Final = 3
TURNS: Final = 10
RECHECK_SECONDS: Final = 1.0
"""After this time a missing worker is looked for again: a registry that was lost fills within 0.9 s."""

_NOTED = b"noted"
_LOST = b"lost"


class WorkerWatch:
    """Compares the registry of workers with its previous content."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[Worker] | None = None
        self._missing: set[Worker] = set()
        self._lost: set[Worker] = set()
        self._turns_left = 0

    @property
    def has_suspects(self) -> bool:
        """Whether a worker is missing that may still come back within ``RECHECK_SECONDS``."""
        return bool(self._missing)

    def forget(self) -> None:
        """Forget all workers: the store was unreachable, and its registry fills again."""
        self._known, self._missing, self._turns_left = None, set(), 0

    def check(self) -> None:
        """List the workers if this one is a guard or it is its turn, and publish who is gone."""
        self._turns_left -= 1
        if self._turns_left > 0 and not self._missing:
            return
        live = {each.worker for each in self._store.apply(ListWorkers())}
        self._turns_left = 1 if _is_guard(live) else TURNS
        known, self._known = self._known, live
        self._publish_returns(live)
        suspects, self._missing = self._missing - live, set()
        for worker in sorted(suspects | ((known or set()) - live)):
            self._publish_departure(worker, is_confirmed=worker in suspects)

    def _publish_departure(self, worker: Worker, *, is_confirmed: bool) -> None:
        """Publish that a worker is gone, unless another worker did; one without a record may come back."""
        record = self._store.apply(ReadRecord(DEPARTURES, worker.member))
        name = format_worker_name(worker.host, worker.pid)
        if record == LEFT and self._write(worker, _NOTED, LEFT):
            events.publish("worker_left", name, f"worker {name} left", "info")
        elif record is None and not is_confirmed:
            self._missing.add(worker)
        elif record is None and self._write(worker, _LOST, ABSENT):
            self._lost.add(worker)
            text = f"worker {name} stopped responding: no heartbeat for {DEAD_SECONDS:g} s"
            events.publish("worker_lost", name, text, "error")

    def _publish_returns(self, live: set[Worker]) -> None:
        for worker in self._lost & live:
            self._lost.discard(worker)
            self._store.apply(DeleteRecord(DEPARTURES, worker.member))
            name = format_worker_name(worker.host, worker.pid)
            events.publish("worker_returned", name, f"worker {name} responds again", "info")

    def _write(self, worker: Worker, value: bytes, expected: bytes) -> bool:
        record = WriteRecord(DEPARTURES, worker.member, value, DEPARTURE_TTL_SECONDS, expected)
        return self._store.apply(record)


def _is_guard(live: set[Worker]) -> bool:
    """Whether this process compares the registry every time; true also while it is not registered yet."""
    this = RUNTIME.host(), RUNTIME.pid()
    others = sorted(live, key=lambda worker: worker.token)[GUARDS:]
    return all((worker.host, worker.pid) != this for worker in others)
