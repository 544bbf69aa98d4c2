"""Settlements of ended reservations, sent together a few milliseconds later.

The program does not wait for a settlement, because nothing depends on its reply. A store on this machine
applies it at once. For a server, a background thread sends the settlements of 10 ms in one call. If the
process is killed before that, its estimates stay spent, as if it had been killed during its calls.
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
"""The longest time that a settlement waits for others."""

WAITING_MAX = 256
"""The most settlements that may be pending; the caller of the next one sends it and waits for its reply."""


class Settlement(NamedTuple):
    """An operation that settles a call, and what to call after it."""

    operation: Operation[bool]
    on_settled: Callable[[], object]


class Settlements(LeaseHolder):
    """The settlements of one limit, or of one group of limits, that have not been sent yet."""

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
        """Return 0: a settlement holds no units that others could use."""
        return 0

    def return_all(self) -> None:
        """Send the settlements now, because the program exits."""
        run(self.flush_flow())

    def send_soon_flow(self, settlements: list[Settlement]) -> Flow[None]:
        """Send settlements together with others, or at once if that costs no round trip."""
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
        """Send the pending settlements."""
        with self._lock:
            settlements, self._waiting = self._waiting, []
        if settlements:
            yield from settle_all_flow(self.store, settlements)

    def _can_wait(self, count: int) -> bool:
        """Whether to send later: not to local state, and not with a clock that a test advances by hand."""
        store = self.store
        is_remote = not store.decides_in_process and store.fallback is None
        return is_remote and store.clock is MONOTONIC and len(self._waiting) + count <= WAITING_MAX


def settle_all_flow(store: Store, settlements: Sequence[Settlement]) -> Flow[list[bool | StateError]]:
    """Apply settlements, in one call if the store can; return each reply, or the error of its key."""
    operations = [settlement.operation for settlement in settlements]
    replies: list[Any] = yield ApplyMany(store, operations)
    for number, settlement in enumerate(settlements):
        if isinstance(replies[number], StateError) and store.fallback is not None:
            replies[number] = yield Apply(store, settlement.operation)  # settles with the local share
        settlement.on_settled()
    return replies
