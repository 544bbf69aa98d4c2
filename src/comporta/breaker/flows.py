"""Every method of a breaker, implemented once as a flow that threads and event loops share."""

from __future__ import annotations

from functools import partial
from typing import Any

from comporta.breaker.admission import (
    FAILURE,
    FORCE_NAMES,
    PHASES,
    SUCCESS,
    Admission,
    BreakerState,
    BreakerWindow,
    ProbeState,
    error_summary,
)
from comporta.breaker.local_view import LocalView
from comporta.breaker.operation import FORCED_SPACE, circuit_name
from comporta.breaker.state import (
    ADMIT,
    FAIL,
    FORCED_CLOSED,
    OPEN,
    READ,
    RELEASE,
    RESET,
    SUCCEED,
    WHY_BYTES_MAX,
    CircuitReply,
)
from comporta.breaker.worker_circuit import WorkerCircuit
from comporta.flow import Flow, Perform
from comporta.metrics import count
from comporta.ramp import FULL_SHARE
from comporta.runtime import RUNTIME
from comporta.stores.effects import Apply
from comporta.stores.records import DeleteRecord, WriteRecord
from comporta.threads import run_cleanup

_NO_GENERATION = -1
"""The generation of a call that passes only in shadow mode: its result is ignored."""


def passes_in_shadow(admission: Admission) -> bool:
    """Whether a call passes only because its breaker is in shadow mode."""
    return admission.generation == _NO_GENERATION


