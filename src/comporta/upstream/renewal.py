"""Renews the permits of answers whose bodies are still being read, on one background thread.

A permit expires after ``permit_ttl`` seconds, so that a killed worker does not keep it. A stream of events
may last longer. A worker that was stopped for longer than that registers its permits again when it resumes,
because its streams are still open. The thread starts with the first permit and never keeps a program from
exiting. This module knows nothing about calls and bodies.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from comporta import fork_safety
from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.flow import run
from comporta.runtime import PerProcess
from comporta.threads import BackgroundThread

if TYPE_CHECKING:
    from comporta.limits.concurrency.limit import ConcurrencyLimit
    from comporta.limits.concurrency.permits import Permit

REGISTERED_MAX = 256
"""How many permits one operation registers again."""

_RENEWALS_PER_TTL = 3
_STOP_SECONDS = 1.0
_NEVER_NS = 1 << 62


class _Renewal:
    """When a permit is due, and its limit."""

    __slots__ = ("due_ns", "limit")

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self.limit = limit
        self.postpone()

    def postpone(self) -> None:
        """Make the permit due after a part of its time to live."""
        self.due_ns = MONOTONIC.now_ns() + round(self.limit.permit_ttl * 1e9) // _RENEWALS_PER_TTL


class PermitRenewer:
    """Renews permits until they are discarded. Their number is bounded by their limits."""

    def __init__(self) -> None:
        self._renewals: dict[Permit, _Renewal] = {}
        self._lock = Lock()
        self._run: BackgroundThread | None = None
        self._wakes_ns = _NEVER_NS
        self.forks = 0
        """How many forks precede this process; the bodies of its parent have a lower number."""
        fork_safety.register(self)
        fork_safety.register_thread_owner(self)

    def add(self, limit: ConcurrencyLimit, permit: Permit) -> None:
        """Renew a permit from now on."""
        renewal = self._renewals[permit] = _Renewal(limit)
        if self._run is not None and self._run.is_alive() and renewal.due_ns >= self._wakes_ns:
            return
        with self._lock:
            if self._run is None or not self._run.is_alive():
                self._start()
            else:
                self._run.wake.set()

    def discard(self, permit: Permit) -> None:
        """Stop renewing a permit. Takes no lock: the garbage collector may call it."""
        self._renewals.pop(permit, None)

    def _start(self) -> None:
        self._wakes_ns = _NEVER_NS
        thread = self._run = BackgroundThread()
        if not thread.start(self._renew_until_stopped, thread, name="comporta-permits"):
            self._run = None  # the permits expire, and adding the next one tries again

    def _renew_until_stopped(self, thread: BackgroundThread) -> None:
        while not thread.stop_requested:
            self._renew_due()
            self._wakes_ns = _NEVER_NS  # a permit added during this search sets the event
            due = [renewal.due_ns for renewal in list(self._renewals.values())]
            self._wakes_ns = min(due, default=_NEVER_NS)
            thread.wake.wait((self._wakes_ns - MONOTONIC.now_ns()) / 1e9)

    def _renew_due(self) -> None:
        now_ns = MONOTONIC.now_ns()
        expired: dict[ConcurrencyLimit, list[Permit]] = {}
        for permit, renewal in list(self._renewals.items()):
            if renewal.due_ns <= now_ns:
                renewal.postpone()
                if not _renew(renewal.limit, permit):
                    expired.setdefault(renewal.limit, []).append(permit)
        for limit, permits in expired.items():
            self._register_again(limit, permits)

    def _register_again(self, limit: ConcurrencyLimit, permits: list[Permit]) -> None:
        """Register expired permits again, in batches, unless their calls have ended."""
        for start in range(0, len(permits), REGISTERED_MAX):
            batch = permits[start : start + REGISTERED_MAX]
            with suppress(StateError):  # the next renewal tries again
                for permit in run(limit._register_flow(batch)):
                    self.discard(permit)

    def before_fork(self) -> None:
        """Stop the thread during the fork."""
        if self._run is not None:
            self._run.stop(_STOP_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Start the thread again."""
        with self._lock:
            if self._run is not None and self._run.stop_requested:
                self._start()

    def after_fork(self) -> None:
        """Leave the parent's permits to the parent; the child has no thread yet."""
        fork_safety.reinit_lock(self._lock)
        self._renewals.clear()
        self._run = None
        self.forks += 1


def _renew(limit: ConcurrencyLimit, permit: Permit) -> bool:
    """Renew a permit; false if it has expired or was released. During an outage it is renewed later."""
    with suppress(StateError):
        return run(limit._renew_flow(permit)) or limit.fallback is not None
    return True


RENEWER = PerProcess(PermitRenewer)
