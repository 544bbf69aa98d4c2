"""A process that is stopped or interrupted in the middle of an update blocks others only for a timeout."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.processes.counter_file import CounterFile
from tests.processes.fleet import Worker, new_state_name, remove_shared_state, shared_url
from tests.processes.jobs import COLUMNS, LIMITS, NAMES, ROUNDS, SLOW, STOP, make_limiter
from tests.support import assert_within, within

from comporta import BaseLimiter, LimitConfig, StateTimeoutError
from comporta.stores.base import StateKey
from comporta.stores.shared.index import locate
from comporta.stores.shared.store import SharedStore

TEN_PER_HOUR = {"rate": 10 / 3600, "capacity": 10}
RESULT_SECONDS_MAX = 1.0


@contextmanager
def open_shared(name: str, lock_timeout: float = 0.05) -> Iterator[SharedStore]:
    store = SharedStore(name, memory=8, lock_timeout=lock_timeout)
    yield store
    store.close()


@pytest.fixture
def name() -> Iterator[str]:
    new_name = new_state_name()
    yield new_name
    remove_shared_state(new_name)


@contextmanager
def stopped_holder(name: str) -> Iterator[Worker]:
    """Provide a process that acquired once and was stopped during the second call, while it holds a lock."""
    with Worker("stop_while_locked", number=0, url=shared_url(name), limit=TEN_PER_HOUR) as worker:
        worker.wait_ready().go().wait_stopped()
        yield worker


def other_lock(store: SharedStore, limiter: BaseLimiter) -> str:
    """Return a key with a different lock than ``k``."""
    strategy = limiter.config.build_strategy()

    def lock(key: str) -> int:
        return locate(StateKey(f"rate_limiter:{limiter.name}", key, strategy)).lock

    return next(key for key in map(str, range(1000)) if lock(key) != lock("k"))


def test_stopped_holder__blocking_callers__time_out(name: str) -> None:
    with stopped_holder(name), open_shared(name) as store:
        limiter = make_limiter(store, TEN_PER_HOUR)
        for method in (limiter.sync.acquire, limiter.sync.peek, limiter.sync.release, limiter.sync.reset):
            began = time.monotonic()
            with pytest.raises(StateTimeoutError, match="nothing was changed"):
                method("k")
            seconds = time.monotonic() - began
            assert seconds >= 0.05
            assert_within(seconds, RESULT_SECONDS_MAX)
        assert limiter.sync.acquire(other_lock(store, limiter))


def test_stopped_holder__resumed__callers_proceed(name: str) -> None:
    with stopped_holder(name) as holder, open_shared(name, lock_timeout=5) as store:
        limiter = make_limiter(store, TEN_PER_HOUR)
        holder.send(signal.SIGCONT)
        assert holder.result() == [True, True]
        assert sum(limiter.sync.acquire("k") for _ in range(20)) == 8


def test_stopped_holder__killed__its_unfinished_take_has_no_effect(name: str) -> None:
    with stopped_holder(name) as holder, open_shared(name, lock_timeout=5) as store:
        limiter = make_limiter(store, TEN_PER_HOUR)
        holder.kill()
        assert sum(limiter.sync.acquire("k") for _ in range(20)) == 9


def test_stopped_holder__resumed_while_a_caller_waits__serves_it(name: str) -> None:
    async def main() -> None:
        with stopped_holder(name) as holder, open_shared(name, lock_timeout=10) as store:
            waiting = asyncio.create_task(make_limiter(store, TEN_PER_HOUR).acquire("k"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            holder.send(signal.SIGCONT)
            assert await waiting is True

    asyncio.run(main())


def test_stopped_holder__event_loop__stays_responsive(name: str) -> None:
    """The event loop runs other tasks while every method waits for the lock."""

    async def tick(ticks: list[float]) -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def main() -> list[float]:
        ticks: list[float] = []
        with stopped_holder(name), open_shared(name, lock_timeout=1) as store:
            limiter = make_limiter(store, TEN_PER_HOUR)
            ticker = asyncio.create_task(tick(ticks))
            calls = [limiter.acquire("k"), limiter.acquire("k", cost=2), limiter.acquire("k", timeout=3)]
            other_calls = [limiter.decide("k"), limiter.peek("k"), limiter.stats("k"), limiter.release("k")]
            results = await asyncio.gather(*calls, *other_calls, limiter.reset("k"), return_exceptions=True)
            assert [type(result) for result in results] == [StateTimeoutError] * len(results)
            ticker.cancel()
        return ticks

    ticks = asyncio.run(main())
    longest = max(after - before for before, after in pairwise(ticks))
    assert len(ticks) >= 10
    assert_within(longest, 0.6, "a turn of the event loop")


@pytest.mark.parametrize("method", ["acquire", "decide", "peek", "stats", "release", "reset"])
def test_stopped_holder__of_the_override_lock__does_not_block_the_loop(name: str, method: str) -> None:
    """After an override every limiter reads it under another lock; that wait must not block the loop."""

    async def longest_pause(limiter: BaseLimiter) -> float:
        longest, last = 0.0, time.monotonic()
        call = asyncio.ensure_future(getattr(limiter, method)("k"))
        while not call.done():
            await asyncio.sleep(0.002)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        with pytest.raises(StateTimeoutError):
            call.result()
        return longest

    with open_shared(name, lock_timeout=1) as store, open_shared(name) as other:
        config = LimitConfig(1, 10)
        limiter, operator = BaseLimiter(config, store, "tested"), BaseLimiter(config, other, "tested")
        limiter.sync.acquire("k")
        operator.sync.set_limit("20/hour")
        all_locks = set(range(store.table.locks))
        limits_lock = locate(StateKey("rate_limiter:tested", "k", config.build_strategy())).lock
        with held_by_another(name, all_locks - {limits_lock}):
            assert_within(asyncio.run(longest_pause(limiter)), 0.6, "a turn of the event loop")
        assert limiter.sync.peek("k").limit == 20


@contextmanager
def held_by_another(name: str, locks: set[int]) -> Iterator[None]:
    """Let another process hold some locks of a table."""
    with Worker("hold_locks", number=0, name=name, locks=sorted(locks)) as worker:
        worker.wait_ready()
        yield


def test_stopped_at_random__busy_process__blocks_others_at_most_the_timeout(
    name: str, tmp_path: Path
) -> None:
    moments, path = random.Random(3), tmp_path / "counters"
    arguments: dict[str, Any] = {"url": shared_url(name), "counters": str(path), "rows": 1}
    with (
        open_shared(name) as store,
        CounterFile(path, 1, COLUMNS) as counters,
        Worker("acquire_until_stopped", number=0, **arguments) as busy,
    ):
        limiter = make_limiter(store, LIMITS[SLOW], NAMES[SLOW])
        busy.wait_ready().go()
        for _ in range(20):
            rounds = counters.get(0, ROUNDS)
            while counters.get(0, ROUNDS) == rounds:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.003))
            busy.send(signal.SIGSTOP)
            busy.wait_stopped()
            for _ in range(3):
                with within(RESULT_SECONDS_MAX), suppress(StateTimeoutError):
                    limiter.sync.acquire("k")
            busy.send(signal.SIGCONT)
        counters.add(0, STOP)
        assert busy.result() == "stopped"
        assert limiter.sync.acquire("k")


def test_signal_handler__raises_at_any_moment__leaves_no_lock(name: str) -> None:
    """As the time limits of task queues do, and Ctrl-C in a notebook, after which the process lives on."""
    with (
        open_shared(name, lock_timeout=5) as store,
        Worker("interrupt_randomly", number=0, url=shared_url(name), seconds=1.0) as worker,
    ):
        limiter = make_limiter(store, LIMITS[SLOW])
        interruptions = worker.wait_ready().go().result()
        assert interruptions > 50
        for key in ["k", *map(str, range(50))]:
            assert limiter.sync.acquire(key)


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_signal_handler__raises_at_any_moment__process_can_continue(name: str, kind: str) -> None:
    url = shared_url(name) if kind == "shared" else "memory://"
    with Worker("interrupt_randomly", number=0, url=url, seconds=0.7) as worker:
        assert worker.wait_ready().go().result() > 50
        assert worker.wait_ready().go().result() is True
