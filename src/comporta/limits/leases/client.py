"""A limit with leases: this process takes many units in one step and decides from the units it holds.

A worker uses a lease for at most half of its duration, counted from before it sent the request. However long
the round trip takes, the store therefore reserves the units for longer than any worker uses them. A worker
that has used up a lease requests the next one and, in the same step, reports how much of the last one it
used. It returns unused units before the lease expires (``scheduler.py``), when the limiter is closed, and
when the program exits.

The size of a lease adapts to its use: after a lease that was used up the next is twice as large, after one
that was not it is half as large, and it never exceeds a fair share of the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from comporta import fork_safety
from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.flow import Flow, run, run_async
from comporta.limits.acquire import LimitDefinition
from comporta.limits.bound_limits import AcquireEffect, WrappedBoundLimit, strategy_effect
from comporta.limits.key import normalize_key
from comporta.limits.leases.operation import Lease, LeaseOperation, LeaseSource
from comporta.limits.leases.scheduler import SCHEDULER, LeaseHolder
from comporta.limits.strategies.base import EndedLease
from comporta.stores.base import Store
from comporta.stores.bound_limit import BoundLimit, WouldBlock
from comporta.stores.effects import Apply
from comporta.stores.memory import HAS_GIL

if TYPE_CHECKING:
    from comporta.limits.strategies.base import Strategy

LEASED_KEYS_MAX = 10_000
"""A process holds leases for at most this many keys of one limit, and calls the store for the others."""

_RETURN_NS_MAX = 1_000_000_000
"""Returning all leases takes at most this long."""

REFUSAL_NS_MAX = 100_000_000
"""A refusal is cached for at most this long, because other workers may release units."""


class KeyLease:
    """What this process holds for one key: the rest of a lease, or a remembered refusal."""

    __slots__ = (
        "available_at_ns",
        "ends_ns",
        "is_requesting",
        "key",
        "lease_id",
        "left",
        "lent",
        "next_size",
        "refused_until_ns",
        "return_at_ns",
        "scheduled_ns",
        "size",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.left = self.lent = self.size = self.lease_id = 0
        self.next_size = 1
        self.ends_ns = self.return_at_ns = self.scheduled_ns = 0
        self.refused_until_ns = self.available_at_ns = 0
        self.is_requesting = False


class LeaseClient(WrappedBoundLimit, LeaseHolder):
    """A limit with leases, tied to a store; ``try_acquire`` decides without a call to the store.

    ``try_acquire`` takes no lock, for the reason given in ``stores/memory.py``: between reading and writing
    the remaining units there is no call and no loop. Without the GIL it uses the lock. ``inner`` is the limit
    without leases, which decides if this process holds no lease.
    """

    def __init__(self, inner: BoundLimit, store: Store, definition: LimitDefinition, lease_us: int) -> None:
        super().__init__(inner)
        self.store = store
        self.name = definition.name
        self._source = LeaseSource(definition.strategy, definition, lease_us // 2)
        self._read_strategy = strategy_effect(inner)
        self._now_ns = store.clock.now_ns
        self._leases: dict[Any, KeyLease] = {}
        self._next_sweep_ns = 0
        self._lock = Lock()
        self.try_acquire = self._build_fast_path()
        fork_safety.register(self)

    @property
    def leases(self) -> LeaseClient:
        """This object."""
        return self

    def acquire(self, key: Any, cost: int) -> int:
        """Decide from the lease, or call the store; blocking."""
        return run(self._acquire_flow(key, cost))

    def acquire_async(self, key: Any, cost: int) -> Coroutine[Any, Any, int]:
        """Decide from the lease, or call the store; awaiting."""
        return run_async(self._acquire_flow(key, cost))

    def return_all(self) -> None:
        """Return all leases."""
        run(self.return_all_flow())

    def return_all_flow(self) -> Flow[None]:
        """Return all leases; a lease that does not reach the store in time expires by itself."""
        deadline_ns = MONOTONIC.now_ns() + _RETURN_NS_MAX
        for lease in list(self._leases.values()):
            if MONOTONIC.now_ns() > deadline_ns:
                return
            ended = self._end_lease(lease)
            if ended.unused:
                try:
                    yield Apply(self.store, LeaseOperation(self._source, lease.key, 0, 0, ended))
                except StateError:
                    return

    def held_units(self) -> int:
        """Return how many units of all keys this process can use without a call to the store."""
        now_ns = self._now_ns()
        # a LimitKey and its text share one lease
        leases = {id(lease): lease for lease in list(self._leases.values())}
        return sum(lease.left for lease in leases.values() if now_ns < lease.ends_ns)

    def forget_refusal(self, key: str) -> None:
        """Forget a refusal, because this process released units."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.refused_until_ns = 0

    def recall_flow(self) -> Flow[None]:
        """Return all leases, because this process lowered or paused the limit."""
        yield from self.return_all_flow()
        self.forget_all_refusals()

    def forget_all_refusals(self) -> None:
        """Forget all refusals, because this process changed the limit."""
        for lease in list(self._leases.values()):
            lease.refused_until_ns = 0

    def drop_key(self, key: str) -> None:
        """Drop the lease of a key without returning it, because this process deleted the state of the key."""
        lease = self._leases.get(key)
        if lease is not None:
            self._end_lease(lease)
            lease.refused_until_ns = 0

    def after_fork(self) -> None:
        """Leave the parent's leases to the parent."""
        self._leases.clear()
        fork_safety.reinit_lock(self._lock)

    def _build_fast_path(self) -> Callable[[Any, int], int]:
        """Return ``try_acquire`` as a function that uses only local names."""
        get, now_ns, lock = self._leases.get, self._now_ns, self._lock

        def try_acquire(key: Any, cost: int) -> int:
            lease = get(key)
            if lease is not None:
                now = now_ns()
                if now < lease.ends_ns:
                    # atomic for other threads: no call and no loop from here to the write
                    left = lease.left - cost
                    if left >= 0:
                        lease.left = left
                        return 0
                if cost == 1 and now < lease.refused_until_ns and not lease.left:
                    return -((now - lease.available_at_ns) // 1000)
            raise WouldBlock

        def try_acquire_locked(key: Any, cost: int) -> int:
            with lock:
                return try_acquire(key, cost)

        return try_acquire if HAS_GIL else try_acquire_locked

    def _acquire_flow(self, key: Any, cost: int) -> Flow[int]:
        """Decide from the lease, or request one; while another caller does that, take only the cost."""
        text = normalize_key(key)
        with suppress(WouldBlock):
            return self.try_acquire(text, cost)
        lease, requests = self._key_lease(key, text), False
        try:
            with self._lock:
                if lease is not None and not lease.is_requesting:
                    lease.is_requesting = requests = True
            if lease is None or not requests:
                return (yield from self._acquire_direct_flow(key, text, cost))
            return (yield from self._lease_flow(lease, cost))
        finally:
            if lease is not None and requests:
                lease.is_requesting = False

    def _acquire_direct_flow(self, key: Any, text: str, cost: int) -> Flow[int]:
        wait_us: int = yield AcquireEffect(self.inner, key, cost)
        if wait_us:
            with suppress(WouldBlock):  # a lease may have arrived meanwhile
                return self.try_acquire(text, cost)
        return wait_us

    def _lease_flow(self, lease: KeyLease, cost: int) -> Flow[int]:
        strategy: Strategy = yield self._read_strategy
        if strategy is not self._source.strategy:
            self._source = LeaseSource(strategy, self._source.definition, self._source.ttl_us)
        sent_ns = self._now_ns()
        ended = self._end_lease(lease)
        operation = LeaseOperation(self._source, lease.key, cost, max(cost, lease.next_size), ended)
        granted: Lease = yield Apply(self.store, operation)
        return self._start_lease(lease, cost, sent_ns, granted)

    def _end_lease(self, lease: KeyLease) -> EndedLease:
        """End a lease, and derive the size of the next one from its use."""
        now_ns = self._now_ns()
        size_max = self._source.strategy.lease_size_max(max(1, self.store.worker_count or 1))
        with self._lock:
            left, lease.left = lease.left, 0  # in one statement, because other threads may be using it
            ended = EndedLease(lease.lease_id, lease.lent, left)
            if left:
                lease.refused_until_ns = 0  # returned units are available again
            if not left and now_ns < lease.ends_ns:
                lease.next_size = 2 * lease.next_size
            elif left and 2 * left >= lease.size:
                lease.next_size = lease.next_size // 2
            lease.next_size = max(1, min(lease.next_size, size_max))
            lease.lent = lease.size = lease.ends_ns = 0
        return ended

    def _start_lease(self, lease: KeyLease, cost: int, sent_ns: int, granted: Lease) -> int:
        """Store a granted lease, and remember when more will be available."""
        if granted.granted:
            ttl_ns, left = 1000 * granted.ttl_us, granted.granted - cost
            with self._lock:
                lease.lease_id, lease.lent, lease.size = granted.lease_id, left, granted.granted
                lease.ends_ns, lease.return_at_ns = sent_ns + ttl_ns, sent_ns + 3 * ttl_ns // 4
                lease.left = left  # last, because other threads use the lease from here on
            if left:
                self._schedule_return(lease)
        if granted.granted or cost == 1:
            lease.available_at_ns = sent_ns + 1000 * granted.wait_us
            lease.refused_until_ns = min(lease.available_at_ns, sent_ns + REFUSAL_NS_MAX)
        return 0 if granted.granted else granted.wait_us

    def _schedule_return(self, lease: KeyLease) -> None:
        """Schedule the return of the lease before it expires; not on a clock that a test advances by hand."""
        if lease.scheduled_ns <= self._now_ns() and self.store.clock is MONOTONIC:
            lease.scheduled_ns = lease.return_at_ns
            SCHEDULER.get().schedule(lease.return_at_ns, partial(self._return_if_due, lease), self)

    def _return_if_due(self, lease: KeyLease) -> None:
        """Return a lease that is about to expire, unless a later one has replaced it."""
        now_ns = self._now_ns()
        if now_ns < lease.return_at_ns:
            self._schedule_return(lease)
        elif now_ns < lease.ends_ns:
            ended = self._end_lease(lease)
            self.store.apply(LeaseOperation(self._source, lease.key, 0, 0, ended))

    def _key_lease(self, key: Any, text: str) -> KeyLease | None:
        """Return the lease of a key, or ``None`` if there are too many keys."""
        with self._lock:
            lease = self._leases.get(text)
            if lease is None:
                if len(self._leases) >= LEASED_KEYS_MAX:
                    self._sweep()
                if len(self._leases) >= LEASED_KEYS_MAX:
                    return None
                lease = self._leases[text] = KeyLease(text)
            if not isinstance(key, str):
                self._leases[key] = lease
        return lease

    def _sweep(self) -> None:
        """Drop keys without a lease or a refusal, at most once in the lifetime of a lease."""
        now_ns = self._now_ns()
        if now_ns >= self._next_sweep_ns:
            self._next_sweep_ns = now_ns + 1000 * self._source.ttl_us
            for key, lease in list(self._leases.items()):
                if not lease.is_requesting and now_ns >= max(lease.ends_ns, lease.refused_until_ns):
                    del self._leases[key]


def leased_units(store: Store) -> dict[str, int]:
    """Return how many units of each limit of a store this process holds, omitting limits with none."""
    units: Counter[str] = Counter()
    for holder in SCHEDULER.get().holders():
        if holder.store is store:
            units[holder.name] += holder.held_units()
    return {name: held for name, held in units.items() if held > 0}
