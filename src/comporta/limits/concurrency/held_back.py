"""Permits of calls that have ended, held back for up to 10 ms so that their release costs no operation.

The next acquisition of this process releases them in the same operation, or reuses one that the store granted
less than 10 ms ago; otherwise a background thread releases them. A permit is held back only if the store
replied that no other process waits for one, so a waiter that arrives later waits at most 10 ms longer. Claims
of other processes become due much later than that (``fairness_queue.py``), so a reused permit would have been
granted again anyway. Permits of a killed process expire, whether held back or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from comporta import fork_safety
from comporta.clock import MONOTONIC, SECOND_US
from comporta.errors import StateError
from comporta.flow import Flow, run
from comporta.limits.concurrency.call import CallReply
from comporta.limits.concurrency.operation import PermitReply, RegisterPermits, ReleasePermits
from comporta.limits.concurrency.own_permits import OwnPermits
from comporta.limits.concurrency.permits import Permit, PermitPool, new_permit
from comporta.limits.leases.scheduler import SCHEDULER, LeaseHolder
from comporta.limits.wait_queue import WaitQueue
from comporta.stores.base import Operation, Store
from comporta.stores.effects import Apply
from comporta.threads import run_cleanup
from comporta.weak_registry import WeakRegistry

R = TypeVar("R", bound=PermitReply | CallReply)

HOLD_BACK_SECONDS = 0.01
"""The longest time that a permit is held back."""

HELD_BACK_MAX = 64
"""The most permits of one limit that a process holds back."""

QUEUE_KEY = ""
"""The key of a limit's only wait queue."""

_REUSE_NS = round(HOLD_BACK_SECONDS * 1e9)
_FLUSH_NS = _REUSE_NS * 4 // 5
"""The thread releases a permit after this time, because it wakes up a little late."""

_NEVER_REUSED_NS = -(2**62)
_PERMIT_TTL_US_MIN = SECOND_US
"""A permit that expires sooner than this is not held back: reuse may shorten its time by 10 ms."""


class ReusablePermit(Permit):
    """A permit that the store granted at ``granted_ns``, when no other process waited for one."""

    granted_ns: int = 0


class Acquisition:
    """A permit that a caller tries to acquire, over all its attempts.

    ``was_sent`` is true if the shared store may have received an attempt. ``is_in_doubt`` is true if the
    store may grant the permit without this process receiving the reply.
    """

    __slots__ = ("is_in_doubt", "permit", "was_sent")

    def __init__(self) -> None:
        self.permit = new_permit()
        self.was_sent = self.is_in_doubt = False

    def note_attempt(self, *, was_sent: bool, is_answered: bool) -> None:
        """Note the end of an attempt: whether it may have been sent, and whether the store answered."""
        self.was_sent |= was_sent
        self.is_in_doubt |= was_sent and not is_answered


