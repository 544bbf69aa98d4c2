"""What is done, with gaps; and whose turn it is."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from comporta.pipeline.runs.confirmed import Confirmed
from comporta.pipeline.runs.turns import Turns


@given(st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_confirmed__added_in_any_order__is_what_a_set_is(first: list[int], second: list[int]) -> None:
    confirmed, model = Confirmed(), set(first)
    for position in first:
        confirmed.add(position)
    copied = confirmed.copy()
    again = Confirmed(copied.low, copied.ranges())
    for position in second:
        confirmed.add(position)
        again.add(position)
    for which, expected in ((copied, model), (confirmed, model | set(second)), (again, model | set(second))):
        assert len(which) == len(expected)
        assert {position for position in range(70) if position in which} == expected
        assert which.low not in expected
        assert all(first < after for first, after in which.ranges())


def test_confirmed__all_done__holds_one_number() -> None:
    positions = list(range(10_000))
    random.Random(7).shuffle(positions)
    confirmed = Confirmed()
    for position in positions:
        confirmed.add(position)
    assert (confirmed.low, confirmed.ranges()) == (10_000, [])


def test_confirmed__added_twice__is_there_once() -> None:
    confirmed = Confirmed()
    for position in (0, 0, 2, 2, 1, 1):
        confirmed.add(position)
    assert (confirmed.low, len(confirmed)) == (3, 3)


def test_turns__items_of_one_key__go_one_after_another_and_others_at_once() -> None:
    turns: Turns[str] = Turns()
    assert turns.enter("a", "a1")
    assert not turns.enter("a", "a2")
    assert turns.enter("b", "b1")
    assert not turns.enter("a", "a3")
    assert turns.waiting == 2
    assert turns.leave("a") == "a2"
    assert turns.leave("b") is None
    assert turns.leave("a") == "a3"
    assert turns.leave("a") is None
    assert turns.waiting == 0
    assert turns.enter("a", "a4")
