"""The throttle: two limits in one step, degradation per partition, waiters in order, bounded memory."""

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
from tests.support import loop_runner

from comporta import HierarchicalThrottle, LimitReachedError, StateFullError, StateUnavailableError, events
from comporta.pipeline.throttle import partitions as partitions_module
from comporta.pipeline.throttle.degradation import PartitionDegradation
from comporta.pipeline.waiter import LoopEvent, PipelineWaiter
from comporta.stores.base import Store
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

PATIENCE = 60.0


class Bench:
    """A store, its clock, and throttles called through one of their faces."""

    def __init__(self, store: Store, clock: ManualClock, runner: asyncio.Runner | None) -> None:
        self.store, self.clock, self.runner = store, clock, runner

    def throttle(self, *limits: float, **options: Any) -> Face:
        return Face(HierarchicalThrottle(*limits, state=self.store, name="jobs", **options), self.runner)

    def execute(self, throttle: Face, partition: str, action: Callable[[], object], **options: Any) -> Any:
        async def awaited() -> object:
            return action()

        return throttle.execute(partition, 1, action if self.runner is None else awaited, **options)


@pytest.fixture(params=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    with ExitStack() as ends:
        yield ends.enter_context(loop_runner()) if request.param == "awaiting" else None


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, valkey: Server, driver: asyncio.Runner | None) -> Iterator[Bench]:
    clock = ManualClock(BEGIN)
    with made_store(request.param, valkey, clock) as store:
        yield Bench(store, clock, driver)
        if driver is not None:
            driver.run(store.aclose())


def count_granted(throttle: Face, partition: str, tries: int, cost: int = 1) -> int:
    return sum(throttle.acquire(partition, cost, timeout=0) for _ in range(tries))


class SteppedClock(ManualClock):
    """A clock on which a wait lasts until the test advances it, instead of advancing it at once."""

    async def wait_async(self, event: asyncio.Event, seconds: float | None) -> None:
        assert seconds is not None
        ends_ns = self.now_ns() + seconds * 1e9
        while self.now_ns() < ends_ns and not event.is_set():  # noqa: ASYNC110 - the test advances it
            await asyncio.sleep(0)


async def waiting_for(throttle: HierarchicalThrottle, count: int) -> None:
    while throttle.statistics().waiting < count:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


# -- grants


def test_acquire__both_limits__are_charged_together_or_not_at_all(bench: Bench) -> None:
    throttle = bench.throttle(100, 50)  # bursts of 10 and 5
    assert count_granted(throttle, "a", 8) == 5
    assert count_granted(throttle, "b", 8) == 5
    assert count_granted(throttle, "c", 8) == 0  # the global burst is used up
    bench.clock.advance(0.01)  # one token for all
    assert count_granted(throttle, "a", 3) == 0  # a has half a token, and the global bucket is not charged
    assert count_granted(throttle, "c", 3) == 1  # c lost nothing by being refused


def test_throttle__first_second_of_1000__grants_the_limit_and_a_tenth(bench: Bench) -> None:
    throttle = bench.throttle(1000, 1000)
    passed = count_granted(throttle, "a", 110)
    assert passed == 100
    for _ in range(20):
        bench.clock.advance(0.05)
        passed += 20 * throttle.acquire("a", 20, timeout=0)
        passed += 20 * throttle.acquire("a", 20, timeout=0)
        passed += 10 * throttle.acquire("a", 10, timeout=0)
        passed += count_granted(throttle, "a", 3)
    assert passed == 1100


def test_throttle__per_option__is_the_period_of_both_limits(bench: Bench) -> None:
    throttle = bench.throttle(600, 60, per=60)
    assert throttle.target.cost_max == 6
    assert count_granted(throttle, "a", 10) == 6
    bench.clock.advance(1)
    assert count_granted(throttle, "a", 10) == 1


def test_acquire__no_capacity__waits_as_needed_and_at_most_the_timeout(bench: Bench) -> None:
    throttle = bench.throttle(100, 10)
    assert throttle.acquire("a")
    start = bench.clock.now_ns()
    assert throttle.acquire("a")
    assert bench.clock.now_ns() - start == pytest.approx(1e8, abs=2e6)
    assert not throttle.acquire("a", timeout=0.05)
    assert not throttle.acquire("a", timeout=0)
    assert throttle.acquire("a", timeout=0.2)
    assert throttle.target.statistics() == (3, 3, 2, 0, 1)


