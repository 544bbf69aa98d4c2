"""Virtual time: threads wait without real time, wake in order, and end with their process."""

from contextvars import ContextVar
from functools import partial
from queue import Empty

import pytest

from comporta.runtime import RUNTIME, install
from comporta.simulation.network import seconds_ns
from comporta.simulation.simulated_runtime import SimulatedRuntime
from comporta.simulation.virtual_time import Scheduler, SimulatedLock, SimulatedQueue
from comporta.simulation.worker import SimulatedWorker
from comporta.threads import AutoResetEvent


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def worker(scheduler: Scheduler) -> SimulatedWorker:
    return SimulatedWorker(scheduler, 0, 0, seed=1)


def test_scheduler__events_of_one_moment__happen_in_the_order_of_scheduling(scheduler: Scheduler) -> None:
    seen: list[str] = []
    for name in "abc":
        scheduler.call_at(10, seen.append, name)
    scheduler.call_at(5, seen.append, "first")
    scheduler.run_until(10)
    assert seen == ["first", "a", "b", "c"]
    assert scheduler.now_ns == 10


def test_scheduler__event_in_the_past__happens_now(scheduler: Scheduler) -> None:
    seen: list[int] = []
    scheduler.run_until(100)
    scheduler.call_at(10, lambda _: seen.append(scheduler.now_ns))
    scheduler.run_until(200)
    assert seen == [100]


def test_park__no_thread_runs__raises(scheduler: Scheduler) -> None:
    with pytest.raises(RuntimeError, match="only a simulated thread can wait"):
        scheduler.park(None)
    lock = SimulatedLock(scheduler)
    lock.acquire()
    with pytest.raises(RuntimeError, match="only a simulated thread can wait"):
        lock.acquire()


def test_thread__started_after_another_ended__uses_its_greenlet_and_nothing_else(
    scheduler: Scheduler, worker: SimulatedWorker
) -> None:
    seen: list[object] = []
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    def first() -> None:
        scheduler.call_after(50, old.resume, old.ticket)  # of a wait that the second thread must not end
        variable.set("set")

    def second() -> None:
        scheduler.park(100)
        seen.append((scheduler.now_ns, variable.get()))

    old = scheduler.start(worker, first)
    scheduler.run_until(10)
    assert scheduler.start(worker, second) is old
    scheduler.run_until(200)
    assert seen == [(100, "unset")]
    assert not worker.threads


def test_close__idle_greenlets__end(scheduler: Scheduler, worker: SimulatedWorker) -> None:
    threads = [scheduler.start(worker, lambda: None) for _ in range(3)]
    scheduler.run_until(10)
    assert not any(thread.dead for thread in threads)
    scheduler.close()
    assert all(thread.dead for thread in threads)


def test_queue__several_waiting_threads__each_gets_an_item_in_order(
    scheduler: Scheduler, worker: SimulatedWorker
) -> None:
    queue, seen = SimulatedQueue(scheduler), []

    def consume(name: str) -> None:
        seen.append((name, queue.get(timeout=1.0), scheduler.now_ns))

    for name in "abc":
        worker.start_thread(partial(consume, name))
    scheduler.run_until(10)
    for item in (1, 2, 3):
        queue.put(item)
    scheduler.run_until(20)
    assert seen == [("a", 1, 10), ("b", 2, 10), ("c", 3, 10)]


def test_queue__no_item_in_time__raises_empty_and_waits_no_more(
    scheduler: Scheduler, worker: SimulatedWorker
) -> None:
    queue, ended = SimulatedQueue(scheduler), []

    def consume() -> None:
        with pytest.raises(Empty):
            queue.get(timeout=0.5)
        ended.append(scheduler.now_ns)

    worker.start_thread(consume)
    scheduler.run_until(seconds_ns(1))
    assert ended == [seconds_ns(0.5)]
    queue.put("item")
    assert (queue.qsize(), queue.empty()) == (1, False)
    assert queue.get_nowait() == "item"
    with pytest.raises(Empty):
        queue.get_nowait()


def test_sleep__two_threads__interleave_by_virtual_time(
    scheduler: Scheduler, worker: SimulatedWorker
) -> None:
    seen: list[tuple[str, int]] = []

    def sleeper(name: str, seconds: float) -> None:
        for _ in range(2):
            RUNTIME.sleep(seconds)
            seen.append((name, scheduler.now_ns))

    with install(SimulatedRuntime(scheduler, seed=1)):
        worker.start_thread(lambda: sleeper("slow", 0.3))
        worker.start_thread(lambda: sleeper("fast", 0.2))
        scheduler.run_until(seconds_ns(1))
    assert seen == [
        ("fast", seconds_ns(0.2)),
        ("slow", seconds_ns(0.3)),
        ("fast", seconds_ns(0.4)),
        ("slow", seconds_ns(0.6)),
    ]
    assert worker.threads == {}


