"""The methods of a limiter for blocking code: ``limiter.sync.acquire(key)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from comporta.flow import run
from comporta.limits.arguments import is_timeout
from comporta.limits.block import LimitBlock
from comporta.limits.budgets.flows import BudgetFlows
from comporta.limits.budgets.reservation import Reservation
from comporta.limits.config import LimitConfig
from comporta.limits.decision import Decision, Stats
from comporta.limits.fast_decision import decision_path
from comporta.limits.flows import Key, LimitFlows
from comporta.limits.key import LimitKey
from comporta.limits.priority import contexts_entered, has_own_caller, resolve_caller
from comporta.stores.bound_limit import WouldBlock


class SyncLimiter:
    """The methods of a limiter, blocking: ``limiter.sync``."""

    __slots__ = (
        "_acquire",
        "_budget",
        "_decide_now",
        "_flows",
        "_may_wait",
        "_needs_flow",
        "_slow_keys",
        "_try_acquire",
    )

    def __init__(self, flows: LimitFlows, budget: BudgetFlows) -> None:
        self._flows = flows
        self._budget = budget
        self._slow_keys, self._needs_flow = flows.fast_path_checks()
        self._try_acquire = flows.bound.try_acquire if flows.bound.decides_in_process else flows.bound.acquire
        self._acquire = flows.bound.acquire
        self._may_wait = flows.bound.decides_in_process
        self._decide_now = decision_path(flows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to be pickled."""
        raise TypeError("limiter.sync cannot be pickled: pickle the limiter and use its .sync there")

    def acquire(
        self,
        key: Key = None,
        cost: int = 1,
        timeout: float | None = 0,
        priority: str | None = None,
        owner: str | None = None,
    ) -> bool:
        """Take ``cost`` from the limit of a key; true if it was granted within ``timeout`` seconds."""
        if type(key) is LimitKey:
            key = key._text
        if (
            cost == 1
            and priority is None
            and owner is None
            and not (contexts_entered and has_own_caller())
            and not (self._slow_keys and self._needs_flow(key))
        ):
            if timeout == 0:
                try:
                    return not self._try_acquire(key, 1)
                except WouldBlock:
                    return not self._acquire(key, 1)
            if (
                self._may_wait
                and is_timeout(timeout)
                and not (self._flows.contended_until_us and self._flows.is_contended)
            ):
                try:
                    if not self._try_acquire(key, 1):
                        return True
                except WouldBlock:
                    pass
        return run(self._flows.acquire_flow(key, cost, timeout, resolve_caller(priority, owner)))

    def decide(self, key: Key = None, cost: int = 1, priority: str | None = None) -> Decision:
        """Take ``cost`` if it is available, and return the decision with the use of the key."""
        if (
            cost == 1
            and type(cost) is int
            and self._decide_now is not None
            and priority is None
            and not (contexts_entered and has_own_caller())
            and not (self._slow_keys and self._needs_flow(key))
        ):
            try:
                return self._decide_now(key._text if type(key) is LimitKey else key, 1)
            except WouldBlock:
                pass
        return run(self._flows.decide_flow(key, cost, resolve_caller(priority, None)))

    def acquire_up_to(self, key: Key = None, cost: int = 1, priority: str | None = None) -> int:
        """Take as much of ``cost`` as is available now, in one step, and return how much was granted."""
        return run(self._flows.acquire_up_to_flow(key, cost, resolve_caller(priority, None)))

    def limit(
        self, key: Key | Callable[..., Key] = None, cost: int = 1, timeout: float | None = 0
    ) -> LimitBlock:
        """Return a guard for a block, ``with limiter.sync.limit(key):``, or a decorator of functions."""
        return LimitBlock(self._flows, key, cost, timeout)

    def peek(self, key: Key = None, cost: int = 1, priority: str | None = None) -> Decision:
        """Return what ``decide`` would return, without taking anything."""
        return run(self._flows.peek_flow(key, cost, resolve_caller(priority, None)))

    def release(self, key: Key = None, cost: int = 1) -> None:
        """Give back units that you took and did not use."""
        run(self._flows.release_flow(key, cost))

    def settle(self, key: Key, reserved: int, used: int, granted_at: float | None = None) -> bool:
        """Credit or debit the difference between what you acquired for a call and what it really cost."""
        return run(self._budget.settle_flow(key, reserved, used, granted_at))

    @contextmanager
    def reserve(self, key: Key = None, cost: int = 1, timeout: float | None = 0) -> Iterator[Reservation]:
        """Take an estimate for a block, and settle it if the block sets ``used``.

        Raises :class:`comporta.LimitReachedError` if the estimate is not granted within ``timeout`` seconds.
        """
        reservation = run(self._budget.reserve_flow(key, cost, timeout))
        yield reservation
        run(self._budget.settle_reservation_flow(key, reservation))

    def reset(self, key: Key = None) -> None:
        """Delete the state of a key, as if it had never been used."""
        run(self._flows.reset_flow(key))

    def stats(self, key: Key = None) -> Stats:
        """Return what is available and what all workers were granted in the last minute."""
        return run(self._flows.stats_flow(key))

    def set_limit(self, limit: LimitConfig | str | None) -> None:
        """Override the limit for every worker; ``None`` revokes the override."""
        run(self._flows.overrides.set_limit_flow(limit))

    def pause(self, seconds: float) -> None:
        """Refuse every request of every worker for ``seconds``, at most a day; 0 ends the pause."""
        run(self._flows.overrides.pause_flow(seconds))

    def resume(self) -> None:
        """End a pause."""
        run(self._flows.overrides.resume_flow())

    def close(self) -> None:
        """Return leased units and close the store's blocking connections; they reopen when needed."""
        run(self._budget.settlements.flush_flow())
        if self._flows.lease_client is not None:
            run(self._flows.lease_client.return_all_flow())
        self._flows.store.close_connections()
