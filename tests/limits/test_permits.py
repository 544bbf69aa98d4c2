"""How many calls may be in flight, for all who share a state."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.limits import permit_worker
from tests.processes import fleet
from tests.processes.fleet import Worker, flushed, new_name, remove, shared_url, started, together
from tests.stores.switchable import ByHand, Switchable, by_hand, moved
from tests.support import comes_true, command, redis_store, shared_store, store_by_hand

from comporta import ConcurrencyLimit, LimitReachedError, Permit
from comporta.errors import (
    StateDeniedError,
    StateError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.flow import Flow, run, run_async
from comporta.limits.holding import GivePermit, Holder, Holders, Room, Taken, TakePermit
from comporta.stores.base import Operation, Outage, Store
from comporta.stores.failover import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.redis import RedisStore
from comporta.stores.urls import forget_stores
from comporta.testing import ManualClock, Server

R = TypeVar("R")
Runs = Callable[[Flow[Any]], Any]


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_by_hand(request, clock) as made:
        yield made


class Blocking:
    """The verbs of a limit, blocking."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self.acquire = limit.sync.acquire
        self.release = limit.sync.release
        self.renew = limit.sync.renew
        self.in_use = limit.sync.in_use
        self.holders = limit.sync.holders
        self._limit = limit

    def within(self, body: Callable[[Permit], Any], timeout: float | None = 0) -> Any:
        with self._limit.sync.slot(timeout) as permit:
            return body(permit)


class Awaiting:
    """The verbs of a limit, awaited one by one on one loop."""

    def __init__(self, limit: ConcurrencyLimit, runner: asyncio.Runner) -> None:
        self._limit = limit
        self._run = runner.run

    def acquire(self, timeout: float | None = 0) -> Permit | None:
        return self._run(self._limit.acquire(timeout))

    def release(self, permit: Permit) -> None:
        self._run(self._limit.release(permit))

    def renew(self, permit: Permit) -> bool:
        return self._run(self._limit.renew(permit))

    def in_use(self) -> int:
        return self._run(self._limit.in_use())

    def holders(self) -> list[Holder]:
        return self._run(self._limit.holders())

    def within(self, body: Callable[[Permit], Any], timeout: float | None = 0) -> Any:
        async def main() -> Any:
            async with self._limit.slot(timeout) as permit:
                return body(permit)

        return self._run(main())


Face = Blocking | Awaiting
Opens = Callable[[ConcurrencyLimit], Face]


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, store: Store) -> Iterator[Opens]:
    if request.param == "blocking":
        yield Blocking
        return
    with asyncio.Runner() as runner:
        yield lambda limit: Awaiting(limit, runner)
        if isinstance(store, RedisStore):
            runner.run(store.aclose())


def got(permit: Permit | None) -> Permit:
    assert permit is not None
    return permit


def test_acquire__more_than_there_are__gets_none(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 3, state=store))
    permits = [limit.acquire() for _ in range(5)]
    assert [permit is not None for permit in permits] == [True, True, True, False, False]
    assert limit.in_use() == 3


def test_release__one__makes_room_for_one(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 2, state=store))
    first = got(limit.acquire())
    assert limit.acquire()
    limit.release(first)
    assert limit.in_use() == 1
    assert limit.acquire()
    assert limit.acquire() is None


def test_release__the_last__leaves_nothing(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 2, state=store))
    limit.release(got(limit.acquire()))
    assert limit.holders() == []


def test_release__twice__gives_back_once(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 2, state=store))
    first, second = got(limit.acquire()), got(limit.acquire())
    limit.release(first)
    limit.release(first)
    assert limit.in_use() == 1
    limit.release(second)
    limit.release(second)
    assert limit.in_use() == 0


def test_permit__of_one_who_never_came_back__is_free_after_its_deadline(
    store: Store, face: Opens, clock: ManualClock
) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, hold_seconds=10, state=store))
    lost = got(limit.acquire())
    clock.advance(9.999)
    assert limit.acquire() is None  # a refusal extends nothing
    clock.advance(0.001)
    taken = got(limit.acquire())
    limit.release(lost)  # it has ended already
    assert limit.in_use() == 1
    assert not limit.renew(lost)
    limit.release(taken)
    assert limit.in_use() == 0


