"""The number of calls in flight among all workers that share a store."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.limits.permit_jobs import COUNT
from tests.processes.fleet import (
    Worker,
    flush_server,
    new_state_name,
    remove_shared_state,
    run_together,
    shared_url,
    start_workers,
)
from tests.stores.manual_heartbeat import FailingStore, ManualHeartbeat, manual_failover, run_heartbeat
from tests.support import command, loop_runner, redis_store, shared_store, store_on_clock, wait_until

from comporta import ConcurrencyLimit, LimitReachedError, Permit
from comporta.errors import (
    StateAuthError,
    StateError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.flow import Flow, run, run_async
from comporta.limits.concurrency.operation import (
    AcquirePermit,
    ListHolders,
    PermitReply,
    RegisterPermits,
    ReleasePermits,
)
from comporta.limits.concurrency.permits import PermitHolder, PermitPool, new_permit
from comporta.stores.base import GONE, Operation, Store
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.stores.redis.store import RedisStore
from comporta.stores.registry import close_stores
from comporta.testing import ManualClock, Server

R = TypeVar("R")
Runs = Callable[[Flow[Any]], Any]


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_on_clock(request, clock) as made:
        yield made


class Blocking:
    """Calls the methods of a limit, blocking."""

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
    """Calls the methods of a limit, awaiting each on one event loop."""

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

    def holders(self) -> list[PermitHolder]:
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
    with loop_runner() as runner:
        yield lambda limit: Awaiting(limit, runner)
        if isinstance(store, RedisStore):
            runner.run(store.aclose())


def got(permit: Permit | None) -> Permit:
    assert permit is not None
    return permit


def test_acquire__all_permits_in_use__returns_none(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 3, state=store))
    permits = [limit.acquire() for _ in range(5)]
    assert [permit is not None for permit in permits] == [True, True, True, False, False]
    assert limit.in_use() == 3


def test_release__one_permit__allows_one_acquire(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 2, state=store))
    first = got(limit.acquire())
    assert limit.acquire()
    limit.release(first)
    assert limit.in_use() == 1
    assert limit.acquire()
    assert limit.acquire() is None


def test_release__last_permit__deletes_the_state(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 2, state=store))
    limit.release(got(limit.acquire()))
    assert limit.holders() == []


def test_release__twice__releases_once(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 2, state=store))
    first, second = got(limit.acquire()), got(limit.acquire())
    limit.release(first)
    limit.release(first)
    assert limit.in_use() == 1
    limit.release(second)
    limit.release(second)
    assert limit.in_use() == 0


def test_permit__never_released__expires_at_its_deadline(
    store: Store, face: Opens, clock: ManualClock
) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, permit_ttl=10, state=store))
    lost = got(limit.acquire())
    clock.advance(9.999)
    assert limit.acquire() is None  # a refusal extends nothing
    clock.advance(0.001)
    taken = got(limit.acquire())
    limit.release(lost)  # has expired
    assert limit.in_use() == 1
    assert not limit.renew(lost)
    limit.release(taken)
    assert limit.in_use() == 0


def test_renew__in_time__extends_the_permit(store: Store, face: Opens, clock: ManualClock) -> None:
    limit = face(ConcurrencyLimit("pncp", 2, permit_ttl=10, state=store))
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


def test_holders__permits_in_use__lists_owner_and_time_left(
    store: Store, face: Opens, clock: ManualClock
) -> None:
    limit = face(ConcurrencyLimit("pncp", 5, permit_ttl=10, state=store))
    permit = got(limit.acquire())
    clock.advance(4)
    limit.acquire()
    owner = f"{os.uname().nodename[:64]}:{os.getpid()}"
    assert permit.owner == owner
    assert limit.holders() == [PermitHolder(owner, 6.0), PermitHolder(owner, 10.0)]


def test_clock__set_back__does_not_extend_permits(store: Store, face: Opens, clock: ManualClock) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, permit_ttl=10, state=store))
    limit.acquire()
    clock.advance(-3600)
    assert limit.acquire() is None
    assert limit.holders()[0].seconds_left == 10
    clock.advance(10)
    assert limit.acquire()


def test_slot__block_ends__releases_the_permit(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, state=store))
    assert limit.within(lambda permit: permit.owner).endswith(f":{os.getpid()}")
    assert limit.in_use() == 0


def test_slot__block_raises__releases_the_permit(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, state=store))

    def body(permit: Permit) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        limit.within(body)
    assert limit.in_use() == 0


def test_slot__coroutine_is_garbage_collected__releases_the_permit_soon() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())

    async def body() -> None:
        async with limit.slot():
            await asyncio.sleep(0)

    begun = body()
    begun.send(None)
    assert limit.sync.in_use() == 1
    begun.close()
    wait_until(lambda: limit.sync.in_use() == 0)


def test_slot__no_permit__raises_with_retry_after(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, state=store))
    limit.acquire()
    with pytest.raises(LimitReachedError, match="pncp: 1 calls are in flight") as raised:
        limit.within(lambda permit: None, timeout=0.5)
    assert raised.value.name == "pncp"
    assert raised.value.retry_after == 0.1
    assert limit.in_use() == 1


def test_wait__until_a_permit_expires__gets_it(store: Store, face: Opens, clock: ManualClock) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, permit_ttl=2, state=store))
    limit.acquire()
    began_ns = clock.now_ns()
    assert limit.acquire(timeout=5)
    assert 2.0 <= (clock.now_ns() - began_ns) / 1e9 < 2.001


def test_wait__without_a_bound__ends_with_a_permit(store: Store, face: Opens) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, permit_ttl=2, state=store))
    limit.acquire()
    assert limit.acquire(timeout=None)


def test_wait__no_permit_in_time__ends_at_the_timeout(store: Store, face: Opens, clock: ManualClock) -> None:
    limit = face(ConcurrencyLimit("pncp", 1, permit_ttl=60, state=store))
    limit.acquire()
    began_ns = clock.now_ns()
    assert limit.acquire(timeout=1) is None
    assert 0.99 <= (clock.now_ns() - began_ns) / 1e9 <= 1


def test_wait__released_by_another_process__is_noticed_within_0_1_s(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    here = ConcurrencyLimit("pncp", 1, state=store)
    permit = got(here.sync.acquire())
    waits = here._acquire_flow(10)
    next(waits).block()
    rest = waits.send(PermitReply(False, 60_000_000))
    store.apply(ReleasePermits(here._pool, permit))
    began_ns = clock.now_ns()
    rest.block()
    assert 0.05 <= (clock.now_ns() - began_ns) / 1e9 <= 0.1
    waits.send(None).block()
    with pytest.raises(StopIteration) as end:
        waits.send(PermitReply(True))
    assert isinstance(end.value.value, Permit)


@pytest.mark.parametrize("late_us", [-1, 0, 1, 2, 1_000_000])
def test_wait__refused_within_microseconds_of_the_timeout__gets_no_permit(
    clock: ManualClock, late_us: int
) -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore(clock))
    waits = limit._acquire_flow(1)
    next(waits)
    clock.advance(1 + late_us / 1e6)
    with pytest.raises(StopIteration) as end:
        waits.send(PermitReply(False, 60_000_000))
    assert end.value.value is None


class Still(ManualClock):
    """Time stands still: a waiter is woken, or waits without end."""

    async def wait_async(self, event: asyncio.Event, seconds: float | None) -> None:
        await event.wait()


def test_wait__released_in_this_process__is_noticed_at_once() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore(Still()))

    async def main() -> list[int]:
        served: list[int] = []

        async def waiter(number: int) -> None:
            async with limit.slot(timeout=600):
                served.append(number)
                await asyncio.sleep(0)

        permit = got(await limit.acquire())
        waiters = [asyncio.create_task(waiter(number)) for number in range(5)]
        while len(limit._wait_queue.waiters_by_key.get("", ())) < 5:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0)
        assert await limit.acquire() is None  # the waiting callers came first
        await limit.release(permit)
        await asyncio.gather(*waiters)
        return served

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [0, 1, 2, 3, 4]


def test_wait__threads_and_coroutines__never_exceed_the_limit() -> None:
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
            await asyncio.sleep(0)  # lets the other coroutines run
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


def test_cancelled__in_the_block__releases_the_permit(valkey: Server) -> None:
    async def main(limit: ConcurrencyLimit, store: RedisStore) -> int:
        inside = asyncio.Event()

        async def call() -> None:
            async with limit.slot():
                inside.set()
                await asyncio.sleep(600)  # sleeps: never ends; the test cancels it

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
def test_cancelled__while_acquiring__keeps_no_permit(valkey: Server, ticks: int) -> None:
    async def main(limit: ConcurrencyLimit, store: RedisStore) -> int:
        await limit.in_use()  # opens the connection
        task = asyncio.create_task(limit.acquire())
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await limit.release(got(task.result()))
        left = 1
        for _ in range(100):  # the release may still be in flight
            left = await limit.in_use()
            if not left:
                break
        await store.aclose()
        return left

    with redis_store(valkey) as store:
        assert asyncio.run(main(ConcurrencyLimit("pncp", 1, state=store), store)) == 0


def test_undo__granted_or_refused__releases_only_a_grant() -> None:
    pool, permit = PermitPool("pncp", 1, 1_000_000), new_permit()
    acquire = AcquirePermit(pool, permit)
    assert isinstance(acquire.undo(PermitReply(True)), ReleasePermits)
    assert acquire.undo(PermitReply(False, 5)) is None
    assert ReleasePermits(pool, permit).undo(PermitReply(True)) is None
    ListHolders(pool).undo([])


def test_outage__several_permits__uses_the_local_share() -> None:
    store, primary = manual_failover()
    store.heartbeat.worker_count.record(4)
    limit = ConcurrencyLimit("pncp", 10, state=store)
    before = got(limit.sync.acquire())
    primary.error = StateUnavailableError("gone")
    permits = [limit.sync.acquire() for _ in range(3)]
    assert [permit is not None for permit in permits] == [True, False, False]
    assert limit.fallback is not None
    assert limit.sync.in_use() == 2
    limit.sync.release(before)  # granted by the shared store
    assert limit.sync.in_use() == 1
    limit.sync.release(got(permits[0]))
    assert [limit.sync.acquire() is not None for _ in range(3)] == [True, True, False]
    store.close()


def recover(store: FailoverStore, primary: FailingStore) -> None:
    primary.error = None
    while store.fallback is not None:
        run_heartbeat(store)


def test_outage__worker_holds_more_than_its_share__gets_no_permit_until_its_calls_end() -> None:
    store, primary = manual_failover()
    store.heartbeat.worker_count.record(2)
    limit = ConcurrencyLimit("pncp", 4, state=store)
    permits = [got(limit.sync.acquire()) for _ in range(3)]
    primary.error = StateUnavailableError("gone")
    assert limit.sync.acquire() is None
    limit.sync.release(permits.pop())
    assert limit.sync.acquire() is None
    limit.sync.release(permits.pop())
    assert limit.sync.acquire() is not None
    assert limit.sync.acquire() is None
    store.close()


@pytest.mark.parametrize("is_empty", [False, True])
def test_recovery__permit_renewed_in_an_outage_longer_than_its_ttl__is_registered_again(
    clock: ManualClock, is_empty: bool
) -> None:
    store, primary = manual_failover(clock)
    limit = ConcurrencyLimit("pncp", 1, permit_ttl=10, state=store)
    permit = got(limit.sync.acquire())
    primary.error = StateUnavailableError("gone")
    for _ in range(5):
        clock.advance(4)
        assert limit.sync.renew(permit)
        assert limit.sync.acquire() is None
    if is_empty:
        primary.update_states(lambda *_: GONE)
    clock.advance(1)
    recover(store, primary)
    assert [holder.seconds_left for holder in limit.sync.holders()] == [pytest.approx(9)]
    assert limit.sync.acquire() is None
    assert limit.sync.renew(permit)
    limit.sync.release(permit)
    assert limit.sync.in_use() == 0
    store.close()


def test_recovery__permit_not_renewed_in_a_long_outage__has_expired(clock: ManualClock) -> None:
    store, primary = manual_failover(clock)
    limit = ConcurrencyLimit("pncp", 1, permit_ttl=10, state=store)
    permit = got(limit.sync.acquire())
    primary.error = StateUnavailableError("gone")
    assert limit.sync.acquire() is None
    clock.advance(11)
    assert not limit.sync.renew(permit)
    recover(store, primary)
    assert limit.sync.acquire() is not None
    store.close()


def test_recovery__permits_of_the_local_share_and_of_another_worker__all_count() -> None:
    store, primary = manual_failover()
    limit = ConcurrencyLimit("pncp", 2, state=store)
    primary.error = StateUnavailableError("gone")
    permits = [got(limit.sync.acquire()) for _ in range(2)]
    primary.error = None
    assert primary.apply(AcquirePermit(limit._pool, new_permit())).succeeded  # of a worker that has the store
    recover(store, primary)
    assert limit.sync.in_use() == 3
    limit.sync.release(permits.pop())
    assert limit.sync.acquire() is None
    limit.sync.release(permits.pop())
    assert limit.sync.acquire() is not None
    store.close()


def test_recovery__call_ends_while_its_permit_is_registered__the_heartbeat_releases_it() -> None:
    store, primary = manual_failover()
    limit = ConcurrencyLimit("pncp", 1, state=store)
    permit = got(limit.sync.acquire())
    limit.sync.release(permit)
    limit._returns.own.add(permit, store.clock.now_ns())
    operations = limit._returns.own.rejoin_operations()
    limit.sync.release(permit)
    for operation in operations:
        primary.apply(operation)
    assert limit.sync.in_use() == 1
    run_heartbeat(store)
    assert limit.sync.in_use() == 0
    store.close()


def test_recovery__calls_of_the_local_share_ended__only_those_of_the_shared_store_are_released() -> None:
    store, primary = manual_failover()
    limit = ConcurrencyLimit("pncp", 2, state=store)
    permit = got(limit.sync.acquire())
    primary.error = StateUnavailableError("gone")
    in_doubt = got(limit.sync.acquire())  # the reply may have been lost
    limit.sync.release(in_doubt)
    for _ in range(5):
        limit.sync.release(got(limit.sync.acquire()))
    limit.sync.release(permit)
    assert list(limit._returns.own._unreleased) == [in_doubt, permit]
    recover(store, primary)
    run_heartbeat(store)
    assert limit.sync.in_use() == 0
    store.close()


def test_recovery__registered_call_ends_between_two_attempts__the_heartbeat_releases_it() -> None:
    store, primary = manual_failover()
    limit = ConcurrencyLimit("pncp", 1, state=store)
    own, permit = limit._returns.own, got(limit.sync.acquire())
    assert own.rejoin_operations() != []
    own.discard(permit)
    own.release_later(permit)
    assert own.rejoin_operations() == []  # the next attempt of the same recovery
    primary.error = None
    run_heartbeat(store)
    assert limit.sync.in_use() == 0
    store.close()


def test_own_permits__never_released__are_forgotten_when_they_have_expired(clock: ManualClock) -> None:
    limit = ConcurrencyLimit("pncp", 2, permit_ttl=10, state=MemoryStore(clock))
    own = limit._returns.own
    for number in range(6):
        got(limit.sync.acquire())
        clock.advance(6)
        assert len(own.held_permits(clock.now_ns() // 1000)) == 1, number
        assert len(own._since_ns) <= 4
    for _ in range(5):  # more than the store grants: not noted
        own.add(new_permit(), clock.now_ns())
    assert len(own._since_ns) == 4
    own.renew(new_permit())
    assert len(own._since_ns) == 4


def test_shared__more_permits_registered_than_fit__keeps_those_that_last_longest() -> None:
    with shared_store() as store:
        pool = PermitPool("pncp", 200, 60_000_000)
        left_us = {new_permit(): 1_000_000 + 1000 * number for number in range(250)}
        assert store.apply(RegisterPermits(pool, left_us)).succeeded
        holders = store.apply(ListHolders(pool))
        assert len(holders) == 210
        assert holders[0].seconds_left >= 1
        assert not store.apply(AcquirePermit(pool, new_permit())).succeeded


def test_register__during_an_outage__makes_no_sense() -> None:
    outage = Outage(0.0, 0, "gone", 1)
    assert RegisterPermits(PermitPool("pncp", 10, 1_000_000), {new_permit(): 5}).fallback(outage) is None


def test_recovery__calls_ended_during_the_outage__releases_their_permits() -> None:
    store, primary = manual_failover()
    limit = ConcurrencyLimit("pncp", 2, state=store)
    permits = [got(limit.sync.acquire()) for _ in range(2)]
    primary.error = StateUnavailableError("gone")
    for permit in permits:
        limit.sync.release(permit)
    assert run_heartbeat(store) is not None  # still unreachable
    primary.error = None
    while limit.fallback is not None:
        run_heartbeat(store)
    assert limit.sync.in_use() == 2
    run_heartbeat(store)
    assert limit.sync.in_use() == 0
    assert limit._returns.own.heartbeat_operation() is None
    store.close()


class Losing(FailingStore):
    """A store that applies operations but loses its replies to coroutines: an error, or no reply."""

    silent = False

    async def apply_async(self, operation: Operation[R]) -> R:
        if not self.silent:
            self.apply(operation)
        await asyncio.sleep(3600 if self.silent else 0)  # sleeps: a store that never replies
        raise StateTimeoutError("no reply in time")


def make_losing_store() -> tuple[FailoverStore, Losing]:
    primary = Losing(ManualClock())
    store = FailoverStore(lambda: primary, f"test://{uuid.uuid4().hex}", primary.clock)
    store.heartbeat = ManualHeartbeat(store)
    return store, primary


def test_recovery__replies_lost__releases_permits_that_may_be_granted() -> None:
    store, _ = make_losing_store()
    store.heartbeat.worker_count.record(5)
    limit = ConcurrencyLimit("pncp", 10, state=store)

    async def ten() -> list[Permit | None]:
        return await asyncio.gather(*(limit.acquire() for _ in range(10)))

    permits = [permit for permit in asyncio.run(ten()) if permit]
    assert len(permits) == 2  # the local share; the shared store granted all of them
    while limit.fallback is not None:
        run_heartbeat(store)
    assert limit.sync.in_use() == 10
    run_heartbeat(store)
    assert limit.sync.in_use() == 2  # the calls in flight
    for permit in permits:
        limit.sync.release(permit)
    assert limit.sync.in_use() == 0
    store.close()


def late_request(limit: ConcurrencyLimit, primary: FailingStore) -> Operation[PermitReply]:
    """Acquire and release a permit from the share, and return the request that the store has not got yet."""
    requests: list[Operation[PermitReply]] = []
    apply = primary.apply

    def keep(operation: Operation[PermitReply]) -> PermitReply:
        requests.append(operation)
        raise StateTimeoutError("no reply in time")

    primary.apply = keep  # type: ignore[assignment,method-assign]
    permit = got(limit.sync.acquire())
    primary.apply = apply  # type: ignore[method-assign]
    limit.sync.release(permit)
    return requests[0]


def test_recovery__request_arrives_after_its_permit_was_released__is_released_again(
    clock: ManualClock,
) -> None:
    store, primary = manual_failover(clock)
    limit = ConcurrencyLimit("pncp", 1, state=store)
    request = late_request(limit, primary)
    recover(store, primary)
    run_heartbeat(store)
    primary.apply(request)
    assert limit.sync.acquire() is None
    clock.advance(1)
    run_heartbeat(store)
    assert limit.sync.acquire() is not None
    store.close()


def test_recovery__request_that_can_no_longer_arrive__is_not_released_again(clock: ManualClock) -> None:
    store, primary = manual_failover(clock)
    limit = ConcurrencyLimit("pncp", 1, state=store)
    late_request(limit, primary)
    recover(store, primary)
    releases = 0
    for _ in range(200):
        clock.advance(1)
        releases += limit._returns.own.heartbeat_operation() is not None
        limit._returns.own.on_heartbeat_reply(PermitReply(True))
    assert 10 < releases < 40
    assert not limit._returns.own._unreleased
    store.close()


def test_recovery__more_replies_lost_than_the_limit_has_permits__all_come_back(clock: ManualClock) -> None:
    store, primary = manual_failover(clock)
    limit = ConcurrencyLimit("pncp", 2, state=store)
    requests = []
    for _ in range(5):
        requests.append(late_request(limit, primary))
        store.recover()
    for request in requests:
        primary.apply(request)
    assert limit.sync.in_use() == 2
    run_heartbeat(store)
    assert limit.sync.in_use() == 0
    store.close()


def test_own_permits__too_many_to_release__are_left_to_expire() -> None:
    own = ConcurrencyLimit("pncp", 2, state=MemoryStore(ManualClock()))._returns.own
    for _ in range(1100):
        own.release_later(new_permit())
    assert len(own._unreleased) == 1000
    assert own.heartbeat_operation() is not None
    assert own.heartbeat_operation() is not None
    own.clear()
    assert own.heartbeat_operation() is None


def test_acquire__cancelled_before_the_reply__its_permit_comes_back() -> None:
    store, primary = make_losing_store()
    limit = ConcurrencyLimit("pncp", 1, state=store)
    primary.silent = True

    async def cancelled() -> None:
        task = asyncio.create_task(limit.acquire())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancelled())
    assert len(limit._returns.own._unreleased) == 1
    store.close()


def test_release__cancelled_before_it_was_sent__is_sent_by_the_heartbeat() -> None:
    store, primary = make_losing_store()
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
    run_heartbeat(store)
    assert limit.sync.in_use() == 0
    store.close()


def test_acquire__retried_after_a_lost_reply__does_not_block_itself(store: Store) -> None:
    pool, permit = PermitPool("pncp", 1, 1_000_000), new_permit()
    assert store.apply(AcquirePermit(pool, permit)).succeeded
    assert store.apply(AcquirePermit(pool, permit)).succeeded
    assert not store.apply(AcquirePermit(pool, new_permit())).succeeded
    assert len(store.apply(ListHolders(pool))) == 1


def test_outage__more_workers_than_permits__keeps_one_each() -> None:
    store, primary = manual_failover()
    store.heartbeat.worker_count.record(40)
    primary.error = StateUnavailableError("gone")
    limit = ConcurrencyLimit("pncp", 10, state=store)
    assert limit.sync.acquire()
    assert limit.sync.acquire() is None
    store.close()


def test_outage__no_room_for_another_key__grants_nothing() -> None:
    outage = Outage(0.0, 0, "gone", 1, full=True)
    acquire = AcquirePermit(PermitPool("pncp", 10, 1_000_000), new_permit()).fallback(outage)
    assert acquire is not None
    assert MemoryStore().apply(acquire) == PermitReply(False, 1_000_000, is_local=True)


def test_release__store_denies_access__raises_nothing() -> None:
    store, primary = manual_failover()
    limit = ConcurrencyLimit("pncp", 1, state=store)
    primary.error = StateAuthError("no")
    with pytest.raises(StateError):
        limit.sync.acquire()
    limit.sync.release(new_permit())
    store.close()


def test_redis__permits__are_a_readable_sorted_set_with_a_ttl(server: Server) -> None:
    with redis_store(server) as store:
        limit = ConcurrencyLimit("pncp", 2, permit_ttl=20, state=store)
        permit = got(limit.sync.acquire())
        assert str(permit).encode() in command(server, "ZRANGE", "concurrency:pncp", 0, -1)
        left_ms = int(command(server, "PTTL", "concurrency:pncp")[1:])
        assert 10_000 < left_ms <= 20_000
        assert 10 < limit.sync.holders()[0].seconds_left <= 20
        limit.sync.release(permit)
        assert command(server, "EXISTS", "concurrency:pncp") == b":0\r\n"


@pytest.mark.parametrize("score", ["inf", "1e300", "-inf", "-5", "0", "1e15", "2e15"])
def test_redis__corrupt_permits__block_no_process_longer_than_a_permit(
    server: Server, clock: ManualClock, score: str
) -> None:
    with redis_store(server, clock) as store:
        command(server, "ZADD", "concurrency:pncp", score, "garbage")
        limit = ConcurrencyLimit("pncp", 1, permit_ttl=10, state=store)
        for holder in limit.sync.holders():
            assert holder == PermitHolder("", 10.0)
        limit.sync.acquire()
        clock.advance(10)
        assert limit.sync.acquire()


def test_redis__key_of_another_type__is_named_and_other_keys_still_work(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", "concurrency:pncp", "x")
        bad, good = (AcquirePermit(PermitPool(name, 1, 1_000_000), new_permit()) for name in ("pncp", "pcp"))
        error, taken = store.apply_many([bad, good])
        assert isinstance(error, StateTypeError)
        assert "concurrency:pncp" in str(error)
        assert taken == PermitReply(True)
        failover = FailoverStore.wrap(store, store.address)
        limit = ConcurrencyLimit("pncp", 2, state=failover)
        assert [limit.sync.acquire() is not None for _ in range(3)] == [True, True, False]
        assert limit.sync.in_use() == 2
        failover.close()


@pytest.fixture(params=["shared", "redis"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a store that worker processes share."""
    if request.param == "shared":
        name = new_state_name()
        yield shared_url(name)
        close_stores()
        remove_shared_state(name)
    else:
        server: Server = request.getfixturevalue("valkey")
        flush_server(server.url)
        yield f"{server.url}?timeout=5"
        close_stores()


