"""A process stopped or interrupted in the middle of an update keeps nobody waiting for ever."""

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
from tests.processes.books import Book
from tests.processes.fleet import KEYS, Worker, new_name, remove, shared_url
from tests.processes.jobs import COLUMNS, LIMITS, NAMES, ROUNDS, SLOW, STOP, limiter_of
from tests.support import hold_to, within

from comporta import BaseLimiter, LimitConfig, StateTimeoutError
from comporta.stores.shared import SharedStore

TEN_PER_HOUR = {"rate": 10 / 3600, "capacity": 10}
ANSWER_WITHIN = 1.0


@contextmanager
def opened_by_name(name: str, lock_timeout: float = 0.05) -> Iterator[SharedStore]:
    store = SharedStore(name, keys=KEYS, lock_timeout=lock_timeout)
    yield store
    store.close()


@pytest.fixture
def name() -> Iterator[str]:
    made = new_name()
    yield made
    remove(made)


@contextmanager
def stopped_holder(name: str) -> Iterator[Worker]:
    """Give a process that took one of ten and was stopped while it took the second, lock in hand."""
    with Worker("stop_inside", number=0, url=shared_url(name), limit=TEN_PER_HOUR) as worker:
        worker.ready().go().stopped()
        yield worker


def other_lock(store: SharedStore, limiter: BaseLimiter) -> str:
    """Return a key that another lock guards than that of ``k``."""
    codec = limiter.config.rule().codec

    def lock(key: str) -> int:
        return store.table.place(f"rate_limiter:{limiter.name}", key, codec).lock

    return next(key for key in map(str, range(1000)) if lock(key) != lock("k"))


def test_stopped_holder__blocking_callers__are_told_in_time(name: str) -> None:
    with stopped_holder(name), opened_by_name(name) as store:
        limiter = limiter_of(store, TEN_PER_HOUR)
        for ask in (limiter.sync.acquire, limiter.sync.peek, limiter.sync.release, limiter.sync.reset):
            began = time.monotonic()
            with pytest.raises(StateTimeoutError, match="nothing was changed"):
                ask("k")
            seconds = time.monotonic() - began
            assert seconds >= 0.05
            hold_to(seconds, ANSWER_WITHIN)
        assert limiter.sync.acquire(other_lock(store, limiter))


def test_stopped_holder__goes_on__and_so_does_everybody(name: str) -> None:
    with stopped_holder(name) as holder, opened_by_name(name, lock_timeout=5) as store:
        limiter = limiter_of(store, TEN_PER_HOUR)
        holder.send(signal.SIGCONT)
        assert holder.answer() == [True, True]
        assert sum(limiter.sync.acquire("k") for _ in range(20)) == 8


def test_stopped_holder__is_killed__and_what_it_had_in_hand_was_never_taken(name: str) -> None:
    with stopped_holder(name) as holder, opened_by_name(name, lock_timeout=5) as store:
        limiter = limiter_of(store, TEN_PER_HOUR)
        holder.kill()
        assert sum(limiter.sync.acquire("k") for _ in range(20)) == 9