def test_renew__in_time__holds_for_as_long_again(store: Store, face: Opens, clock: ManualClock) -> None:
    limit = face(ConcurrencyLimit("pncp", 2, hold_seconds=10, state=store))
    permit = got(limit.acquire())
    clock.advance(5)
    got(limit.acquire())
    assert limit.renew(permit)
    assert [holder.seconds_left for holder in limit.holders()] == [10, 10]
    clock.advance(9)
    assert limit.renew(permit)
    assert [holder.seconds_left for holder in limit.holders()] == [1, 10]
    clock.advance(10)
    assert not limit.renew(permit)
    assert limit.in_use() == 0


def test_holders__some__are_named_with_the_time_they_have(
    store: Store, face: Opens, clock: ManualClock
) -> None:
    limit = face(ConcurrencyLimit("pncp", 5, hold_seconds=10, state=store))
    permit = got(limit.acquire())
    clock.advance(4)
    limit.acquire()
    owner = f"{os.uname().nodename[:64]}:{os.getpid()}"
    assert permit.owner == owner
    assert limit.holders() == [Holder(owner, 6.0), Holder(owner, 10.0)]


def test_clock__set_back__holds_nobody_out_for_longer(store: Store, face: Opens, clock: ManualClock) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, hold_seconds=10, state=store))
    limit.acquire()
    clock.advance(-3600)
    assert limit.acquire() is None
    assert limit.holders()[0].seconds_left == 10
    clock.advance(10)
    assert limit.acquire()


def test_slot__body__holds_a_permit_and_gives_it_back(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, state=store))
    assert limit.within(lambda permit: permit.owner).endswith(f":{os.getpid()}")
    assert limit.in_use() == 0


def test_slot__body_fails__gives_it_back(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, state=store))

    def body(permit: Permit) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        limit.within(body)
    assert limit.in_use() == 0


def test_slot__body_is_thrown_away__gives_it_back_soon() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())

    async def body() -> None:
        async with limit.slot():
            await asyncio.sleep(0)

    begun = body()
    begun.send(None)
    assert limit.sync.in_use() == 1
    begun.close()
    comes_true(lambda: limit.sync.in_use() == 0)


def test_slot__no_room__says_so_and_when_to_come_back(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, state=store))
    limit.acquire()
    with pytest.raises(LimitReachedError, match="pncp: 1 calls are in flight") as raised:
        limit.within(lambda permit: None, timeout=0.5)
    assert raised.value.name == "pncp"
    assert raised.value.retry_after == 0.1
    assert limit.in_use() == 1


def test_wait__until_a_deadline__gets_the_permit_then(store: Store, face: Opens, clock: ManualClock) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, hold_seconds=2, state=store))
    limit.acquire()
    began_ns = clock.now_ns()
    assert limit.acquire(timeout=5)
    assert 2.0 <= (clock.now_ns() - began_ns) / 1e9 < 2.001


def test_wait__for_ever__ends_with_a_permit(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, hold_seconds=2, state=store))
    limit.acquire()
    assert limit.acquire(timeout=None)


def test_wait__too_short__ends_at_its_timeout(store: Store, face: Opens, clock: ManualClock) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, hold_seconds=60, state=store))
    limit.acquire()
    began_ns = clock.now_ns()
    assert limit.acquire(timeout=1) is None
    assert 0.99 <= (clock.now_ns() - began_ns) / 1e9 <= 1