def test_fleet__four_processes__never_exceed_the_limit(url: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))
    with start_workers(4, "calls", url=url, most=3, calls=40, counter=str(counter)) as workers:
        assert run_together(workers) == [40] * 4
    inside, most = COUNT.unpack(counter.read_bytes())
    assert inside == 0
    assert 1 <= most <= 3


def test_fleet__holder_killed__permit_expires_at_its_deadline(url: str) -> None:
    limit = ConcurrencyLimit("killed", 1, permit_ttl=2, state=url)
    with Worker("holds", url=url, permit_ttl=2) as worker:
        worker.wait_ready()
        began = time.monotonic()
        owner = worker.go().result()
        worker.kill()
    assert [holder.owner for holder in limit.sync.holders()] in (
        [owner],
        [],
    )  # [] only if this took longer than the permit
    assert limit.sync.acquire(timeout=60)
    assert time.monotonic() - began >= 1.9


def test_state__not_given__is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://permits")
    try:
        one, other = ConcurrencyLimit("pncp", 1), ConcurrencyLimit("pncp", 1)
        assert one.sync.acquire()
        assert other.sync.acquire() is None
        assert one.fallback is None
    finally:
        close_stores()


def test_concurrency_limit__name_in_use_for_another_limit__is_refused() -> None:
    store = MemoryStore()
    limit = ConcurrencyLimit("pncp", 1, state=store)
    with pytest.raises(ValueError, match="name 'pncp' is in use on this store for max_concurrent=1 with"):
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
        ({"permit_ttl": 0}, ValueError, "permit_ttl must be 0.01 to 86400 seconds, got 0"),
        ({"permit_ttl": float("nan")}, ValueError, "permit_ttl must be 0.01 to 86400 seconds, got nan"),
        ({"permit_ttl": "1"}, TypeError, "permit_ttl must be a number of seconds, got '1'"),
        ({"permit_ttl": True}, TypeError, "permit_ttl must be a number of seconds, got True"),
    ],
)
def test_concurrency_limit__bad_input__names_field_range_and_value(
    given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as raised:
        ConcurrencyLimit(**{"name": "pncp", "max_concurrent": 1, "state": MemoryStore(), **given})
    assert str(raised.value) == said


def test_acquire__bad_timeout__is_refused() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())
    with pytest.raises(ValueError, match="timeout must be 0 to"):
        limit.sync.acquire(timeout=-1)


