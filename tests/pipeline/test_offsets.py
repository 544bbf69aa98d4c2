"""Confirmed offsets with gaps, and the order of items of one key."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from comporta.pipeline.run.offsets import ConfirmedOffsets
from comporta.pipeline.run.per_key_order import KeyOrder


@given(st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_offsets__added_in_any_order__equal_a_set(first: list[int], second: list[int]) -> None:
    confirmed, model = ConfirmedOffsets(), set(first)
    for position in first:
        confirmed.add(position)
    copied = confirmed.copy()
    again = ConfirmedOffsets(copied.low_watermark, copied.ranges())
    for position in second:
        confirmed.add(position)
        again.add(position)
    for which, expected in ((copied, model), (confirmed, model | set(second)), (again, model | set(second))):
        assert len(which) == len(expected)
        assert {position for position in range(70) if position in which} == expected
        assert which.low_watermark not in expected
        assert all(first < after for first, after in which.ranges())


def test_offsets__all_done__hold_one_number() -> None:
    positions = list(range(10_000))
    random.Random(7).shuffle(positions)
    confirmed = ConfirmedOffsets()
    for position in positions:
        confirmed.add(position)
    assert (confirmed.low_watermark, confirmed.ranges()) == (10_000, [])


def test_offsets__added_twice__count_once() -> None:
    confirmed = ConfirmedOffsets()
    for position in (0, 0, 2, 2, 1, 1):
        confirmed.add(position)
    assert (confirmed.low_watermark, len(confirmed)) == (3, 3)


def test_key_order__items_of_one_key__start_one_after_another() -> None:
    order: KeyOrder[str] = KeyOrder()
    assert order.try_start("a", "a1")
    assert not order.try_start("a", "a2")
    assert order.try_start("b", "b1")
    assert not order.try_start("a", "a3")
    assert order.waiting == 2
    assert order.finish("a") == "a2"
    assert order.finish("b") is None
    assert order.finish("a") == "a3"
    assert order.finish("a") is None
    assert order.waiting == 0
    assert order.try_start("a", "a4")