def test_acquire__global_limit_refuses__waits_for_it(bench: Bench) -> None:
    throttle = bench.throttle(10, 10)
    assert throttle.acquire("a")
    start = bench.clock.now_ns()
    assert throttle.acquire("b")
    assert bench.clock.now_ns() - start == pytest.approx(1e8, abs=2e6)
    assert not throttle.acquire("c", timeout=0.05)


def test_acquire__long_wait__asks_again_meanwhile(bench: Bench) -> None:
    throttle = bench.throttle(60, 2, per=60)  # a token of a partition comes in 30 s
    assert throttle.acquire("a")
    start = bench.clock.now_ns()
    assert throttle.acquire("a")
    assert bench.clock.now_ns() - start == pytest.approx(30e9, abs=1.1e9)


@pytest.mark.parametrize("partition", ["x" * 10_000, "~abc", "ação:{1}.x\n", "a:b.c"])
def test_partition__any_name__has_a_limit_of_its_own(bench: Bench, partition: str) -> None:
    throttle = bench.throttle(1000, 10)
    assert count_granted(throttle, partition, 2) == 1
    assert count_granted(throttle, partition, 2) == 0
    assert count_granted(throttle, "another", 2) == 1


# -- degradation


def test_degradation__errors_of_a_partition__lower_only_its_limit_and_burst(bench: Bench) -> None:
    throttle = bench.throttle(1000, 100)
    for _ in range(3):
        throttle.record_error("a")
    assert throttle.current_limit("a") == 70
    assert throttle.current_limit("b") == 100
    assert count_granted(throttle, "a", 20) == 7
    assert count_granted(throttle, "b", 20) == 10
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
    assert throttle.acquire("a", 10)  # the whole burst, and a debt of 8
    assert bench.clock.now_ns() == start
    assert throttle.acquire("a", 10)
    assert bench.clock.now_ns() - start == pytest.approx(0.5e9, abs=2e6)


def test_execute__result_of_the_call__is_recorded_for_the_partition(bench: Bench) -> None:
    def fails() -> None:
        raise OSError("refused")

    throttle = bench.throttle(1000, 100)
    assert bench.execute(throttle, "a", lambda: 42) == 42
    with pytest.raises(OSError, match="refused"):
        bench.execute(throttle, "a", fails)
    assert throttle.current_limit("a") == 90
    bench.clock.advance(5)
    bench.execute(throttle, "a", lambda: 42)
    assert throttle.current_limit("a") == 100


def test_execute__errors_that_do_not_count__change_nothing(bench: Bench) -> None:
    def fails() -> None:
        raise KeyError("mine")

    throttle = bench.throttle(1000, 100, degradation=PartitionDegradation(errors=OSError))
    with pytest.raises(KeyError):
        bench.execute(throttle, "a", fails)
    assert throttle.current_limit("a") == 100


def test_degradation__none__changes_nothing(bench: Bench) -> None:
    throttle = bench.throttle(1000, 100, degradation=None)
    throttle.record_error("a")
    throttle.record_success("a")
    assert throttle.current_limit("a") == 100
    assert asyncio.run(_record_success(throttle.target)) is None


async def _record_success(throttle: HierarchicalThrottle) -> None:
    from comporta.flow import run_async  # noqa: PLC0415 - only here

    return await run_async(throttle._record_success_flow("a"))


def test_execute__no_capacity_in_time__does_not_call(bench: Bench) -> None:
    throttle = bench.throttle(1000, 10)
    assert throttle.acquire("a")
    called: list[int] = []
    with pytest.raises(LimitReachedError, match=r"no capacity for partition a within 0\.01 s") as refused:
        bench.execute(throttle, "a", lambda: called.append(1), timeout=0.01)
    assert not called
    assert refused.value.retry_after == pytest.approx(0.1)


# -- waiting


def test_acquire__many_waiters__are_served_in_their_order() -> None:
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