def test_shared__too_many_permits__is_refused_before_anything_is_written(
    clock: ManualClock,
) -> None:
    with shared_store(clock) as store:
        with pytest.raises(
            ValueError,
            match="max_concurrent must be 1 to 200 on a store of one machine, such as shared://, got 201",
        ):
            ConcurrencyLimit("pncp", 201, state=store)
        guarded = FailoverStore.wrap(store, "shared://x")
        with pytest.raises(
            ValueError,
            match="max_concurrent must be 1 to 200 on a store of one machine, such as shared://, got 201",
        ):
            ConcurrencyLimit("pncp", 201, state=guarded)
        limit = ConcurrencyLimit("pncp", 200, state=store)
        permits = [limit.sync.acquire() for _ in range(201)]
        assert sum(permit is not None for permit in permits) == 200
        assert limit.sync.in_use() == 200
        for permit in permits[:200]:
            limit.sync.release(got(permit))
        assert limit.sync.in_use() == 0


def test_slot__in_use__refuses_a_second_block() -> None:
    slot = ConcurrencyLimit("pncp", 2, state=MemoryStore()).sync.slot()
    with slot, pytest.raises(RuntimeError, match="in use"):
        slot.__enter__()
    with slot:
        pass


def test_slot__second_block_while_waiting__is_refused_and_loses_no_permit(valkey: Server) -> None:
    async def main(limit: ConcurrencyLimit, store: RedisStore) -> tuple[list[Any], int]:
        slot = limit.slot()

        async def call() -> None:
            async with slot:
                await asyncio.sleep(0)

        ended = await asyncio.gather(call(), call(), return_exceptions=True)
        left = await limit.in_use()
        async with slot:  # usable again
            pass
        await store.aclose()
        return list(ended), left

    with redis_store(valkey) as store:
        ended, left = asyncio.run(main(ConcurrencyLimit("pncp", 5, state=store), store))
    assert ended[0] is None
    assert isinstance(ended[1], RuntimeError)
    assert left == 0


def test_slot__refused__can_be_used_later() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())
    slot = limit.sync.slot()
    with limit.sync.slot(), pytest.raises(LimitReachedError):
        slot.__enter__()
    with slot:
        assert limit.sync.in_use() == 1


def test_flows__composed_by_a_caller__run_blocking_and_awaiting() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())
    permit = got(run(limit._acquire_flow(0)))
    assert run(limit._acquire_flow(0)) is None
    asyncio.run(run_async(limit._release_flow(permit)))
    assert limit.sync.in_use() == 0
