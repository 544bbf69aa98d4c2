"""A circuit as bytes, for stores that keep states in shared memory. The size is bounded.

Knows the fields of a circuit, but not what they mean.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from comporta.breaker.state import (
    FAILING_WORKERS_MAX,
    SLICES,
    WHY_BYTES_MAX,
    Circuit,
    FailingWorker,
    Probe,
    WindowSlice,
)
from comporta.stores.base import State, StateType

OWNER_BYTES_MAX = 48
PROBES_MAX = 16

_HEAD = Struct("<12q?BBBH")
_PROBE = Struct("<qqB")
_SLICE = Struct("<qqqq")
_FAILING = Struct("<qqB")


class _CircuitCodec:
    """Layout: the numbers, the length of each list, then the lists with their texts."""

    size = (
        _HEAD.size
        + WHY_BYTES_MAX
        + PROBES_MAX * (_PROBE.size + OWNER_BYTES_MAX)
        + SLICES * _SLICE.size
        + FAILING_WORKERS_MAX * (_FAILING.size + OWNER_BYTES_MAX)
    )

    @staticmethod
    def pack(*state: Any) -> bytes:
        """Return a circuit as bytes."""
        c = Circuit._make(state)
        reason = c.reason.encode("utf-8", "replace")[:WHY_BYTES_MAX]
        numbers = (
            *(c.failures, c.failures_ends_us, c.open_until_us, c.opened_us, c.successes, c.ramp_start_us),
            *(c.cooldown_us, c.trip_ends_us, c.generation, c.last_failure_us, c.streak_start_us),
            c.calls_ends_us,
        )
        counts = (c.tripped, len(c.probes), len(c.slices), len(c.failing_workers), len(reason))
        parts = [_HEAD.pack(*numbers, *counts), reason]
        for number, deadline_us, owner in c.probes:
            parts.append(_PROBE.pack(number, deadline_us, len(owner)) + owner.encode("ascii"))
        parts += [_SLICE.pack(*part) for part in c.slices]
        for owner, last_failure_us, failures in c.failing_workers:
            parts.append(_FAILING.pack(last_failure_us, failures, len(owner)) + owner.encode("ascii"))
        return b"".join(parts)

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        """Read a circuit from ``buffer`` at ``offset``."""
        *numbers, tripped, probes, slices, failing_workers, length = _HEAD.unpack_from(buffer, offset)
        at = offset + _HEAD.size

        def text(size: int) -> str:
            nonlocal at
            at += size
            return bytes(buffer[at - size : at]).decode("utf-8", "replace")

        def row(layout: Struct) -> tuple[Any, ...]:
            nonlocal at
            at += layout.size
            return layout.unpack_from(buffer, at - layout.size)

        reason = text(length)
        running = []
        for _ in range(probes):
            number, deadline_us, size = row(_PROBE)
            running.append(Probe(number, deadline_us, text(size)))
        parts = [WindowSlice._make(row(_SLICE)) for _ in range(slices)]
        workers = []
        for _ in range(failing_workers):
            last_failure_us, failed, size = row(_FAILING)
            workers.append(FailingWorker(text(size), last_failure_us, failed))
        failures, failures_ends_us, open_until_us, opened_us, successes, ramp_start_us, *rest = numbers
        cooldown_us, trip_ends_us, generation, last_failure_us, streak_start_us, calls_ends_us = rest
        return Circuit(
            failures=failures,
            failures_ends_us=failures_ends_us,
            open_until_us=open_until_us,
            tripped=tripped,
            opened_us=opened_us,
            reason=reason,
            successes=successes,
            ramp_start_us=ramp_start_us,
            probes=tuple(running),
            cooldown_us=cooldown_us,
            trip_ends_us=trip_ends_us,
            generation=generation,
            last_failure_us=last_failure_us,
            streak_start_us=streak_start_us,
            slices=tuple(parts),
            failing_workers=tuple(workers),
            calls_ends_us=calls_ends_us,
        )


class _CircuitStateType(StateType):
    """The state type of a circuit."""

    name = "circuit"
    codec = _CircuitCodec()

    @staticmethod
    def expires_us(state: State) -> int:
        return Circuit._make(state).ends_us


CIRCUIT = _CircuitStateType()
