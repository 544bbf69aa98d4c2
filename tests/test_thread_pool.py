"""The thread pool is bounded, cancellable, usable after a fork or an interrupt, and never delays an exit."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import pytest
from tests.support import wait_until

from comporta import thread_pool
from comporta.errors import DatabaseBusyError, RefusedError
from comporta.runtime import RUNTIME
from comporta.thread_pool import ThreadPool, _Call, run_in_thread
from comporta.threads import BackgroundThread

WAIT_SECONDS_MAX = 120.0


async def occupy(pool: ThreadPool) -> tuple[threading.Event, asyncio.Task[bool]]:
    """Keep one thread of a pool busy until the event is set."""
    gate, is_running = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> bool:
        loop.call_soon_threadsafe(is_running.set)
        return gate.wait(WAIT_SECONDS_MAX)

    task = asyncio.create_task(pool.run(work))
    await asyncio.wait_for(is_running.wait(), WAIT_SECONDS_MAX)
    return gate, task


# -- results


@pytest.mark.parametrize("wait", [True, False])
def test_run__arguments__are_passed_and_the_result_returned(wait: bool) -> None:
    async def main() -> int:
        pool = ThreadPool("test", 1)
        result = await pool.run(int, "11", base=2)
        pool.close(wait=wait)
        pool.close(wait=wait)
        return result

    assert asyncio.run(main()) == 3


def test_run__work_raises__the_caller_gets_the_error_and_the_thread_continues() -> None:
    async def main() -> None:
        pool = ThreadPool("test", 1)
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 1, 0)
        assert await pool.run(int, "7") == 7
        pool.close(wait=True)

    asyncio.run(main())


@pytest.mark.parametrize(
    "call", [ThreadPool("test", 1).submit, run_in_thread], ids=["submit", "run_in_thread"]
)
def test_call__raises_stop_iteration__is_a_runtime_error(call: Callable[[Callable[[], Any]], Any]) -> None:
    def exhausted() -> NoReturn:
        raise StopIteration(7)

    async def main() -> None:
        await asyncio.wait_for(call(exhausted), WAIT_SECONDS_MAX)

    with pytest.raises(RuntimeError, match=r"the call raised StopIteration\(7\)"):
        asyncio.run(main())


def test_run__thread__is_not_one_of_the_default_executor() -> None:
    async def main() -> str:
        pool = ThreadPool("database", 1)
        name = await pool.run(lambda: threading.current_thread().name)
        pool.close()
        return name

    assert asyncio.run(main()) == "comporta-database"


class Result:
    """Something that a weak reference can point to."""


def test_run__thread_is_idle_again__keeps_no_result() -> None:
    async def main() -> None:
        pool = ThreadPool("test", 1)
        reference = weakref.ref(await pool.run(Result))
        await asyncio.sleep(0)  # the event loop drops its reference
        wait_until(lambda: gc.collect() is not None and reference() is None)
        pool.close()

    asyncio.run(main())


# -- threads


def test_submit__more_calls_than_threads__uses_at_most_that_many() -> None:
    async def main() -> set[int]:
        pool, together = ThreadPool("test", 2), threading.Barrier(2)

        def ident() -> int:
            together.wait(WAIT_SECONDS_MAX)  # only two threads at a time can get past this
            return threading.get_ident()

        idents = await asyncio.gather(*(pool.submit(ident) for _ in range(20)))
        pool.close()
        return set(idents)

    assert len(asyncio.run(main())) == 2


def test_run__calls_one_after_another__need_one_thread() -> None:
    async def main() -> set[int]:
        pool = ThreadPool("test", 100)
        idents = {await pool.run(threading.get_ident) for _ in range(100)}
        pool.close()
        return idents

    assert len(asyncio.run(main())) == 1


def test_close__queued_calls__are_still_run() -> None:
    async def main() -> list[bool | int]:
        pool = ThreadPool("test", 1)
        gate, first = await occupy(pool)
        second = pool.submit(lambda: 2)
        pool.close()
        gate.set()
        return [await first, await second]

    assert asyncio.run(main()) == [True, 2]


def test_close__between_a_call_and_the_start_of_its_thread__still_runs_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> int:
        pool = ThreadPool("test", 1)

        class ClosingThread(BackgroundThread):
            def start(self, work: Callable[..., object], *args: Any, name: str) -> bool:
                pool.close()
                return super().start(work, *args, name=name)

        monkeypatch.setattr(thread_pool, "BackgroundThread", ClosingThread)
        return await asyncio.wait_for(pool.run(int, "7"), WAIT_SECONDS_MAX)

    assert asyncio.run(main()) == 7


def test_close__waits__no_thread_is_left() -> None:
    async def main() -> None:
        pool = ThreadPool("test-close", 3)
        gates = [await occupy(pool) for _ in range(3)]
        for gate, _ in gates:
            gate.set()
        await asyncio.to_thread(pool.close, wait=True)
        assert all([await task for _, task in gates])

    asyncio.run(main())
    wait_until(lambda: "comporta-test-close" not in {thread.name for thread in threading.enumerate()})


def test_run__after_close__starts_new_threads() -> None:
    async def main() -> None:
        pool = ThreadPool("test", 1)
        assert await pool.run(int, "1") == 1
        pool.close(wait=True)
        assert await pool.run(int, "2") == 2
        pool.close(wait=True)

    asyncio.run(main())


def test_thread__no_call_for_a_while__ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pool = ThreadPool("test", 1)
        with monkeypatch.context() as patched:
            patched.setattr(thread_pool, "IDLE_SECONDS", 0.001)
            await pool.run(int)
            wait_until(lambda: not pool._threads)
        assert await pool.run(int, "7") == 7
        pool.close()

    asyncio.run(main())


class NoThread:
    """Stands in for a BackgroundThread where the system has none left."""

    def start(self, *_: object, name: str) -> bool:
        return name == ""

    def is_alive(self) -> bool:
        return True


def test_submit__no_thread_can_be_started__raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pool = ThreadPool("test", 1)
        with monkeypatch.context() as patched:
            patched.setattr(thread_pool, "BackgroundThread", NoThread)
            with pytest.raises(RuntimeError, match="test: cannot start a thread"):
                await pool.submit(lambda: 7)
            with pytest.raises(RuntimeError, match="call: cannot start a thread"):
                await run_in_thread(lambda: 7)
        assert await pool.submit(lambda: 7) == 7
        pool.close()

    asyncio.run(main())


def test_submit__no_further_thread_can_be_started__waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        pool = ThreadPool("test", 2)
        gate, first = await occupy(pool)
        with monkeypatch.context() as patched:
            patched.setattr(thread_pool, "BackgroundThread", NoThread)
            second = pool.submit(lambda: 7)
        gate.set()
        assert await first
        assert await second == 7
        pool.close()

    asyncio.run(main())


class InterruptedThread(BackgroundThread):
    """A thread whose start is interrupted by a signal handler."""

    def start(self, work: Callable[..., object], *args: Any, name: str) -> bool:
        raise KeyboardInterrupt


def test_submit__interrupted_before_its_thread_starts__the_next_call_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        pool = ThreadPool("test", 1)
        with monkeypatch.context() as patched:
            patched.setattr(thread_pool, "BackgroundThread", InterruptedThread)
            with suppress(KeyboardInterrupt):
                await pool.submit(lambda: 7)
        assert await asyncio.wait_for(pool.run(int, "8"), WAIT_SECONDS_MAX) == 8
        pool.close()

    asyncio.run(main())


def test_submit__interrupted_twice__the_thread_that_never_began_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        pool = ThreadPool("test", 1)
        pool._enqueue(
            _Call(int, asyncio.get_running_loop())
        )  # interrupted before the start, and in the cleanup
        monkeypatch.setattr("comporta.threads.START_SECONDS_MAX", 0)
        assert await asyncio.wait_for(pool.run(int, "8"), WAIT_SECONDS_MAX) == 8
        pool.close()

    asyncio.run(main())


INTERRUPTED = """
import asyncio, signal
from comporta.thread_pool import ThreadPool

