"""Steps as operations: what comes back that makes no sense, and who is gone before the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support import memory_store, shared_store

from comporta import CircuitBreaker, StateError, StateForbiddenError, StateTypeError, forks
from comporta.breaker import registry, view
from comporta.breaker.codec import CIRCUIT
from comporta.breaker.config import BreakerConfig
from comporta.breaker.machine import step
from comporta.breaker.operation import Known, Step
from comporta.breaker.state import (
    ADMIT,
    EMPTY,
    SUCCEED,
    Asked,
    Circuit,
    Failing,
    Forced,
    Probe,
    Slice,
)
from comporta.stores.urls import forget_stores
from comporta.testing import ManualClock, Server

LOOK = Step("n", BreakerConfig(1).rules, Asked("look"), lambda: Known(EMPTY, Forced()))
GOOD: list[Any] = [1, 0, 0, 0, 0, 0, 1000, -1, b"", 0, 0, b"5 a:1"]


def test_parse__whole_reply__is_read() -> None:
    assert LOOK.parse(GOOD).probes == ((5, "a:1"),)


@pytest.mark.parametrize(
    "raw",
    [
        [],
        GOOD[1:],
        GOOD[:-1],
        [*GOOD, 1],
        [*GOOD[:-1], 7],
        [*GOOD[:8], 7, *GOOD[9:]],
        [GOOD[0], b"x", *GOOD[2:]],
    ],
)
def test_parse__wrong_shape__is_no_answer(raw: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        LOOK.parse(raw)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"WRONGTYPE Operation against a key", StateTypeError),
        (b"NOPERM this user has no permissions", StateForbiddenError),
        (b"something else", StateError),
    ],
)
def test_parse__error_in_place_of_an_answer__is_named(text: bytes, kind: type[StateError]) -> None:
    with pytest.raises(kind, match="circuit_breaker:n"):
        LOOK.parse([text, *[0] * 11])


@pytest.mark.parametrize(
    ("generation", "more"),
    [(1, {}), (2, {"open_until_us": 5_000_000}), (2, {"tripped": True})],
    ids=["older", "open", "half-open"],
)
def test_success__of_a_call_that_says_nothing_of_the_circuit_now__changes_nothing(
    generation: int, more: dict[str, Any]
) -> None:
    circuit = Circuit(1, 9_000_000, trip_ends_us=9_000_000, generation=2, calls_ends_us=9_000_000, **more)
    asked = Asked(SUCCEED, generation)
    after, reply = step(circuit, BreakerConfig(5).rules, asked, 1_000_000, Forced())
    assert (after.failures, after.open_until_us, after.tripped) == (1, circuit.open_until_us, circuit.tripped)
    assert reply.change == 0


def test_undo__caller_is_gone__gives_back_the_probe_it_was_granted() -> None:
    clock = ManualClock()
    with memory_store(clock) as store:
        breaker = CircuitBreaker("n", 1, 10, state=store)
        breaker.sync.record_failure()
        assert LOOK.undo(store.apply(LOOK)) is None
        clock.advance(10)
        admit = breaker.view.asking(Asked(ADMIT, probe=7, owner="a:1"))
        reply = store.apply(admit)
        assert reply.probe == 7
        undo = admit.undo(reply)
        assert undo is not None
        assert store.apply(undo).probes == ()


def test_codec__fullest_circuit__fits_and_is_read_back() -> None:
    owner = "h" * 42 + ":99999"
    circuit = Circuit(
        *(10**9, 10**15, 10**15 + 1, True, 10**15 + 2, "ç" * 100, 15, 10**15 + 3),
        tuple(Probe(2**48, 10**15 + n, owner) for n in range(16)),
        *(10**15 + 4, 10**15 + 5, 10**15 + 6, 10**15 + 7),
        tuple(Slice(10**15 + n, 10**9, 10**9, 10**9) for n in range(10)),
        tuple(Failing(owner, 10**15 + n) for n in range(16)),
        10**15 + 8,
    )
    buffer = bytearray(CIRCUIT.codec.size + 7)
    CIRCUIT.codec.pack_into(buffer, 7, *circuit)
    assert CIRCUIT.codec.unpack_from(buffer, 7) == circuit


def test_state__left_out__is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://left-out")
    assert CircuitBreaker("n").view is CircuitBreaker("n", state="memory://left-out").view


def test_standing__view_too_old__asks_before_a_with_block() -> None:
    clock = ManualClock()
    with shared_store(clock) as store:
        breaker = CircuitBreaker("n", 1, state=store)
        for _ in range(2):
            with breaker.sync as admission:
                assert admission.allowed
        clock.advance(1)
        assert breaker.standing_now() is None


def test_fork__while_others_held_the_locks__leaves_them_free_in_the_child() -> None:
    breaker = CircuitBreaker("n", 1, state="memory://")
    locks = (breaker.view._lock, view._views_lock, registry._lock)
    for lock in locks:
        lock.acquire()
    breaker.view.after_fork()
    forks._tell_all()
    assert not any(lock.locked() for lock in locks)


def test_aclose__any_store__can_be_used_again(valkey: Server) -> None:
    async def main(url: str) -> None:
        breaker = CircuitBreaker("closed-and-used", 1, state=url)
        for _ in range(2):
            await breaker.record_failure()
            await breaker.aclose()

    for url in ("memory://", f"{valkey.url}?timeout=5"):
        asyncio.run(main(url))
    forget_stores()
