"""A worker's own circuit: it opens after consecutive failures of this worker, whatever others experience.

It detects the one broken worker among many whose failures the successes of the others would hide. It uses the
same state machine as shared circuits, and reads no store. Failures also count in the shared circuit.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from comporta import events, fork_safety
from comporta.breaker.admission import PHASES, Admission
from comporta.breaker.state import (
    ADMIT,
    CHANGE_CLOSED,
    CHANGE_OPENED,
    CLOSED,
    EMPTY_CIRCUIT,
    FAIL,
    NO_ADMISSION,
    OPEN,
    READ,
    RELEASE,
    RESET,
    SUCCEED,
    CircuitReply,
    CircuitRequest,
    CircuitRules,
    ForcedState,
)
from comporta.breaker.state_machine import step
from comporta.clock import SECOND_US

_PROBE = 1
"""The number of the only probe; its generation says which one it is."""


class WorkerCircuit:
    """The own circuit of this worker for one breaker.

    ``is_closed`` is true while no failure is counted, so that calls need not ask. Admissions carry
    ``generation``.
    """

    __slots__ = ("_circuit", "_lock", "_name", "_now_ns", "_rules", "generation", "is_closed")

    def __init__(self, name: str, rules: CircuitRules, threshold: int, now_ns: Callable[[], int]) -> None:
        self.is_closed = True
        self.generation = 0
        self._name = name
        self._now_ns = now_ns
        self._rules = rules._replace(
            threshold=threshold,
            failure_ppm=0,
            slow_ppm=0,
            quorum=1,
            probes=1,
            probes_at_once=1,
            ramp_steps=0,
        )
        self._circuit = EMPTY_CIRCUIT
        self._lock = Lock()

    def phase(self) -> int:
        """Return the current phase."""
        return self._step(CircuitRequest(READ)).phase

    def refusal(self) -> Admission | None:
        """Return the refusal of a call, or ``None`` if the call may ask for an admission."""
        reply = self._step(CircuitRequest(READ))
        return _refusal(reply) if reply.phase == OPEN or reply.remaining_us else None

    def admit(self) -> tuple[Admission | None, int]:
        """Return the refusal if the call is refused, and the number of the probe that it gets, or 0."""
        reply = self._step(CircuitRequest(ADMIT, probe=_PROBE))
        return (None if reply.probe or reply.phase == CLOSED else _refusal(reply)), reply.probe

    def fail(self, admission: Admission | None, reason: str) -> None:
        """Count a failure of this worker."""
        reply = self._finish(FAIL, admission, reason)
        if reply.change == CHANGE_OPENED:
            text = f"open in this worker for {reply.remaining_us / SECOND_US:.1f} s: {reason}"
            events.publish("breaker_worker_opened", self._name, text.rstrip(": "), "warning")

    def succeed(self, admission: Admission | None) -> None:
        """Count a success of this worker, which ends a run of failures."""
        if self._finish(SUCCEED, admission).change == CHANGE_CLOSED:
            events.publish("breaker_worker_closed", self._name, "closed again in this worker", "info")

    def release(self, admission: Admission) -> None:
        """Release the probe of a call without a result."""
        if admission.own_probe:
            self._finish(RELEASE, admission)

    def release_probe(self) -> None:
        """Release the probe that ``admit`` returned, because the shared circuit refused the call."""
        self._step(CircuitRequest(RELEASE, probe=_PROBE))

    def reset(self) -> None:
        """Close the circuit and delete its counts."""
        self._step(CircuitRequest(RESET))

    def after_fork(self) -> None:
        """Start with no failures in a forked child."""
        fork_safety.reinit_lock(self._lock)
        self.reset()

    def _finish(self, command: str, admission: Admission | None, reason: str = "") -> CircuitReply:
        if admission is None:
            return self._step(CircuitRequest(command, NO_ADMISSION, reason=reason))
        return self._step(
            CircuitRequest(command, admission.own_generation, admission.own_probe, reason=reason)
        )

    def _step(self, request: CircuitRequest) -> CircuitReply:
        with self._lock:
            now_us = self._now_ns() // 1000
            self._circuit, reply = step(self._circuit, self._rules, request, now_us, ForcedState())
            self.generation = self._circuit.generation
            self.is_closed = reply.phase == CLOSED and not reply.failures
            return reply


def _refusal(reply: CircuitReply) -> Admission:
    return Admission(
        PHASES[reply.phase],
        0,
        allowed=False,
        retry_after=reply.remaining_us / 1e6,
        reason=f"only in this worker: {reply.reason}".rstrip(": "),
    )
