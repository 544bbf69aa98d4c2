"""Bugs to plant, each with a seed that finds it: patches of the code, never switches in it.

``python -m tests.simulation.planted_bugs limit,wait,lease,upstream`` searches the first 1,000 seeds with
these workloads for every bug.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from comporta.breaker import state_machine
from comporta.breaker.cached_state import CachedState
from comporta.cache.repository import CacheRepository
from comporta.limits import wait_queue
from comporta.limits.budgets.flows import BudgetFlows
from comporta.limits.charge import ChargeOperation
from comporta.limits.concurrency import call
from comporta.limits.concurrency.held_back import PermitReturns
from comporta.limits.flows import LimitFlows
from comporta.limits.leases.client import LeaseClient
from comporta.limits.overrides.record import ExpiringStrategy
from comporta.limits.priority import Headroom
from comporta.limits.strategies.outage_share import OutageShare
from comporta.limits.strategies.token_bucket import LeasedTokenBucketStrategy
from comporta.retry.budget import RetryBudget
from comporta.simulation import draw_scenario, run_scenario
from comporta.stores.failover import recovery
from comporta.stores.failover.barrier import UNKNOWN_EPOCH, Barrier, RejoinRequest
from comporta.stores.failover.local_share import LocalShare
from comporta.stores.failover.machine_workers import MachineWorkers
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_count import WorkerCount
from comporta.stores.records import NEVER_US
from comporta.stores.redis.deadline import AdaptiveDeadline
from comporta.stores.redis.pool import BlockingPool

SEEDS_MAX = 1000

Patch = Callable[[], AbstractContextManager[Any]]


def _share_starts_full() -> AbstractContextManager[Any]:
    original = OutageShare.__init__

    def init(self: OutageShare, *arguments: Any) -> None:
        original(self, *arguments)
        self._initial_state = None  # type: ignore[assignment]

    return patch.object(OutageShare, "__init__", init)


def _reports_are_applied_each_time() -> AbstractContextManager[Any]:
    original = ChargeOperation.step

    def step(self: ChargeOperation, states: Any, now_us: int) -> Any:
        return original(self, [states[0], None], now_us)

    return patch.object(ChargeOperation, "step", step)


def _worker_count_follows_registry() -> AbstractContextManager[Any]:
    def record(self: WorkerCount, count: int) -> None:
        self._remembered = 1
        self._latest = self._peak = count
        self._previous_peak = 0

    return patch.object(WorkerCount, "record", record)


@contextmanager
def _old_results_count() -> Iterator[None]:
    with (
        patch.object(state_machine, "_is_current", lambda *_: True),
        patch.object(CachedState, "is_outdated", lambda *_: False),
    ):
        yield


def _budget_grants_everything() -> AbstractContextManager[Any]:
    def withdraw_flow(self: RetryBudget) -> Generator[Any, Any, bool]:
        yield from ()
        return True

    return patch.object(RetryBudget, "_withdraw_flow", withdraw_flow)


def _lease_without_ledger() -> AbstractContextManager[Any]:
    original = LeasedTokenBucketStrategy.grant_lease

    def grant_lease(self: Any, state: Any, now_us: int, amount: int, ttl_us: int) -> Any:
        return original(self, state, now_us, 0, ttl_us)

    return patch.object(LeasedTokenBucketStrategy, "grant_lease", grant_lease)


def _settlements_are_lost() -> AbstractContextManager[Any]:
    def settle_flow(self: BudgetFlows, key: Any, reservation: Any) -> Generator[Any, Any, None]:
        yield from ()

    return patch.object(BudgetFlows, "settle_reservation_flow", settle_flow)


def _settlements_count_twice() -> AbstractContextManager[Any]:
    original = BudgetFlows.settle_reservation_flow

    def settle_flow(self: BudgetFlows, key: Any, reservation: Any) -> Generator[Any, Any, None]:
        yield from original(self, key, reservation)
        yield from original(self, key, reservation)

    return patch.object(BudgetFlows, "settle_reservation_flow", settle_flow)


def _fetch_lease_outlives_its_worker() -> AbstractContextManager[Any]:
    original = CacheRepository.claim_flow

    def claim_flow(self: CacheRepository, key: str, owner: str, seconds: float, **options: Any) -> Any:
        return original(self, key, owner, 100 * seconds, **options)

    return patch.object(CacheRepository, "claim_flow", claim_flow)


def _pause_is_ignored() -> AbstractContextManager[Any]:
    original = ExpiringStrategy.effective_at

    def effective_at(self: ExpiringStrategy, now_us: int) -> Any:
        strategy, _, capacity = original(self, now_us)
        return strategy, 0, capacity

    return patch.object(ExpiringStrategy, "effective_at", effective_at)


def _lease_never_ends() -> AbstractContextManager[Any]:
    original = LeaseClient._start_lease

    def start_lease(self: LeaseClient, lease: Any, cost: int, sent_ns: int, granted: Any) -> int:
        return original(self, lease, cost, sent_ns, granted._replace(ttl_us=100 * granted.ttl_us))

    return patch.object(LeaseClient, "_start_lease", start_lease)


def _deadline_is_ignored() -> AbstractContextManager[Any]:
    original = BlockingPool.__init__

    def init(self: Any, connect: Any, address: str, deadline: Any, connect_timeout: float) -> None:
        original(self, connect, address, AdaptiveDeadline(2.0, 2.0), connect_timeout)

    return patch.object(BlockingPool, "__init__", init)


def _timeout_is_doubled() -> AbstractContextManager[Any]:
    original = LimitFlows.acquire_flow

    def acquire_flow(self: LimitFlows, key: Any, cost: int, timeout: Any, caller: Any = None) -> Any:
        return original(self, key, cost, timeout and 2 * timeout, caller)

    return patch.object(LimitFlows, "acquire_flow", acquire_flow)


def _timeout_reaches_the_caller() -> AbstractContextManager[Any]:
    original = FailoverStore.fail_over

    def fail_over(self: FailoverStore, error: Any, *, store_wide: bool = False) -> Any:
        share = original(self, error, store_wide=store_wide)
        if not store_wide:
            raise error
        return share

    return patch.object(FailoverStore, "fail_over", fail_over)


def _permits_stay() -> AbstractContextManager[Any]:
    def release_flow(self: PermitReturns, *permits: Any) -> Generator[Any, Any, None]:
        for permit in permits:
            self.own.discard(permit)
        yield from ()

    return patch.object(PermitReturns, "release_flow", release_flow)


def _stale_rejoin_moment() -> AbstractContextManager[Any]:
    original = Barrier.join

    def join(self: Barrier, request: RejoinRequest, now_us: int) -> Any:
        return original(self, request._replace(lost_epoch=UNKNOWN_EPOCH, used_epoch=0), now_us)

    return patch.object(Barrier, "join", join)


@contextmanager
def _waiters_are_not_woken() -> Iterator[None]:
    with patch.object(wait_queue.WaitQueue, "wake_first", lambda self, key: None):
        yield


def _machine_is_counted_once() -> AbstractContextManager[Any]:
    return patch.object(LocalShare, "divide_by", lambda self, worker_count: False)


def _machine_is_unknown_at_the_barrier() -> AbstractContextManager[Any]:
    original = MachineWorkers.join

    def join(self: MachineWorkers) -> int:
        workers, self.count = original(self), 0
        return workers

    return patch.object(MachineWorkers, "join", join)


def _strict_limit_stays_open() -> AbstractContextManager[Any]:
    original = OutageShare.__init__

    def init(self: OutageShare, *arguments: Any) -> None:
        original(self, *arguments)
        self._closes_us = NEVER_US

    return patch.object(OutageShare, "__init__", init)


def _strict_limit_closes_at_once() -> AbstractContextManager[Any]:
    original = OutageShare.__init__

    def init(self: OutageShare, *arguments: Any) -> None:
        original(self, *arguments)
        if self._closes_us < NEVER_US:
            self._closes_us = self._since_us

    return patch.object(OutageShare, "__init__", init)


BUGS: dict[str, tuple[int, Patch]] = {
    "reports are lost": (4, lambda: patch.object(LocalShare, "collect_reports", lambda self: [])),
    "reports are applied each time": (120, _reports_are_applied_each_time),
    "the share is not divided": (3, lambda: patch.object(WorkerCount, "value", 1)),
    "the share starts full": (4, _share_starts_full),
    "every worker probes": (6, lambda: patch.object(state_machine, "_has_free_probe", lambda *_: True)),
    "one permit too many": (6, lambda: patch.object(call, "due_claims_ahead", lambda *_: -1)),
    "permits are not released": (0, _permits_stay),
    "the worker count follows a lost registry": (33, _worker_count_follows_registry),
    "results of an old generation count": (607, _old_results_count),
    "the retry budget grants everything": (19, _budget_grants_everything),
    "a lease has no ledger": (26, _lease_without_ledger),
    "settlements are lost": (110, _settlements_are_lost),
    "settlements count twice": (152, _settlements_count_twice),
    "classes leave no headroom": (131, lambda: patch.object(Headroom, "floor", lambda *_: 0)),
    "a fetch lease outlives its worker": (537, _fetch_lease_outlives_its_worker),
    "a pause is ignored": (2, _pause_is_ignored),
    "a lease never ends": (421, _lease_never_ends),
    "the deadline is ignored": (1, _deadline_is_ignored),
    "the time-out is doubled": (41, _timeout_is_doubled),
    "a time-out reaches the caller": (1, _timeout_reaches_the_caller),
    "the moment of an earlier rejoin is accepted": (259, _stale_rejoin_moment),
    "waiters are not woken": (65, _waiters_are_not_woken),
    "a worker rejoins without looking for others": (
        502,
        lambda: patch.object(recovery, "_LOOK_OUT_NS", 0),
    ),
    "the workers of a machine are counted once": (95, _machine_is_counted_once),
    "the barrier does not expect the workers of a machine": (53, _machine_is_unknown_at_the_barrier),
    "a strict limit never closes": (11, _strict_limit_stays_open),
    "a strict limit closes at once": (109, _strict_limit_closes_at_once),
    "the store is probed too rarely": (
        1,
        lambda: patch.multiple(recovery, PROBE_SECONDS_MIN=20.0, PROBE_SECONDS_MAX=20.0),
    ),
}
"""The seed that finds each bug, and the patch that plants it."""


def violations(seed: int, plant: Patch | None = None) -> list[str]:
    """Return what the scenario of a seed violates, with a planted bug or without."""
    if plant is None:
        return run_scenario(draw_scenario(seed))[1]
    with plant():
        return run_scenario(draw_scenario(seed))[1]


def find(plant: Patch, workloads: tuple[str, ...]) -> int | None:
    """Return the first seed with one of these workloads that fails with the bug and passes without it."""
    for seed in range(SEEDS_MAX):
        if draw_scenario(seed).workload in workloads and violations(seed, plant) and not violations(seed):
            return seed
    return None


if __name__ == "__main__":
    for name, (_, plant) in BUGS.items():
        if len(sys.argv) < 3 or sys.argv[2] in name:
            seed = find(plant, tuple(sys.argv[1].split(",")))
            found = [] if seed is None else violations(seed, plant)
            sys.stdout.write(f"{name}: {seed} {found[:1]}\n")
            sys.stdout.flush()
