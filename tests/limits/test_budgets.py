"""Budgets: an estimate is taken before a call, and what the call really cost is settled after it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.limits.faces import BEGIN, Bench, Face
from tests.stores.manual_heartbeat import STORE_DOWN, manual_failover, run_heartbeat
from tests.support import command, redis_store, wait_until

from comporta import BaseLimiter, LimitConfig, LimitReachedError, LimitStrategy, StateTypeError
from comporta.limits.budgets import settlements
from comporta.limits.budgets.reservation import Reservation
from comporta.limits.leases.scheduler import SCHEDULER
from comporta.limits.strategies.outage_share import ConstantStrategy, OutageShare
from comporta.stores.outage_info import Outage
from comporta.testing import ManualClock, Server

BUCKETS = (LimitStrategy.TOKEN_BUCKET, LimitStrategy.LEAKY_BUCKET)
WINDOWS = (LimitStrategy.FIXED_WINDOW, LimitStrategy.SLIDING_WINDOW)


def limit(strategy: LimitStrategy, **options: Any) -> LimitConfig:
    """Ten units in ten seconds: one a second where the strategy has a rate."""
    return LimitConfig(1, 10, 10, strategy, **options)


def units_left(limiter: Face, key: str = "k") -> int:
    left: int = limiter.peek(key).remaining
    return left


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_settle__less_used_than_reserved__credits_the_difference(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit(strategy))
    assert limiter.acquire("k", 8)
    assert limiter.settle("k", 8, 3, bench.clock.now_ns() / 1e9)
    assert units_left(limiter) == 7


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_settle__more_used_than_reserved__debits_the_difference(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit(strategy))
    assert limiter.acquire("k", 2)
    assert limiter.settle("k", 2, 9)
    assert units_left(limiter) == 1


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_settle__as_much_used_as_reserved__changes_nothing(bench: Bench, strategy: LimitStrategy) -> None:
    limiter = bench.limiter(limit(strategy))
    assert limiter.acquire("k", 2)
    assert not limiter.settle("k", 2, 2)
    assert units_left(limiter) == 8


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_settle__credit_after_the_window__is_void(bench: Bench, strategy: LimitStrategy) -> None:
    limiter = bench.limiter(limit(strategy))
    granted_at = bench.clock.now_ns() / 1e9
    assert limiter.acquire("k", 8)
    bench.clock.advance(10)
    assert limiter.acquire("k", 5)
    left = units_left(limiter)
    assert not limiter.settle("k", 8, 3, granted_at)
    assert units_left(limiter) == left


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_settle__key_without_a_state__voids_a_credit_and_keeps_a_debit(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit(strategy))
    assert not limiter.settle("k", 8, 3)
    assert units_left(limiter) == 10
    assert limiter.settle("k", 3, 8)
    assert units_left(limiter) == 5


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_settle__debit_beyond_one_capacity__leaves_a_debt_of_one_capacity(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit(strategy))
    assert limiter.acquire("k", 10)
    assert limiter.settle("k", 10, 1_000_000)
    assert not limiter.settle("k", 10, 1_000_000), "the debt is as large as it can be"
    assert not limiter.acquire("k")
    seconds = {LimitStrategy.TOKEN_BUCKET: 11, LimitStrategy.LEAKY_BUCKET: 20}.get(strategy, 10)
    bench.clock.advance(seconds - 0.1)
    assert not limiter.acquire("k")
    bench.clock.advance(0.1)
    assert limiter.acquire("k")


@pytest.mark.parametrize("strategy", BUCKETS)
def test_settle__debt_that_takes_long_to_pay__is_not_forgotten_with_the_state(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(LimitConfig(0.1, 10, None, strategy))
    assert limiter.acquire("k", 10)
    assert limiter.settle("k", 10, 20)
    bench.clock.advance(115)  # longer than it takes to fill an empty bucket
    assert units_left(limiter) <= 1


def test_settle__fixed_window__credits_only_what_the_same_window_granted(bench: Bench) -> None:
    limiter = bench.limiter(limit(LimitStrategy.FIXED_WINDOW))
    assert limiter.acquire("k", 1)
    bench.clock.advance(8)
    granted_at = bench.clock.now_ns() / 1e9
    assert limiter.acquire("k", 6)
    assert limiter.settle("k", 6, 5, granted_at)
    bench.clock.advance(2)
    assert limiter.acquire("k", 4)
    assert not limiter.settle("k", 6, 5, granted_at), "its window has ended, though it is 2 s old"
    assert units_left(limiter) == 6


def test_settle__fixed_window_that_has_ended__voids_a_credit_without_a_time(bench: Bench) -> None:
    limiter = bench.limiter(limit(LimitStrategy.FIXED_WINDOW))
    assert limiter.acquire("k", 6)
    bench.clock.advance(10)
    assert not limiter.settle("k", 6, 5)


def test_settle__sliding_window__counts_the_real_cost_from_the_grant(bench: Bench) -> None:
    limiter = bench.limiter(limit(LimitStrategy.SLIDING_WINDOW))
    first = bench.clock.now_ns() / 1e9
    assert limiter.acquire("k", 2)
    bench.clock.advance(4)
    second = bench.clock.now_ns() / 1e9
    assert limiter.acquire("k", 5)
    bench.clock.advance(4)
    assert limiter.settle("k", 2, 5, first)
    assert limiter.settle("k", 5, 1, second)
    assert units_left(limiter) == 4
    bench.clock.advance(2)  # the first call leaves the window, with its real cost
    assert units_left(limiter) == 9
    bench.clock.advance(4)
    assert units_left(limiter) == 10


def test_settle__sliding_window__credit_larger_than_the_entry__goes_on_with_older_ones(bench: Bench) -> None:
    limiter = bench.limiter(limit(LimitStrategy.SLIDING_WINDOW))
    assert limiter.acquire("k", 4)
    bench.clock.advance(1)
    granted_at = bench.clock.now_ns() / 1e9
    assert limiter.acquire("k", 2)
    bench.clock.advance(1)
    assert limiter.acquire("k", 3)
    assert limiter.settle("k", 5, 0, granted_at)
    assert units_left(limiter) == 6
    assert limiter.settle("k", 5, 0, granted_at)
    assert not limiter.settle("k", 5, 0, granted_at), "nothing as old is left"
    assert units_left(limiter) == 7
    assert limiter.settle("k", 9, 0)
    assert limiter.peek("k").reset_after == 0


def test_settle__sliding_window__debit_older_than_every_entry__counts_with_the_oldest(bench: Bench) -> None:
    limiter = bench.limiter(limit(LimitStrategy.SLIDING_WINDOW))
    granted_at = bench.clock.now_ns() / 1e9
    bench.clock.advance(3)
    assert limiter.acquire("k", 2)
    assert limiter.settle("k", 2, 6, granted_at)
    bench.clock.advance(9)
    assert units_left(limiter) == 4
    bench.clock.advance(1)
    assert units_left(limiter) == 10


def test_settle__sliding_window__debit_after_the_window__counts_from_now(bench: Bench) -> None:
    limiter = bench.limiter(limit(LimitStrategy.SLIDING_WINDOW))
    granted_at = bench.clock.now_ns() / 1e9
    assert limiter.acquire("k", 2)
    bench.clock.advance(11)
    assert limiter.acquire("k", 1)
    assert limiter.settle("k", 2, 6, granted_at)
    bench.clock.advance(9)
    assert units_left(limiter) == 5


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_settle__limit_overridden__follows_the_limit_in_effect(bench: Bench, strategy: LimitStrategy) -> None:
    limiter = bench.limiter(limit(strategy))
    assert limiter.acquire("k", 2)
    limiter.set_limit(LimitConfig(2, 20, 10, strategy))
    limiter.pause(60)
    assert limiter.settle("k", 2, 12)
    decision = limiter.peek("k")
    # a bucket that is raised keeps the 8 tokens it has
    left = 0 if strategy is LimitStrategy.TOKEN_BUCKET else 8
    assert (decision.limit, decision.remaining) == (20, left)


@pytest.mark.parametrize("strategy", [*WINDOWS, LimitStrategy.TOKEN_BUCKET])
def test_settle__limit_with_leases__credits_and_debits_the_store(
    bench: Bench, strategy: LimitStrategy
) -> None:
    limiter = bench.limiter(limit(strategy, lease=True))
    granted_at = bench.clock.now_ns() / 1e9
    assert limiter.acquire("k", 10)
    assert not limiter.acquire("k")
    bench.clock.advance(0.001)
    assert limiter.settle("k", 10, 4, granted_at)
    assert limiter.acquire("k", 6)
    assert limiter.settle("k", 6, 10)
    assert not limiter.acquire("k")


@pytest.mark.parametrize(
    ("reserved", "used", "granted_at", "problem"),
    [
        (-1, 1, None, "reserved must be 0 to"),
        (1, -1, None, "used must be 0 to"),
        (1, 2**53 + 1, None, "used must be 0 to"),
        (1, 2, BEGIN + 10.0, r"granted_at must be a moment of time.monotonic\(\) in the past, at most"),
        (1, 2, float("nan"), "granted_at must be"),
    ],
)
def test_settle__invalid_argument__names_it_and_the_allowed_range(
    bench: Bench, reserved: int, used: int, granted_at: float | None, problem: str
) -> None:
    limiter = bench.limiter("10/s")
    with pytest.raises(ValueError, match=problem):
        limiter.settle("k", reserved, used, granted_at)


def test_settle__key_with_foreign_data__raises_state_type_error(valkey: Server) -> None:
    with redis_store(valkey) as store:
        command(valkey, "SET", "rate_limiter:n:k", "x")
        with pytest.raises(StateTypeError):
            BaseLimiter("10/s", store, "n").sync.settle("k", 1, 2)


def test_settle__during_an_outage__settles_with_the_local_share() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    limiter = BaseLimiter("10/s", store, "n").sync
    assert limiter.acquire("k", 5)
    before = clock.now_ns() / 1e9
    clock.advance(0.1)
    primary.error = STORE_DOWN
    assert not limiter.acquire("k")
    clock.advance(0.5)
    granted_at = clock.now_ns() / 1e9
    assert limiter.acquire("k", 4)
    assert not limiter.settle("k", 5, 1, before), "the shared store granted it"
    assert limiter.settle("k", 4, 2, granted_at)
    assert limiter.peek("k").remaining == 3
    assert limiter.settle("k", 5, 7, before)
    assert limiter.peek("k").remaining == 1
    with limiter.reserve("k", 1) as budget:
        budget.used = 3
    assert limiter.peek("k").remaining == 0
    primary.error = None
    run_heartbeat(store)
    clock.advance(0.5)
    run_heartbeat(store)
    assert store.fallback is None
    assert limiter.peek("k").remaining < 10, "the share reports what was used"


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_outage_share__settled__credits_only_what_it_granted(strategy: LimitStrategy) -> None:
    since_us = 10**12
    outage = Outage(0.0, since_us, "gone", 1)
    share = OutageShare(limit(strategy).build_strategy(), "n", outage)
    now_us = since_us + 20_000_000
    state, wait_us = share.step(None, now_us, 4)
    assert wait_us == 0
    assert state is not None
    assert share.settle(state, now_us, -3, 30_000_000) is None, "the shared store granted it"
    credited = share.settle(state, now_us, -9, 0)
    assert credited is not None
    assert credited[0] == 0
    assert share.settle(credited, now_us, -1, 0) is None
    debited = share.settle(None, now_us, 3, 30_000_000)
    assert debited is not None
    assert debited[0] == 3
    assert ConstantStrategy(share, 0).settle(state, now_us, 3, 0) is None


class Block:
    """Runs the body of ``with limiter.reserve(...)``, blocking or awaiting."""

    def __init__(self, bench: Bench, limiter: Face) -> None:
        self.bench = bench
        self.limiter = limiter.target

    def run(self, body: Any, *args: Any, **options: Any) -> Reservation:
        if self.bench.runner is None:
            with self.limiter.sync.reserve(*args, **options) as budget:
                body(budget)
            reservation: Reservation = budget
            return reservation
        return self.bench.runner.run(self._run(self.limiter.reserve(*args, **options), body))

    async def _run(self, block: AbstractAsyncContextManager[Reservation], body: Any) -> Reservation:
        async with block as budget:
            body(budget)
        return budget


def set_used(used: int) -> Any:
    def body(budget: Reservation) -> None:
        budget.used = used

    return body


def test_reserve__used_is_set__settles_when_the_block_ends(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    budget = Block(bench, limiter).run(set_used(3), "k", 8)
    assert (budget.reserved, budget.used, budget.granted_at) == (8, 3, BEGIN)
    assert repr(budget) == "<Reservation of 8, used 3>"
    assert units_left(limiter) == 7
    Block(bench, limiter).run(set_used(9), "k", 2)
    assert units_left(limiter) == 0
    assert limiter.decide("k").retry_after == pytest.approx(0.3), "a debt of 2"


@pytest.mark.parametrize("used", [None, 8])
def test_reserve__used_as_reserved_or_unknown__leaves_the_estimate_spent(
    bench: Bench, used: int | None
) -> None:
    limiter = bench.limiter("10/s")
    Block(bench, limiter).run(lambda budget: used and set_used(used)(budget), "k", 8)
    assert units_left(limiter) == 2


def test_reserve__block_raises__leaves_the_estimate_spent(bench: Bench) -> None:
    limiter = bench.limiter("10/s")

    def fail(budget: Reservation) -> None:
        budget.used = 1
        raise KeyError("call")

    with pytest.raises(KeyError):
        Block(bench, limiter).run(fail, "k", 8)
    assert units_left(limiter) == 2


def test_reserve__no_capacity__raises_with_the_time_to_retry(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    assert limiter.acquire("k", 8)
    with pytest.raises(LimitReachedError, match=r"pncp: the limit of .* had no capacity for 5") as refusal:
        Block(bench, limiter).run(set_used(1), "k", 5)
    assert refusal.value.retry_after == pytest.approx(0.3)
    assert units_left(limiter) == 2


def test_reserve__timeout__waits_for_capacity(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    assert limiter.acquire("k", 8)
    Block(bench, limiter).run(set_used(5), "k", 5, timeout=1)
    assert bench.clock.now_ns() / 1e9 == pytest.approx(BEGIN + 0.3)


def test_reserve__others_wait__is_refused_behind_them(bench: Bench) -> None:
    limiter = bench.limiter("10/s")
    queue = limiter.target._flows.wait_queue
    waiter = queue.join("k")
    assert waiter is not None
    with pytest.raises(LimitReachedError) as refusal:
        Block(bench, limiter).run(set_used(1), "k", 5)
    assert refusal.value.retry_after == 0, "the limit itself has capacity"
    assert units_left(limiter) == 10
    queue.leave("k", waiter)


def test_reservation__used_is_no_count__raises() -> None:
    budget = Reservation(1, 0.0, ("n",), (1,))
    with pytest.raises(ValueError, match="used must be 0 to 9007199254740992, got -1"):
        budget.used = -1
    with pytest.raises(TypeError, match="used must be an int"):
        budget.used = 1.5  # type: ignore[assignment]


def _commands(server: Server) -> int:
    text = command(server, "INFO", "commandstats").decode()
    lines = [line for line in text.splitlines() if line.startswith("cmdstat_evalsha:")]
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines)


def test_reserve__on_a_server__settles_many_calls_in_one(valkey: Server) -> None:
    with redis_store(valkey) as store:
        limiter = BaseLimiter("1000/minute", store, "n")
        with limiter.sync.reserve("k", 1):
            pass  # the server has the scripts

        async def calls() -> None:
            async def one() -> None:
                async with limiter.reserve("k", 10) as budget:
                    budget.used = 1

            await asyncio.gather(*(one() for _ in range(50)))
            await limiter.aclose()

        with limiter.sync.reserve("k", 2) as budget:
            budget.used = 1
        wait_until(lambda: limiter.sync.peek("k").remaining >= 998)
        before = _commands(valkey)
        asyncio.run(calls())
        limiter.sync.close()
        assert _commands(valkey) - before <= 6, "one to acquire, at most a few to settle"
        assert limiter.sync.peek("k").remaining in {948, 949, 950}


def test_settlements__no_thread_or_too_many__are_sent_at_once(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_store(valkey) as store:
        limiter = BaseLimiter("1000/hour", store, "n")
        monkeypatch.setattr(SCHEDULER.get(), "schedule", lambda *args: False)
        with limiter.sync.reserve("k", 10) as budget:
            budget.used = 1
        assert limiter.sync.peek("k").remaining == 999
        monkeypatch.undo()
        monkeypatch.setattr(settlements, "WAITING_MAX", 0)
        with limiter.sync.reserve("k", 10) as budget:
            budget.used = 1
        assert limiter.sync.peek("k").remaining == 998
        assert limiter._budget.settlements.held_units() == 0


def test_settlements__forked__leaves_them_to_the_parent(valkey: Server) -> None:
    with redis_store(valkey) as store:
        limiter = BaseLimiter("1000/hour", store, "n")
        queue = limiter._budget.settlements
        with limiter.sync.reserve("k", 10) as budget:
            budget.used = 1
        waiting = list(queue._waiting)
        queue.after_fork()
        assert queue._waiting == []
        queue._waiting = waiting
        queue.return_all()
        assert limiter.sync.peek("k").remaining == 999


def test_settlements__key_unusable_meanwhile__are_dropped(valkey: Server) -> None:
    with redis_store(valkey) as store:
        limiter = BaseLimiter("1000/hour", store, "n")
        with limiter.sync.reserve("k", 10) as budget:
            command(valkey, "SET", "rate_limiter:n:k", "x")
            budget.used = 1
        limiter.sync.close()
        command(valkey, "DEL", "rate_limiter:n:k")
        assert limiter.sync.peek("k").remaining == 1000