def test_stopped_holder__goes_on_while_somebody_waits__who_is_served_then(name: str) -> None:
    async def main() -> None:
        with stopped_holder(name) as holder, opened_by_name(name, lock_timeout=10) as store:
            waiting = asyncio.create_task(limiter_of(store, TEN_PER_HOUR).acquire("k"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            holder.send(signal.SIGCONT)
            assert await waiting is True

    asyncio.run(main())


def test_stopped_holder__event_loop__goes_on_while_callers_wait(name: str) -> None:
    """The loop's heart beats while every verb waits for the lock."""

    async def beat(beats: list[float]) -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def main() -> list[float]:
        beats: list[float] = []
        with stopped_holder(name), opened_by_name(name, lock_timeout=1) as store:
            limiter = limiter_of(store, TEN_PER_HOUR)
            heart = asyncio.create_task(beat(beats))
            asked = [limiter.acquire("k"), limiter.acquire("k", cost=2), limiter.acquire("k", timeout=3)]
            asked_too = [limiter.decide("k"), limiter.peek("k"), limiter.stats("k"), limiter.release("k")]
            answers = await asyncio.gather(*asked, *asked_too, limiter.reset("k"), return_exceptions=True)
            assert [type(answer) for answer in answers] == [StateTimeoutError] * len(answers)
            heart.cancel()
        return beats

    beats = asyncio.run(main())
    longest = max(after - before for before, after in pairwise(beats))
    assert len(beats) >= 10
    hold_to(longest, 0.6, "a beat of the loop")


@pytest.mark.parametrize("verb", ["acquire", "decide", "peek", "stats", "release", "reset"])
def test_stopped_holder__of_the_lock_of_the_changes__does_not_hold_up_the_loop(name: str, verb: str) -> None:
    """After a change every limiter reads it, which takes a lock of its own: that wait is awaited too."""

    async def longest_pause(limiter: BaseLimiter) -> float:
        longest, last = 0.0, time.monotonic()
        asked = asyncio.ensure_future(getattr(limiter, verb)("k"))
        while not asked.done():
            await asyncio.sleep(0.002)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        with pytest.raises(StateTimeoutError):
            asked.result()
        return longest

    with opened_by_name(name, lock_timeout=1) as store, opened_by_name(name) as other:
        config = LimitConfig(1, 10)
        limiter, operator = BaseLimiter(config, store, "tested"), BaseLimiter(config, other, "tested")
        limiter.sync.acquire("k")
        operator.sync.change("20/hour")
        everything = set(range(store.table.locks))
        limits_lock = store.table.place("rate_limiter:tested", "k", config.rule().codec).lock
        with held_by_another(name, everything - {limits_lock}):
            hold_to(asyncio.run(longest_pause(limiter)), 0.6, "a beat of the loop")
        assert limiter.sync.peek("k").limit == 20


@contextmanager
def held_by_another(name: str, locks: set[int]) -> Iterator[None]:
    """Have another process hold some locks of a table."""
    with Worker("hold", number=0, name=name, locks=sorted(locks)) as worker:
        worker.ready()
        yield


def test_stopped_at_random__hammering_process__never_keeps_the_others_longer_than_stated(
    name: str, tmp_path: Path
) -> None:
    moments, path = random.Random(3), tmp_path / "book"
    told: dict[str, Any] = {"url": shared_url(name), "book": str(path), "rows": 1}
    with (
        opened_by_name(name) as store,
        Book(path, 1, COLUMNS) as book,
        Worker("steady", number=0, **told) as hammering,
    ):
        limiter = limiter_of(store, LIMITS[SLOW], NAMES[SLOW])
        hammering.ready().go()
        for _ in range(20):
            rounds = book.get(0, ROUNDS)
            while book.get(0, ROUNDS) == rounds:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.003))
            hammering.send(signal.SIGSTOP)
            hammering.stopped()
            for _ in range(3):
                with within(ANSWER_WITHIN), suppress(StateTimeoutError):
                    limiter.sync.acquire("k")
            hammering.send(signal.SIGCONT)
        book.add(0, STOP)
        assert hammering.answer() == "stopped"
        assert limiter.sync.acquire("k")


def test_interrupted_by_a_handler_that_raises__leaves_no_lock_behind(name: str) -> None:
    """As time limits of task queues do, and Ctrl-C in a notebook: the process lives on, and uses no lock."""
    with (
        opened_by_name(name, lock_timeout=5) as store,
        Worker("interrupted", number=0, url=shared_url(name), seconds=1.0) as worker,
    ):
        limiter = limiter_of(store, LIMITS[SLOW])
        interruptions = worker.ready().go().answer()
        assert interruptions > 50
        for key in ["k", *map(str, range(50))]:
            assert limiter.sync.acquire(key)


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_interrupted_by_a_handler_that_raises__can_go_on_itself(name: str, kind: str) -> None:
    url = shared_url(name) if kind == "shared" else "memory://"
    with Worker("interrupted", number=0, url=url, seconds=0.7) as worker:
        assert worker.ready().go().answer() > 50
        assert worker.ready().go().answer() is True