class OutOfTimeError(Exception):
    pass

armed = [False]

def interrupt(*_):
    if armed[0]:
        armed[0] = False
        raise OutOfTimeError

async def main():
    pool = ThreadPool("test", 2, calls_max=1_000_000)
    for turn in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, 2e-5 + turn % 97 * 3e-6, 0.01)
            armed[0] = True
            while True:
                pool.submit(int)
        except OutOfTimeError:
            pass
        assert await asyncio.wait_for(pool.run(int, "7"), 60) == 7
    signal.setitimer(signal.ITIMER_REAL, 0)
    pool.close(wait=True)

signal.signal(signal.SIGALRM, interrupt)
asyncio.run(main())
"""


def test_submit__while_a_signal_handler_raises_at_any_moment__never_hangs() -> None:
    """In a separate process: an interrupt could leave a lock of the coverage tracer locked."""
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=120)


# -- the queue


def test_run__cancelled_in_the_queue__never_runs_and_leaves_room() -> None:
    async def main() -> list[int]:
        pool = ThreadPool("test", 1, calls_max=3)
        done: list[int] = []
        gate, first = await occupy(pool)
        second = asyncio.create_task(pool.run(done.append, 2))
        third = asyncio.create_task(pool.run(done.append, 3))
        await asyncio.sleep(0)  # both are queued
        second.cancel()
        await asyncio.wait([second])
        assert len(pool._calls) == 2
        fourth = pool.submit(lambda: done.append(4))
        gate.set()
        await asyncio.gather(first, third, fourth)
        pool.close()
        return done

    assert asyncio.run(main()) == [3, 4]


def test_submit__many_cancelled_calls__do_not_fill_the_queue() -> None:
    async def main() -> int:
        pool = ThreadPool("test", 1, calls_max=3)
        gate, first = await occupy(pool)
        for _ in range(100):
            cancelled = pool.submit(int)
            cancelled.cancel()
            await asyncio.sleep(0)  # the cancellation reaches the queue
            assert pool._queue.qsize() <= 8
        last = pool.submit(lambda: 7)
        gate.set()
        assert await first
        pool.close()
        return await last

    assert asyncio.run(main()) == 7


def test_run__cancelled_while_running__the_call_continues() -> None:
    async def main() -> bool:
        pool, finished = ThreadPool("test", 1), threading.Event()
        gate, first = await occupy(pool)
        first.cancel()
        await asyncio.wait([first])
        last = pool.submit(finished.set)
        gate.set()
        await last
        pool.close()
        return finished.is_set()

    assert asyncio.run(main())


def test_run_in_thread__cancelled__the_call_runs_to_its_end() -> None:
    gate, is_done = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(WAIT_SECONDS_MAX)
        is_done.set()

    async def main() -> None:
        task = asyncio.create_task(run_in_thread(work))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    gate.set()
    assert is_done.wait(WAIT_SECONDS_MAX)


def test_call__event_loop_closed_meanwhile__its_thread_goes_on() -> None:
    pool, gate, is_running = ThreadPool("test", 1), threading.Event(), threading.Event()

    def work() -> None:
        is_running.set()
        gate.wait(WAIT_SECONDS_MAX)

    async def leave() -> None:
        pool.submit(work).add_done_callback(print)
        await asyncio.to_thread(is_running.wait, WAIT_SECONDS_MAX)

    asyncio.run(leave())
    gate.set()

    async def call() -> int:
        return await asyncio.wait_for(pool.run(int, "7"), WAIT_SECONDS_MAX)

    assert asyncio.run(call()) == 7
    pool.close()


def test_run__queue_is_full__is_refused_at_once() -> None:
    async def main() -> None:
        pool = ThreadPool("sheets", 1, calls_max=2)
        gate, first = await occupy(pool)
        second = pool.submit(int)
        with pytest.raises(RefusedError, match="sheets: 2 calls are waiting already") as refused:
            await pool.run(int)
        assert refused.value.retry_after == 1.0
        gate.set()
        assert await first
        assert await second == 0
        assert await pool.run(int, "7") == 7
        pool.close()

    asyncio.run(main())


def busy(text: str) -> DatabaseBusyError:
    return DatabaseBusyError(f"db: {text}")


def test_run__queue_is_full_and_refusal_given__raises_that_error() -> None:
    async def main() -> None:
        pool = ThreadPool("database", 1, calls_max=1, refusal=busy)
        gate, first = await occupy(pool)
        with pytest.raises(DatabaseBusyError, match="db: 1 calls are waiting already"):
            await pool.run(int)
        gate.set()
        assert await first
        pool.close()

    asyncio.run(main())


# -- deadlines


def test_run_within__thread_is_free_too_late__is_refused() -> None:
    async def main() -> None:
        pool = ThreadPool("database", 1, refusal=busy)
        gate, first = await occupy(pool)
        second = asyncio.create_task(pool.run_within(1e-9, lambda _: True))
        await asyncio.sleep(0)
        gate.set()
        assert await first
        with pytest.raises(DatabaseBusyError, match=r"db: no thread became free within 1e-09 s"):
            await second
        pool.close()

    asyncio.run(main())


def test_run_within__thread_is_free_late__has_only_the_rest_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(RUNTIME, "monotonic", lambda: now)

    async def main() -> None:
        nonlocal now
        pool = ThreadPool("database", 1)
        gate, first = await occupy(pool)
        second = asyncio.create_task(pool.run_within(60, lambda left: left))
        await asyncio.sleep(0)
        now += 12.5
        gate.set()
        assert await first
        assert await second == 47.5
        pool.close()

    asyncio.run(main())


# -- forks and exits


def test_pool__used_in_a_forked_child__has_a_new_lock_and_new_threads() -> None:
    pool = ThreadPool("test", 1)

    async def call() -> int:
        return await asyncio.wait_for(pool.run(int, "7"), WAIT_SECONDS_MAX)

    assert asyncio.run(call()) == 7
    pool._lock.acquire()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child leaves without writing its coverage
        os._exit(asyncio.run(call()))
    pool._lock.release()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert asyncio.run(call()) == 7
    pool.close()


HANGS_IN_STEP = """
import threading
from comporta import Pipeline

