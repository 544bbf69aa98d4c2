"""The times of a reply about a circuit, and the circuit that a worker continues with during an outage.

Pure: the current time is an argument.
"""

from __future__ import annotations

from typing import NamedTuple

from comporta.breaker.admission import worker_name
from comporta.breaker.normalization import ttl_us
from comporta.breaker.operation import CircuitSnapshot
from comporta.breaker.state import (
    CLOSED,
    FAILURES_TTL_US,
    OPEN,
    RAMP,
    Circuit,
    CircuitReply,
    CircuitRules,
    FailingWorker,
    ForcedState,
)

NEVER_NS = 2**62


class ReplyTimes(NamedTuple):
    """The times of a reply, by this machine's clock except for ``made_us``."""

    made_us: int = 0
    """When the store made the reply, by its own clock; 0 without a reply and for the worker's own circuit."""

    deadline_ns: int = 0
    """The end of the reply's ``remaining_us``."""

    ends_ns: int = NEVER_NS
    """When the reply becomes outdated without any operation."""

    opened_ns: int = -1
    """When the circuit opened; -1 if that is unknown."""


def reply_times(reply: CircuitReply, now_ns: int) -> ReplyTimes:
    """Return the times of a reply that arrived just now."""
    deadline_ns = now_ns + reply.remaining_us * 1000
    return ReplyTimes(
        0 if reply.is_fallback else reply.now_us,
        deadline_ns,
        NEVER_NS if reply.forced or not reply.remaining_us else deadline_ns,
        now_ns - reply.age_us * 1000 if reply.age_us >= 0 else -1,
    )


def outage_snapshot(
    reply: CircuitReply, times: ReplyTimes, rules: CircuitRules, now_us: int
) -> CircuitSnapshot:
    """Return the circuit as last seen, with times of this machine's clock."""
    ends_us = now_us + ttl_us(Circuit(cooldown_us=reply.cooldown_us, tripped=True), rules)
    circuit = Circuit(
        generation=reply.generation,
        failing_workers=(FailingWorker(worker_name(), now_us, reply.own_failures),),
        calls_ends_us=ends_us,
    )
    if reply.forced:
        return CircuitSnapshot(circuit, ForcedState(reply.forced, reply.reason))
    if reply.failures:
        failures_ends_us = now_us + FAILURES_TTL_US
        circuit = circuit._replace(failures=reply.failures, failures_ends_us=failures_ends_us)
    if reply.phase != CLOSED:
        circuit = circuit._replace(
            open_until_us=times.deadline_ns // 1000 if reply.phase == OPEN else 0,
            tripped=True,
            opened_us=times.opened_ns // 1000 if reply.age_us >= 0 else now_us,
            reason=reply.reason,
            ramp_start_us=now_us if reply.phase == RAMP else 0,
            cooldown_us=reply.cooldown_us,
            trip_ends_us=ends_us,
        )
    return CircuitSnapshot(circuit, ForcedState(), is_local=reply.is_fallback)
