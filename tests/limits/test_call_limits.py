"""A permit and a token taken together, and permits that are held back for up to 10 ms."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import command, redis_store, store_on_clock, wait_until

from comporta import BaseLimiter, ConcurrencyLimit, LimitConfig, Permit
from comporta.clock import MONOTONIC
from comporta.errors import StateError, StateTimeoutError, StateTypeError, StateUnavailableError
from comporta.flow import run, run_async
from comporta.limits.concurrency.call import NO_PERMIT, AcquireForCall, CallReply, ReleaseCall
from comporta.limits.concurrency.call_limits import CallLimits
from comporta.limits.concurrency.held_back import HELD_BACK_MAX, PermitReturns, ReusablePermit
from comporta.limits.concurrency.operation import AwaitPermit, ListHolders, RegisterPermits, ReleasePermits
from comporta.limits.concurrency.permits import PermitPool, new_permit
from comporta.limits.leases.scheduler import SCHEDULER, LeaseScheduler
from comporta.limits.operation import LimitDemand
from comporta.limits.scripts import call_script
from comporta.runtime import RUNTIME
from comporta.stores.base import Operation, Store
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.stores.redis.cluster_slots import operation_slot
from comporta.testing import ManualClock, Server

R = TypeVar("R")
STRATEGY = LimitConfig.parse("10/s").build_strategy()
SCRIPT = call_script(STRATEGY.name, "pncp", tuple(STRATEGY.params))
HOST = new_permit().owner.rpartition(":")[0]
ELSEWHERE = Permit("00000000000000aa", f"{HOST}:7")


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_on_clock(request, clock) as made:
        yield made


@pytest.fixture(params=["memory", "shared", "redis"])
def real_time_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Provide a store for waiting threads: on a manual clock a wait ends at once, and permits expire."""
    with store_on_clock(request, MONOTONIC) as made:
        yield made


@pytest.fixture
def paused_scheduler(monkeypatch: pytest.MonkeyPatch) -> LeaseScheduler:
    """Give a scheduler whose thread never calls anything by itself."""
    made = LeaseScheduler()
    monkeypatch.setattr(made, "_start", lambda: setattr(made, "_run", threading))
    monkeypatch.setattr(made, "_run", Idle())
    monkeypatch.setitem(RUNTIME.process_objects(), SCHEDULER, made)
    return made


class Idle:
    """A thread that is alive and does nothing."""

    def __init__(self) -> None:
        self.wake = threading.Event()

    def is_alive(self) -> bool:
        return True


