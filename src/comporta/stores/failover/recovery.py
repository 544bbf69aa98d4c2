"""The end of an outage: probe the store, report what this worker granted without it, and rejoin.

Probes are spread by jitter, so that a fleet does not reconnect all at once. When the store is reachable again
the worker rejoins together with all other workers that lost the store, at one moment (``barrier.py``): a
worker that took tokens from a bucket to which others have not yet reported would get those tokens twice.
Shortly before that moment it reports what it granted from its local share, and grants nothing more until it
has rejoined. It does not report sooner, because all workers must report at the same time: the store refills a
bucket at the rate of the whole limit, but a worker's share refills only at a part of that rate. Tokens that a
worker reported sooner would be refilled by the time the fleet rejoins. Only a share with many keys is also
reported sooner, so that little remains for the last report.

There is one exception. If the very first probe succeeds, the fault was probably this worker's own (a lost
reply, a stalled machine): the others use the whole limit in the meantime, and this worker's share would be
granted in addition. But after a hang as short as a deadline, the probes of the workers that called last
succeed, too, while the others use their shares until they probe again. The worker cannot distinguish the two
cases, so it looks for other rejoining workers for ``_LOOK_OUT_NS`` and grants nothing until then: workers
that rejoined at once exceeded the limit by up to 105 tokens in 400 simulated hangs (16 workers, 500/s). If it
finds none, it rejoins alone. Calls that the same fault has affected also fail during that time, and do not
begin a second outage.

Workers that made no call during a short outage have not noticed it and use the whole limit. For the same
reason, workers that have noticed it wait for them only briefly (``_SHORT_BARRIER_US``).

This module does not know limits and breakers, only operations. The heartbeat's thread runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from comporta.clock import Clock, to_us
from comporta.errors import StateAuthError, StateError
from comporta.stores.base import Store
from comporta.stores.failover.barrier import LEAD_US, UNKNOWN_EPOCH, RejoinMoment, RejoinRequest
from comporta.stores.failover.control import ENGINE_ERRORS, FailoverControl
from comporta.stores.failover.heartbeat_run import HeartbeatRun
from comporta.stores.failover.local_share import LocalShare
from comporta.stores.failover.machine_workers import MachineWorkers
from comporta.stores.failover.registration import Registration
from comporta.stores.failover.reports import ReportQueue
from comporta.stores.failover.worker_registry import (
    HEARTBEAT_SECONDS,
    REJOIN_SECONDS,
    Pulse,
    ScheduleRejoin,
    Worker,
)
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber

R = TypeVar("R")

PROBE_SECONDS_MIN = 0.05
PROBE_SECONDS_MAX = 0.3
_PROBE_CALLS = 2
"""How many calls in a row must be answered in time before the store counts as reachable."""

_BARRIER_PATIENCE_NS = 700_000_000
"""A worker that waits at the barrier has lost the store again if no call is answered for this long."""

_BARRIER_RETRY_NS = 60_000_000
"""The minimum time between two such calls, because a refused connection fails at once."""

_BARRIER_POLL_NS = 100_000_000
_FREEZE_NS = 60_000_000
"""How long before the moment of the rejoin a worker reports for the last time and stops granting."""

_LAST_REPORT_KEYS_MAX = 1000
"""How many keys a worker can report in that time."""

_BRIEF_OUTAGE_NS = 50_000_000
_LOOK_OUT_NS = 200_000_000
"""How long a worker looks for others: most workers that lost the store with it probe again by then."""

_LOOK_OUT_POLL_NS = 50_000_000
_SHORT_OUTAGE_NS = 300_000_000
_SHORT_BARRIER_US = 500_000
"""How long a barrier lasts after a short outage: all workers that noticed the outage probe again by then."""

_STABLE_NS = 10_000_000_000


class Recovery:
    """Probes the store during an outage and brings this worker back to it."""

    def __init__(
        self,
        registration: Registration,
        machine_workers: MachineWorkers,
        subscribers: Callable[[], Sequence[HeartbeatSubscriber]],
        clock: Clock,
    ) -> None:
        self._registration = registration
        self._machine_workers = machine_workers
        self._subscribers = subscribers
        self._clock = clock
        self._reports = ReportQueue()
        self._reporter = ""
        self._probe_pause = PROBE_SECONDS_MIN
        self._was_stable = False
        self._maybe_own_fault = False  # until a probe finds the store unreachable
        self._used_epoch = UNKNOWN_EPOCH
        self._lost_epoch = UNKNOWN_EPOCH
        self._outage_ns = clock.now_ns() - 2 * _STABLE_NS

    def begin_outage(self) -> None:
        """Choose how soon to probe, and whether the fault may be this worker's own."""
        now_ns = self._clock.now_ns()
        was_stable = now_ns - self._outage_ns > _STABLE_NS  # an unstable store is probed less and less often
        self._probe_pause = PROBE_SECONDS_MIN if was_stable else min(PROBE_SECONDS_MAX, 2 * self._probe_pause)
        self._outage_ns = now_ns
        self._was_stable = self._maybe_own_fault = was_stable
        self._lost_epoch = self._used_epoch = self._registration.epoch

    def after_fork(self) -> None:
        """Drop the reports of the parent, which sends them itself."""
        self._reports.clear()

    def probe(self, store: FailoverControl, local_share: LocalShare, run: HeartbeatRun) -> float:
        """Rejoin if the store is reachable again; return the pause before the next probe."""
        self._reporter = run.worker.member
        self._probe_pause = min(PROBE_SECONDS_MAX, 2 * self._probe_pause)
        maybe_own_fault, self._maybe_own_fault = self._maybe_own_fault, False
        try:
            has_rejoined = self._rejoin(store, local_share, run, maybe_own_fault=maybe_own_fault)
        except StateAuthError as error:
            store.record_denial(error)
            self._registration.publish_denial(store, error)
            has_rejoined = False
        except ENGINE_ERRORS:
            has_rejoined = False
        if not has_rejoined:
            local_share.thaw()
            return 0.0 if run.stop_requested else self._probe_pause
        store.recover()
        with suppress(*ENGINE_ERRORS):  # what callers were granted while the reports were being sent
            self._registration.record_heartbeat(store, run.worker)
            self._report(store.primary, local_share)
        return HEARTBEAT_SECONDS

    def collect_reports(self, local_share: LocalShare) -> None:
        """Keep the reports of a share that another one replaces."""
        self._reports.collect(local_share, self._reporter)

    def send_reports(self, primary: Store) -> None:
        """Send the reports that the store has not acknowledged."""
        self._reports.send(primary)

    def report_at_exit(self, store: FailoverControl, worker: Worker) -> None:
        """Try once to report what was granted and counted without the store, before this worker leaves."""
        self._reporter = worker.member
        if store.local_share is not None:
            self.collect_reports(store.local_share)
        with suppress(*ENGINE_ERRORS):
            self.send_reports(store.primary)

    def _rejoin(
        self, store: FailoverControl, local_share: LocalShare, run: HeartbeatRun, *, maybe_own_fault: bool
    ) -> bool:
        """Rejoin a reachable store; false if asked to stop; raise an error if it is unreachable."""
        store.primary.probe()
        for _ in range(_PROBE_CALLS):
            pulse = self._registration.record_probe(store, run.worker)
        self._apply_recovery_operations(local_share)
        if len(local_share.store) > _LAST_REPORT_KEYS_MAX:
            self._report_grants(store.primary, local_share)
        is_brief = maybe_own_fault and self._is_brief_outage(store)
        if is_brief:
            pulse = self._look_for_others(store, local_share, run, pulse)
        if not is_brief or self._is_fleet_rejoining(pulse):
            return self._pass_barrier(store, local_share, run, self._barrier_us(store, pulse))
        if run.stop_requested:
            return False
        self._report(store.primary, local_share)
        return True

    def _look_for_others(
        self, store: FailoverControl, local_share: LocalShare, run: HeartbeatRun, pulse: Pulse | None
    ) -> Pulse | None:
        """Wait for others that also lost the store, granting nothing meanwhile; return the last pulse."""
        if not store.was_reached or self._registration.worker_count.observed <= 1:
            return pulse  # no others used the store together with this one
        local_share.freeze()
        now_ns = self._clock.now_ns()
        until_ns = now_ns + _LOOK_OUT_NS
        while now_ns < until_ns and not self._is_fleet_rejoining(pulse):
            if not run.wait_until(min(until_ns, now_ns + _LOOK_OUT_POLL_NS)):
                break
            pulse = self._registration.record_probe(store, run.worker)
            now_ns = self._clock.now_ns()
        return pulse

    def _barrier_us(self, store: FailoverControl, pulse: Pulse | None) -> int:
        """Return how long to wait for workers that do not come, unless a barrier has begun already."""
        is_short = self._was_stable and self._clock.now_ns() - self._outage_ns < _SHORT_OUTAGE_NS
        if is_short and not self._is_fleet_rejoining(pulse):
            return _SHORT_BARRIER_US
        return to_us(REJOIN_SECONDS + store.primary.connect_seconds_max)

    def _pass_barrier(
        self, store: FailoverControl, local_share: LocalShare, run: HeartbeatRun, barrier_us: int
    ) -> bool:
        """Report once more, then wait for the moment at which all rejoin; false if asked to stop."""
        wait = _BarrierWait(self._clock, run, local_share)
        moment_ns = self._clock.now_ns() + 1000 * barrier_us  # if the key of the barrier cannot be used
        epoch = UNKNOWN_EPOCH
        try:
            while True:
                moment = wait.call(partial(self._ask_moment, store, run.worker, epoch, barrier_us))
                poll_ns = wait.answered_ns + _BARRIER_POLL_NS
                if moment is not None:
                    moment_ns = wait.answered_ns + 1000 * moment.left_us
                    if moment.epoch != epoch:
                        epoch, poll_ns = (
                            moment.epoch,
                            0,
                        )  # ask again at once, to state that this worker knows it
                poll_ns = min(poll_ns, moment_ns - 1000 * LEAD_US)
                if moment_ns - 1000 * LEAD_US > self._clock.now_ns():
                    local_share.thaw()
                    if not run.wait_until(poll_ns):
                        return False
                    continue
                if not run.wait_until(moment_ns - _FREEZE_NS):
                    return False
                local_share.freeze()
                wait.call(partial(self._report, store.primary, local_share))
                if self._clock.now_ns() < moment_ns + _FREEZE_NS or moment is None or not moment.left_us:
                    break  # after a late report another worker may have begun another barrier: ask again
        except ENGINE_ERRORS:
            # This worker has lost the store again, so it will begin another barrier.
            self._lost_epoch = max(epoch, self._lost_epoch)
            self._probe_pause = PROBE_SECONDS_MIN / 2  # the store was reachable a moment ago
            raise
        self._registration.epoch = max(epoch, self._lost_epoch)
        return run.wait_until(moment_ns)

    def _ask_moment(
        self, store: FailoverControl, worker: Worker, waiting_epoch: int, barrier_us: int
    ) -> RejoinMoment | None:
        """Join the barrier; ``None`` if its key cannot be used."""
        # workers of this machine that the registry does not know yet will come, too
        workers = max(self._registration.worker_count.observed, self._machine_workers.count)
        epochs = self._used_epoch, waiting_epoch
        request = RejoinRequest(worker.member, self._lost_epoch, workers, barrier_us, *epochs)
        return self._registration.apply(store, ScheduleRejoin(worker, request))

    def _report(self, primary: Store, local_share: LocalShare) -> None:
        """Report to the store what was granted without it, and what subscribers hold."""
        self._report_grants(primary, local_share)
        operations = [operation for each in self._subscribers() for operation in each.rejoin_operations()]
        for start in range(0, len(operations), primary.batch_size):
            primary.apply_many(operations[start : start + primary.batch_size])

    def _report_grants(self, primary: Store, local_share: LocalShare) -> None:
        """Report what was granted, beginning with what the store has not acknowledged before."""
        self._reports.send(primary)
        self.collect_reports(local_share)
        self._reports.send(primary)

    def _apply_recovery_operations(self, local_share: LocalShare) -> None:
        """Write what the store may have lost, but subscribers know, into the local share for its reports."""
        for subscriber in self._subscribers():
            operation = subscriber.recovery_operation()
            if operation is not None:
                with suppress(StateError):  # the share rejects everything if the server denies access
                    local_share.apply(operation)

    def _is_brief_outage(self, store: FailoverControl) -> bool:
        """Whether no other worker can have failed over: the outage, or this worker, has just started."""
        return not store.was_reached or self._clock.now_ns() - self._outage_ns < _BRIEF_OUTAGE_NS

    def _is_fleet_rejoining(self, pulse: Pulse | None) -> bool:
        """Whether other workers also lost the store, and are rejoining or have rejoined without this one."""
        if pulse is None:
            return False
        return pulse.is_rejoining or UNKNOWN_EPOCH < self._lost_epoch < pulse.epoch


