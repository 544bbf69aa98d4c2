"""What every store must do. Whoever writes one subclasses this in their tests and gives a store.

::

    class TestMyStore(StoreConformance):
        @contextmanager
        def store(self, clock):
            yield MyStore(clock=clock)

Every test gets a new, empty store on a clock moved by hand. A store whose records end by a clock of its own
(a server's) says so with ``records_by_own_clock``; then those tests wait for real.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.operation import Answer, LimitOperation, Question
from comporta.stores.base import Operation, Store
from comporta.stores.records import ABSENT, VALUE_BYTES_MAX, Delete, Read, Write
from comporta.testing.clock import ManualClock

R = TypeVar("R")
Applies = Callable[[Operation[Any]], Any]

_SOON_SECONDS = 0.3  # enough for two more calls on a busy machine
_AWKWARD_KEYS = (
    "plain",
    "with:colon",
    "{braces}",
    "new\nline",
    "nul\0",
    "é 漢 🚪",
    "*?[glob]\\",
    " ",
    "\ud800",
    "k" * 200,
)


class StoreConformance:
    """The specification of a store, as tests. Both faces, blocking and awaiting, are held to it."""

    records_by_own_clock: ClassVar[bool] = False

    def store(self, clock: ManualClock) -> AbstractContextManager[Store]:
        """Give a new, empty store on this clock; subclasses must."""
        raise NotImplementedError

    # how the tests below ask ------------------------------------------------------------------------

    def _both(self, check: Callable[[Store, ManualClock, Applies], None]) -> None:
        """Run a check blocking, and once more awaiting, each on a store of its own."""
        clock = ManualClock()
        with self.store(clock) as store:
            check(store, clock, store.apply)
        clock = ManualClock()
        with self.store(clock) as store, asyncio.Runner() as runner:

            def apply(operation: Operation[R]) -> R:
                async def awaited() -> R:
                    return await store.apply_async(operation)

                return runner.run(awaited())

            try:
                check(store, clock, apply)
            finally:
                if hasattr(store, "aclose"):
                    runner.run(store.aclose())

    def _pass(self, clock: ManualClock, seconds: float) -> None:
        clock.advance(seconds)
        if self.records_by_own_clock:
            time.sleep(seconds)

    # records ------------------------------------------------------------------------------------------

    def test_record__never_written__reads_as_none(self) -> None:
        self._both(lambda _, __, apply: _equal(apply(Read("s", "a")), None))

    def test_record__written__reads_back_byte_for_byte(self) -> None:
        def check(_: Store, __: ManualClock, apply: Applies) -> None:
            for value in (b"x", bytes(range(256)), b"v" * VALUE_BYTES_MAX):
                _equal(apply(Write("s", "a", value, None)), True)
                _equal(apply(Read("s", "a")), value)

        self._both(check)

    def test_record__time_to_live_over__is_gone(self) -> None:
        def check(store: Store, clock: ManualClock, apply: Applies) -> None:
            apply(Write("s", "b", b"y", None))
            apply(Write("s", "a", b"x", _SOON_SECONDS))
            _equal(store.entries("s"), {"a": b"x", "b": b"y"})
            self._pass(clock, 1.2 * _SOON_SECONDS)
            _equal(apply(Read("s", "a")), None)
            _equal(store.entries("s"), {"b": b"y"})
            _equal(apply(Write("s", "a", b"z", 1, ABSENT)), True)

        self._both(check)

    def test_record__expected_value__is_compared_before_it_is_replaced(self) -> None:
        def check(_: Store, __: ManualClock, apply: Applies) -> None:
            _equal(apply(Write("s", "a", b"1", None, ABSENT)), True)
            _equal(apply(Write("s", "a", b"2", None, ABSENT)), False)
            _equal(apply(Write("s", "a", b"2", None, b"other")), False)
            _equal(apply(Write("s", "a", b"2", None, b"1")), True)
            _equal(apply(Delete("s", "a", b"1")), False)
            _equal(apply(Delete("s", "a", b"2")), True)
            _equal(apply(Delete("s", "a")), False)

        self._both(check)

    def test_record__awkward_keys__are_kept_apart_and_listed(self) -> None:
        def check(store: Store, __: ManualClock, apply: Applies) -> None:
            for number, key in enumerate(_AWKWARD_KEYS):
                apply(Write("s", key, b"%d" % number, None))
            apply(Write("other", "plain", b"x", None))
            expected = {key: b"%d" % number for number, key in enumerate(_AWKWARD_KEYS)}
            _equal(store.entries("s"), expected)
            _equal({key: apply(Read("s", key)) for key in _AWKWARD_KEYS}, expected)

        self._both(check)

    # limits -------------------------------------------------------------------------------------------

    def test_limit__every_strategy__refuses_until_the_promised_moment(self) -> None:
        def check(_: Store, clock: ManualClock, apply: Applies) -> None:
            for limit in _LIMITS:
                _drained(apply, limit)
                refused = _ask(apply, limit, 1)
                clock.advance(refused.retry_us / 1e6 - 1e-6)
                _equal(_ask(apply, limit, 1).wait_us, 1)
                clock.advance(1e-6)
                _equal(_ask(apply, limit, 1).wait_us, 0)

        self._both(check)

    def test_limit__given_back__can_be_taken_again(self) -> None:
        def check(_: Store, __: ManualClock, apply: Applies) -> None:
            for limit in _LIMITS:
                _drained(apply, limit)
                _ask(apply, limit, -1)
                _equal(_ask(apply, limit, 1).wait_us, 0)

        self._both(check)

    def test_limit__several__are_charged_all_or_none(self) -> None:
        def check(_: Store, __: ManualClock, apply: Applies) -> None:
            small, large = LimitConfig.parse("1/s"), LimitConfig.parse("5/s")
            both = LimitOperation(
                [Question(large.rule(), "both.large", "k", 1), Question(small.rule(), "both.small", "k", 1)]
            )
            _equal([answer.wait_us == 0 for answer in apply(both)], [True, True])
            _equal([answer.wait_us == 0 for answer in apply(both)], [True, False])
            [large_left] = apply(LimitOperation([Question(large.rule(), "both.large", "k", 0)]))
            _equal(large_left.remaining, 4)

        self._both(check)

    def test_limit__clock_goes_back_an_hour__stops_nobody(self) -> None:
        def check(_: Store, clock: ManualClock, apply: Applies) -> None:
            for limit in _LIMITS:
                _drained(apply, limit)
                clock.advance(-3600)
                _ask(apply, limit, 1)
                clock.advance(limit.window or 1)
                _equal(_ask(apply, limit, 1).wait_us, 0)

        self._both(check)

    def test_limit__asked_by_many_threads_at_once__grants_exactly_the_capacity(self) -> None:
        limit = LimitConfig.parse("10/hour")
        with self.store(ManualClock()) as store, ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: _ask(store.apply, limit, 1), range(60)))
        _equal(sum(answer.wait_us == 0 for answer in answers), 10)

    def test_limit__asked_by_many_coroutines_at_once__grants_exactly_the_capacity(self) -> None:
        limit = LimitConfig.parse("10/hour")

        async def ask_all(store: Store) -> list[list[Answer]]:
            operation = LimitOperation([Question(limit.rule(), "n", "k", 1)])
            try:
                return await asyncio.gather(*(store.apply_async(operation) for _ in range(60)))
            finally:
                if hasattr(store, "aclose"):
                    await store.aclose()

        with self.store(ManualClock()) as store:
            answers = asyncio.run(ask_all(store))
        _equal(sum(answer.wait_us == 0 for [answer] in answers), 10)


_LIMITS = [LimitConfig(10, 10, 1, strategy) for strategy in LimitStrategy]


def _ask(apply: Applies, limit: LimitConfig, amount: int) -> Answer:
    answers: list[Answer] = apply(LimitOperation([Question(limit.rule(), limit.strategy.value, "k", amount)]))
    return answers[0]


def _drained(apply: Applies, limit: LimitConfig) -> None:
    for _ in range(limit.capacity + 1):
        if _ask(apply, limit, 1).wait_us:
            return
    raise AssertionError(f"{limit} granted more than its capacity")


def _equal(found: object, expected: object) -> None:
    """Compare without ``assert``, so that it holds under ``python -O`` and outside pytest too."""
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")
