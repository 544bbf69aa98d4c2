"""Row buffers: when a batch is due, and which rows are in it."""

from __future__ import annotations

from comporta.pipeline.sinks import Row
from comporta.pipeline.writer.buffers import BatchOptions, RowBuffer

OPTIONS = BatchOptions.resolve(3, 2.0, None, None, keyed=False)
SECOND_NS = 10**9


def rows(*numbers: int) -> list[Row]:
    return [{"id": number} for number in numbers]


def test_buffer__first_row__starts_the_delay() -> None:
    buffer = RowBuffer()
    assert buffer.wait_ns(0, OPTIONS, flush_now=False) is None
    assert buffer.add(rows(1), 3, lambda: 10)
    assert not buffer.add(rows(2), 3, lambda: 10 + SECOND_NS)
    assert buffer.wait_ns(10 + SECOND_NS, OPTIONS, flush_now=False) == SECOND_NS
    assert buffer.wait_ns(10 + 3 * SECOND_NS, OPTIONS, flush_now=False) == 0


def test_buffer__enough_rows__are_due_at_once() -> None:
    buffer = RowBuffer()
    buffer.add(rows(1, 2), 3, lambda: 0)
    assert buffer.add(rows(3, 4), 3, lambda: 0)
    assert not buffer.add(rows(5), 3, lambda: 0)
    assert buffer.wait_ns(0, OPTIONS, flush_now=False) == 0
    assert buffer.take(3) == rows(1, 2, 3)
    assert buffer.rows == rows(1, 2, 3, 4, 5), "a row leaves when it is confirmed, not before"
    buffer.settle(3)
    assert (buffer.rows, buffer.settled, buffer.in_flight) == (rows(4, 5), 3, 0)


def test_buffer__row_during_a_flush__starts_a_new_delay() -> None:
    buffer = RowBuffer()
    buffer.add(rows(1, 2, 3), 3, lambda: 0)
    buffer.take(3)
    assert buffer.add(rows(4), 3, lambda: SECOND_NS)
    buffer.settle(3)
    assert buffer.wait_ns(SECOND_NS, OPTIONS, flush_now=False) == 2 * SECOND_NS


def test_buffer__flush_or_close__is_due_at_once() -> None:
    buffer = RowBuffer()
    buffer.add(rows(1), 3, lambda: 0)
    assert buffer.wait_ns(0, OPTIONS, flush_now=True) == 0
    assert buffer.request_flush() == 1
    assert buffer.wait_ns(0, OPTIONS, flush_now=False) == 0


def test_buffer__row_at_fault__is_removed_and_the_others_are_taken_again() -> None:
    buffer = RowBuffer()
    buffer.add(rows(1, 2, 3), 3, lambda: 0)
    buffer.take(3)
    buffer.settle_one(1)
    assert (buffer.take(3), buffer.settled) == (rows(1, 3), 1)


def test_batch_options__none_given__get_defaults() -> None:
    assert (OPTIONS.capacity, OPTIONS.threads, OPTIONS.max_delay_ns) == (30, 1, 2 * SECOND_NS)
    keyed = BatchOptions.resolve(50, 2, None, None, keyed=True)
    assert (keyed.capacity, keyed.threads) == (2000, 4)
