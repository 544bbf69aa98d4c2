"""This worker's entry in the registry of live workers, and what the registry says about the others.

A registry that cannot be used (its key holds something else, or the store is full) stops no worker: an event
reports it, and the worker continues with the last worker count that it knows.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from comporta import events
from comporta.clock import Clock
from comporta.errors import StateError, StateFullError, StateMovingError, StateTypeError
from comporta.stores.base import Operation
from comporta.stores.failover.barrier import UNKNOWN_EPOCH
from comporta.stores.failover.control import ENGINE_ERRORS, FailoverControl
from comporta.stores.failover.worker_count import WorkerCount
from comporta.stores.failover.worker_registry import (
    DEPARTURE_TTL_SECONDS,
    DEPARTURES,
    LEFT,
    Pulse,
    RecordHeartbeat,
    RemoveWorker,
    Worker,
)
from comporta.stores.records import WriteRecord

R = TypeVar("R")

_DENIAL_EVENT_EVERY_NS = 60_000_000_000


class Registration:
    """Applies the operations on the registry for one worker.

    ``epoch`` is the newest epoch of a rejoin that this worker knew while it used the store (``barrier.py``).
    """

    def __init__(self, address: str, clock: Clock) -> None:
        self.worker_count = WorkerCount(address)
        self.epoch = UNKNOWN_EPOCH
        self._clock = clock
        self._denial_event_ns = clock.now_ns() - _DENIAL_EVENT_EVERY_NS

    def heartbeat(self, worker: Worker) -> RecordHeartbeat:
        """Return the operation that records that the worker is alive and uses the store."""
        return RecordHeartbeat(worker, self.epoch)

    def record_heartbeat(self, store: FailoverControl, worker: Worker) -> None:
        """Record that the worker is alive and uses the store; update the worker count and the epoch."""
        pulse = self.apply(store, self.heartbeat(worker))
        if pulse is not None:
            self.record_pulse(store, worker, pulse)

    def record_pulse(self, store: FailoverControl, worker: Worker, pulse: Pulse) -> None:
        """Update the worker count and the epoch from the reply to a heartbeat.

        Rejoining workers wait for the others to confirm the new epoch, so this worker confirms it at once.
        """
        self.worker_count.record(pulse.worker_count)
        if pulse.epoch > self.epoch:
            self.epoch = pulse.epoch
            if pulse.is_rejoining:
                self._beat(store, worker, self.epoch)

    def record_probe(self, store: FailoverControl, worker: Worker) -> Pulse | None:
        """Record that the worker is alive but does not use the store yet; ``None`` if that is impossible."""
        return self._beat(store, worker, UNKNOWN_EPOCH)

    def apply(self, store: FailoverControl, operation: Operation[R]) -> R | None:
        """Apply an operation to the registry; ``None`` if its key is unusable, full or being moved.

        Only the first two are an event, because a move ends by itself.
        """
        try:
            return store.primary.apply(operation)
        except StateMovingError:
            return None
        except (StateTypeError, StateFullError) as error:
            self.publish_denial(store, error)
            return None

    def publish_denial(self, store: FailoverControl, error: StateError) -> None:
        """Publish an error that an operator has to fix, at most once a minute."""
        now_ns = self._clock.now_ns()
        if now_ns - self._denial_event_ns >= _DENIAL_EVENT_EVERY_NS:
            self._denial_event_ns = now_ns
            events.publish("state_denied", store.address, str(error), "error")

    def _beat(self, store: FailoverControl, worker: Worker, epoch: int) -> Pulse | None:
        pulse = self.apply(store, RecordHeartbeat(worker, epoch))
        if pulse is not None:
            self.worker_count.record(pulse.worker_count)
        return pulse


def leave_registry(store: FailoverControl, worker: Worker) -> None:
    """Remove a worker from the registry, even during an outage: the last probe may have listed it.

    The record comes first, so that the others never take a worker that left for one that stopped responding.
    """
    with suppress(*ENGINE_ERRORS):
        store.primary.apply(WriteRecord(DEPARTURES, worker.member, LEFT, DEPARTURE_TTL_SECONDS))
        store.primary.apply(RemoveWorker(worker))