def test_wait__released_elsewhere__is_noticed_within_a_tenth_of_a_second(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    here, elsewhere = (ConcurrencyLimit("pncp", 1, state=store) for _ in range(2))
    permit = got(elsewhere.sync.acquire())
    waits = here.taking(10)
    next(waits).block()
    rest = waits.send(Taken(False, 60_000_000))
    elsewhere.sync.release(permit)
    began_ns = clock.now_ns()
    rest.block()
    assert 0.05 <= (clock.now_ns() - began_ns) / 1e9 <= 0.1
    waits.send(None).block()
    with pytest.raises(StopIteration) as end:
        waits.send(Taken(True))
    assert isinstance(end.value.value, Permit)


class Still(ManualClock):
    """Time stands still: whoever rests is woken, or rests for ever."""

    async def wait_async(self, event: asyncio.Event, seconds: float | None) -> None:
        await event.wait()


def test_wait__released_here__is_noticed_at_once() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore(Still()))

    async def main() -> list[int]:
        served: list[int] = []

        async def waiter(number: int) -> None:
            async with limit.slot(timeout=600):
                served.append(number)
                await asyncio.sleep(0)

        permit = got(await limit.acquire())
        waiters = [asyncio.create_task(waiter(number)) for number in range(5)]
        while len(limit._lines.by_key.get("", ())) < 5:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        assert await limit.acquire() is None  # those who wait were here before
        await limit.release(permit)
        await asyncio.gather(*waiters)
        return served

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [0, 1, 2, 3, 4]


def test_wait__threads_and_coroutines__are_never_more_than_allowed() -> None:
    limit = ConcurrencyLimit("pncp", 3, state=MemoryStore())
    inside, most = 0, 0
    lock = threading.Lock()

    def enter(change: int) -> None:
        nonlocal inside, most
        with lock:
            inside += change
            most = max(most, inside)

    async def call() -> None:
        async with limit.slot(timeout=60):
            enter(1)
            await asyncio.sleep(0.001)
            enter(-1)

    async def calls() -> None:
        await asyncio.gather(*(call() for _ in range(20)))

    def blocking() -> None:
        for _ in range(10):
            with limit.sync.slot(timeout=60):
                enter(1)
                enter(-1)

    threads = [threading.Thread(target=blocking) for _ in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(calls())
    for thread in threads:
        thread.join()
    assert (inside, limit.sync.in_use()) == (0, 0)
    assert most <= 3


def test_cancelled__in_the_body__gives_it_back(valkey: Server) -> None:
    async def main(limit: ConcurrencyLimit, store: RedisStore) -> int:
        inside = asyncio.Event()

        async def call() -> None:
            async with limit.slot():
                inside.set()
                await asyncio.sleep(600)

        task = asyncio.create_task(call())
        await inside.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        left = await limit.in_use()
        await store.aclose()
        return left

    with redis_store(valkey) as store:
        assert asyncio.run(main(ConcurrencyLimit("pncp", 1, state=store), store)) == 0


@pytest.mark.parametrize("ticks", range(12))
def test_cancelled__anywhere_on_the_way_to_a_permit__keeps_none(valkey: Server, ticks: int) -> None:
    async def main(limit: ConcurrencyLimit, store: RedisStore) -> int:
        await limit.in_use()  # so that there is a connection
        task = asyncio.create_task(limit.acquire())
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await limit.release(got(task.result()))
        left = 1
        for _ in range(100):  # what gives it back may still be under way
            left = await limit.in_use()
            if not left:
                break
        await store.aclose()
        return left

    with redis_store(valkey) as store:
        assert asyncio.run(main(ConcurrencyLimit("pncp", 1, state=store), store)) == 0


def test_undo__granted__gives_it_back_and_refused_does_nothing() -> None:
    room, permit = Room("pncp", 1, 1_000_000), Permit.new()
    take = TakePermit(room, permit)
    assert isinstance(take.undo(Taken(True)), GivePermit)
    assert take.undo(Taken(False, 5)) is None
    assert GivePermit(room, permit).undo(Taken(True)) is None
    Holders(room).undo([])


def test_state_out_of_reach__goes_by_its_part_of_the_permits() -> None:
    store, primary = by_hand()
    store.keeper.census.heard(4)
    limit = ConcurrencyLimit("pncp", 10, state=store)
    before = got(limit.sync.acquire())
    primary.error = StateUnavailableError("gone")
    permits = [limit.sync.acquire() for _ in range(4)]
    assert [permit is not None for permit in permits] == [True, True, False, False]
    assert limit.fallback is not None
    limit.sync.release(before)  # of the shared state: nothing here to give back
    assert limit.sync.in_use() == 2
    limit.sync.release(got(permits[0]))
    assert limit.sync.acquire()
    store.close()


def test_state_is_back__calls_that_ended_without_it__have_given_their_permits_back() -> None:
    store, primary = by_hand()
    limit = ConcurrencyLimit("pncp", 2, state=store)
    permits = [got(limit.sync.acquire()) for _ in range(2)]
    primary.error = StateUnavailableError("gone")
    for permit in [*permits, Permit.new()]:  # no more are remembered than there can be
        limit.sync.release(permit)
    assert moved(store) is not None  # still gone
    primary.error = None
    while limit.fallback is not None:
        moved(store)
    assert limit.sync.in_use() == 2
    moved(store)
    assert limit.sync.in_use() == 0
    assert limit.due() is None
    store.close()


class Losing(Switchable):
    """A store that does as it is told, but whose answers to coroutines do not come: an error, or nothing."""

    silent = False

    async def apply_async(self, operation: Operation[R]) -> R:
        if not self.silent:
            self.apply(operation)
        await asyncio.sleep(3600 if self.silent else 0)
        raise StateTimeoutError("no answer in time")


def losing() -> tuple[FailoverStore, Losing]:
    primary = Losing(ManualClock())
    store = FailoverStore(lambda: primary, f"test://{id(primary)}", primary.clock)
    store.keeper = ByHand(store)
    return store, primary


def test_answers__lost_and_refused_here__are_given_back_when_the_state_is_back() -> None:
    store, _ = losing()
    store.keeper.census.heard(5)
    limit = ConcurrencyLimit("pncp", 10, state=store)

    async def ten() -> list[Permit | None]:
        return await asyncio.gather(*(limit.acquire() for _ in range(10)))

    permits = [permit for permit in asyncio.run(ten()) if permit]
    assert len(permits) == 2  # its share: the shared state granted all of them
    while limit.fallback is not None:
        moved(store)
    assert limit.sync.in_use() == 10
    moved(store)
    assert limit.sync.in_use() == 2  # those whose calls are under way
    for permit in permits:
        limit.sync.release(permit)
    assert limit.sync.in_use() == 0
    store.close()


def test_release__cancelled_before_it_was_said__is_said_by_the_keeper() -> None:
    store, primary = losing()
    limit = ConcurrencyLimit("pncp", 1, state=store)
    permit = got(limit.sync.acquire())
    primary.silent = True

    async def cancelled() -> None:
        task = asyncio.create_task(limit.release(permit))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancelled())
    assert limit.sync.in_use() == 1
    moved(store)
    assert limit.sync.in_use() == 0
    store.close()


