"""The heartbeat: one background thread for each shared store in use.

While the store is reachable, the thread registers this worker every 0.9 s. The reply says how many workers
there are and what has changed in the store since the last reply (``change_follower.py``), so that only
changed overrides are read. Every 0.2 s it applies the operations of subscribers (a breaker's local view, for
example), and reads the change log while a subscriber follows changes closely, unless a caller's operation
carried that read (``log_reads.py``): a second command in one packet costs a server a tenth of a separate one.
During an outage it probes the store and rejoins (``recovery.py``).

The heartbeat is a thread, not a task, so that the same code serves programs with and without an event loop.
It does not know limits and breakers, only operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Protocol
from weakref import ref

from comporta import events, fork_safety
from comporta.clock import MONOTONIC, Clock
from comporta.errors import StateError
from comporta.jitter import uniform
from comporta.runtime import PerProcess, at_exit
from comporta.stores.base import KEY_ERRORS, OverrideListener
from comporta.stores.failover.change_follower import ChangeFollower
from comporta.stores.failover.control import ENGINE_ERRORS, FailoverControl
from comporta.stores.failover.heartbeat_run import HeartbeatRun
from comporta.stores.failover.local_share import LocalShare
from comporta.stores.failover.log_reads import LogReads
from comporta.stores.failover.machine_workers import MachineWorkers
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.failover.recovery import Recovery
from comporta.stores.failover.registration import Registration, leave_registry
from comporta.stores.failover.worker_count import WorkerCount
from comporta.stores.failover.worker_registry import HEARTBEAT_SECONDS, Worker
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber
from comporta.weak_registry import WeakRegistry

POLL_SECONDS = 0.2
"""How often the thread asks subscribers for operations by default."""

_RETURN_SECONDS = 2.0
_RETURN_BEAT_SECONDS = 0.2
"""After a recovery the thread registers this often for a while: workers that come late wait for it."""

_POLL_BATCH_MAX = 256
_STOP_SECONDS = 1.0


class HeartbeatOwner(FailoverControl, Protocol):
    """A failover store as its heartbeat sees it."""

    clock: Clock
    heartbeat: Heartbeat


class Heartbeat:
    """The thread's work and state. It holds only a weak reference to its store.

    ``poll_seconds`` is how often it asks subscribers for operations, and for changes that they follow.
    """

    def __init__(self, store: HeartbeatOwner) -> None:
        self.poll_seconds = POLL_SECONDS
        self._subscribers: WeakRegistry[HeartbeatSubscriber] = WeakRegistry()
        self.registration = Registration(store.address, store.clock)
        self.machine_workers = MachineWorkers(store.address)
        self.recovery = Recovery(self.registration, self.machine_workers, self._subscribers.live, store.clock)
        self._clock = store.clock
        self._store_ref = ref(store)
        self._follower = ChangeFollower()
        self.log_reads = LogReads(self._follower, self._subscribers.live, self.poll_soon, store.clock)
        self._last_beat_ns = MONOTONIC.now_ns() - int(HEARTBEAT_SECONDS * 1e9)
        self._returned_ns = MONOTONIC.now_ns() - int(_RETURN_SECONDS * 1e9)
        self._lock = Lock()
        self._run: HeartbeatRun | None = None
        fork_safety.register(self)
        fork_safety.register_thread_owner(self)

    @property
    def worker_count(self) -> WorkerCount:
        """How many workers share the state, as far as this worker knows."""
        return self.registration.worker_count

    def start(self) -> bool:
        """Start the thread in this process unless it is running; false if no thread can be started."""
        run = self._run
        if run is None or not run.is_alive():
            with self._lock:
                if self._run is run:
                    self._start_thread(Worker.new())
        return self._run is not None

    def _start_thread(self, worker: Worker) -> None:
        # assigned before it starts: if a signal handler raises in between, no caller starts a second thread
        run = self._run = HeartbeatRun(worker, self._clock)
        if run.start(_run_heartbeat, self._store_ref, run, name="comporta-heartbeat"):
            _running.get().add(self)
        else:
            self._run = None

    def notify_outage(self) -> None:
        """Probe the store now, because an outage has begun."""
        self.recovery.begin_outage()
        self.poll_soon()

    def stop(self) -> None:
        """Remove this worker from the registry and stop the thread, within 1 s; it can be started again.

        During an outage, the thread first tries once to report to the store.
        """
        with self._lock:
            run, self._run = self._run, None
        _running.get().discard(self)
        if run is not None:
            run.leaves_registry = True
            run.stop(_STOP_SECONDS)
        self.machine_workers.leave()

    def follow_override(self, space: str, key: str, listener: OverrideListener) -> None:
        """Pass the record at a key to ``listener`` when it changes, for as long as the listener is alive."""
        self._follower.follow(space, key, listener)

    def subscribe(self, subscriber: HeartbeatSubscriber) -> None:
        """Apply the subscriber's operations every ``POLL_SECONDS``, for as long as it is alive."""
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
        """Drop the parent's thread and identity; the child gets its own on first use."""
        self._run = None
        self.recovery.after_fork()
        self._follower.after_fork()
        fork_safety.reinit_lock(self._lock)

    def run_once(self, store: HeartbeatOwner, run: HeartbeatRun) -> float | None:
        """Do what is due; return the seconds until the next call, or ``None`` to end the thread."""
        if run.stop_requested:
            if run.leaves_registry:
                self.recovery.report_at_exit(store, run.worker)
                leave_registry(store, run.worker)
            return None
        if run is not self._run:  # a second thread was started, because this one took too long to begin
            return None
        share = store.local_share
        pause = self._beat_and_poll(store, run) if share is None else self.recovery.probe(store, share, run)
        local_share = store.local_share
        if local_share is not None:
            if not run.stop_requested:
                self._divide_share(store, local_share)
            return pause * uniform(0.5, 1.5)
        if share is not None:
            self._returned_ns = MONOTONIC.now_ns()
            self.poll_soon()  # subscribers may have operations that waited for the recovery
        return pause

    def _divide_share(self, store: HeartbeatOwner, local_share: LocalShare) -> None:
        """Divide by this machine's workers in fallback if there are more than this worker knew."""
        count = self.machine_workers.join()
        if local_share.divide_by(count):
            text = f"{count} workers of this machine are in fallback: 1/{count} of each limit for this worker"
            events.publish("state_fallback_share", store.address, text, "info")

    def _beat_and_poll(self, store: HeartbeatOwner, run: HeartbeatRun) -> float:
        try:
            now_ns = MONOTONIC.now_ns()
            since_ns, beat_seconds = now_ns - self._last_beat_ns, self._beat_seconds(now_ns)
            if since_ns >= beat_seconds * 1e9:
                self._last_beat_ns, since_ns = now_ns, 0
                self._beat(store, run)
            has_polled = self.poll(store, is_beat=since_ns == 0)
        except ENGINE_ERRORS as error:
            with suppress(StateError):  # a denial before the first answer: callers get the error themselves
                store.fail_over(error, store_wide=True)
            return HEARTBEAT_SECONDS
        left = beat_seconds - since_ns / 1e9
        return min(left, self.log_reads.poll_pause(self.poll_seconds)) if has_polled else left

    def _beat_seconds(self, now_ns: int) -> float:
        has_returned = now_ns - self._returned_ns < _RETURN_SECONDS * 1e9
        return _RETURN_BEAT_SECONDS if has_returned else HEARTBEAT_SECONDS

    def _beat(self, store: HeartbeatOwner, run: HeartbeatRun) -> None:
        primary = store.primary
        primary.verify()
        if not self._read_changes(store, self._subscribers.live(), run.worker):
            self.registration.record_heartbeat(store, run.worker)
            self._follower.mark_all_due()
        self._follower.read_due(primary)
        self.recovery.send_reports(primary)
        self.worker_count.expire()

    def _read_changes(
        self, store: HeartbeatOwner, subscribers: Sequence[HeartbeatSubscriber], worker: Worker | None = None
    ) -> bool:
        """Read what changed, and register ``worker``; false if the store keeps no usable change log."""
        primary = store.primary
        if not primary.keeps_changes:
            return False
        asked_ns = self._clock.now_ns()
        heartbeat = None if worker is None else self.registration.heartbeat(worker)
        try:
            pulse, changes = primary.apply(ReadChanges(self._follower.version, heartbeat))
        except KEY_ERRORS as error:
            self.registration.publish_denial(store, error)
            return False
        if worker is not None and pulse is not None:
            self.registration.record_pulse(store, worker, pulse)
        self._follower.pass_on(changes, asked_ns, subscribers)
        self.log_reads.polled_ns = asked_ns
        return True

    def poll(self, store: HeartbeatOwner, *, is_beat: bool) -> bool:
        """Apply the operations of all subscribers that have one; return whether to poll again soon.

        Reads the change log first if a subscriber follows it closely, unless a heartbeat or a caller has just
        done so.
        """
        primary, subscribers = store.primary, self._subscribers.live()
        follows = primary.keeps_changes and any(each.follows_closely for each in subscribers)
        self.log_reads.is_wanted = follows
        if follows and not is_beat and not self.log_reads.confirm_recent(POLL_SECONDS):
            self._read_changes(store, subscribers)
            self._follower.read_due(primary)
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
        return follows or bool(polls)


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


_running: PerProcess[WeakRegistry[Heartbeat]] = PerProcess(WeakRegistry)


@at_exit
def stop_all() -> None:
    """Remove this worker from all registries; also called when the interpreter exits."""
    for heartbeat in _running.get().live():
        heartbeat.stop()