def step(item):
    print("started", flush=True)
    threading.Event().wait()

print(Pipeline([1], step).sync.run().ended, flush=True)
"""


HANGS_IN_OPEN = """
import threading
from comporta import Pipeline

class Sink:
    def open(self):
        print("started", flush=True)
        threading.Event().wait()

    def write(self, rows): ...
    def close(self): ...

print(Pipeline([1], lambda item: {"id": item}, Sink()).sync.run().ended, flush=True)
"""


@pytest.mark.parametrize("program", [HANGS_IN_STEP, HANGS_IN_OPEN], ids=["step", "sink"])
def test_exit__blocking_step_or_open_of_a_sink_hangs__the_program_still_ends(program: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        for seconds in (2, 20):  # two signals in quick succession count as one
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        try:
            output, _ = process.communicate(timeout=WAIT_SECONDS_MAX)
        finally:
            process.kill()
    assert (output, process.returncode) == (b"stopped\n", 0)


def test_pool__call_queued_as_an_idle_thread_ends__thread_goes_on() -> None:
    """A thread that waited in vain looks at the queue once more, under the lock, before it ends."""
    pool, thread = ThreadPool("test", threads=1, calls_max=1), BackgroundThread()
    pool._threads[thread] = None
    pool._queue.put(None)
    assert not pool._may_end(thread, pool._queue)
    pool._queue.get_nowait()
    assert pool._may_end(thread, pool._queue)
    assert not pool._threads


def test_pool__cancelled_calls_dropped__keeps_the_others_in_order() -> None:
    async def story() -> None:
        pool, loop = ThreadPool("test", threads=1, calls_max=1), asyncio.get_running_loop()
        calls = [_Call(int, loop) for _ in range(3)]
        for call in calls:
            pool._queue.put(call)
        calls[1].future.cancel()
        pool._drop_cancelled()
        assert [pool._queue.get_nowait() for _ in range(2)] == [calls[0], calls[2]]

    asyncio.run(story())
