"""The permits of one limit that this process holds, so that an outage of the store loses none of them.

During an outage they count against this worker's share of the permits. On recovery the heartbeat registers
them in the shared store, each with its remaining time: a permit that was renewed during the outage is in use
even if the store has dropped it meanwhile.

The heartbeat also releases permits that the shared store may count although no call holds them: permits whose
calls ended during the outage, and permits that the store may have granted without a reply. A request that got
no reply may arrive late, after the release, and take the permit again. The heartbeat therefore releases such
a permit repeatedly, for as long as the network can delay a request. The module applies no operation itself.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from comporta.clock import Clock
from comporta.limits.concurrency.operation import RegisterPermits, ReleasePermits
from comporta.limits.concurrency.permits import HeldPermits, Permit, PermitPool
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber

_BATCH_MAX = 256
"""How many permits one operation registers or releases."""

_UNRELEASED_MAX = 1000
"""The most permits of a small limit that may await their release; further ones expire."""

_LATE_NS = 120_000_000_000
"""How long a request may be in transit: a kernel sends the data of a closed connection for about 100 s."""

_AGAIN_NS = 900_000_000
_AGAIN_DIVISOR = 8
"""A permit is released again after this time, or this part of the time since its request if longer."""


class _Release(NamedTuple):
    """A pending release: when the request that may have taken the permit was sent, and the due time."""

    since_ns: int
    due_ns: int


class OwnPermits(HeartbeatSubscriber):
    """The permits that this process holds, and the permits that it must still release in the shared store.

    It keeps at most twice as many permits as the limit has: a permit that its holder neither releases nor
    renews is dropped when it has expired.
    """

    def __init__(self, pool: PermitPool, clock: Clock) -> None:
        self._pool = pool
        self._now_ns = clock.now_ns
        self._ttl_ns = 1000 * pool.permit_ttl_us
        self._since_ns: dict[Permit, list[int]] = {}  # lists, because renew() must not add a permit again
        self._local: set[Permit] = set()
        self._unreleased: dict[Permit, _Release] = {}
        self._unreleased_max = max(_UNRELEASED_MAX, 4 * pool.max_permits)
        self._batch: tuple[Permit, ...] = ()

    def add(self, permit: Permit, since_ns: int, *, is_local: bool = False) -> None:
        """Record that a call holds a permit, which was granted or renewed at ``since_ns``.

        ``is_local`` is true if the shared store was never asked for it.
        """
        if len(self._since_ns) >= 2 * self._pool.max_permits:
            self._forget_expired()
        if len(self._since_ns) < 2 * self._pool.max_permits:
            if is_local:
                self._local.add(permit)
            self._since_ns[permit] = [since_ns]

    def renew(self, permit: Permit) -> bool:
        """Record that a permit was renewed now; false if it has been discarded."""
        since_ns = self._since_ns.get(permit)
        if since_ns is None:
            return False
        since_ns[0] = self._now_ns()
        return True

    def discard(self, permit: Permit) -> bool:
        """Record that a call has ended. Call this before the operation that releases its permit.

        Returns whether the shared store may count the permit.
        """
        self._since_ns.pop(permit, None)
        is_local = permit in self._local
        self._local.discard(permit)
        return not is_local

    def clear(self) -> None:
        """Drop everything: the permits belong to the parent process."""
        self._since_ns.clear()
        self._local.clear()
        self._unreleased.clear()

    def release_later(self, permit: Permit) -> None:
        """Release a permit in the shared store once the store is reachable and no call holds the permit."""
        if len(self._unreleased) < self._unreleased_max:
            now_ns = self._now_ns()
            self._unreleased[permit] = _Release(now_ns, now_ns)

    def is_unreleased(self, permit: Permit) -> bool:
        """Whether the heartbeat will release a permit, so that no other call may use it."""
        return permit in self._unreleased

    def held_permits(self, now_us: int) -> HeldPermits:
        """Return the permits that this process holds at a time of the local clock."""
        return tuple((now_us + left_us, str(permit)) for permit, left_us in self._left_us(1000 * now_us))

    def rejoin_operations(self) -> list[RegisterPermits]:
        """Return the operations that register all permits of this process in the shared store."""
        held = self._left_us(self._now_ns())
        for permit, _ in held:
            self.release_later(permit)  # its call may end before the store registers it
        batches = (held[start : start + _BATCH_MAX] for start in range(0, len(held), _BATCH_MAX))
        return [RegisterPermits(self._pool, dict(batch)) for batch in batches]

    def heartbeat_operation(self) -> ReleasePermits | None:
        """Return the operation that releases a batch of permits in the shared store."""
        now_ns = self._now_ns()
        due = (
            permit
            for permit, release in list(self._unreleased.items())
            if release.due_ns <= now_ns and permit not in self._since_ns
        )
        self._batch = tuple(islice(due, _BATCH_MAX))
        for permit in self._batch:  # for the case that there is no reply
            self._unreleased[permit] = _Release(self._unreleased[permit].since_ns, now_ns + _AGAIN_NS)
        return ReleasePermits(self._pool, *self._batch) if self._batch else None

    def on_heartbeat_reply(self, reply: object) -> None:
        """Drop the released permits whose requests can no longer arrive."""
        now_ns = self._now_ns()
        for permit in self._batch:
            since_ns = self._unreleased.pop(permit).since_ns  # only the heartbeat thread removes permits
            age_ns = now_ns - since_ns
            if age_ns < _LATE_NS:
                again_ns = max(_AGAIN_NS, age_ns // _AGAIN_DIVISOR)
                self._unreleased[permit] = _Release(since_ns, now_ns + again_ns)

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
