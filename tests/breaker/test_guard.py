"""What the call of a decorated function leaves in the local view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.breaker.drivers import Driver

from comporta import CircuitBreaker
from comporta.breaker.poller import IDLE_AFTER_NS
from comporta.testing import ManualClock

Pair = Callable[..., tuple[Driver, Driver]]

_STEP_SECONDS = 0.2
_STEPS = 2 * round(IDLE_AFTER_NS / 1e9 / _STEP_SECONDS)


def test_decorated__steady_calls_on_a_shared_store__the_heartbeat_keeps_polling(
    pair: Pair, clock: ManualClock
) -> None:
    driver, _ = pair(staleness=0.25)
    view = driver.breaker._view
    driver.guarded(bool)
    for _ in range(_STEPS):
        clock.advance(_STEP_SECONDS)
        driver.guarded(bool)
        operation = view.poller.heartbeat_operation()
        assert operation is not None
        view.poller.on_heartbeat_reply(view.store.apply(operation))


def test_decorated__success_on_a_shared_store__the_next_failure_restarts_the_streak(
    pair: Pair, clock: ManualClock
) -> None:
    one, other = pair(threshold=3)
    one.guarded(bool)
    other.fails(2)
    clock.advance(0.1)
    one.guarded(bool)  # the view is older than the failures, so nothing is reported
    clock.advance(0.1)
    one.fails()
    assert one.get_state().failures == 1
    assert one.get_state().phase == "closed"


def test_decorated__plain_function_returns_a_coroutine__says_so_and_counts_for_nothing() -> None:
    async def page() -> str:
        return "a page"

    def fetch() -> Any:
        return page()

    breaker = CircuitBreaker("later", 1, state="memory://")
    with pytest.raises(TypeError, match="a blocking call cannot await what"):
        breaker(fetch)()
    assert breaker.phase == "closed"