def test_acquire__large_cost_of_one_partition__is_not_overtaken_forever() -> None:
    async def main() -> int:
        throttle = HierarchicalThrottle(100, 100)  # fewer than the callers take on any machine
        stop = asyncio.Event()

        async def small(partition: str) -> None:
            while not stop.is_set():
                await throttle.acquire(partition)

        others = [asyncio.create_task(small(f"small-{number}")) for number in range(20)]
        await waiting_for(throttle, 1)
        assert await asyncio.wait_for(throttle.acquire("large", 10), PATIENCE)
        stop.set()
        await asyncio.gather(*others)
        return throttle.statistics().waiting

    assert asyncio.run(main()) == 0


def test_acquire__waiting_partition__delays_no_other() -> None:
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


def test_acquire__cancelled_while_it_waits__the_next_waiter_is_served() -> None:
    async def main() -> None:
        clock = SteppedClock(BEGIN)
        throttle = HierarchicalThrottle(50, 50, state=MemoryStore(clock))
        assert await throttle.acquire("a", 5)
        tasks = [asyncio.create_task(throttle.acquire(name)) for name in ("a", "a", "b", "a", "b")]
        await waiting_for(throttle, 5)
        for task in (tasks[0], tasks[2]):
            task.cancel()
        clock.advance(0.06)  # three tokens
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        assert [end is True for end in ended] == [False, True, False, True, True]
        assert throttle.statistics().granted == 8

    asyncio.run(main())


def test_acquire__waiters_behind_with_a_timeout__give_up_in_time() -> None:
    async def main() -> None:
        throttle = HierarchicalThrottle(1000, 10, per=1000)
        assert await throttle.acquire("a")
        first = asyncio.create_task(throttle.acquire("a"))
        await waiting_for(throttle, 1)
        assert not await asyncio.wait_for(throttle.acquire("a", timeout=0.01), PATIENCE)
        assert not await throttle.acquire("a", timeout=0)  # the waiters were first
        first.cancel()

    asyncio.run(main())


def test_acquire__from_threads__waits_in_the_same_queues() -> None:
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


def test_acquire__too_many_waiters__refuses_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "WAITERS_MAX", 0)
    throttle = HierarchicalThrottle(1000, 10, per=1000)
    assert throttle.sync.acquire("a")
    assert not throttle.sync.acquire("a")
    assert throttle.statistics().refused == 1
    with pytest.raises(LimitReachedError, match="no capacity for partition a: too many callers wait already"):
        throttle.sync.execute("a", 1, list)


@pytest.mark.unmeasured
def test_queue__100_000_leave_from_its_end__cost_as_much_as_from_its_head() -> None:
    """A search through the queue for each of them would take an hour."""
    queue, waiters = partitions_module.ThrottleQueue(), [PipelineWaiter() for _ in range(100_000)]
    for waiter in (*waiters, *waiters):
        queue.join(waiter)
    for waiter in reversed(waiters[1:]):
        queue.leave(waiter)
    assert list(queue.waiters) == waiters[:1]


def test_acquire__waiter_whose_loop_was_closed__blocks_no_other() -> None:
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


def test_acquire__loop_of_the_waiter_before_was_closed__is_served() -> None:
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


