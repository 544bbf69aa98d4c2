"""The last reply about a circuit, and how long this process may decide from it.

Reads a clock but no store: ``local_view`` and ``poller`` call the store.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from comporta.breaker.admission import PHASES, Admission
from comporta.breaker.operation import CircuitSnapshot
from comporta.breaker.reply_times import ReplyTimes, outage_snapshot, reply_times
from comporta.breaker.state import (
    CLOSED,
    EMPTY_CIRCUIT,
    HALF_OPEN,
    OPEN,
    RAMP,
    CircuitReply,
    CircuitRules,
    ForcedState,
)
from comporta.breaker.store_clock import StoreClock
from comporta.breaker.transitions import BreakerEvent, events_between
from comporta.breaker.worker_circuit import WorkerCircuit
from comporta.clock import SECOND_US
from comporta.jitter import fraction
from comporta.ramp import FULL_SHARE
from comporta.runtime import RUNTIME


class CachedState:
    """The cached state of one circuit.

    For the hot path: ``shared_admission`` is the admission of every call while the circuit is closed and no
    failure is counted; ``None`` otherwise. It is valid until ``valid_until_ns``. ``shares_admission`` is
    false if calls are timed, because a shared admission has no start time. ``own`` is the worker's own
    circuit.
    """

    __slots__ = (
        *("_changed_us", "_now_ns", "_rules", "_shares_admission", "_staleness_ns", "_times"),
        *("lock", "own", "reply", "shared_admission", "store_clock", "valid_until_ns"),
    )

    def __init__(
        self,
        rules: CircuitRules,
        now_ns: Callable[[], int],
        staleness_ns: int,
        store_clock: StoreClock,
        *,
        own: WorkerCircuit | None,
        shares_admission: bool,
    ) -> None:
        self.own = own
        self.store_clock = store_clock
        self.shared_admission: Admission | None = None
        self.valid_until_ns = 0
        self.reply: CircuitReply | None = None
        self.lock = Lock()
        self._rules = rules
        self._now_ns = now_ns
        self._staleness_ns = staleness_ns
        self._shares_admission = shares_admission
        self._changed_us = 0
        self._times = ReplyTimes()

    def update(self, reply: CircuitReply, sent_ns: int) -> list[BreakerEvent]:
        """Store the reply to an operation sent at ``sent_ns``; return the events to publish."""
        with self.lock:
            return self.update_locked(reply, sent_ns)

    def update_locked(self, reply: CircuitReply, sent_ns: int) -> list[BreakerEvent]:
        """Do what ``update`` does, for a caller that holds the lock.

        A reply that is up to 1 s older than the stored one arrived out of order and is dropped. A larger
        difference means that the server's clock was set back.
        """
        behind_us = self._times.made_us - reply.now_us
        if not reply.is_fallback and 0 < behind_us < SECOND_US:
            return []
        previous, self.reply = self.reply, reply._replace(probe=0)  # the probe belongs to one caller
        now_ns = self._now_ns()
        if not reply.is_fallback:
            self.store_clock.record(reply.now_us, sent_ns // 1000, -(-now_ns // 1000))
        self._times = times = reply_times(reply, now_ns)
        self.valid_until_ns = 0 if reply.is_fallback else min(times.ends_ns, sent_ns + self._staleness_ns)
        self.shared_admission = self._admission_to_share(reply)
        return events_between(previous, reply)

    def mark_changed(self, version_us: int) -> None:
        """Record that the circuit changed at ``version_us`` (store time): earlier replies are outdated."""
        with self.lock:
            self._changed_us = version_us

    def confirm(self, asked_ns: int) -> bool:
        """Extend the validity of the reply: at ``asked_ns`` no change was known after the one marked last.

        Returns false if the reply predates a change, or is from this worker's own circuit.
        """
        with self.lock:
            times = self._times
            if not times.made_us or times.made_us < self._changed_us:
                return False
            self.valid_until_ns = max(self.valid_until_ns, min(times.ends_ns, asked_ns + self._staleness_ns))
            return True

    def _admission_to_share(self, reply: CircuitReply) -> Admission | None:
        if reply.phase != CLOSED or reply.failures or reply.is_fallback or not self._shares_admission:
            return None
        own = self.own
        if own is not None and not own.is_closed:
            return None
        own_generation = 0 if own is None else own.generation
        current = self.shared_admission
        if (
            current is not None
            and current.generation == reply.generation
            and current.own_generation == own_generation
        ):
            return current
        admission = Admission(PHASES[CLOSED], reply.generation)
        admission.own_generation = own_generation
        return admission

    def follow_own_circuit(self) -> None:
        """Start or stop sharing an admission after the worker's own circuit has changed."""
        with self.lock:
            reply = self.reply
            self.shared_admission = None if reply is None else self._admission_to_share(reply)

    def valid_reply(self) -> CircuitReply | None:
        """Return the reply if it is recent enough to decide from."""
        reply = self.reply
        return reply if reply is not None and self._now_ns() < self.valid_until_ns else None

    def admit_now(self) -> Admission | None:
        """Decide about a call from the cached state; ``None`` if the store must decide."""
        reply, now_ns = self.reply, self._now_ns()
        if reply is None or now_ns >= self.valid_until_ns:
            return None
        if reply.phase == HALF_OPEN and not reply.remaining_us:
            return None
        return self.admission(reply, now_ns)

    def admission(self, reply: CircuitReply, now_ns: int) -> Admission:
        """Return the admission or refusal of a call that starts at ``now_ns``."""
        if reply.probe:
            return Admission(PHASES[HALF_OPEN], reply.generation, reply.probe, now_ns)
        if reply.phase == CLOSED or (reply.phase == RAMP and fraction() * FULL_SHARE < reply.share):
            return Admission(PHASES[reply.phase], reply.generation, 0, now_ns)
        return Admission(
            PHASES[reply.phase],
            reply.generation,
            allowed=False,
            retry_after=max(
                0, reply.remaining_us * 1000 if reply.forced else self._times.deadline_ns - now_ns
            )
            / 1e9,
            reason=reply.reason,
            since=self.since(),
            forced=bool(reply.forced),
        )

    def is_outdated(self, admission: Admission) -> bool:
        """Whether the circuit has opened or closed since the admission, so that its result is ignored."""
        reply = self.reply
        return reply is not None and reply.generation not in (0, admission.generation)

    def holds_probe(self, admission: Admission) -> bool:
        """Whether the admission is a probe before its deadline; later another worker may get the probe."""
        if not (admission.probe or admission.own_probe):
            return False
        return admission.started_ns + self._rules.probe_us * 1000 > self._now_ns()

    def has_failures(self) -> bool:
        """Whether there are counted failures that a success would reset."""
        reply = self.reply
        return reply is not None and bool(reply.failures) and reply.phase in (CLOSED, RAMP)

    def is_open(self) -> bool:
        """Whether the circuit was open and not forced when last seen, and its cooldown has not ended."""
        reply = self.reply
        if reply is None or reply.phase != OPEN or reply.forced:
            return False
        return self._now_ns() < self._times.deadline_ns

    def since(self) -> float | None:
        """Return when the circuit opened, in Unix seconds, if that is known."""
        opened_ns = self._times.opened_ns
        if opened_ns < 0:
            return None
        return RUNTIME.unix_time() - (self._now_ns() - opened_ns) / 1e9

    def open_until(self) -> float | None:
        """Return when the cooldown ends, in Unix seconds; ``None`` if the circuit is not open, or forced."""
        if not self.is_open():
            return None
        return RUNTIME.unix_time() + (self._times.deadline_ns - self._now_ns()) / 1e9

    def snapshot(self) -> CircuitSnapshot:
        """Return the circuit as last seen, with times of this machine's clock, for use during an outage."""
        reply, now_us = self.reply, self._now_ns() // 1000
        if reply is None:
            return CircuitSnapshot(EMPTY_CIRCUIT, ForcedState())
        return outage_snapshot(reply, self._times, self._rules, now_us)