class _BarrierWait:
    """Repeats the calls of a worker that waits at the barrier, until it may have lost the store.

    The others cannot rejoin sooner than ``LEAD_US`` after the last answered call. Shortly before that time
    the worker stops granting, because the others may then use the whole limit.
    """

    def __init__(self, clock: Clock, run: HeartbeatRun, local_share: LocalShare) -> None:
        self.answered_ns = self._asked_ns = clock.now_ns()
        self._clock = clock
        self._run = run
        self._local_share = local_share

    def call(self, action: Callable[[], R]) -> R:
        """Do something until it succeeds, and raise its error if that takes too long."""
        while True:
            called_ns = self._clock.now_ns()
            try:
                result = action()
            except ENGINE_ERRORS as error:
                if isinstance(error, StateAuthError) or not self._pause(called_ns):
                    raise
            else:
                self.answered_ns, self._asked_ns = self._clock.now_ns(), called_ns
                return result

    def _pause(self, called_ns: int) -> bool:
        """Wait before the next call; false if there is none."""
        retry_ns = max(self._clock.now_ns(), called_ns + _BARRIER_RETRY_NS)
        if retry_ns - self.answered_ns > _BARRIER_PATIENCE_NS:
            return False
        if retry_ns - self._asked_ns > 1000 * LEAD_US - _FREEZE_NS:
            self._local_share.freeze()
        return self._run.wait_until(retry_ns)
