"""The conformance suite for state engines: what every store must do, as tests.

Subclass it in your tests and provide the store::

    class TestMyStore(StoreConformance):
        @contextmanager
        def store(self, clock):
            yield MyStore(clock=clock)

Every test gets a new, empty store on a clock that the test moves. If a store's records expire by a clock of
its own (a server's), set ``records_expire_by_own_clock``; those tests then wait for real time. The suite uses
only public members of the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.reply import LimitReply
from comporta.stores.base import Operation, Store
from comporta.stores.records import ABSENT, VALUE_BYTES_MAX, DeleteRecord, ReadRecord, WriteRecord
from comporta.testing.clock import ManualClock

R = TypeVar("R")
ApplyFunction = Callable[[Operation[Any]], Any]

_LATER_SECONDS = 60.0
_SOON_SECONDS = 0.1
_FILES = 100  # more than a store holds open
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
    """The specification of a store, as tests of its blocking and its awaiting methods."""

    records_expire_by_own_clock: ClassVar[bool] = False
    """Whether the backend expires records by its own clock; those tests then wait for real time."""

    lists_records: ClassVar[bool] = True
    """Whether the store implements ``entries``; false for one that uses the default."""

    def store(self, clock: ManualClock) -> AbstractContextManager[Store]:
        """Yield a new, empty store on this clock; subclasses implement it."""
        raise NotImplementedError

    # helpers ----------------------------------------------------------------------------------------

    def _check_sync_and_async(self, check: Callable[[Store, ManualClock, ApplyFunction], None]) -> None:
        """Run a check with the blocking method, and again with the awaiting one, each on a new store."""
        clock = ManualClock()
        with self.store(clock) as store:
            check(store, clock, store.apply)
        clock = ManualClock()
        with self.store(clock) as store, asyncio.Runner() as runner:

            def apply(operation: Operation[R]) -> R:
                async def apply_in_loop() -> R:
                    return await store.apply_async(operation)

                return runner.run(apply_in_loop())

            try:
                check(store, clock, apply)
            finally:
                runner.run(store.aclose())

    def _advance(self, clock: ManualClock, seconds: float) -> None:
        clock.advance(seconds)
        if self.records_expire_by_own_clock:
            time.sleep(seconds)

    def _assert_entries(self, store: Store, expected: dict[str, bytes]) -> None:
        """Compare the records of space ``s``."""
        _assert_equal(store.entries("s"), expected if self.lists_records else {})

    def test_close__called_twice__leaves_other_files_open(self) -> None:
        with self.store(ManualClock()) as store:
            store.apply(ReadRecord("s", "a"))
            store.close()
            with TemporaryDirectory() as directory, ExitStack() as stack:
                # these files take the descriptors that the store has just closed
                files = [stack.enter_context(Path(directory, str(n)).open("wb")) for n in range(_FILES)]
                store.close()
                for file in files:
                    file.write(b"x")
                    file.flush()

    # records ------------------------------------------------------------------------------------------

    def test_record__never_written__reads_as_none(self) -> None:
        self._check_sync_and_async(lambda _, __, apply: _assert_equal(apply(ReadRecord("s", "a")), None))

    def test_record__written__reads_back_byte_for_byte(self) -> None:
        def check(_: Store, __: ManualClock, apply: ApplyFunction) -> None:
            for value in (b"x", bytes(range(256)), b"v" * VALUE_BYTES_MAX):
                _assert_equal(apply(WriteRecord("s", "a", value, None)), True)
                _assert_equal(apply(ReadRecord("s", "a")), value)

        self._check_sync_and_async(check)

    def test_record__time_to_live_over__expires(self) -> None:
        def check(store: Store, clock: ManualClock, apply: ApplyFunction) -> None:
            apply(WriteRecord("s", "b", b"y", None))
            apply(WriteRecord("s", "a", b"x", _LATER_SECONDS))
            self._assert_entries(store, {"a": b"x", "b": b"y"})
            apply(WriteRecord("s", "a", b"x", _SOON_SECONDS))
            self._advance(clock, 1.2 * _SOON_SECONDS)
            _assert_equal(apply(ReadRecord("s", "a")), None)
            self._assert_entries(store, {"b": b"y"})
            _assert_equal(apply(WriteRecord("s", "a", b"z", _LATER_SECONDS, ABSENT)), True)

        self._check_sync_and_async(check)

    def test_record__expected_value__is_compared_before_the_write(self) -> None:
        def check(_: Store, __: ManualClock, apply: ApplyFunction) -> None:
            _assert_equal(apply(WriteRecord("s", "a", b"1", None, ABSENT)), True)
            _assert_equal(apply(WriteRecord("s", "a", b"2", None, ABSENT)), False)
            _assert_equal(apply(WriteRecord("s", "a", b"2", None, b"other")), False)
            _assert_equal(apply(WriteRecord("s", "a", b"2", None, b"1")), True)
            _assert_equal(apply(DeleteRecord("s", "a", b"1")), False)
            _assert_equal(apply(DeleteRecord("s", "a", b"2")), True)
            _assert_equal(apply(DeleteRecord("s", "a")), False)

        self._check_sync_and_async(check)

    def test_record__awkward_keys__are_kept_apart_and_listed(self) -> None:
        def check(store: Store, __: ManualClock, apply: ApplyFunction) -> None:
            for number, key in enumerate(_AWKWARD_KEYS):
                apply(WriteRecord("s", key, b"%d" % number, None))
            apply(WriteRecord("other", "plain", b"x", None))
            expected = {key: b"%d" % number for number, key in enumerate(_AWKWARD_KEYS)}
            self._assert_entries(store, expected)
            _assert_equal({key: apply(ReadRecord("s", key)) for key in _AWKWARD_KEYS}, expected)

        self._check_sync_and_async(check)

    # limits -------------------------------------------------------------------------------------------

    def test_limit__every_strategy__refuses_until_the_time_it_names(self) -> None:
        def check(_: Store, clock: ManualClock, apply: ApplyFunction) -> None:
            for limit in _LIMITS:
                _drain(apply, limit)
                refusal = _decide(apply, limit, 1)
                clock.advance(refusal.retry_us / 1e6 - 1e-6)
                _assert_equal(_decide(apply, limit, 1).wait_us, 1)
                clock.advance(1e-6)
                _assert_equal(_decide(apply, limit, 1).wait_us, 0)

        self._check_sync_and_async(check)

    def test_limit__tokens_given_back__are_granted_again(self) -> None:
        def check(_: Store, __: ManualClock, apply: ApplyFunction) -> None:
            for limit in _LIMITS:
                _drain(apply, limit)
                _decide(apply, limit, -1)
                _assert_equal(_decide(apply, limit, 1).wait_us, 0)

        self._check_sync_and_async(check)

    def test_limit__several_in_one_operation__charges_all_or_none(self) -> None:
        def check(_: Store, __: ManualClock, apply: ApplyFunction) -> None:
            small, large = LimitConfig.parse("1/s"), LimitConfig.parse("5/s")
            both = LimitOperation(
                [
                    LimitDemand(large.build_strategy(), "both.large", "k", 1),
                    LimitDemand(small.build_strategy(), "both.small", "k", 1),
                ]
            )
            _assert_equal([reply.wait_us == 0 for reply in apply(both)], [True, True])
            _assert_equal([reply.wait_us == 0 for reply in apply(both)], [True, False])
            [large_left] = apply(LimitOperation([LimitDemand(large.build_strategy(), "both.large", "k", 0)]))
            _assert_equal(large_left.remaining, 4)

        self._check_sync_and_async(check)

    def test_limit__clock_goes_back_an_hour__still_grants(self) -> None:
        def check(_: Store, clock: ManualClock, apply: ApplyFunction) -> None:
            for limit in _LIMITS:
                _drain(apply, limit)
                clock.advance(-3600)
                _decide(apply, limit, 1)
                clock.advance(limit.window or 1)
                _assert_equal(_decide(apply, limit, 1).wait_us, 0)

        self._check_sync_and_async(check)

    def test_limit__many_threads_at_once__grants_exactly_the_capacity(self) -> None:
        limit = LimitConfig.parse("10/hour")
        with self.store(ManualClock()) as store, ThreadPoolExecutor(8) as threads:
            replies = list(threads.map(lambda _: _decide(store.apply, limit, 1), range(60)))
        _assert_equal(sum(reply.wait_us == 0 for reply in replies), 10)

    def test_limit__many_coroutines_at_once__grants_exactly_the_capacity(self) -> None:
        limit = LimitConfig.parse("10/hour")

        async def apply_all(store: Store) -> list[list[LimitReply]]:
            operation = LimitOperation([LimitDemand(limit.build_strategy(), "n", "k", 1)])
            try:
                return await asyncio.gather(*(store.apply_async(operation) for _ in range(60)))
            finally:
                await store.aclose()

        with self.store(ManualClock()) as store:
            replies = asyncio.run(apply_all(store))
        _assert_equal(sum(reply.wait_us == 0 for [reply] in replies), 10)


_LIMITS = [LimitConfig(10, 10, 1, strategy) for strategy in LimitStrategy]


def _decide(apply: ApplyFunction, limit: LimitConfig, amount: int) -> LimitReply:
    [reply] = apply(LimitOperation([LimitDemand(limit.build_strategy(), limit.strategy_name, "k", amount)]))
    result: LimitReply = reply
    return result


def _drain(apply: ApplyFunction, limit: LimitConfig) -> None:
    for _ in range(limit.capacity + 1):
        if _decide(apply, limit, 1).wait_us:
            return
    raise AssertionError(f"{limit} granted more than its capacity")


def _assert_equal(actual: object, expected: object) -> None:
    """Compare without ``assert``, which ``python -O`` removes and only pytest explains."""
    if actual != expected:
        raise AssertionError(f"expected {expected!r}, got {actual!r}")