def test_event__set_by_another_thread__ends_the_wait(scheduler: Scheduler, worker: SimulatedWorker) -> None:
    seen: list[tuple[bool, int]] = []
    with install(SimulatedRuntime(scheduler, seed=1)):
        event = AutoResetEvent()

        def wait(seconds: float) -> None:
            seen.append((event.wait(seconds), scheduler.now_ns))

        worker.start_thread(lambda: wait(5))
        scheduler.call_at(seconds_ns(1), lambda _: event.set())
        scheduler.run_until(seconds_ns(2))
        worker.start_thread(lambda: wait(0.5))
        scheduler.run_until(seconds_ns(9))
    assert seen == [(True, seconds_ns(1)), (False, seconds_ns(2.5))]


def test_lock__no_time__does_not_wait(scheduler: Scheduler) -> None:
    lock = SimulatedLock(scheduler)
    assert lock.acquire()
    assert not lock.acquire(timeout=0)
    lock.release()
    assert not lock.locked()
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        lock.release()


def test_pause__thread_becomes_due__runs_at_the_resumption(
    scheduler: Scheduler, worker: SimulatedWorker
) -> None:
    seen: list[int] = []

    def sleeper() -> None:
        RUNTIME.sleep(1)
        seen.append(scheduler.now_ns)

    with install(SimulatedRuntime(scheduler, seed=1)):
        worker.start_thread(sleeper)
        scheduler.call_at(seconds_ns(0.5), lambda _: worker.pause())
        scheduler.call_at(seconds_ns(3), lambda _: worker.resume())
        scheduler.call_at(seconds_ns(3), lambda _: worker.resume())
        scheduler.run_until(seconds_ns(5))
    assert seen == [seconds_ns(3)]


def test_kill__waiting_threads__end_and_can_wait_for_nothing(
    scheduler: Scheduler, worker: SimulatedWorker
) -> None:
    seen: list[str] = []

    def sleeper() -> None:
        try:
            RUNTIME.sleep(100)
        finally:
            seen.append("cleanup")
            RUNTIME.sleep(1)
            seen.append("never")

    with install(SimulatedRuntime(scheduler, seed=1)):
        worker.start_thread(sleeper)
        scheduler.call_at(seconds_ns(1), lambda _: worker.kill())
        scheduler.call_at(seconds_ns(2), lambda _: worker.resume())
        scheduler.call_at(seconds_ns(2), lambda _: worker.pause())
        scheduler.run_until(seconds_ns(500))
    assert seen == ["cleanup"]
    assert worker.threads == {}


def test_thread__raises__is_reported(scheduler: Scheduler, worker: SimulatedWorker) -> None:
    def fail() -> None:
        raise KeyError("x")

    worker.start_thread(fail)
    with pytest.raises(KeyError):
        scheduler.run_until(1)


def test_runtime__each_worker__has_its_own_clock_randomness_and_objects(scheduler: Scheduler) -> None:
    workers = [SimulatedWorker(scheduler, index, 0, seed=1, drift_ppm=500 * index) for index in range(2)]
    seen: dict[int, tuple[int, bytes, int]] = {}

    def look() -> None:
        before_ns = RUNTIME.monotonic_ns()
        while scheduler.now_ns < seconds_ns(1000):
            RUNTIME.sleep(0.5)
        seen[RUNTIME.pid()] = (
            RUNTIME.monotonic_ns() - before_ns,
            RUNTIME.random_bytes(4),
            id(RUNTIME.process_objects()),
        )

    with install(SimulatedRuntime(scheduler, seed=1)):
        for each in workers:
            each.start_thread(look)
        scheduler.run_until(seconds_ns(1001))
        assert RUNTIME.host() == "simulated"
        assert RUNTIME.unix_time() == RUNTIME.unix_ns() / 1e9
        assert RUNTIME.monotonic() == RUNTIME.monotonic_ns() / 1e9
        with pytest.raises(RuntimeError, match="can't start new thread"):
            RUNTIME.start_thread(look, "x")
    exact, drifted = (seen[each.pid] for each in workers)
    assert exact[0] == seconds_ns(1000)
    assert seconds_ns(1000.4) <= drifted[0] <= seconds_ns(1001.1)
    assert exact[1:] != drifted[1:]