class Counting(MemoryStore):
    """State in memory that records the operations."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.applied: list[str] = []

    def apply(self, operation: Operation[R]) -> R:
        self.applied.append(type(operation).__name__)
        return super().apply(operation)


def limits_on(store: Store, limit: str = "10/s", most: int = 2, **options: Any) -> CallLimits:
    permits = ConcurrencyLimit("pncp", most, state=store, **options)
    return CallLimits(permits, BaseLimiter(limit, store, "pncp"))


def acquire(limits: CallLimits) -> Permit | None:
    return run(limits.acquire_flow())


def end(limits: CallLimits, permit: Permit | None) -> None:
    assert permit is not None
    run(limits._permits._end_call_flow(permit))


def count_held(limits: CallLimits) -> int:
    """Return how many permits the store holds, without flushing."""
    return len(limits._permits.store.apply(ListHolders(limits._permits._pool)))


def tokens(limits: CallLimits) -> int:
    flow = limits._flows.stats_flow(None)
    return run(flow).tokens_available


def demand(amount: int = 1) -> LimitDemand:
    return LimitDemand(STRATEGY, "pncp", "", amount)


def test_acquire__both_available__takes_one_of_each(store: Store) -> None:
    limits = limits_on(store)
    assert isinstance(acquire(limits), ReusablePermit)
    assert (count_held(limits), tokens(limits)) == (1, 9)


def test_acquire__no_permit_free__takes_no_token(store: Store) -> None:
    limits = limits_on(store, most=1)
    assert acquire(limits) is not None
    assert acquire(limits) is None
    assert (count_held(limits), tokens(limits)) == (1, 9)


def test_acquire__no_token_left__takes_no_permit(store: Store) -> None:
    limits = limits_on(store, "1/s burst 1")
    assert acquire(limits) is not None
    assert acquire(limits) is None
    assert (count_held(limits), tokens(limits)) == (1, 0)


def test_acquire__limit_is_paused__takes_neither(store: Store, clock: ManualClock) -> None:
    limits = limits_on(store)
    run(limits._flows.overrides.pause_flow(5))
    assert acquire(limits) is None
    assert (count_held(limits), tokens(limits)) == (0, 10)
    clock.advance(5)
    assert acquire(limits) is not None


def test_acquire__override_of_the_limit__is_obeyed(store: Store) -> None:
    limits = limits_on(store)
    run(limits._flows.overrides.set_limit_flow("1/hour"))
    granted = [acquire(limits) is not None for _ in range(3)]
    assert sum(granted) == 1


def test_acquire__due_claim_of_another_process__leaves_the_permit_to_it(
    store: Store, clock: ManualClock
) -> None:
    limits = limits_on(store, most=1)
    pool = limits._permits._pool
    first = acquire(limits)
    for _ in range(5):
        store.apply(AwaitPermit(pool, ELSEWHERE))
        clock.advance(0.06)
    end(limits, first)
    assert acquire(limits) is None
    assert tokens(limits) == 10
    assert store.apply(AwaitPermit(pool, ELSEWHERE)).succeeded


def test_acquire__callers_of_this_process_wait__takes_nothing(store: Store) -> None:
    limits = limits_on(store)
    waiting = limits._permits._wait_queue.join("")
    assert waiting is not None
    assert acquire(limits) is None
    limits._permits._wait_queue.leave("", waiting)
    assert acquire(limits) is not None


def test_end__nobody_waits__the_permit_is_used_again_without_an_operation(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    store = Counting(clock)
    limits = limits_on(store)
    permit = acquire(limits)
    for _ in range(5):
        end(limits, permit)
        assert acquire(limits) is permit
    assert store.applied == ["AcquireForCall"]
    assert tokens(limits) == 4


def test_acquire__permit_was_granted_10_ms_ago__releases_it_and_takes_another(
    store: Store, clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(store, most=1)
    first = acquire(limits)
    end(limits, first)
    clock.advance(0.01)
    second = acquire(limits)
    assert second not in (None, first)
    assert count_held(limits) == 1


def test_end__another_process_waits__releases_at_once(store: Store, clock: ManualClock) -> None:
    limits = limits_on(store)
    pool = limits._permits._pool
    full = [Permit(f"{number:016x}", f"{HOST}:8") for number in range(2)]
    for permit in full:
        assert store.apply(AwaitPermit(pool, permit)).succeeded
    store.apply(AwaitPermit(pool, ELSEWHERE))
    store.apply(ReleasePermits(pool, *full))
    permit_granted = acquire(limits)
    assert type(permit_granted) is Permit
    end(limits, permit_granted)
    assert count_held(limits) == 0


def test_end__a_caller_of_this_process_waits__it_gets_the_permit(
    real_time_store: Store,
) -> None:
    limits = limits_on(real_time_store, most=1)
    permit = acquire(limits)
    granted: list[Permit | None] = []
    thread = threading.Thread(target=lambda: granted.append(limits._permits.sync.acquire(None)))
    thread.start()
    wait_until(lambda: limits._permits._wait_queue.count(""))
    end(limits, permit)
    thread.join(60)
    assert [type(each) for each in granted] == [Permit]


def test_held_back__no_further_call__the_thread_releases_it(store: Store) -> None:
    limits = limits_on(store)
    end(limits, acquire(limits))
    wait_until(lambda: count_held(limits) == 0)


def test_held_back__program_exits__is_released(store: Store, paused_scheduler: LeaseScheduler) -> None:
    limits = limits_on(store)
    end(limits, acquire(limits))
    assert (count_held(limits), limits._returns.held_units()) == (1, 0)
    paused_scheduler.return_all()
    assert count_held(limits) == 0


def test_held_back__another_limit_of_the_same_name__acquires_the_permit(
    store: Store, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(store, most=1)
    end(limits, acquire(limits))
    other = ConcurrencyLimit("pncp", 1, state=store)
    assert other.sync.acquire() is not None
    assert limits._permits.sync.in_use() == 1


def test_held_back__in_use__counts_only_calls_in_flight(
    store: Store, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(store)
    end(limits, acquire(limits))
    assert limits._permits.sync.in_use() == 0


def test_held_back__no_token_left__stays_available(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(MemoryStore(clock), "1/s burst 1", most=1)
    permit = acquire(limits)
    end(limits, permit)
    assert acquire(limits) is None
    assert limits.take_held_back() is permit
    limits.put_back(permit)  # type: ignore[arg-type]
    assert limits._permits.sync.in_use() == 0


def test_held_back__cancelled_while_taking_a_token__stays_available(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(MemoryStore(clock))
    permit = acquire(limits)
    end(limits, permit)
    flow = limits.acquire_flow()
    next(flow)
    with pytest.raises(asyncio.CancelledError):
        flow.throw(asyncio.CancelledError())
    assert limits.take_held_back() is permit


def test_held_back__cancelled_while_releasing__is_released_later_and_never_used_again(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(MemoryStore(clock), most=1)
    end(limits, acquire(limits))
    flow = limits._permits._acquire_flow(0)
    next(flow)
    with pytest.raises(asyncio.CancelledError):
        flow.throw(asyncio.CancelledError())
    assert limits.take_held_back() is None
    assert count_held(limits) == 1
    assert limits._permits.sync.in_use() == 0


def test_held_back__another_thread_is_releasing_it__a_call_still_gets_a_permit(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(MemoryStore(clock), most=1)
    end(limits, acquire(limits))
    flush = limits._returns.flush_flow()
    effect = next(flush)  # not applied yet
    permit = acquire(limits)
    assert permit is not None
    reply = effect.block()
    with pytest.raises(StopIteration):
        flush.send(reply)
    assert count_held(limits) == 1


def test_held_back__store_fails_while_releasing__does_not_raise(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(MemoryStore(clock))
    end(limits, acquire(limits))
    flush = limits._returns.flush_flow()
    next(flush)
    with pytest.raises(StopIteration):
        flush.throw(StateUnavailableError("gone"))


def test_held_back__too_many__the_next_is_released_at_once(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(MemoryStore(clock), "1000/s", most=HELD_BACK_MAX + 1)
    permits = [acquire(limits) for _ in range(HELD_BACK_MAX + 1)]
    for permit in permits:
        end(limits, permit)
    assert count_held(limits) == HELD_BACK_MAX


def test_held_back__permit_expires_soon__is_released_at_once(clock: ManualClock) -> None:
    limits = limits_on(MemoryStore(clock), permit_ttl=0.5)
    end(limits, acquire(limits))
    assert count_held(limits) == 0


def test_held_back__no_thread_can_start__is_released_at_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LeaseScheduler()
    monkeypatch.setattr(made, "_start", lambda: None)
    monkeypatch.setitem(RUNTIME.process_objects(), SCHEDULER, made)
    limits = limits_on(MemoryStore(clock))
    end(limits, acquire(limits))
    assert count_held(limits) == 0


def test_held_back__no_thread_and_another_caller_took_it__is_not_released(clock: ManualClock) -> None:
    returns = PermitReturns(MemoryStore(clock), PermitPool("pncp", 2, 60_000_000))
    assert not returns._remove(ReusablePermit("id", "owner"))


@pytest.mark.usefixtures("paused_scheduler")
def test_held_back__by_another_thread_during_a_release__is_not_lost(clock: ManualClock) -> None:
    returns = PermitReturns(MemoryStore(clock), PermitPool("pncp", 2, 60_000_000))
    first, late = ReusablePermit(*new_permit()), ReusablePermit(*new_permit())

    class OtherThread(set[Permit]):
        """Another call ends while this thread reads the permits that are being released."""

        def __iter__(self) -> Iterator[Permit]:
            assert returns.hold_back(late)
            return super().__iter__()

    assert returns.hold_back(first)
    returns._releasing = OtherThread()
    taken, _ = returns._take_all()
    assert [*taken, *returns._permits] == [first, late]


def test_fork__permits_held_back__stay_with_the_parent(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    limits = limits_on(MemoryStore(clock))
    end(limits, acquire(limits))
    limits._returns.after_fork()
    assert limits.take_held_back() is None
    assert count_held(limits) == 1


def test_outage__permits_held_back__are_released_after_recovery(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    store, primary = manual_failover(clock)
    limits = limits_on(store)
    end(limits, acquire(limits))
    clock.advance(1)  # too late to use it again
    primary.error = StateUnavailableError("gone")
    assert acquire(limits) is None  # the share starts empty
    clock.advance(1)
    local = acquire(limits)
    assert type(local) is Permit
    end(limits, local)
    primary.error = None
    while store.fallback is not None:
        run_heartbeat(store)
    run_heartbeat(store)
    assert len(primary.apply(ListHolders(limits._permits._pool))) == 0


def test_outage__reply_lost_and_refused_locally__the_permit_is_released_later(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    store, primary = manual_failover(clock)
    limits = limits_on(store, "1/hour burst 1", most=1)
    sent: list[Any] = []
    apply = primary.apply

    def loses_reply(operation: Operation[Any]) -> Any:
        sent.append(apply(operation))
        raise StateTimeoutError("no answer")

    store.apply(ListHolders(limits._permits._pool))
    primary.apply = loses_reply  # type: ignore[method-assign]
    assert acquire(limits) is None  # the share starts empty
    assert sent[0].granted
    primary.apply = apply  # type: ignore[method-assign]
    while store.fallback is not None:
        run_heartbeat(store)
    run_heartbeat(store)
    assert len(primary.apply(ListHolders(limits._permits._pool))) == 0


def test_lease__permit_and_leased_token__takes_only_the_permit_from_the_store(clock: ManualClock) -> None:
    store = Counting(clock)
    permits = ConcurrencyLimit("pncp", 2, state=store)
    limits = CallLimits(permits, BaseLimiter(LimitConfig(1, 2, lease=True), store, "pncp"))
    granted = [acquire(limits) for _ in range(3)]
    assert sum(permit is not None for permit in granted) == 2
    assert count_held(limits) == 2


def test_lease__no_token_left__the_permit_is_released(
    clock: ManualClock, paused_scheduler: LeaseScheduler
) -> None:
    store = MemoryStore(clock)
    permits = ConcurrencyLimit("pncp", 5, state=store)
    limits = CallLimits(permits, BaseLimiter(LimitConfig(1, 1, lease=True), store, "pncp"))
    assert acquire(limits) is not None
    assert acquire(limits) is None
    assert permits.sync.in_use() == 1


def test_acquire__awaiting__takes_both(store: Store) -> None:
    limits = limits_on(store)

    async def main() -> Permit | None:
        permit = await run_async(limits.acquire_flow())
        await store.aclose()
        return permit

    assert asyncio.run(main()) is not None


def test_undo__granted__releases_both(store: Store) -> None:
    pool, permit = PermitPool("pncp", 1, 60_000_000), new_permit()
    operation = AcquireForCall(SCRIPT, demand(), pool, permit)
    reply = store.apply(operation)
    assert reply == CallReply(True, 0, 0)
    undo = operation.undo(reply)
    assert isinstance(undo, ReleaseCall)
    assert store.apply(undo) == CallReply(True, 0, 0)
    assert store.apply(ListHolders(pool)) == []
    again = [store.apply(AcquireForCall(SCRIPT, demand(), pool, permit)).granted for _ in range(10)]
    assert again == [True] * 10
    assert not store.apply(AcquireForCall(SCRIPT, demand(), pool, permit)).granted


def test_undo__no_state_left__releases_nothing(store: Store) -> None:
    pool = PermitPool("pncp", 1, 60_000_000)
    assert store.apply(ReleaseCall(SCRIPT, demand(-1), pool, new_permit())).granted


def test_undo__only_a_permit_or_refused__releases_only_what_was_granted() -> None:
    pool, permit = PermitPool("pncp", 1, 60_000_000), new_permit()
    only_permit = AcquireForCall(SCRIPT, demand(0), pool, permit)
    assert isinstance(only_permit.undo(CallReply(True, 0, 0)), ReleasePermits)
    assert only_permit.undo(CallReply(False, NO_PERMIT, 0)) is None


def test_fallback__no_current_strategy__shares_the_configured_one() -> None:
    pool = PermitPool("pncp", 4, 60_000_000)
    outage = Outage(0.0, 0, "gone", worker_count=2)
    local = AcquireForCall(SCRIPT, demand(), pool, new_permit()).fallback(outage)
    assert local.pool.max_permits == 2


@pytest.mark.parametrize("name", ["pncp", "api.one", "a-b"])
def test_cluster__limit_and_permits_of_one_name__are_in_one_slot(name: str) -> None:
    script = call_script(STRATEGY.name, name, tuple(STRATEGY.params))
    named = demand()._replace(name=name)
    operation = AcquireForCall(script, named, PermitPool(name, 1, 60_000_000), new_permit())
    assert operation_slot(operation) >= 0


@pytest.mark.parametrize("key", ["rate_limiter:pncp", "concurrency:pncp", "concurrency:pncp:waiting"])
def test_redis__key_of_another_type__the_error_names_it(key: str, server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", key, "text")
        operation = AcquireForCall(SCRIPT, demand(), PermitPool("pncp", 1, 60_000_000), new_permit())
        with pytest.raises(StateTypeError, match=key):
            store.apply(operation)
        command(server, "DEL", key)
        assert store.apply(ListHolders(operation.pool)) == []


def test_register__permits_that_have_expired__holds_those_of_calls_that_go_on(
    store: Store, clock: ManualClock
) -> None:
    limit = ConcurrencyLimit("expired", 3, permit_ttl=10, state=store)
    open_permit, ended = limit.sync.acquire(), limit.sync.acquire()
    assert open_permit is not None
    assert ended is not None
    limit.sync.release(ended)
    clock.advance(11)
    assert run(limit._register_flow([open_permit, ended])) == [ended]
    assert [holder.seconds_left for holder in limit.sync.holders()] == [10]
    assert run(limit._register_flow([ended])) == [ended]


def test_register__call_ends_while_its_permit_is_registered__releases_it_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(clock)
    limit, apply = ConcurrencyLimit("expired", 3, permit_ttl=10, state=store), store.apply
    permit = limit.sync.acquire()
    assert permit is not None
    clock.advance(11)

    def release_first(operation: Operation[R]) -> R:
        if isinstance(operation, RegisterPermits):
            limit.sync.release(permit)
        return apply(operation)

    monkeypatch.setattr(store, "apply", release_first)
    assert run(limit._register_flow([permit])) == [permit]
    assert limit.sync.in_use() == 0


def test_register__store_fails__the_permit_is_released_again_after_its_call(clock: ManualClock) -> None:
    store, primary = manual_failover(clock)
    limit = ConcurrencyLimit("expired", 1, permit_ttl=10, state=store)
    permit = limit.sync.acquire()
    assert permit is not None
    primary.error = StateTimeoutError("no reply in time")
    with pytest.raises(StateError):
        run(limit._register_flow([permit]))
    assert limit._returns.own.is_unreleased(permit)
    assert limit._returns.own.heartbeat_operation() is None  # the call goes on
    store.close()


def test_hold_back__permit_that_the_heartbeat_will_release__is_released_now(clock: ManualClock) -> None:
    limit = ConcurrencyLimit("doubtful", 1, state=MemoryStore(clock))
    permit = ReusablePermit(*new_permit())
    limit._returns.own.release_later(permit)
    assert not limit._returns.hold_back(permit)