def test_take__again_after_a_lost_answer__is_not_in_its_own_way(store: Store) -> None:
    room, permit = Room("pncp", 1, 1_000_000), Permit.new()
    assert store.apply(TakePermit(room, permit)).done
    assert store.apply(TakePermit(room, permit)).done
    assert not store.apply(TakePermit(room, Permit.new())).done
    assert len(store.apply(Holders(room))) == 1


def test_state_out_of_reach__more_workers_than_permits__leaves_one_each() -> None:
    store, primary = by_hand()
    store.keeper.census.heard(40)
    primary.error = StateUnavailableError("gone")
    limit = ConcurrencyLimit("pncp", 10, state=store)
    assert limit.sync.acquire()
    assert limit.sync.acquire() is None
    store.close()


def test_state_out_of_reach__no_room_for_another_key__grants_nothing() -> None:
    outage = Outage(0.0, 0, "gone", 1, full=True)
    take = TakePermit(Room("pncp", 10, 1_000_000), Permit.new()).alone(outage)
    assert MemoryStore().apply(take) == Taken(False, 1_000_000)


def test_release__state_does_not_let_us_in__spoils_no_call() -> None:
    store, primary = by_hand()
    limit = ConcurrencyLimit("pncp", 1, state=store)
    primary.error = StateDeniedError("no")
    with pytest.raises(StateError):
        limit.sync.acquire()
    limit.sync.release(Permit.new())
    store.close()


