"""A circuit as bytes, for states that processes of one machine share. Fixed places, bounded length."""

from __future__ import annotations

from struct import Struct
from typing import Any

from comporta.breaker.state import FAILING_MAX, SLICES, WHY_BYTES_MAX, Circuit, Failing, Probe, Slice
from comporta.stores.base import State

OWNER_BYTES_MAX = 48
PROBES_MAX = 16

_HEAD = Struct("<11q?BBBH")
_PROBE = Struct("<qqB")
_SLICE = Struct("<qqqq")
_FAILING = Struct("<qB")


class _CircuitCodec:
    """Numbers, how many there are of what follows, then each with its text."""

    size = (
        _HEAD.size
        + WHY_BYTES_MAX
        + PROBES_MAX * (_PROBE.size + OWNER_BYTES_MAX)
        + SLICES * _SLICE.size
        + FAILING_MAX * (_FAILING.size + OWNER_BYTES_MAX)
    )

    @staticmethod
    def pack_into(buffer: Any, offset: int, /, *state: Any) -> None:
        """Write it."""
        c = Circuit._make(state)
        why = c.why.encode("utf-8", "replace")[:WHY_BYTES_MAX]
        numbers = (
            *(c.failures, c.failures_ends_us, c.open_until_us, c.opened_us, c.successes, c.ramp_us),
            *(c.trip_ends_us, c.generation, c.last_us, c.run_us, c.calls_ends_us),
        )
        counts = (c.tripped, len(c.probes), len(c.slices), len(c.failing), len(why))
        parts = [_HEAD.pack(*numbers, *counts), why]
        for number, deadline_us, owner in c.probes:
            parts.append(_PROBE.pack(number, deadline_us, len(owner)) + owner.encode("ascii"))
        parts += [_SLICE.pack(*part) for part in c.slices]
        for owner, last_us in c.failing:
            parts.append(_FAILING.pack(last_us, len(owner)) + owner.encode("ascii"))
        packed = b"".join(parts)
        buffer[offset : offset + len(packed)] = packed

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        """Read it."""
        *numbers, tripped, probes, slices, failing, length = _HEAD.unpack_from(buffer, offset)
        at = offset + _HEAD.size

        def text(size: int) -> str:
            nonlocal at
            at += size
            return bytes(buffer[at - size : at]).decode("utf-8", "replace")

        def row(layout: Struct) -> tuple[Any, ...]:
            nonlocal at
            at += layout.size
            return layout.unpack_from(buffer, at - layout.size)

        why = text(length)
        tries = []
        for _ in range(probes):
            number, deadline_us, size = row(_PROBE)
            tries.append(Probe(number, deadline_us, text(size)))
        parts = [Slice._make(row(_SLICE)) for _ in range(slices)]
        troubled = []
        for _ in range(failing):
            last_us, size = row(_FAILING)
            troubled.append(Failing(text(size), last_us))
        failures, failures_ends_us, open_until_us, opened_us, successes, ramp_us, *rest = numbers
        trip_ends_us, generation, last_us, run_us, calls_ends_us = rest
        return Circuit(
            failures=failures,
            failures_ends_us=failures_ends_us,
            open_until_us=open_until_us,
            tripped=tripped,
            opened_us=opened_us,
            why=why,
            successes=successes,
            ramp_us=ramp_us,
            probes=tuple(tries),
            trip_ends_us=trip_ends_us,
            generation=generation,
            last_us=last_us,
            run_us=run_us,
            slices=tuple(parts),
            failing=tuple(troubled),
            calls_ends_us=calls_ends_us,
        )


class _CircuitKind:
    """What a store must know of a circuit to keep it."""

    codec = _CircuitCodec()

    @staticmethod
    def expires_us(state: State) -> int:
        return Circuit._make(state).ends_us


CIRCUIT = _CircuitKind()