def test_queue__first_waiters_cannot_be_woken__wakes_the_next() -> None:
    loop, queue = asyncio.new_event_loop(), partitions_module.ThrottleQueue()
    waiters = [PipelineWaiter(), PipelineWaiter()]
    loop.set_exception_handler(lambda *_: None)
    gone = loop.create_task(waiters[0].wait())
    loop.run_until_complete(asyncio.sleep(0))
    for waiter in waiters:
        queue.join(waiter)
    loop.close()
    queue.wake_first()
    assert waiters[1].woken
    assert list(queue.waiters) == [waiters[1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del gone
        gc.collect()


class SweepingClock(ManualClock):
    """A clock that empties ``store``, if it is set, whenever it is read."""

    store: MemoryStore | None = None

    def now_ns(self) -> int:
        if self.store is not None:
            for space in self.store._spaces.values():
                space.table.clear()
        return super().now_ns()


def test_acquire__state_was_just_swept__starts_with_a_full_bucket() -> None:
    clock = SweepingClock(BEGIN)
    throttle = HierarchicalThrottle(1000, 100, state=MemoryStore(clock))
    assert count_granted(Face(throttle, None), "a", 5) == 5
    clock.store = throttle._store  # type: ignore[assignment]
    assert count_granted(Face(throttle, None), "a", 50) == 50


def test_acquire__clock_was_set_back__waits_no_longer_than_necessary() -> None:
    clock = ManualClock(BEGIN)
    throttle = HierarchicalThrottle(1000, 100, state=MemoryStore(clock))
    assert throttle.sync.acquire("a", 10)
    clock.advance(-3600)
    assert throttle.sync.acquire("a", timeout=0.2)


def test_aclose__store_without_connections__does_nothing() -> None:
    asyncio.run(HierarchicalThrottle(1000, 100).aclose())


def test_record_success__while_a_caller_waits__wakes_it() -> None:
    async def main() -> None:
        clock = ManualClock(BEGIN)
        throttle = HierarchicalThrottle(1e4, 10, state=MemoryStore(clock), name="jobs")
        await throttle.record_error("a")
        assert await throttle.acquire("a")
        waiter = PipelineWaiter()
        throttle._partitions.join(throttle._partition("a"), waiter)
        clock.advance(5)
        await throttle.record_success("a")
        assert waiter.woken

    asyncio.run(main())


# -- bounds and invalid options


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


def test_throttle__more_partitions_than_it_holds__is_a_state_full_error() -> None:
    throttle = HierarchicalThrottle(1e6, 100, state=MemoryStore(ManualClock(BEGIN), keys_max=3))
    assert throttle.sync.acquire("a")
    assert throttle.sync.acquire("b")
    with pytest.raises(StateFullError, match="holds 3 live keys"):
        throttle.sync.acquire("c")


def test_partition_table__all_partitions_have_waiters__evicts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = HierarchicalThrottle(100, 10)
    partition = throttle._partition("a")
    throttle._partitions.join(partition, PipelineWaiter())
    for count_max in (-1, -2):
        monkeypatch.setattr(partitions_module, "PARTITIONS_MAX", count_max)
        assert throttle._partitions.find_or_add("a") is partition


def test_throttle_limits__many_overrides__are_cached_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.pipeline.throttle.operation.OVERRIDDEN_MAX", 2)
    clock = ManualClock(BEGIN)
    throttle = HierarchicalThrottle(1e6, 100, state=MemoryStore(clock))
    for number in range(5):
        clock.advance(0.001)
        throttle.sync.record_error(f"p{number}")
        assert throttle.sync.acquire(f"p{number}", timeout=0)
    assert len(throttle._limits._overridden) <= 2


@pytest.mark.parametrize(
    ("limits", "options", "error", "message"),
    [
        ((0, 1), {}, ValueError, "global_limit must be above 0 and at most 1e.09, got 0"),
        ((1, -5), {}, ValueError, "partition_limit must be above 0 .* got -5"),
        (("1", 1), {}, TypeError, "global_limit must be a number, got '1'"),
        ((1, True), {}, TypeError, "partition_limit must be a number, got True"),
        ((1, 1), {"per": 0}, ValueError, "per must be above 0 and at most 86400 seconds, got 0"),
        ((1, float("nan")), {}, ValueError, "partition_limit must be"),
        ((1, 1), {"name": "no spaces"}, ValueError, "name must be"),
        ((1, 1), {"state": "ftp://x"}, ValueError, "state must start with"),
        ((1, 1), {"fallback": "maybe"}, ValueError, "fallback must be one of"),
        ((1, 1), {"degradation": 5}, TypeError, "degradation must be a PartitionDegradation or None, got 5"),
    ],
)
def test_throttle__invalid_option__is_named_in_the_error(
    limits: tuple[Any, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        HierarchicalThrottle(*limits, **options)


@pytest.mark.parametrize("field", ["drop", "floor", "climb", "every"])
def test_degradation__invalid_option__is_named_in_the_error(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be above 0"):
        PartitionDegradation(**{field: 0})  # type: ignore[arg-type]


def test_degradation__errors_not_exceptions__is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"errors must be an exception type, or a tuple of them, got 5"):
        PartitionDegradation(errors=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
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
def test_acquire__invalid_argument__is_named_in_the_error(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    throttle = HierarchicalThrottle(1000, 100)
    with pytest.raises(error, match=message):
        throttle.sync.acquire(*arguments)
    with pytest.raises(error, match=message):
        asyncio.run(throttle.acquire(*arguments))


def test_throttle__in_a_forked_child__has_no_waiters() -> None:
    throttle = HierarchicalThrottle(100, 10)
    throttle._partitions.join(throttle._partition("a"), PipelineWaiter())
    throttle._partitions.lock.acquire()
    throttle._partitions.after_fork()
    assert throttle.statistics() == (0, 0, 0, 0, 0)
    assert throttle.sync.acquire("a")


# -- outages


class UnreliableStore(MemoryStore):
    """A store that raises while ``is_down`` is set."""

    is_down = False

    def apply(self, operation: Any) -> Any:
        if self.is_down:
            raise StateUnavailableError("down")
        return super().apply(operation)

    async def apply_async(self, operation: Any) -> Any:
        return self.apply(operation)


def test_throttle__store_unreachable__grants_its_share_and_records_no_error() -> None:
    clock = ManualClock(BEGIN)
    shared = UnreliableStore(clock)
    store = FailoverStore(lambda: shared, "cut://", clock)
    throttle = HierarchicalThrottle(100, 10, state=store, name="jobs")
    try:
        assert throttle.sync.acquire("a", timeout=0)
        shared.is_down = True
        assert not throttle.sync.acquire("b", timeout=0)  # a share starts empty
        clock.advance(0.2)
        assert throttle.sync.acquire("b", timeout=0)
        assert throttle.sync.acquire("c", timeout=0)
        assert not throttle.sync.acquire("c", timeout=0)
        throttle.sync.record_error("b")
        throttle.sync._throttle._partition("b").climb_tried_us = None
        throttle.sync.record_success("b")
    finally:
        store.close()


@pytest.mark.parametrize("scheme", ["redis", "shared"])
def test_throttle__two_with_one_name_and_state__share_both_limits(
    scheme: str, valkey: Server, tmp_path: Any
) -> None:
    clock = ManualClock(BEGIN)
    with made_store(scheme, valkey, clock) as store:
        one = HierarchicalThrottle(100, 50, state=store, name="jobs")
        two = HierarchicalThrottle(100, 50, state=store, name="jobs")
        assert sum(each.sync.acquire("a", timeout=0) for each in (one, two) * 5) == 5
        one.sync.record_error("b")
        assert two.sync.current_limit("b") == 45


def test_acquire__cancelled_while_the_server_decides__gives_the_grant_back(valkey: Server) -> None:
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
        acquiring = asyncio.create_task(throttle.acquire("a", 10))
        await asyncio.sleep(0)
        acquiring.cancel()  # the request is sent, the reply not here yet
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        while not await throttle.acquire("a", 9, timeout=0):  # noqa: ASYNC110 - the store gives it back later
            await asyncio.sleep(0)
        await throttle.aclose()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_leave__next_waiters_loop_was_closed__the_one_after_queues_for_the_global_limit() -> None:
    class GoneWaiter(PipelineWaiter):
        @property
        def is_gone(self) -> bool:
            return True

    throttle = HierarchicalThrottle(10, 10)
    table, partition = throttle._partitions, throttle._partitions.find_or_add("a")
    served, following, other = PipelineWaiter(), PipelineWaiter(), PipelineWaiter()
    for waiter in (served, GoneWaiter(), following):
        assert table.join(partition, waiter)
    table.global_queue.join(other)
    table.leave(partition, served)
    assert list(partition.queue.waiters) == [following]
    assert list(table.global_queue.waiters) == [other, following]


def test_loop_event__set__wakes_the_waiter_like_an_asyncio_event() -> None:
    async def main() -> None:
        event = LoopEvent()
        asyncio.get_running_loop().call_soon(event.set)
        await event.wait()
        assert event.is_set()

    asyncio.run(main())
