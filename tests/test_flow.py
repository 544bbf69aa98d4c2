"""Flows run the same way on a thread and on an event loop."""

from __future__ import annotations

import asyncio

import pytest

from comporta.flow import Flow, Perform, run, run_async


async def add_async(first: int, second: int) -> int:
    await asyncio.sleep(0)
    return first + second


def add(first: int, second: int) -> int:
    return first + second


def sum_flow(*numbers: int) -> Flow[int]:
    """Add numbers, one effect for each."""
    total = 0
    for number in numbers:
        total = yield Perform(
            lambda total=total, number=number: add(total, number),  # type: ignore[misc]
            lambda total=total, number=number: add_async(total, number),  # type: ignore[misc]
        )
    return total


def divide_flow(errors: list[str]) -> Flow[float]:
    """Note an error of an effect, and continue with another."""
    try:
        yield Perform(lambda: 1 / 0, failing_async)
    except ZeroDivisionError as error:
        errors.append(str(error))
    result: float = yield Perform(lambda: 1 / 2, half_async)
    return result


async def failing_async() -> float:
    return 1 / 0


async def half_async() -> float:
    return 1 / 2


def test_flow__several_effects__gives_the_same_result_in_both_drivers() -> None:
    assert run(sum_flow(1, 2, 3)) == 6
    assert asyncio.run(run_async(sum_flow(1, 2, 3))) == 6


def test_flow__without_effects__returns_its_value() -> None:
    assert run(sum_flow()) == 0
    assert asyncio.run(run_async(sum_flow())) == 0


def test_flow__effect_that_raises__gets_the_exception_and_may_continue() -> None:
    errors: list[str] = []
    assert run(divide_flow(errors)) == 0.5
    assert asyncio.run(run_async(divide_flow(errors))) == 0.5
    assert errors == ["division by zero"] * 2


def test_flow__cancelled_in_an_effect__gets_the_cancellation() -> None:
    cancelled: list[bool] = []

    def waiting_flow() -> Flow[None]:
        try:
            yield Perform(lambda: None, asyncio.Event().wait)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main() -> None:
        task = asyncio.create_task(run_async(waiting_flow()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cancelled == [True]