class BreakerFlows:
    """The flows of one breaker."""

    __slots__ = ("upstream", "view")

    def __init__(self, view: LocalView) -> None:
        self.view = view
        self.upstream = ""

    def admit_flow(self) -> Flow[Admission]:
        """Decide whether a call may be made; in shadow mode only an operator can refuse it."""
        admission = yield from self._decide_flow()
        if admission or admission.forced or not self.view.config.shadow:
            return admission
        count("would_refuse", 1, policy="breaker", name=self.view.name, upstream=self.upstream)
        return Admission(admission.phase, _NO_GENERATION)

    def _decide_flow(self) -> Flow[Admission]:
        """Decide from the local view if it is recent, else ask the store."""
        view = self.view
        own = view.own
        if own is not None and not own.is_closed:
            return (yield from self._admit_own_flow(own))
        admission = view.admit_now()
        if admission is None:
            admission = yield from self._ask_store_flow()
        if own is not None:
            admission.own_generation = own.generation
        return admission

    def _ask_store_flow(self) -> Flow[Admission]:
        view = self.view
        # urandom, because forked children would draw the same numbers from random
        probe = int.from_bytes(RUNTIME.random_bytes(6), "little") + 1
        reply: CircuitReply = yield self._apply(ADMIT, probe=probe)
        return view.state.admission(reply, view.now_ns())

    def _admit_own_flow(self, own: WorkerCircuit) -> Flow[Admission]:
        """Decide about a call of a worker whose own circuit counts failures, or is not closed."""
        state, self.view.poller.was_used = self.view.state, True
        refusal, probe = own.admit()
        is_forced = state.reply is not None and state.reply.forced == FORCED_CLOSED
        if refusal is not None and not is_forced:
            return refusal
        admission = None
        try:
            admission = state.admit_now()
            if admission is None:
                admission = yield from self._ask_store_flow()
        finally:
            if probe and not admission:
                run_cleanup(own.release_probe)
        if admission:
            admission.own_generation, admission.own_probe = own.generation, probe
        return admission

    def succeed_flow(self, admission: Admission | None = None) -> Flow[None]:
        """Record a success; without an admission it closes the circuit in any phase."""
        if admission is None:
            if self.view.own is not None:
                self.view.own.succeed(None)
                self.view.state.follow_own_circuit()
            if not self.view.ignores_successes:
                self.view.counters.count_success()
        elif self.view.succeed_now(admission):
            return
        yield from self.report_success_flow(admission)

    def report_success_flow(self, admission: Admission | None) -> Flow[None]:
        """Report to the store a success that ``succeed_now`` could not record."""
        yield self._apply(SUCCEED, admission)

    def fail_flow(self, admission: Admission | None = None, reason: object = None) -> Flow[None]:
        """Record a failure; ``reason`` is an error or a text."""
        view = self.view
        if view.own is not None:
            view.own.fail(admission, error_summary(reason))
            view.state.follow_own_circuit()
        if admission is not None:
            if view.state.is_outdated(admission):
                return
            view.counters.count_if_slow(admission)
        yield self._apply(FAIL, admission, reason=error_summary(reason))

    def release_flow(self, admission: Admission) -> Flow[None]:
        """Record that a call had no result; if it was a probe, another worker may make one."""
        if self.view.own is not None:
            self.view.own.release(admission)
        if admission.probe:
            yield self._apply(RELEASE, admission)

    def finish_flow(self, admission: Admission, outcome: str, error: object) -> Flow[None]:
        """Report to the store how an admitted call ended."""
        if outcome == SUCCESS:
            yield from self.report_success_flow(admission)
        elif outcome == FAILURE:
            yield from self.fail_flow(admission, error)
        else:
            yield from self.release_flow(admission)

    def read_flow(self) -> Flow[CircuitReply]:
        """Read the circuit from the store."""
        reply: CircuitReply = yield self._apply(READ)
        return reply

    def reset_flow(self) -> Flow[None]:
        """Close the circuit and delete its counts."""
        if self.view.own is not None:
            self.view.own.reset()
        yield self._apply(RESET)

    def force_flow(self, how: str | None, reason: str) -> Flow[None]:
        """Hold the circuit open or closed for all workers; ``None`` ends that."""
        yield Apply(self.view.store, force_operation(self.view.name, how, reason))
        yield from self.read_flow()

    def state_flow(self) -> Flow[BreakerState]:
        """Return the state of the circuit for a health page. Does not count as use of the breaker."""
        view = self.view
        operation, sent_ns = view.builder.build(READ), view.now_ns()
        reply: CircuitReply = yield Perform(
            partial(view.apply_once, operation, sent_ns), partial(view.apply_once_async, operation, sent_ns)
        )
        return BreakerState(
            failures=reply.failures,
            degraded=reply.phase == OPEN,
            degraded_until=view.state.open_until(),
            phase=PHASES[reply.phase],
            reason=reply.reason,
            since=view.state.since(),
            probes=tuple(ProbeState(owner, remaining_us / 1e6) for remaining_us, owner in reply.probes),
            forced=FORCE_NAMES.get(reply.forced),
            share=reply.share / FULL_SHARE,
            cooldown_seconds=reply.cooldown_us / 1e6 if reply.cooldown_us else None,
            window=None if view.ignores_successes else _window(reply),
            worker_phase=None if view.own is None else PHASES[view.own.phase()],
            fallback=view.store.fallback,
        )

    def _apply(self, command: str, admission: Admission | None = None, **arguments: Any) -> Perform:
        view = self.view
        operation = view.builder.build(command, admission, **arguments)
        return Perform(partial(view.apply, operation), partial(view.apply_async, operation))


def _window(reply: CircuitReply) -> BreakerWindow:
    since = None if reply.window_age_us < 0 else RUNTIME.unix_time() - reply.window_age_us / 1e6
    return BreakerWindow(reply.calls, reply.failed, reply.slow, since)


def force_operation(name: str, how: str | None, reason: str = "") -> WriteRecord | DeleteRecord:
    """Return the operation that holds a circuit ``"open"`` or ``"closed"``, or ends that with ``None``."""
    log_name = circuit_name(name)
    if how is None:
        return DeleteRecord(FORCED_SPACE, name, change_name=log_name)
    if how not in FORCE_NAMES.values():
        raise ValueError(f"how must be 'open', 'closed' or None, got {how!r:.50}")
    value = f"{how} {error_summary(reason)}".strip().encode("utf-8", "replace")[: WHY_BYTES_MAX + 10]
    return WriteRecord(FORCED_SPACE, name, value, None, change_name=log_name)
