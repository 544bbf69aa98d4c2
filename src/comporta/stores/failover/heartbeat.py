"""The heartbeat: one background thread for each shared store in use.

While the store is reachable the thread registers this worker once a second, learns how many workers there
are, reads operators' overrides, and every 0.2 s applies the operations of subscribers (a breaker's local
view, for example). During an outage it probes the store, with jitter, so that a fleet does not reconnect all
at once.

When the store is reachable again the worker first reports what it granted from its local share. It then
rejoins together with all other workers, at one moment: a worker that took tokens from a bucket to which
others have not yet reported would get those tokens twice. There is one exception. If the first probe finds
the store in order right away, the fault was this worker's own (a lost reply, a stalled machine), and it
rejoins at once: the others use the whole limit in the meantime, and its share would come on top.

The heartbeat is a thread, not a task, so that the same code serves programs with and without an event loop.
It knows no limits and no breakers, only operations.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Protocol
from weakref import WeakSet, ref

from comporta import events, fork_safety
from comporta.clock import MONOTONIC
from comporta.errors import StateAuthError, StateError, StateFullError, StateTypeError
from comporta.jitter import uniform
from comporta.stores.base import HeartbeatSubscriber, Operation, OverrideListener, Store
from comporta.stores.failover.control import ENGINE_ERRORS, FailoverControl
from comporta.stores.failover.local_share import LocalShare
from comporta.stores.failover.worker_count import WorkerCount
from comporta.stores.failover.worker_registry import (
    HEARTBEAT_SECONDS,
    REJOIN_US,
    RecordHeartbeat,
    RemoveWorker,
    ScheduleRejoin,
    Worker,
)
from comporta.stores.records import ReadRecord
from comporta.threads import BackgroundThread

POLL_SECONDS = 0.2
"""How often the thread asks subscribers for operations."""

PROBE_SECONDS_MIN = 0.05
PROBE_SECONDS_MAX = 0.3
_PROBE_CALLS = 2
"""How many calls in a row must be answered in time before the store counts as reachable."""

_REPORT_LEAD_NS = 150_000_000
_BRIEF_OUTAGE_NS = 50_000_000
_STABLE_NS = 10_000_000_000
_DENIAL_EVENT_EVERY_NS = 60_000_000_000
_REPORTS_MAX = 100_000
_OVERRIDES_PER_BEAT = 100
_POLL_BATCH_MAX = 256
_STOP_SECONDS = 1.0


class HeartbeatOwner(FailoverControl, Protocol):
    """A failover store as its heartbeat sees it."""

    heartbeat: Heartbeat


class HeartbeatRun(BackgroundThread):
    """One run of the thread: the identity it registers, and whether it removes that when it stops."""

    __slots__ = ("leaves_registry", "worker")

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker
        self.leaves_registry = False

    def wait_until(self, moment_ns: int) -> bool:
        """Wait until a moment of the monotonic clock; false if asked to stop before."""
        while not self.stop_requested:
            left_ns = moment_ns - MONOTONIC.now_ns()
            if left_ns <= 0:
                return True
            self.wake.wait(left_ns / 1e9)
        return False


class Heartbeat:
    """The thread's work and what it knows. It holds its store by a weak reference only."""

    def __init__(self, store: HeartbeatOwner) -> None:
        self.worker_count = WorkerCount(store.address)
        self._store_ref = ref(store)
        self._override_listeners: dict[tuple[str, str], list[OverrideListener]] = {}
        self._subscribers: WeakSet[HeartbeatSubscriber] = WeakSet()
        self._last_beat_ns = -_DENIAL_EVENT_EVERY_NS
        self._lock = Lock()
        self._run: HeartbeatRun | None = None
        self._probe_pause = PROBE_SECONDS_MIN
        self._maybe_own_fault = False  # until a probe finds the store unreachable
        self._outage_ns = self._denial_event_ns = -_DENIAL_EVENT_EVERY_NS
        fork_safety.register(self)
        fork_safety.register_thread_owner(self)

    def start(self) -> bool:
        """Start the thread in this process unless it runs; false if no thread can be started."""
        run = self._run
        if run is None or not run.is_alive():
            with self._lock:
                if self._run is run:
                    self._start_thread(Worker.new())
        return self._run is not None

    def _start_thread(self, worker: Worker) -> None:
        # assigned before it starts: if a signal handler raises in between, no caller starts a second thread
        run = self._run = HeartbeatRun(worker)
        if run.start(_run_heartbeat, self._store_ref, run, name="comporta-heartbeat"):
            _running.add(self)
        else:
            self._run = None

    def notify_outage(self) -> None:
        """Probe the store now: an outage begins."""
        now_ns = MONOTONIC.now_ns()
        was_stable = now_ns - self._outage_ns > _STABLE_NS  # a store that flaps is probed less and less often
        self._probe_pause = PROBE_SECONDS_MIN if was_stable else min(PROBE_SECONDS_MAX, 2 * self._probe_pause)
        self._outage_ns = now_ns
        self._maybe_own_fault = was_stable
        self.poll_soon()

    def stop(self) -> None:
        """Remove this worker from the registry and stop the thread, within 1 s; it can be started again."""
        with self._lock:
            run, self._run = self._run, None
        _running.discard(self)
        if run is not None:
            run.leaves_registry = True
            run.stop(_STOP_SECONDS)

    def follow_override(self, space: str, key: str, listener: OverrideListener) -> None:
        """Pass the record at a key to ``listener`` once a second, for as long as it is alive."""
        with self._lock:
            self._override_listeners.setdefault((space, key), []).append(listener)

    def subscribe(self, subscriber: HeartbeatSubscriber) -> None:
        """Apply the subscriber's operations every ``POLL_SECONDS``, for as long as it is alive."""
        with self._lock:
            self._subscribers.add(subscriber)

    def poll_soon(self) -> None:
        """Wake the thread: a subscriber has a new operation."""
        run = self._run
        if run is not None:
            run.wake.set()

    def before_fork(self) -> None:
        """Stop the thread for the time of the fork; the worker stays registered."""
        if self._run is not None:
            self._run.stop(_STOP_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Continue as the same worker, unless another fork or a caller has already restarted the thread."""
        with self._lock:
            if self._run is not None and self._run.stop_requested:
                self._start_thread(self._run.worker)

    def after_fork(self) -> None:
        """Forget the parent's thread and identity; the child gets its own on first use."""
        self._run = None
        fork_safety.reinit_lock(self._lock)

    def run_once(self, store: HeartbeatOwner, run: HeartbeatRun) -> float | None:
        """Do what is due; returns the seconds until the next call, or ``None`` to end the thread."""
        if run.stop_requested:
            if run.leaves_registry:
                _leave_registry(store, run.worker)
            return None
        if run is not self._run:  # a second thread was started, because this one took too long to begin
            return None
        share = store.local_share
        pause = self._beat_and_poll(store, run) if share is None else self._probe(store, share, run)
        return pause * uniform(0.5, 1.5) if store.local_share else pause

    def _beat_and_poll(self, store: HeartbeatOwner, run: HeartbeatRun) -> float:
        try:
            since_ns = MONOTONIC.now_ns() - self._last_beat_ns
            if since_ns >= HEARTBEAT_SECONDS * 1e9:
                self._last_beat_ns, since_ns = MONOTONIC.now_ns(), 0
                self._beat(store, run)
            has_polled = self._poll_subscribers(store.primary)
        except ENGINE_ERRORS as error:
            with suppress(StateError):  # a denial before the first answer: callers get the error themselves
                store.fail_over(error, store_wide=True)
            return HEARTBEAT_SECONDS
        left = HEARTBEAT_SECONDS - since_ns / 1e9
        return min(left, POLL_SECONDS) if has_polled else left

    def _beat(self, store: HeartbeatOwner, run: HeartbeatRun) -> None:
        store.primary.verify()
        self._record_heartbeat(store, run)
        self._read_overrides(store.primary)
        self.worker_count.expire()

    def _poll_subscribers(self, primary: Store) -> bool:
        """Apply the operations of all subscribers that have one; returns whether any had."""
        with self._lock:
            subscribers = list(self._subscribers)
        polls = [
            (subscriber, operation)
            for subscriber in subscribers
            if (operation := subscriber.heartbeat_operation())
        ]
        for start in range(0, len(polls), _POLL_BATCH_MAX):
            batch = polls[start : start + _POLL_BATCH_MAX]
            replies = primary.apply_many([operation for _, operation in batch])
            for (subscriber, _), reply in zip(batch, replies, strict=True):
                if not isinstance(reply, StateError):  # an error of one key: callers that use it get it too
                    subscriber.on_heartbeat_reply(reply)
        return bool(polls)

    def _record_heartbeat(self, store: HeartbeatOwner, run: HeartbeatRun) -> None:
        self._apply_to_registry(store, RecordHeartbeat(run.worker), self.worker_count.record)

    def _apply_to_registry(
        self, store: HeartbeatOwner, operation: Operation[int], on_reply: Callable[[int], None]
    ) -> None:
        """Apply an operation to the registry; the fleet does without it if its key is unusable or full."""
        try:
            on_reply(store.primary.apply(operation))
        except (StateTypeError, StateFullError) as error:
            self._publish_denial(store, error)

    def _read_overrides(self, primary: Store) -> None:
        for place in list(self._override_listeners)[:_OVERRIDES_PER_BEAT]:
            with self._lock:
                references = self._override_listeners.pop(place)
                alive = [(reference, callback) for reference in references if (callback := reference())]
                if not alive:
                    continue
                # inserted at the end, so that the next beat starts with the others
                self._override_listeners[place] = [reference for reference, _ in alive]
            with suppress(StateTypeError):  # not a record that an operator wrote
                override = primary.apply(ReadRecord(*place))
                for _, callback in alive:
                    callback(override)

    def _probe(self, store: HeartbeatOwner, local_share: LocalShare, run: HeartbeatRun) -> float:
        """Check whether the store is reachable again, and if so rejoin; returns the pause before the next."""
        self._probe_pause = min(PROBE_SECONDS_MAX, 2 * self._probe_pause)
        maybe_own_fault, self._maybe_own_fault = self._maybe_own_fault, False
        try:
            primary = store.primary
            primary.probe()
            for _ in range(_PROBE_CALLS):
                self._record_heartbeat(store, run)
            self._apply_recovery_operations(local_share)
            if maybe_own_fault and self._is_brief_outage(store):
                self._report(primary, local_share)
            elif not self._rejoin(store, local_share, run):
                return 0.0
        except StateAuthError as error:
            store.record_denial(error)
            self._publish_denial(store, error)
            return self._probe_pause
        except ENGINE_ERRORS:
            return self._probe_pause
        store.recover()
        with suppress(*ENGINE_ERRORS):  # what callers were granted while the reports were being sent
            self._report(primary, local_share)
        self.poll_soon()  # subscribers may have operations that waited for the recovery
        return HEARTBEAT_SECONDS

    def _rejoin(self, store: HeartbeatOwner, local_share: LocalShare, run: HeartbeatRun) -> bool:
        """Report what was granted and wait for the moment at which all rejoin; false if asked to stop."""
        left_us = [REJOIN_US]
        self._apply_to_registry(store, ScheduleRejoin(), left_us.append)
        moment_ns = MONOTONIC.now_ns() + 1000 * left_us[-1]
        if not run.wait_until(moment_ns - _REPORT_LEAD_NS):
            return False
        self._report(store.primary, local_share)
        if not run.wait_until(moment_ns):
            return False
        self._record_heartbeat(store, run)
        self._report(store.primary, local_share)
        return True

    def _report(self, primary: Store, local_share: LocalShare) -> None:
        """Report to the store what was granted without it, and what subscribers hold."""
        _send_reports(primary, local_share)
        with self._lock:
            subscribers = list(self._subscribers)
        operations = [operation for each in subscribers for operation in each.rejoin_operations()]
        for start in range(0, len(operations), primary.batch_size):
            primary.apply_many(operations[start : start + primary.batch_size])

    def _apply_recovery_operations(self, local_share: LocalShare) -> None:
        """Write what subscribers know, and the store may have lost, into the local share for its reports."""
        with self._lock:
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            operation = subscriber.recovery_operation()
            if operation is not None:
                with suppress(StateError):  # the share rejects everything if the server denies access
                    local_share.apply(operation)

    def _is_brief_outage(self, store: HeartbeatOwner) -> bool:
        """Whether no other worker can have failed over too: the outage just began, or this worker did."""
        return not store.was_reached or MONOTONIC.now_ns() - self._outage_ns < _BRIEF_OUTAGE_NS

    def _publish_denial(self, store: HeartbeatOwner, error: StateError) -> None:
        """Publish an error that an operator has to fix, at most once a minute."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._denial_event_ns >= _DENIAL_EVENT_EVERY_NS:
            self._denial_event_ns = now_ns
            events.publish("state_denied", store.address, str(error), "error")


def _leave_registry(store: HeartbeatOwner, worker: Worker) -> None:
    """Remove a worker from the registry, also during an outage: the last probe may have listed it."""
    with suppress(*ENGINE_ERRORS):
        store.primary.apply(RemoveWorker(worker))


def _send_reports(primary: Store, local_share: LocalShare) -> None:
    """Report to the store what was granted without it; a report that may have arrived is not sent again."""
    reports = [*local_share.pending_reports, *local_share.collect_reports()]
    local_share.pending_reports = reports[-_REPORTS_MAX:]
    size = primary.batch_size
    while local_share.pending_reports:
        batch = local_share.pending_reports[:size]
        del local_share.pending_reports[:size]
        primary.apply_many(batch)  # the errors of single keys do not stop the others


def _run_heartbeat(store_ref: ref[HeartbeatOwner], run: HeartbeatRun) -> None:
    """Run until the store is garbage collected or stops the heartbeat; holds no reference between calls."""
    while True:
        store = store_ref()
        try:
            pause = None if store is None else store.heartbeat.run_once(store, run)
        except Exception as error:  # a bug here: without this, the thread would end and no one would notice
            if run.stop_requested:
                return
            events.publish("heartbeat_failed", "comporta", repr(error), "error")
            pause = HEARTBEAT_SECONDS
        del store
        if pause is None:
            return
        run.wake.wait(pause)


_running: WeakSet[Heartbeat] = WeakSet()


@atexit.register
def stop_all() -> None:
    """Remove this worker from all registries; also called when the interpreter exits."""
    for heartbeat in list(_running):
        heartbeat.stop()
