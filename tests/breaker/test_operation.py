"""Requests as operations: malformed replies, cancelled callers, and the codec."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support import memory_store, shared_store

from comporta import CircuitBreaker, StateError, StatePermissionError, StateTypeError, fork_safety
from comporta.breaker import local_view, registry
from comporta.breaker.codec import CIRCUIT
from comporta.breaker.config import BreakerConfig
from comporta.breaker.operation import BreakerOperation, CircuitSnapshot
from comporta.breaker.state import (
    ADMIT,
    EMPTY_CIRCUIT,
    FAIL,
    SUCCEED,
    Circuit,
    CircuitRequest,
    FailingWorker,
    ForcedState,
    Probe,
    WindowSlice,
)
from comporta.breaker.state_machine import step
from comporta.stores.registry import close_stores
from comporta.testing import ManualClock, Server

READ_REQUEST = BreakerOperation(
    "n",
    BreakerConfig(1)._rules,
    CircuitRequest("read"),
    lambda: CircuitSnapshot(EMPTY_CIRCUIT, ForcedState()),
)
GOOD: list[Any] = [1, 0, 0, 0, 0, 0, 1000, -1, 0, 0, 0, 0, 0, -1, b"", 0, 0, b"5 a:1"]


def test_parse__complete_reply__returns_it() -> None:
    assert READ_REQUEST.parse(GOOD).probes == ((5, "a:1"),)


@pytest.mark.parametrize(
    "raw",
    [
        [],
        GOOD[1:],
        GOOD[:-1],
        [*GOOD, 1],
        [*GOOD[:-1], 7],
        [*GOOD[:14], 7, *GOOD[15:]],
        [GOOD[0], b"x", *GOOD[2:]],
    ],
)
def test_parse__wrong_shape__raises(raw: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        READ_REQUEST.parse(raw)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"WRONGTYPE Operation against a key", StateTypeError),
        (b"NOPERM this user has no permissions", StatePermissionError),
        (b"something else", StateError),
    ],
)
def test_parse__error_instead_of_a_reply__raises_naming_the_key(text: bytes, kind: type[StateError]) -> None:
    with pytest.raises(kind, match="circuit_breaker:n"):
        READ_REQUEST.parse([text, *[0] * 17])


@pytest.mark.parametrize(
    ("generation", "more"),
    [(1, {}), (2, {"open_until_us": 5_000_000}), (2, {"tripped": True})],
    ids=["older", "open", "half-open"],
)
def test_success__of_an_outdated_call__changes_nothing(generation: int, more: dict[str, Any]) -> None:
    circuit = Circuit(1, 9_000_000, trip_ends_us=9_000_000, generation=2, calls_ends_us=9_000_000, **more)
    request = CircuitRequest(SUCCEED, generation)
    after, reply = step(circuit, BreakerConfig(5)._rules, request, 1_000_000, ForcedState())
    assert (after.failures, after.open_until_us, after.tripped) == (1, circuit.open_until_us, circuit.tripped)
    assert reply.change == 0


def test_failure__of_an_outdated_call__changes_nothing() -> None:
    circuit = Circuit(1, 9_000_000, generation=2, calls_ends_us=9_000_000)
    after, reply = step(circuit, BreakerConfig(5)._rules, CircuitRequest(FAIL, 1), 1_000_000, ForcedState())
    assert (after.failures, reply.change) == (1, 0)


def test_undo__caller_was_cancelled__releases_its_probe() -> None:
    clock = ManualClock()
    with memory_store(clock) as store:
        breaker = CircuitBreaker("n", 1, 10, state=store)
        breaker.sync.record_failure()
        assert READ_REQUEST.undo(store.apply(READ_REQUEST)) is None
        clock.advance(10)
        admit = breaker._view.builder._operation(CircuitRequest(ADMIT, probe=7, owner="a:1"))
        reply = store.apply(admit)
        assert reply.probe == 7
        undo = admit.undo(reply)
        assert undo is not None
        assert store.apply(undo).probes == ()


def test_codec__largest_circuit__fits_and_round_trips() -> None:
    owner = "h" * 42 + ":99999"
    circuit = Circuit(
        *(10**9, 10**15, 10**15 + 1, True, 10**15 + 2, "ç" * 100, 15, 10**15 + 3),
        tuple(Probe(2**48, 10**15 + n, owner) for n in range(16)),
        *(10**12, 10**15 + 4, 10**15 + 5, 10**15 + 6, 10**15 + 7),
        tuple(WindowSlice(10**15 + n, 10**9, 10**9, 10**9) for n in range(10)),
        tuple(FailingWorker(owner, 10**15 + n, 10**9) for n in range(16)),
        10**15 + 8,
    )
    packed = CIRCUIT.codec.pack(*circuit)
    assert len(packed) <= CIRCUIT.codec.size
    assert CIRCUIT.codec.unpack_from(bytes(7) + packed + bytes(7), 7) == circuit


def test_state__not_given__comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://left-out")
    assert CircuitBreaker("n")._view is CircuitBreaker("n", state="memory://left-out")._view


def test_shared_admission__view_too_old__is_none() -> None:
    clock = ManualClock()
    with shared_store(clock) as store:
        breaker = CircuitBreaker("n", 1, state=store)
        for _ in range(2):
            with breaker.sync.admit() as admission:
                assert admission.allowed
        clock.advance(1)
        assert breaker._guard.shared_admission() is None


def test_fork__locks_held_by_other_threads__are_free_in_the_child() -> None:
    breaker = CircuitBreaker("n", 1, state="memory://")
    locks = (breaker._view.state.lock, local_view._views_lock, registry._lock)
    for lock in locks:
        lock.acquire()
    breaker._view.after_fork()
    fork_safety._reset_child()
    assert not any(lock.locked() for lock in locks)


def test_aclose__any_store__can_be_used_again(valkey: Server) -> None:
    async def main(url: str) -> None:
        breaker = CircuitBreaker("closed-and-used", 1, state=url)
        for _ in range(2):
            await breaker.record_failure()
            await breaker.aclose()

    for url in ("memory://", f"{valkey.url}?timeout=5"):
        asyncio.run(main(url))
    close_stores()