class PermitReturns(LeaseHolder):
    """How this process returns the permits of one limit to the store: at once, within 10 ms, or later.

    All objects of a program that represent the same limit share it. ``others_wait`` is whether another
    process waited for a permit according to the last reply of the store. ``own`` holds the permits of calls
    in progress in this process, without those that are held back.
    """

    def __init__(self, store: Store, pool: PermitPool) -> None:
        self.store = store
        self.own = OwnPermits(pool, store.clock)
        self.pool = pool._replace(own_permits=self.own.held_permits)
        self.name = pool.name
        self.others_wait = False
        self._permits: deque[ReusablePermit] = deque()
        self._queues: WeakRegistry[WaitQueue] = WeakRegistry()
        self._releasing: set[Permit] = set()
        self._is_scheduled = False
        self._lock = Lock()
        store.subscribe(self.own)
        fork_safety.register(self)

    def add_queue(self, queue: WaitQueue) -> None:
        """Also wake the first waiter of this queue when a permit is released."""
        self._queues.add(queue)

    def hold_back(self, permit: Permit) -> bool:
        """Hold back a permit whose call has ended; false if it must be released now."""
        if (
            type(permit) is not ReusablePermit
            or self.others_wait
            or len(self._permits) >= HELD_BACK_MAX
            or self.pool.permit_ttl_us < _PERMIT_TTL_US_MIN
            or self.store.fallback is not None
            or self.own.is_unreleased(permit)
        ):
            return False
        self.own.discard(permit)
        self._permits.append(permit)
        if not self._is_scheduled:
            at_ns = MONOTONIC.now_ns() + _FLUSH_NS
            self._is_scheduled = SCHEDULER.get().schedule(at_ns, self._flush_due, self)
        return self._is_scheduled or not self._remove(permit)

    def _remove(self, permit: ReusablePermit) -> bool:
        """Stop holding back a permit; false if another caller has taken it."""
        try:
            self._permits.remove(permit)
        except ValueError:
            return False
        return True

    def take(self) -> ReusablePermit | None:
        """Return a held-back permit for another call, if the store granted one less than 10 ms ago."""
        if not self._permits:
            return None
        oldest_ns = self.store.clock.now_ns() - _REUSE_NS
        with self._lock:
            if not self._permits or self._permits[-1].granted_ns <= oldest_ns:
                return None
            permit = self._permits.pop()
        self.own.add(permit, permit.granted_ns)
        return permit

    def _take_all(self, *, releasing: bool = False) -> tuple[list[ReusablePermit], list[Permit]]:
        """Return all permits that are held back, and the permits that another caller is releasing.

        ``releasing`` is true if this caller will release them.
        """
        permits: list[ReusablePermit] = []
        with self._lock:
            others = list(self._releasing)
            while self._permits:  # hold_back() takes no lock: its permit is returned now or stays
                with suppress(IndexError):  # put_back() has removed the last one
                    permits.append(self._permits.popleft())
            if releasing:
                self._releasing.update(permits)
        return permits, others

    def attempt_flow(self, acquisition: Acquisition, make: Callable[[list[Permit]], Operation[R]]) -> Flow[R]:
        """Make an attempt that also releases the permits that are held back.

        If it may have failed to release them, they are released later and not reused.
        """
        permits, others = self._take_all()
        outage, is_answered = self.store.fallback, False
        try:
            reply: R = yield Apply(self.store, make([*permits, *others]))
            is_answered = not reply.is_local
        finally:
            was_sent = is_answered or outage is None or outage != self.store.fallback
            acquisition.note_attempt(was_sent=was_sent, is_answered=is_answered)
            if permits and not is_answered:
                run_cleanup(self._release_later, permits)
        return reply

    def end_acquisition(self, acquisition: Acquisition, granted_ns: int | None) -> None:
        """Record the permit that a caller was granted at ``granted_ns``; ``None`` if it got none.

        A permit in doubt is queued for release only after the call, so that the heartbeat does not release it
        during the call.
        """
        if granted_ns is not None:
            self.own.add(acquisition.permit, granted_ns, is_local=not acquisition.was_sent)
        if acquisition.is_in_doubt:
            self.own.release_later(acquisition.permit)

    def _release_later(self, permits: list[ReusablePermit]) -> None:
        for permit in permits:
            permit.granted_ns = _NEVER_REUSED_NS
        self.put_back(*permits)

    def put_back(self, *permits: Permit) -> None:
        """Hold back permits that were taken and not used; during an outage the heartbeat releases them."""
        for permit in permits:
            if not self.hold_back(permit) and self.own.discard(permit):
                self.own.release_later(permit)

    def release_flow(self, *permits: Permit) -> Flow[None]:
        """Release permits and wake the first waiters.

        A store error must not fail a call that has ended. A permit released during an outage may be one that
        the shared store granted, so it is released there later, too. The same applies if the caller is
        cancelled, because the release may not have been sent.
        """
        unreleased = [permit for permit in permits if self.own.discard(permit)]
        try:
            reply: PermitReply = yield Apply(self.store, ReleasePermits(self.pool, *permits))
            if not reply.is_local:
                unreleased.clear()
        except StateError:
            pass
        finally:
            run_cleanup(self._after_release, unreleased)

    def _after_release(self, unreleased: Sequence[Permit]) -> None:
        for permit in unreleased:
            self.own.release_later(permit)
        for queue in self._queues.live():
            queue.wake_first(QUEUE_KEY)

    def register_flow(self, permits: Sequence[Permit]) -> Flow[list[Permit]]:
        """Register expired permits whose calls are still running, for their whole time to live.

        Return the permits whose calls have ended; they are not registered. If a call ends while its permit is
        being registered, the release may have come first, so the permit is released again.
        """
        held = [permit for permit in permits if self.own.renew(permit)]
        if held:
            left_us = dict.fromkeys(held, self.pool.permit_ttl_us)
            try:
                yield Apply(self.store, RegisterPermits(self.pool, left_us))
            except StateError:
                for permit in held:  # it may be registered after its release
                    self.own.release_later(permit)
                raise
        ended = [permit for permit in held if not self.own.renew(permit)]
        if ended:
            yield from self.release_flow(*ended)
        return [permit for permit in permits if permit not in held or permit in ended]

    def flush_flow(self) -> Flow[None]:
        """Release the permits that are held back."""
        permits, others = self._take_all(releasing=True)
        try:
            if (
                permits or others
            ):  # a second release does no harm, and this caller must not wait for the first
                yield from self.release_flow(*permits, *others)
        finally:
            self._releasing.difference_update(permits)

    def held_units(self) -> int:
        """Return 0: permits are not units of a limit."""
        return 0

    def return_all(self) -> None:
        """Release the permits that are held back, blocking."""
        run(self.flush_flow())

    def after_fork(self) -> None:
        """Leave the parent's permits to the parent."""
        fork_safety.reinit_lock(self._lock)
        self._permits.clear()
        self._releasing.clear()
        self.own.clear()
        self._is_scheduled = False

    def _flush_due(self) -> None:
        self._is_scheduled = False  # first, because a permit that is held back from now on needs another run
        self.return_all()


_returns_by_store: WeakKeyDictionary[Store, WeakValueDictionary[str, PermitReturns]] = WeakKeyDictionary()


def permit_returns(store: Store, pool: PermitPool) -> PermitReturns:
    """Return the object that all limits of this name on this store share."""
    by_name = _returns_by_store.setdefault(store, WeakValueDictionary())
    returns = by_name.get(pool.name)
    if returns is None or returns.pool[:3] != pool[:3]:
        returns = by_name[pool.name] = PermitReturns(store, pool)
    return returns
