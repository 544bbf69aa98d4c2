"""Calls of decorated functions that an open circuit refuses, answered by ``on_refusal``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from comporta import CircuitBreaker, CircuitOpenError
from comporta.metrics import InMemoryMetrics
from comporta.stores.memory import MemoryStore


def open_breaker(**options: Any) -> CircuitBreaker:
    breaker = CircuitBreaker("pncp", state=MemoryStore(), **options)
    breaker.sync.force("open", "maintenance")
    return breaker


def call_both(breaker: CircuitBreaker) -> list[Any]:
    """Call a decorated function and a decorated coroutine function."""

    @breaker
    def fetch() -> str:
        return "made"

    @breaker
    async def fetch_async() -> str:
        return "made"

    return [fetch(), asyncio.run(fetch_async())]


def test_on_refusal__value__is_returned_and_the_refusal_counted(metrics: InMemoryMetrics) -> None:
    breaker = open_breaker(on_refusal=None)
    assert call_both(breaker) == [None, None]
    assert metrics.value("breaker_calls", outcome="refused") == 2
    breaker.sync.force(None)
    assert call_both(breaker) == ["made", "made"]


def test_on_refusal__function__gets_the_refusal() -> None:
    def reason(error: CircuitOpenError) -> str:
        return f"{error.name}: {error.reason}"

    assert call_both(open_breaker(on_refusal=reason)) == ["pncp: maintenance"] * 2


def test_on_refusal__coroutine_function__answers_coroutine_functions_only() -> None:
    async def answer(error: CircuitOpenError) -> str:
        return "awaited"

    breaker = open_breaker(on_refusal=answer)

    @breaker
    async def fetch_async() -> str:
        return "made"

    assert asyncio.run(fetch_async()) == "awaited"
    with pytest.raises(
        TypeError, match="on_refusal must be a plain function, got a coroutine function"
    ) as raised:
        breaker(lambda: "made")()
    assert isinstance(raised.value.__cause__, CircuitOpenError)


def test_on_refusal__block__raises_because_it_has_no_result() -> None:
    breaker = open_breaker(on_refusal="cached")
    with pytest.raises(CircuitOpenError), breaker.sync.admit():
        raise AssertionError("an open circuit does not run the block")


def test_on_refusal__not_given__raises() -> None:
    breaker = open_breaker()
    with pytest.raises(CircuitOpenError):
        breaker(lambda: "made")()

    @breaker
    async def fetch_async() -> str:
        return "made"

    with pytest.raises(CircuitOpenError):
        asyncio.run(fetch_async())