def test_redis__sorted_set__is_readable_and_lives_as_long_as_the_last_permit(server: Server) -> None:
    with redis_store(server) as store:
        limit = ConcurrencyLimit("pncp", 2, hold_seconds=20, state=store)
        permit = got(limit.sync.acquire())
        assert str(permit).encode() in command(server, "ZRANGE", "concurrency:pncp", 0, -1)
        left_ms = int(command(server, "PTTL", "concurrency:pncp")[1:])
        assert 10_000 < left_ms <= 20_000
        assert 10 < limit.sync.holders()[0].seconds_left <= 20
        limit.sync.release(permit)
        assert command(server, "EXISTS", "concurrency:pncp") == b":0\r\n"


@pytest.mark.parametrize("score", ["inf", "1e300", "-inf", "-5", "0", "1e15", "2e15"])
def test_redis__poison__holds_nobody_out_for_longer_than_a_permit(
    server: Server, clock: ManualClock, score: str
) -> None:
    with redis_store(server, clock) as store:
        command(server, "ZADD", "concurrency:pncp", score, "garbage")
        limit = ConcurrencyLimit("pncp", 1, hold_seconds=10, state=store)
        for holder in limit.sync.holders():
            assert holder == Holder("", 10.0)
        limit.sync.acquire()
        clock.advance(10)
        assert limit.sync.acquire()


