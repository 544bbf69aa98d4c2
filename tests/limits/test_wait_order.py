"""The order of waiters (F9): classes first, then turns between owners, then order of arrival."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from comporta.limits.priority import Caller
from comporta.limits.wait_order import WaitOrder
from comporta.limits.wait_queue import Waiter, WaitQueue

Order = WaitOrder[Waiter]


def order_of(*callers: Caller) -> tuple[Order, dict[Waiter, int]]:
    order: Order = WaitOrder()
    numbers = {}
    for number, caller in enumerate(callers):
        waiter = Waiter(caller, number)
        order.add(waiter)
        numbers[waiter] = number
    return order, numbers


def serve(order: Order, numbers: dict[Waiter, int]) -> list[int]:
    result = []
    while len(order):
        first = order.first()
        result.append(numbers[first])
        order.remove(first)
    return result


def test_order__no_classes_and_owners__is_that_of_arrival() -> None:
    assert serve(*order_of(*[Caller()] * 5)) == [0, 1, 2, 3, 4]


def test_order__several_classes__serves_the_highest_first() -> None:
    assert serve(*order_of(Caller(2), Caller(1), Caller(0), Caller(2), Caller(0))) == [2, 4, 1, 0, 3]


def test_order__one_owner_with_200_waiters__delays_another_by_one_turn() -> None:
    order, numbers = order_of(*[Caller(owner="many")] * 200, Caller(owner="one"), Caller())
    assert serve(order, numbers)[:4] == [0, 200, 201, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, "a", "b", "c"])), max_size=40))
def test_order__any_waiters__serves_each_once_and_takes_turns(callers: list[tuple[int, str | None]]) -> None:
    order, numbers = order_of(*[Caller(*caller) for caller in callers])
    result = serve(order, numbers)
    assert sorted(result) == list(range(len(callers)))
    for rank in range(3):
        ranked = [callers[n][1] for n in result if callers[n][0] == rank]
        for index in range(1, len(ranked)):  # the same owner twice in a row only if no other is left
            assert ranked[index] != ranked[index - 1] or len(set(ranked[index:])) == 1


def test_order__waiter_in_the_middle_leaves__keeps_the_turns_of_the_others() -> None:
    order, numbers = order_of(Caller(owner="a"), Caller(owner="a"), Caller(owner="b"))
    second = list(numbers)[1]
    assert second in order
    order.remove(second)
    assert second not in order
    assert Waiter(Caller(0)) not in order
    assert serve(order, numbers) == [0, 2]


def test_queue__oldest_waiter_of_a_class__is_known_until_it_leaves() -> None:
    queue = WaitQueue()
    assert queue.oldest_since_us("k", 1, 9) == 9
    first, second = queue.join("k", Caller(1, "a"), 5), queue.join("k", Caller(1, "b"), 7)
    assert first is not None
    assert second is not None
    assert queue.oldest_since_us("k", 1, 9) == 5
    assert queue.oldest_since_us("k", 0, 9) == 9
    queue.leave("k", first)
    assert queue.oldest_since_us("k", 1, 9) == 7
    assert queue.is_first("k", second)
    assert queue.is_empty("k", 0)
    assert not queue.is_empty("k", 2)
    queue.leave("k", second)
    assert queue.is_empty("k", 2)
    assert not queue.is_first("k", second)


def test_order__units_ahead_of_a_new_caller__are_those_of_its_and_higher_classes() -> None:
    queue = WaitQueue()
    for rank, cost in ((0, 2), (1, 3), (2, 10)):
        assert queue.join("k", Caller(rank), 5, cost) is not None
    order = queue.waiters_by_key["k"]
    assert [order.units_ahead(Caller(rank)) for rank in range(3)] == [2, 5, 15]
    assert order.units_ahead(Caller(1, "ana")) is None  # she takes turns with those without an owner
    queue.set_pace("k", lambda units: 100 + 10 * units)
    assert queue.earliest_us("k", 1, Caller(1)) == 160
    assert queue.earliest_us("k", 1, Caller(1, "ana")) == 0


def test_order__pace_known__finds_the_waiters_that_cannot_be_served_in_time() -> None:
    order: Order = WaitOrder()
    waiters = [
        Waiter(Caller(2), cost=1, deadline_us=70),  # behind 6 units of the others: at 70
        Waiter(Caller(0, "a"), cost=1, deadline_us=5),  # owners take turns: it may be in time
        Waiter(Caller(0, "b"), cost=2, deadline_us=5),
        Waiter(Caller(1), cost=3, deadline_us=60),
        Waiter(Caller(1), cost=1, deadline_us=60),  # at 70
        Waiter(Caller(2), cost=1, deadline_us=70),  # at 80
        Waiter(Caller(2), cost=1),
    ]
    for waiter in waiters:
        order.add(waiter)
    late = order.late_waiters(lambda units: 10 * units)
    assert [waiters.index(waiter) for waiter in late] == [4, 5]
