"""Two limits, taken together or not at all; partitions that degrade alone; waits in order, bounded memory."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.limits.faces import BEGIN, STORES, Face, made_store

from comporta import HierarchicalThrottle, LimitReachedError, StateFullError, StateUnavailableError, events
from comporta.pipeline.places import LoopBell, Place
from comporta.pipeline.throttle import partitions as partitions_module
from comporta.pipeline.throttle.degrading import PartitionDegradation
from comporta.stores.base import Store
from comporta.stores.failover import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.redis import RedisStore
from comporta.testing import ManualClock, Server

PATIENCE = 60.0


class Bench:
    """A store of some kind, its clock, and throttles asked by one of their faces."""

    def __init__(self, store: Store, clock: ManualClock, runner: asyncio.Runner | None) -> None:
        self.store, self.clock, self.runner = store, clock, runner

    def throttle(self, *limits: float, **told: Any) -> Face:
        return Face(HierarchicalThrottle(*limits, state=self.store, name="jobs", **told), self.runner)

    def executed(self, throttle: Face, partition: str, action: Callable[[], object], **told: Any) -> Any:
        async def awaited() -> object:
            return action()

        return throttle.execute(partition, 1, action if self.runner is None else awaited, **told)


@pytest.fixture(params=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    with ExitStack() as ends:
        yield ends.enter_context(asyncio.Runner()) if request.param == "awaiting" else None


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, valkey: Server, driver: asyncio.Runner | None) -> Iterator[Bench]:
    clock = ManualClock(BEGIN)
    with made_store(request.param, valkey, clock) as store:
        if isinstance(store, RedisStore):
            store.connect_timeout = PATIENCE  # this is not about deadlines, and machines are busy
        yield Bench(store, clock, driver)
        if driver is not None and hasattr(store, "aclose"):
            driver.run(store.aclose())


def granted(throttle: Face, partition: str, tries: int, cost: int = 1) -> int:
    return sum(throttle.acquire(partition, cost, timeout=0) for _ in range(tries))


async def waiting_for(throttle: HierarchicalThrottle, count: int) -> None:
    while throttle.statistics().waiting < count:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


# what is granted --------------------------------------------------------------------------------------


def test_throttle__both_limits__are_taken_together_or_not_at_all(bench: Bench) -> None:
    throttle = bench.throttle(100, 50)  # bursts of 10 and 5
    assert granted(throttle, "a", 8) == 5
    assert granted(throttle, "b", 8) == 5
    assert granted(throttle, "c", 8) == 0  # the global burst is used up
    bench.clock.advance(0.01)  # 1 for all
    assert granted(throttle, "a", 3) == 0  # half a token of its own: and none of the global one is taken
    assert granted(throttle, "c", 3) == 1  # c lost nothing by being refused


def test_throttle__first_second_of_1000__lets_through_the_limit_and_a_tenth(bench: Bench) -> None:
    throttle = bench.throttle(1000, 1000)
    passed = granted(throttle, "a", 110)
    assert passed == 100
    for _ in range(20):
        bench.clock.advance(0.05)
        passed += 20 * throttle.acquire("a", 20, timeout=0)
        passed += 20 * throttle.acquire("a", 20, timeout=0)
        passed += 10 * throttle.acquire("a", 10, timeout=0)
        passed += granted(throttle, "a", 3)
    assert passed == 1100


def test_throttle__per__is_the_time_a_limit_is_for(bench: Bench) -> None:
    throttle = bench.throttle(600, 60, per=60)
    assert throttle.target.cost_max == 6
    assert granted(throttle, "a", 10) == 6
    bench.clock.advance(1)
    assert granted(throttle, "a", 10) == 1


def test_acquire__no_room__waits_as_long_as_it_takes_and_no_longer_than_asked(bench: Bench) -> None:
    throttle = bench.throttle(100, 10)
    assert throttle.acquire("a")
    start = bench.clock.now_ns()
    assert throttle.acquire("a")
    assert bench.clock.now_ns() - start == pytest.approx(1e8, abs=2e6)
    assert not throttle.acquire("a", timeout=0.05)
    assert not throttle.acquire("a", timeout=0)
    assert throttle.acquire("a", timeout=0.2)
    assert throttle.target.statistics() == (3, 3, 2, 0, 1)


def test_acquire__held_up_by_the_global_limit__waits_for_that(bench: Bench) -> None:
    throttle = bench.throttle(10, 10)
    assert throttle.acquire("a")
    start = bench.clock.now_ns()
    assert throttle.acquire("b")
    assert bench.clock.now_ns() - start == pytest.approx(1e8, abs=2e6)
    assert not throttle.acquire("c", timeout=0.05)


def test_acquire__longer_than_anybody_should_rest__asks_again_meanwhile(bench: Bench) -> None:
    throttle = bench.throttle(60, 2, per=60)  # a token of a partition comes in 30 s
    assert throttle.acquire("a")
    start = bench.clock.now_ns()
    assert throttle.acquire("a")
    assert bench.clock.now_ns() - start == pytest.approx(30e9, abs=1.1e9)


@pytest.mark.parametrize("partition", ["x" * 10_000, "~abc", "ação:{1}.x\n", "a:b.c"])
def test_partition__any_name__has_a_limit_of_its_own(bench: Bench, partition: str) -> None:
    throttle = bench.throttle(1000, 10)
    assert granted(throttle, partition, 2) == 1
    assert granted(throttle, partition, 2) == 0
    assert granted(throttle, "another", 2) == 1


# degradation ------------------------------------------------------------------------------------------


def test_degradation__errors_of_a_partition__lower_it_alone_burst_included(bench: Bench) -> None:
    throttle = bench.throttle(1000, 100)
    for _ in range(3):
        throttle.record_error("a")
    assert throttle.current_limit("a") == 70
    assert throttle.current_limit("b") == 100
    assert granted(throttle, "a", 20) == 7
    assert granted(throttle, "b", 20) == 10
    for _ in range(20):
        throttle.record_error("a")
    assert throttle.current_limit("a") == 10  # the floor
    assert [event.kind for event in events.latest_events()].count("limit_degraded") == 9
    assert "partition a lowered from 100 to 90 in 1 s, of 100" in events.latest_events()[0].text


def test_degradation__successes__raise_it_by_a_tenth_every_five_seconds(bench: Bench) -> None:
    throttle = bench.throttle(1000, 100)
    throttle.record_error("a")
    throttle.record_error("a")
    throttle.record_success("a")
    assert throttle.current_limit("a") == 80
    for limit in (90, 100, 100):
        bench.clock.advance(5)
        for _ in range(3):
            throttle.record_success("a")
        assert throttle.current_limit("a") == limit
    assert [event.kind for event in events.latest_events()].count("limit_recovered") == 2


def test_acquire__cost_above_a_degraded_burst__waits_and_goes_into_debt(bench: Bench) -> None:
    throttle = bench.throttle(1000, 100, degradation=PartitionDegradation(drop=0.8))
    throttle.record_error("a")  # to 20, with a burst of 2
    start = bench.clock.now_ns()
    assert throttle.acquire("a", 10)  # all of the burst, and 8 of debt
    assert bench.clock.now_ns() == start
    assert throttle.acquire("a", 10)
    assert bench.clock.now_ns() - start == pytest.approx(0.5e9, abs=2e6)


def test_execute__what_comes_of_the_call__is_told_to_the_partition(bench: Bench) -> None:
    def fails() -> None:
        raise OSError("refused")

    throttle = bench.throttle(1000, 100)
    assert bench.executed(throttle, "a", lambda: 42) == 42
    with pytest.raises(OSError, match="refused"):
        bench.executed(throttle, "a", fails)
    assert throttle.current_limit("a") == 90
    bench.clock.advance(5)
    bench.executed(throttle, "a", lambda: 42)
    assert throttle.current_limit("a") == 100


def test_execute__errors_that_do_not_count__change_nothing(bench: Bench) -> None:
    def fails() -> None:
        raise KeyError("mine")

    throttle = bench.throttle(1000, 100, degradation=PartitionDegradation(errors=OSError))
    with pytest.raises(KeyError):
        bench.executed(throttle, "a", fails)
    assert throttle.current_limit("a") == 100


def test_degradation__none__changes_nothing(bench: Bench) -> None:
    throttle = bench.throttle(1000, 100, degradation=None)
    throttle.record_error("a")
    throttle.record_success("a")
    assert throttle.current_limit("a") == 100
    assert asyncio.run(_climbed(throttle.target)) is None


async def _climbed(throttle: HierarchicalThrottle) -> None:
    from comporta.flow import run_async  # noqa: PLC0415 - only here

    return await run_async(throttle.climbing("a"))


def test_execute__no_room_in_time__does_not_call(bench: Bench) -> None:
    throttle = bench.throttle(1000, 10)
    assert throttle.acquire("a")
    called: list[int] = []
    with pytest.raises(LimitReachedError, match=r"jobs: no room for partition a within 0\.01 s") as refused:
        bench.executed(throttle, "a", lambda: called.append(1), timeout=0.01)
    assert not called
    assert refused.value.retry_after == pytest.approx(0.1)


# in line ----------------------------------------------------------------------------------------------


def test_acquire__many_wait__are_served_in_the_order_in_which_they_came() -> None:
    async def main() -> list[int]:
        throttle = HierarchicalThrottle(1e6, 200)
        served: list[int] = []

        async def take(number: int) -> None:
            assert await throttle.acquire("a", 1 + number % 3)
            served.append(number)

        assert await throttle.acquire("a", 20)
        await asyncio.gather(*(take(number) for number in range(30)))
        return served

    assert asyncio.run(main()) == list(range(30))


def test_acquire__a_large_cost_of_one_partition__is_not_overtaken_for_ever_by_others() -> None:
    async def main() -> int:
        throttle = HierarchicalThrottle(1000, 1000)
        stop = asyncio.Event()

        async def small(partition: str) -> None:
            while not stop.is_set():
                await throttle.acquire(partition)

        others = [asyncio.create_task(small(f"small-{number}")) for number in range(20)]
        await waiting_for(throttle, 1)
        assert await asyncio.wait_for(throttle.acquire("large", 100), PATIENCE)
        stop.set()
        await asyncio.gather(*others)
        return throttle.statistics().waiting

    assert asyncio.run(main()) == 0


def test_acquire__a_partition_that_has_to_wait__holds_up_no_other() -> None:
    async def main() -> None:
        throttle = HierarchicalThrottle(1000, 10, per=1000)  # a burst of one: the next comes in 100 s
        assert await throttle.acquire("slow")
        waiting = asyncio.create_task(throttle.acquire("slow"))
        await waiting_for(throttle, 1)
        assert await throttle.acquire("other", timeout=0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert throttle.statistics().waiting == 0

    asyncio.run(main())


def test_acquire__cancelled_while_it_waits__leaves_its_place_to_the_next() -> None:
    async def main() -> None:
        throttle = HierarchicalThrottle(50, 50)
        assert await throttle.acquire("a", 5)
        tasks = [asyncio.create_task(throttle.acquire(name)) for name in ("a", "a", "b", "a", "b")]
        await waiting_for(throttle, 5)
        for task in (tasks[0], tasks[2]):
            task.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        assert [end is True for end in ended] == [False, True, False, True, True]
        assert throttle.statistics().granted == 8

    asyncio.run(main())


def test_acquire__those_behind_with_a_timeout__give_up_in_time() -> None:
    async def main() -> None:
        throttle = HierarchicalThrottle(1000, 10, per=1000)
        assert await throttle.acquire("a")
        first = asyncio.create_task(throttle.acquire("a"))
        await waiting_for(throttle, 1)
        assert not await asyncio.wait_for(throttle.acquire("a", timeout=0.01), PATIENCE)
        assert not await throttle.acquire("a", timeout=0)  # those who wait were here before
        first.cancel()

    asyncio.run(main())


def test_acquire__from_threads__waits_in_the_same_lines() -> None:
    throttle = HierarchicalThrottle(200, 200)
    served: list[bool] = []

    def take() -> None:
        served.extend(throttle.sync.acquire("ab"[number % 2], 5) for number in range(4))

    threads = [threading.Thread(target=take, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert served == [True] * 16
    assert throttle.statistics()[:1] == (80,)


def test_acquire__too_many_wait__refuses_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "WAITERS_MAX", 0)
    throttle = HierarchicalThrottle(100, 10)
    assert throttle.sync.acquire("a")
    assert not throttle.sync.acquire("a")
    assert throttle.statistics().refused == 1
    with pytest.raises(LimitReachedError, match="no room for partition a: too many wait already"):
        throttle.sync.execute("a", 1, list)


def test_line__a_hundred_thousand_leave_from_its_end__cost_no_more_than_from_its_head() -> None:
    """A look through the line for each of them would take an hour."""
    line, places = partitions_module.Line(), [Place() for _ in range(100_000)]
    for place in (*places, *places):
        line.join(place)
    for place in reversed(places[1:]):
        line.leave(place)
    assert list(line.places) == places[:1]


def test_acquire__one_whose_loop_was_closed__is_in_nobodys_way() -> None:
    throttle = HierarchicalThrottle(100, 10)
    assert throttle.sync.acquire("a")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    gone = [loop.create_task(throttle.acquire("a")) for _ in range(2)]
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert throttle.sync.acquire("a", timeout=PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del gone
        gc.collect()


def test_acquire__loop_closed_over_the_one_before_it__is_not_held_up() -> None:
    throttle = HierarchicalThrottle(100, 10)
    assert throttle.sync.acquire("a")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    gone = loop.create_task(throttle.acquire("a"))
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    served: list[bool] = []
    behind = threading.Thread(target=lambda: served.append(throttle.sync.acquire("a", timeout=PATIENCE)))
    behind.start()
    while throttle.statistics().waiting < 2:
        pass
    loop.close()
    behind.join()
    assert served == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del gone
        gc.collect()


def test_line__those_at_its_head_cannot_hear_it__calls_the_next() -> None:
    loop, line, places = asyncio.new_event_loop(), partitions_module.Line(), [Place(), Place()]
    loop.set_exception_handler(lambda *_: None)
    gone = loop.create_task(places[0].wait())
    loop.run_until_complete(asyncio.sleep(0))
    for place in places:
        line.join(place)
    loop.close()
    line.call_first()
    assert places[1].called
    assert list(line.places) == [places[1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del gone
        gc.collect()


class Sweeping(ManualClock):
    """A clock at whose every look, when it is told to, a store has swept out what it held."""

    store: MemoryStore | None = None

    def now_ns(self) -> int:
        if self.store is not None:
            for space in self.store._spaces.values():
                space.table.clear()
        return super().now_ns()


def test_acquire__a_state_swept_out_just_now__is_as_if_there_had_been_none() -> None:
    clock = Sweeping(BEGIN)
    throttle = HierarchicalThrottle(1000, 100, state=MemoryStore(clock))
    assert granted(Face(throttle, None), "a", 5) == 5
    clock.store = throttle.store  # type: ignore[assignment]
    assert granted(Face(throttle, None), "a", 50) == 50


def test_acquire__a_clock_that_went_back__waits_no_longer_than_it_must() -> None:
    clock = ManualClock(BEGIN)
    throttle = HierarchicalThrottle(1000, 100, state=MemoryStore(clock))
    assert throttle.sync.acquire("a", 10)
    clock.advance(-3600)
    assert throttle.sync.acquire("a", timeout=0.2)


def test_aclose__a_store_without_connections__has_nothing_to_close() -> None:
    asyncio.run(HierarchicalThrottle(1000, 100).aclose())


def test_climbing__while_somebody_waits__has_it_look_again() -> None:
    async def main() -> None:
        clock = ManualClock(BEGIN)
        throttle = HierarchicalThrottle(1e4, 10, state=MemoryStore(clock), name="jobs")
        await throttle.record_error("a")
        assert await throttle.acquire("a")
        known = throttle._partition("a")
        place = Place()
        throttle._book.join(known, place)
        clock.advance(5)
        await throttle.record_success("a")
        assert place.called

    asyncio.run(main())


# bounds and bad input ---------------------------------------------------------------------------------


def test_throttle__many_idle_partitions__are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "PARTITIONS_MAX", 100)
    clock = ManualClock(BEGIN)
    store = MemoryStore(clock, keys_max=1000)
    throttle = HierarchicalThrottle(1e6, 100, state=store)
    for number in range(20_000):
        clock.advance(0.002)
        assert throttle.sync.acquire(f"p{number}", timeout=0)
    assert throttle.statistics().partitions == 100
    assert len(store) <= 1000


def test_throttle__more_partitions_at_one_moment_than_it_holds__says_so() -> None:
    throttle = HierarchicalThrottle(1e6, 100, state=MemoryStore(ManualClock(BEGIN), keys_max=3))
    assert throttle.sync.acquire("a")
    assert throttle.sync.acquire("b")
    with pytest.raises(StateFullError, match="holds 3 keys"):
        throttle.sync.acquire("c")


def test_book__all_remembered_partitions_have_waiters__forgets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = HierarchicalThrottle(100, 10)
    known = throttle._partition("a")
    throttle._book.join(known, Place())
    for most in (-1, -2):
        monkeypatch.setattr(partitions_module, "PARTITIONS_MAX", most)
        assert throttle._book.partition("a") is known


def test_levels__many_records__are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.pipeline.throttle.levels.REVISED_MAX", 2)
    clock = ManualClock(BEGIN)
    throttle = HierarchicalThrottle(1e6, 100, state=MemoryStore(clock))
    for number in range(5):
        clock.advance(0.001)
        throttle.sync.record_error(f"p{number}")
        assert throttle.sync.acquire(f"p{number}", timeout=0)
    assert len(throttle._levels._revised) <= 2


@pytest.mark.parametrize(
    ("limits", "told", "error", "said"),
    [
        ((0, 1), {}, ValueError, "global_limit must be above 0 and at most 1e.09, got 0"),
        ((1, -5), {}, ValueError, "partition_limit must be above 0 .* got -5"),
        (("1", 1), {}, TypeError, "global_limit must be a number, got '1'"),
        ((1, True), {}, TypeError, "partition_limit must be a number, got True"),
        ((1, 1), {"per": 0}, ValueError, "per must be above 0 and at most 86400, got 0"),
        ((1, float("nan")), {}, ValueError, "partition_limit must be"),
        ((1, 1), {"name": "no spaces"}, ValueError, "name must be"),
        ((1, 1), {"state": "ftp://x"}, ValueError, "state must start with"),
        ((1, 1), {"fallback": "maybe"}, ValueError, "fallback must be one of"),
        ((1, 1), {"degradation": 5}, TypeError, "degradation must be a PartitionDegradation or None, got 5"),
    ],
)
def test_throttle__bad_input__is_named(
    limits: tuple[Any, Any], told: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        HierarchicalThrottle(*limits, **told)


@pytest.mark.parametrize("field", ["drop", "floor", "climb", "every"])
def test_degradation__bad_input__is_named(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be above 0"):
        PartitionDegradation(**{field: 0})  # type: ignore[arg-type]


def test_degradation__errors_that_are_no_exceptions__are_named() -> None:
    with pytest.raises(TypeError, match=r"errors must be an exception type, or a tuple of them, got 5"):
        PartitionDegradation(errors=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("", 1), ValueError, "partition must not be empty"),
        ((5, 1), TypeError, "partition must be a str, got 5"),
        (([], 1), TypeError, r"partition must be a str, got \[\]"),
        (("a", 0), ValueError, "cost must be at least 1, got 0"),
        (("a", 11), ValueError, "cost must be at most the smaller burst, 10, got 11"),
        (("a", 1.5), TypeError, "cost must be an int"),
        (("a", 2, -1), ValueError, "timeout must be"),
    ],
)
def test_acquire__bad_input__is_named(arguments: tuple[Any, ...], error: type[Exception], said: str) -> None:
    throttle = HierarchicalThrottle(1000, 100)
    with pytest.raises(error, match=said):
        throttle.sync.acquire(*arguments)
    with pytest.raises(error, match=said):
        asyncio.run(throttle.acquire(*arguments))


def test_throttle__in_a_forked_child__nobody_waits() -> None:
    throttle = HierarchicalThrottle(100, 10)
    throttle._book.join(throttle._partition("a"), Place())
    throttle._book.lock.acquire()
    throttle._book.after_fork()
    assert throttle.statistics() == (0, 0, 0, 0, 0)
    assert throttle.sync.acquire("a")


# out of reach -----------------------------------------------------------------------------------------


class Cut(MemoryStore):
    """A shared store that can be cut off."""

    cut = False

    def apply(self, operation: Any) -> Any:
        if self.cut:
            raise StateUnavailableError("cut")
        return super().apply(operation)

    async def apply_async(self, operation: Any) -> Any:
        return self.apply(operation)


def test_throttle__state_out_of_reach__goes_on_with_its_share_and_learns_nothing() -> None:
    clock = ManualClock(BEGIN)
    shared = Cut(clock)
    store = FailoverStore(lambda: shared, "cut://", clock)
    throttle = HierarchicalThrottle(100, 10, state=store, name="jobs")
    try:
        assert throttle.sync.acquire("a", timeout=0)
        shared.cut = True
        assert not throttle.sync.acquire("b", timeout=0)  # a share starts empty
        clock.advance(0.2)
        assert throttle.sync.acquire("b", timeout=0)
        assert throttle.sync.acquire("c", timeout=0)
        assert not throttle.sync.acquire("c", timeout=0)
        throttle.sync.record_error("b")
        throttle.sync._throttle._partition("b").tried_us = None
        throttle.sync.record_success("b")
    finally:
        store.close()


@pytest.mark.parametrize("scheme", ["redis", "shared"])
def test_throttle__two_of_one_name_on_one_state__share_both_limits(
    scheme: str, valkey: Server, tmp_path: Any
) -> None:
    clock = ManualClock(BEGIN)
    with made_store(scheme, valkey, clock) as store:
        one = HierarchicalThrottle(100, 50, state=store, name="jobs")
        two = HierarchicalThrottle(100, 50, state=store, name="jobs")
        assert sum(each.sync.acquire("a", timeout=0) for each in (one, two) * 5) == 5
        one.sync.record_error("b")
        assert two.sync.current_limit("b") == 45


def test_acquire__cancelled_while_the_server_answers__gives_back(valkey: Server) -> None:
    async def main() -> None:
        throttle = HierarchicalThrottle(
            100,
            100,
            per=1000,
            state=f"{valkey.url}?timeout=5&connect_timeout=5",
            name="cancelled",
            degradation=None,
        )
        assert await throttle.acquire("warm")
        taking = asyncio.create_task(throttle.acquire("a", 10))
        await asyncio.sleep(0)
        taking.cancel()  # asked for, and not answered yet
        with pytest.raises(asyncio.CancelledError):
            await taking
        while not await throttle.acquire("a", 9, timeout=0):  # noqa: ASYNC110 - it is given back behind our back
            await asyncio.sleep(0.01)
        await throttle.aclose()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_leave__next_one_went_with_its_loop__who_follows_stands_for_the_global_limit() -> None:
    class Gone(Place):
        @property
        def gone(self) -> bool:
            return True

    throttle = HierarchicalThrottle(10, 10)
    book, known = throttle._book, throttle._book.partition("a")
    served, following, other = Place(), Place(), Place()
    for place in (served, Gone(), following):
        assert book.join(known, place)
    book.whole.join(other)
    book.leave(known, served)
    assert list(known.line.places) == [following]
    assert list(book.whole.places) == [other, following]


def test_bell__of_a_loop__wakes_who_waits_as_an_event_does() -> None:
    async def main() -> None:
        bell = LoopBell()
        asyncio.get_running_loop().call_soon(bell.set)
        await bell.wait()
        assert bell.is_set()

    asyncio.run(main())
