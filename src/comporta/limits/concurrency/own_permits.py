"""The permits of one limit that this process holds, so that an outage of the store loses none of them.

During an outage they count against this worker's share of the permits. On recovery the heartbeat registers
them in the shared store, each with the time that it has left: a permit that was renewed during the outage is
in use, also if the store has dropped it meanwhile. Permits whose calls ended during the outage are released
there afterwards. The module applies no operation itself.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from comporta.clock import Clock
from comporta.limits.concurrency.operation import (
    HeldPermits,
    Permit,
    PermitPool,
    RegisterPermits,
    ReleasePermits,
)
from comporta.stores.base import HeartbeatSubscriber

_BATCH_MAX = 256
"""How many permits one operation registers or releases."""


class OwnPermits(HeartbeatSubscriber):
    """The permits that this process holds, and those that it has yet to release in the shared store.

    It knows at most twice as many as the limit has: holders that neither release nor renew a permit are
    forgotten when it has expired.
    """

    def __init__(self, pool: PermitPool, clock: Clock) -> None:
        self._pool = pool
        self._now_ns = clock.now_ns
        self._ttl_ns = 1000 * pool.permit_ttl_us
        self._since_ns: dict[Permit, list[int]] = {}  # lists, because renew() must not add a permit again
        self._registered: list[Permit] = []
        self._unreleased: deque[Permit] = deque()
        self._batch_size = 0

    def add(self, permit: Permit, since_ns: int) -> None:
        """Note that a call holds a permit, which was granted or renewed at ``since_ns``."""
        if len(self._since_ns) >= 2 * self._pool.max_permits:
            self._forget_expired()
        if len(self._since_ns) < 2 * self._pool.max_permits:
            self._since_ns[permit] = [since_ns]

    def renew(self, permit: Permit) -> None:
        """Note that a permit was renewed now, unless it has been discarded."""
        since_ns = self._since_ns.get(permit)
        if since_ns is not None:
            since_ns[0] = self._now_ns()

    def discard(self, permit: Permit) -> None:
        """Note that a call has ended. Must come before the operation that releases its permit."""
        self._since_ns.pop(permit, None)

    def clear(self) -> None:
        """Forget everything: the permits are the parent process's."""
        self._since_ns.clear()
        self._registered.clear()
        self._unreleased.clear()

    def release_later(self, permit: Permit) -> None:
        """Release a permit in the shared store when it is reachable; never more than the limit has."""
        if len(self._unreleased) < self._pool.max_permits:
            self._unreleased.append(permit)

    def held_permits(self, now_us: int) -> HeldPermits:
        """Return the permits that this process holds at a time of the local clock."""
        return tuple((now_us + left_us, str(permit)) for permit, left_us in self._left_us(1000 * now_us))

    def rejoin_operations(self) -> list[RegisterPermits]:
        """Return what registers all permits that this process holds in the shared store."""
        held = self._left_us(self._now_ns())
        self._registered = [permit for permit, _ in held]
        batches = (held[start : start + _BATCH_MAX] for start in range(0, len(held), _BATCH_MAX))
        return [RegisterPermits(self._pool, dict(batch)) for batch in batches]

    def heartbeat_operation(self) -> ReleasePermits | None:
        """Return what releases a batch of permits in the shared store."""
        registered, self._registered = self._registered, []
        for permit in registered:
            if permit not in self._since_ns:  # its call ended while it was being registered
                self.release_later(permit)
        batch = tuple(islice(self._unreleased, _BATCH_MAX))
        self._batch_size = len(batch)
        return ReleasePermits(self._pool, *batch) if batch else None

    def on_heartbeat_reply(self, reply: object) -> None:
        """Forget the released batch; only the heartbeat thread removes permits."""
        for _ in range(self._batch_size):
            self._unreleased.popleft()

    def _left_us(self, now_ns: int) -> list[tuple[Permit, int]]:
        """Return the permits that have not expired, and the microseconds that each has left."""
        ends_ns = [(permit, since[0] + self._ttl_ns) for permit, since in list(self._since_ns.items())]
        left_us = [(permit, min(self._ttl_ns, end_ns - now_ns) // 1000) for permit, end_ns in ends_ns]
        return [(permit, left) for permit, left in left_us if left > 0]

    def _forget_expired(self) -> None:
        oldest_ns = self._now_ns() - self._ttl_ns
        for permit, since_ns in list(self._since_ns.items()):
            if since_ns[0] <= oldest_ns:
                self.discard(permit)
