"""What 50 workers on one server learn in time: an opened circuit, an operator's override, a forced circuit.

Each worker is a store with a heartbeat and connections of its own, in one process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.support import WAIT_SECONDS_MAX, Late, command, wait_until

from comporta import BaseLimiter, CircuitBreaker
from comporta.stores.failover.store import FailoverStore
from comporta.stores.redis.store import RedisStore
from comporta.testing import Server

WORKERS = 50
STALENESS_SECONDS = 0.25
OVERRIDE_SECONDS = 1.0


@pytest.fixture
def fleet(valkey: Server) -> Iterator[list[FailoverStore]]:
    command(valkey, "FLUSHALL")
    with ExitStack() as stack:
        stores = []
        for number in range(WORKERS):
            engine = RedisStore(valkey.url, timeout=5.0, connect_timeout=WAIT_SECONDS_MAX)
            stores.append(FailoverStore.wrap(engine, f"fifty-{number}"))
            stack.callback(stores[-1].close)
            stores[-1].start_heartbeat()
        wait_until(lambda: all(store.worker_count >= WORKERS for store in stores))
        yield stores


def admits(breaker: CircuitBreaker) -> bool:
    return breaker.sync.allow().allowed


def use_all(breakers: list[CircuitBreaker]) -> None:
    """Use every breaker, so that it has a view that is kept fresh."""
    for breaker in breakers:
        assert admits(breaker)


def test_circuit__opened_by_one_of_fifty__refuses_in_all_within_the_staleness(
    fleet: list[FailoverStore],
) -> None:
    breakers = [
        CircuitBreaker("pncp", threshold=1, staleness=STALENESS_SECONDS, state=store) for store in fleet
    ]
    use_all(breakers)
    wait_until(lambda: all(breaker._view.state.valid_reply() for breaker in breakers))
    breakers[0].sync.record_failure()
    opened = time.monotonic()
    time.sleep(STALENESS_SECONDS)  # sleeps: the promised time has to pass
    assert [admits(breaker) for breaker in breakers] == [False] * WORKERS
    assert time.monotonic() > opened


def test_circuit__in_use_and_unchanged__is_decided_without_asking_the_server(
    fleet: list[FailoverStore], valkey: Server
) -> None:
    breakers = [CircuitBreaker("pncp", threshold=1, state=store) for store in fleet]
    use_all(breakers)
    wait_until(lambda: all(breaker._view.state.valid_reply() for breaker in breakers))
    reads = [breaker._view.state._times.made_us for breaker in breakers]
    until = time.monotonic() + 4 * STALENESS_SECONDS
    while time.monotonic() < until:
        use_all(breakers)
        time.sleep(0.02)  # sleeps: calls come one after the other
    again = sum(
        breaker._view.state._times.made_us != read for breaker, read in zip(breakers, reads, strict=True)
    )
    if again > WORKERS // 2:
        raise Late(f"{again} of {WORKERS} circuits were read again though none changed")


@pytest.mark.parametrize("what", ["override", "pause"])
def test_limit__changed_by_one_of_fifty__is_known_to_all_within_a_second(
    fleet: list[FailoverStore], what: str
) -> None:
    limiters = [BaseLimiter("100/s", store, "pncp") for store in fleet]
    for limiter in limiters:
        assert limiter.sync.acquire()
    if what == "override":
        limiters[0].sync.set_limit("7/s")
    else:
        limiters[0].sync.pause(30)
    changed = time.monotonic()

    def knows(limiter: BaseLimiter) -> bool:
        if what == "pause":
            return limiter._flows.overrides.pause_left_us() > 0
        return limiter._flows.current_strategy().params.capacity == 7

    wait_until(lambda: all(map(knows, limiters)))
    took = time.monotonic() - changed
    if took > OVERRIDE_SECONDS:
        raise Late(f"it took {took:.2f} s until all knew, at most {OVERRIDE_SECONDS:g} s are promised")
    if what == "pause":
        assert not any(limiter.sync.acquire() for limiter in limiters)


def test_circuit__forced_by_an_operator__is_forced_in_all_within_a_second(fleet: list[FailoverStore]) -> None:
    breakers = [CircuitBreaker("pncp", state=store) for store in fleet]
    use_all(breakers)
    breakers[0].sync.force("open", "moving")
    time.sleep(STALENESS_SECONDS)  # sleeps: the promised time has to pass
    assert [admits(breaker) for breaker in breakers] == [False] * WORKERS
