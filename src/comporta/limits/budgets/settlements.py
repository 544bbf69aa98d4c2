"""Settlements of ended reservations, sent together a few milliseconds later.

The program does not wait for a settlement: nothing depends on its reply. A store of this machine applies it
at once. For a server, the settlements of 10 ms make one call, on a background thread. A process that is
killed meanwhile leaves its estimates spent, like one that is killed during its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple

from comporta import fork_safety
from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.flow import Flow, run
from comporta.limits.leases.scheduler import SCHEDULER, LeaseHolder
from comporta.stores.base import Operation, Store
from comporta.stores.effects import Apply, ApplyMany

SEND_AFTER_SECONDS = 0.01
"""How long a settlement waits for others, at most."""

WAITING_MAX = 256
"""How many settlements wait to be sent; the caller of the next one sends it, and waits for its reply."""


class Settlement(NamedTuple):
    """An operation that settles a call, and what to call after it."""

    operation: Operation[bool]
    on_settled: Callable[[], object]


class Settlements(LeaseHolder):
    """The settlements of one limit, or of one group of limits, that were not sent yet."""

    __slots__ = ("__weakref__", "_lock", "_waiting", "name", "store")

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self._waiting: list[Settlement] = []
        self._lock = Lock()
        fork_safety.register(self)

    def after_fork(self) -> None:
        """Leave the parent's settlements to the parent."""
        self._waiting = []
        fork_safety.reinit_lock(self._lock)

    def held_units(self) -> int:
        """Return 0: what is settled here was granted long ago."""
        return 0

    def return_all(self) -> None:
        """Send the settlements now, because the program exits."""
        run(self.flush_flow())

    def send_soon_flow(self, settlements: list[Settlement]) -> Flow[None]:
        """Send settlements together with others, or at once where that costs no round trip."""
        with self._lock:
            if self._can_wait(len(settlements)):
                self._waiting += settlements
                if len(self._waiting) > len(settlements):
                    return  # the first one was scheduled
                at_ns = MONOTONIC.now_ns() + round(SEND_AFTER_SECONDS * 1e9)
                if SCHEDULER.get().schedule(at_ns, self.return_all, self):
                    return
                settlements, self._waiting = self._waiting, []
        yield from settle_all_flow(self.store, settlements)

    def flush_flow(self) -> Flow[None]:
        """Send the settlements that wait."""
        with self._lock:
            settlements, self._waiting = self._waiting, []
        if settlements:
            yield from settle_all_flow(self.store, settlements)

    def _can_wait(self, count: int) -> bool:
        """Whether to send later: not to a local state, and not by a clock that a test moves by hand."""
        store = self.store
        is_remote = not store.decides_in_process and store.fallback is None
        return is_remote and store.clock is MONOTONIC and len(self._waiting) + count <= WAITING_MAX


def settle_all_flow(store: Store, settlements: Sequence[Settlement]) -> Flow[list[bool | StateError]]:
    """Apply settlements in one call where the store can; returns each reply, or the error of its key."""
    operations = [settlement.operation for settlement in settlements]
    replies: list[Any] = yield ApplyMany(store, operations)
    for number, settlement in enumerate(settlements):
        if isinstance(replies[number], StateError) and store.fallback is not None:
            replies[number] = yield Apply(store, settlement.operation)  # settles with the local share
        settlement.on_settled()
    return replies
