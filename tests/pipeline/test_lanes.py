"""When a batch is due, told by hand."""

from __future__ import annotations

from comporta.pipeline.lanes import Batching, Lane
from comporta.pipeline.sinks import Row

BATCHING = Batching.of(3, 2.0, None, None, keyed=False)
SECOND_NS = 10**9


def rows(*numbers: int) -> list[Row]:
    return [{"id": number} for number in numbers]


def test_lane__first_row__starts_the_delay() -> None:
    lane = Lane()
    assert lane.wait_ns(0, BATCHING, hurry=False) is None
    assert lane.add(rows(1), 3, lambda: 10)
    assert not lane.add(rows(2), 3, lambda: 10 + SECOND_NS)
    assert lane.wait_ns(10 + SECOND_NS, BATCHING, hurry=False) == SECOND_NS
    assert lane.wait_ns(10 + 3 * SECOND_NS, BATCHING, hurry=False) == 0


def test_lane__enough_rows__are_due_at_once() -> None:
    lane = Lane()
    lane.add(rows(1, 2), 3, lambda: 0)
    assert lane.add(rows(3, 4), 3, lambda: 0)
    assert not lane.add(rows(5), 3, lambda: 0)
    assert lane.wait_ns(0, BATCHING, hurry=False) == 0
    assert lane.take(3) == rows(1, 2, 3)
    assert lane.rows == rows(1, 2, 3, 4, 5), "a row leaves when it is confirmed, not before"
    lane.settle(3)
    assert (lane.rows, lane.done, lane.taken) == (rows(4, 5), 3, 0)


def test_lane__row_during_a_flush__starts_a_delay_of_its_own() -> None:
    lane = Lane()
    lane.add(rows(1, 2, 3), 3, lambda: 0)
    lane.take(3)
    assert lane.add(rows(4), 3, lambda: SECOND_NS)
    lane.settle(3)
    assert lane.wait_ns(SECOND_NS, BATCHING, hurry=False) == 2 * SECOND_NS


def test_lane__flush_or_close__waits_for_nothing() -> None:
    lane = Lane()
    lane.add(rows(1), 3, lambda: 0)
    assert lane.wait_ns(0, BATCHING, hurry=True) == 0
    assert lane.ask() == 1
    assert lane.wait_ns(0, BATCHING, hurry=False) == 0


def test_lane__row_at_fault__goes_and_the_others_are_taken_again() -> None:
    lane = Lane()
    lane.add(rows(1, 2, 3), 3, lambda: 0)
    lane.take(3)
    lane.drop(1)
    assert (lane.take(3), lane.done) == (rows(1, 3), 1)


def test_batching__left_out__follows_from_the_rest() -> None:
    assert (BATCHING.capacity, BATCHING.threads, BATCHING.max_delay_ns) == (30, 1, 2 * SECOND_NS)
    keyed = Batching.of(50, 2, None, None, keyed=True)
    assert (keyed.capacity, keyed.threads) == (2000, 4)