def test_redis__something_else_at_the_key__is_named_and_others_are_not_concerned(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", "concurrency:pncp", "x")
        bad, good = (TakePermit(Room(name, 1, 1_000_000), Permit.new()) for name in ("pncp", "pcp"))
        error, taken = store.apply_all([bad, good])
        assert isinstance(error, StateTypeError)
        assert "concurrency:pncp" in str(error)
        assert taken == Taken(True)
        failover = FailoverStore.of(store, store.address)
        limit = ConcurrencyLimit("pncp", 2, state=failover)
        assert [limit.sync.acquire() is not None for _ in range(3)] == [True, True, False]
        assert limit.sync.in_use() == 2
        failover.close()


@pytest.fixture(params=["shared", "redis"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give a state that processes share; they run the program beside this file."""
    monkeypatch.setattr(fleet, "PROGRAM", permit_worker.__name__)
    if request.param == "shared":
        name = new_name()
        yield shared_url(name)
        forget_stores()
        remove(name)
    else:
        server: Server = request.getfixturevalue("valkey")
        flushed(server.url)
        yield f"{server.url}?timeout=5"
        forget_stores()


def test_fleet__four_processes__never_have_more_in_flight_than_allowed(url: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))
    with started(4, "calls", url=url, most=3, calls=40, counter=str(counter)) as workers:
        assert together(workers) == [40] * 4
    inside, most = permit_worker.COUNT.unpack(counter.read_bytes())
    assert inside == 0
    assert 1 <= most <= 3


def test_fleet__a_holder_is_killed__its_permit_comes_back_at_its_deadline(url: str) -> None:
    limit = ConcurrencyLimit("killed", 1, hold_seconds=2, state=url)
    with Worker("holds", url=url, hold_seconds=2) as worker:
        worker.ready()
        began = time.monotonic()
        owner = worker.go().answer()
        worker.kill()
    assert [holder.owner for holder in limit.sync.holders()] in ([owner], [])  # [] only if we were that slow
    assert limit.sync.acquire(timeout=60)
    assert time.monotonic() - began >= 1.9


def test_state__left_out__is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://permits")
    try:
        one, other = ConcurrencyLimit("pncp", 1), ConcurrencyLimit("pncp", 1)
        assert one.sync.acquire()
        assert other.sync.acquire() is None
        assert one.fallback is None
    finally:
        forget_stores()


def test_name__in_use_for_another_limit__is_refused() -> None:
    store = MemoryStore()
    limit = ConcurrencyLimit("pncp", 1, state=store)
    with pytest.raises(ValueError, match="name 'pncp' is in use on this state for 1 calls of 60 s, got 2 of"):
        ConcurrencyLimit("pncp", 2, state=store)
    assert ConcurrencyLimit("pncp", 1, state=store).sync.acquire()
    assert limit.sync.acquire() is None


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"name": "a:b"}, ValueError, "name must be 1 to 100 of A-Z a-z 0-9 _ . -, got 'a:b'"),
        ({"max_concurrent": 0}, ValueError, "max_concurrent must be 1 to 10000, got 0"),
        ({"max_concurrent": 10_001}, ValueError, "max_concurrent must be 1 to 10000, got 10001"),
        ({"max_concurrent": 1.5}, TypeError, "max_concurrent must be an int, got 1.5"),
        ({"max_concurrent": True}, TypeError, "max_concurrent must be an int, got True"),
        ({"hold_seconds": 0}, ValueError, "hold_seconds must be 0.01 to 86400, got 0"),
        ({"hold_seconds": float("nan")}, ValueError, "hold_seconds must be 0.01 to 86400, got nan"),
        ({"hold_seconds": "1"}, TypeError, "hold_seconds must be a number of seconds, got '1'"),
        ({"hold_seconds": True}, TypeError, "hold_seconds must be a number of seconds, got True"),
    ],
)
def test_limit__bad_input__names_field_range_and_value(
    given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as raised:
        ConcurrencyLimit(**{"name": "pncp", "max_concurrent": 1, "state": MemoryStore(), **given})
    assert str(raised.value) == said


def test_timeout__bad__is_refused() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())
    with pytest.raises(ValueError, match="timeout must be 0 to"):
        limit.sync.acquire(timeout=-1)


def test_shared__more_than_there_is_room_for__is_refused_before_anything_is_written(
    clock: ManualClock,
) -> None:
    with shared_store(clock) as store:
        with pytest.raises(ValueError, match="max_concurrent must be 1 to 200 on shared://, got 201"):
            ConcurrencyLimit("pncp", 201, state=store)
        guarded = FailoverStore.of(store, "shared://x")
        with pytest.raises(ValueError, match="max_concurrent must be 1 to 200 on shared://, got 201"):
            ConcurrencyLimit("pncp", 201, state=guarded)
        limit = ConcurrencyLimit("pncp", 200, state=store)
        permits = [limit.sync.acquire() for _ in range(201)]
        assert sum(permit is not None for permit in permits) == 200
        assert limit.sync.in_use() == 200
        for permit in permits[:200]:
            limit.sync.release(got(permit))
        assert limit.sync.in_use() == 0


def test_slot__in_use__cannot_be_entered_again() -> None:
    slot = ConcurrencyLimit("pncp", 2, state=MemoryStore()).sync.slot()
    with slot, pytest.raises(RuntimeError, match="in use"):
        slot.__enter__()
    with slot:
        pass


def test_slot__entered_by_another_while_it_waits__is_refused_and_no_permit_is_lost(valkey: Server) -> None:
    async def main(limit: ConcurrencyLimit, store: RedisStore) -> tuple[list[Any], int]:
        slot = limit.slot()

        async def call() -> None:
            async with slot:
                await asyncio.sleep(0)

        ended = await asyncio.gather(call(), call(), return_exceptions=True)
        left = await limit.in_use()
        async with slot:  # and it can be used again
            pass
        await store.aclose()
        return list(ended), left

    with redis_store(valkey) as store:
        ended, left = asyncio.run(main(ConcurrencyLimit("pncp", 5, state=store), store))
    assert ended[0] is None
    assert isinstance(ended[1], RuntimeError)
    assert left == 0


def test_slot__nothing_free__can_be_entered_later() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())
    slot = limit.sync.slot()
    with limit.sync.slot(), pytest.raises(LimitReachedError):
        slot.__enter__()
    with slot:
        assert limit.sync.in_use() == 1


def test_flows__for_whoever_composes__run_in_both_worlds() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())
    permit = got(run(limit.taking(0)))
    assert run(limit.taking(0)) is None
    asyncio.run(run_async(limit.giving(permit)))
    assert limit.sync.in_use() == 0
