"""A limit on the calls in flight of the whole fleet: ``async with limit.slot(timeout=5):``.

A rate limits how many calls start; a concurrency limit how many are in progress. Each call holds a permit
(``operation.py``) that is released at the end of the call, or expires after ``permit_ttl`` seconds if its
holder was killed. The waiters of this process form a queue. A permit that this process releases goes to its
first waiter at once; a permit that another process releases is noticed within 0.1 s. No process starves
another: a process whose first waiter has waited for about 0.25 s goes before the others
(``fairness_queue.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, cast

from comporta.clock import to_us
from comporta.errors import LimitReachedError
from comporta.flow import Flow, run, run_async
from comporta.jitter import uniform
from comporta.limits.arguments import check_timeout
from comporta.limits.concurrency.held_back import QUEUE_KEY, Acquisition, permit_returns
from comporta.limits.concurrency.operation import (
    AcquirePermit,
    AwaitPermit,
    FinalAcquirePermit,
    ListHolders,
    PermitReply,
    RenewPermit,
)
from comporta.limits.concurrency.permits import SHARED_PERMITS_MAX, Permit, PermitHolder, PermitPool
from comporta.limits.priority import Caller, resolve_caller
from comporta.limits.wait_queue import WaitQueue, wait_flow
from comporta.names import validate_name
from comporta.stores.base import Store
from comporta.stores.effects import Apply
from comporta.stores.name_claims import NameClaims
from comporta.stores.outage_info import Fallback
from comporta.stores.records import NEVER_US
from comporta.stores.registry import default_url, resolve_store
from comporta.threads import run_cleanup
from comporta.validators import require_integer, require_number

MAX_CONCURRENT_MAX = 10_000
PERMIT_TTL_MIN = 0.01
PERMIT_TTL_MAX = 86_400.0

_RETRY_US_RANGE = (50_000, 100_000)
"""A waiter retries after a random time in this range, because another machine may release a permit."""

_FINAL_ATTEMPT_US = 1000
"""A waiter makes its final attempt this long before its timeout."""

_CLAIMS = NameClaims()


class _PermitConfig(NamedTuple):
    """The settings that all limits of one name in a program must share."""

    max_concurrent: int
    permit_ttl: float

    def __str__(self) -> str:
        return f"max_concurrent={self.max_concurrent} with permit_ttl={self.permit_ttl:g}"


class ConcurrencyLimit:
    """At most ``max_concurrent`` calls in flight, among all workers with the same store and name.

    A permit that is not released expires after ``permit_ttl`` seconds: choose longer than any call takes, or
    ``renew`` it. However busy other processes are, the first waiter of each process gets the next permit when
    it has waited for about 0.25 s, in order of arrival; a call with ``timeout=0`` overtakes none of these
    waiters. ``state`` is a store or its URL; by default the environment names it. While the shared store is
    unreachable, a worker uses its share: ``max_concurrent`` divided by the number of workers, at least one.
    Permits that the worker already holds count against its share, can be renewed, and are registered in the
    store on recovery.

    ``sync`` has the same methods for blocking code.
    """

    def __init__(
        self,
        name: str,
        max_concurrent: int,
        *,
        permit_ttl: float = 60.0,
        state: str | Store | None = None,
    ) -> None:
        require_integer("max_concurrent", max_concurrent, 1, MAX_CONCURRENT_MAX)
        require_number("permit_ttl", permit_ttl, PERMIT_TTL_MIN, PERMIT_TTL_MAX, unit="seconds")
        self.store = resolve_store(default_url(distributed=True) if state is None else state)
        _check_store_capacity(self.store, max_concurrent)
        self.name = validate_name(name)
        self.max_concurrent = max_concurrent
        self.permit_ttl = float(permit_ttl)
        self._pool = PermitPool(name, max_concurrent, to_us(permit_ttl))
        self._wait_queue = WaitQueue()
        self._claim = _CLAIMS.claim(self.store, name, _PermitConfig(max_concurrent, self.permit_ttl))
        self._returns = permit_returns(self.store, self._pool)
        self._pool = self._returns.pool
        self._returns.add_queue(self._wait_queue)
        self.sync = SyncConcurrencyLimit(self)

    @property
    def fallback(self) -> Fallback | None:
        """Since when and why this worker uses its local share, or ``None`` while the store is reachable."""
        return self.store.fallback

    async def acquire(self, timeout: float | None = 0) -> Permit | None:
        """Acquire a permit, waiting up to ``timeout`` seconds (``None`` for no bound); ``None`` if refused.

        You must release the permit; ``slot`` does it for you.
        """
        return await run_async(self._acquire_flow(timeout))

    async def release(self, permit: Permit) -> None:
        """Release a permit; has no effect if the permit has expired."""
        await run_async(self._release_flow(permit))

    async def renew(self, permit: Permit) -> bool:
        """Extend a permit to ``permit_ttl`` seconds from now; false if it has expired."""
        return await run_async(self._renew_flow(permit))

    def slot(self, timeout: float | None = 0) -> PermitSlot:
        """Return a context manager that holds a permit; ``LimitReachedError`` if none is free in time."""
        return PermitSlot(self, timeout)

    async def in_use(self) -> int:
        """Return how many permits are in use."""
        return len(await run_async(self._holders_flow()))

    async def holders(self) -> list[PermitHolder]:
        """Return who holds permits and for how many more seconds, the next one to expire first."""
        return await run_async(self._holders_flow())

    def _acquire_flow(self, timeout: float | None, caller: Caller | None = None) -> Flow[Permit | None]:
        """Acquire a permit, in order with the other waiters of this process."""
        check_timeout(timeout)
        caller = resolve_caller(None, None) if caller is None else caller
        if timeout == 0 and not self._wait_queue.is_empty(QUEUE_KEY, caller.rank):
            return None  # callers that already wait go first
        acquisition, granted = Acquisition(), False
        try:
            if timeout == 0:
                granted = (yield from self._attempt_flow(acquisition, AcquirePermit)).succeeded
            else:
                granted = yield from self._wait_flow(acquisition, timeout, caller)
        finally:
            granted_ns = self.store.clock.now_ns() if granted else None
            run_cleanup(self._returns.end_acquisition, acquisition, granted_ns)
        return acquisition.permit if granted else None

    def _attempt_flow(
        self, acquisition: Acquisition, operation_type: type[AcquirePermit]
    ) -> Flow[PermitReply]:
        return (
            yield from self._returns.attempt_flow(
                acquisition, lambda ended: operation_type(self._pool, acquisition.permit, *ended)
            )
        )

    def _wait_flow(self, acquisition: Acquisition, timeout: float | None, caller: Caller) -> Flow[bool]:
        """Retry in the wait queue until the time is up; return whether the permit was granted."""
        clock, poll_us = self.store.clock, 0
        deadline_us = NEVER_US if timeout is None else clock.now_ns() // 1000 + to_us(timeout)

        def retry_flow() -> Flow[int]:
            nonlocal poll_us
            left_us = deadline_us - clock.now_ns() // 1000
            reply = yield from self._attempt_flow(acquisition, self._operation_type(left_us))
            poll_us = reply.poll_us or poll_us * 5 // 4  # the process that goes first may finish anytime
            left_us = deadline_us - clock.now_ns() // 1000
            return 0 if reply.succeeded else _retry_delay_us(reply, poll_us, left_us)

        return (
            yield from wait_flow(
                self._wait_queue, retry_flow, clock, QUEUE_KEY, timeout, jitter_us=lambda: 0, caller=caller
            )
        )

    def _operation_type(self, left_us: int) -> type[AcquirePermit]:
        """Return how a waiter with this much time left tries; the final attempt withdraws the claim."""
        is_last = left_us <= 2 * _FINAL_ATTEMPT_US and self._wait_queue.count(QUEUE_KEY) < 2
        return FinalAcquirePermit if is_last else AwaitPermit

    def _release_flow(self, permit: Permit) -> Flow[None]:
        """Release a permit now, and wake the first waiter."""
        yield from self._returns.release_flow(permit)

    def _end_call_flow(self, permit: Permit) -> Flow[None]:
        """Release the permit of a call: now if a caller waits, else within 10 ms (``held_back.py``)."""
        if self._wait_queue.waiters_by_key or not self._returns.hold_back(permit):
            yield from self._returns.release_flow(permit)

    def _flush_flow(self) -> Flow[None]:
        """Release the permits that are held back."""
        yield from self._returns.flush_flow()

    def _renew_flow(self, permit: Permit) -> Flow[bool]:
        reply: PermitReply = yield Apply(self.store, RenewPermit(self._pool, permit))
        if reply.succeeded:
            self._returns.own.renew(permit)
        return reply.succeeded

    def _register_flow(self, permits: Sequence[Permit]) -> Flow[list[Permit]]:
        """Register expired permits whose calls are still running; return the permits of ended calls."""
        return (yield from self._returns.register_flow(permits))

    def _holders_flow(self) -> Flow[list[PermitHolder]]:
        yield from self._flush_flow()
        holders: list[PermitHolder] = yield Apply(self.store, ListHolders(self._pool))
        return holders

    def _refusal_error(self) -> LimitReachedError:
        """Return the error for a caller that got no permit in time."""
        text = f"{self.name}: {self.max_concurrent} calls are in flight, and no permit became free in time"
        return LimitReachedError(text, self.name, _RETRY_US_RANGE[1] / 1e6)


class SyncConcurrencyLimit:
    """The methods of a limit, blocking: ``limit.sync``."""

    __slots__ = ("_limit",)

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit

    def acquire(self, timeout: float | None = 0) -> Permit | None:
        """Acquire a permit, waiting up to ``timeout`` seconds; ``None`` if refused."""
        return run(self._limit._acquire_flow(timeout))

    def release(self, permit: Permit) -> None:
        """Release a permit; has no effect if the permit has expired."""
        run(self._limit._release_flow(permit))

    def renew(self, permit: Permit) -> bool:
        """Extend a permit to ``permit_ttl`` seconds from now; false if it has expired."""
        return run(self._limit._renew_flow(permit))

    def slot(self, timeout: float | None = 0) -> PermitSlot:
        """Return a context manager that holds a permit: ``with limit.sync.slot():``."""
        return PermitSlot(self._limit, timeout)

    def in_use(self) -> int:
        """Return how many permits are in use."""
        return len(run(self._limit._holders_flow()))

    def holders(self) -> list[PermitHolder]:
        """Return who holds permits and for how many more seconds, the next one to expire first."""
        return run(self._limit._holders_flow())


class PermitSlot:
    """Holds a permit in a ``with`` or ``async with`` block; one block at a time."""

    __slots__ = ("_limit", "_permit", "_timeout", "_used")

    def __init__(self, limit: ConcurrencyLimit, timeout: float | None) -> None:
        self._limit = limit
        self._timeout = timeout
        self._permit: Permit | None = None
        self._used = False

    def __enter__(self) -> Permit:
        return run(self._acquire_flow())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run(self._release_flow())

    async def __aenter__(self) -> Permit:
        return await run_async(self._acquire_flow())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, GeneratorExit):
            run_cleanup(run, self._release_flow())  # a closed coroutine cannot await
        else:
            await run_async(self._release_flow())

    def _acquire_flow(self) -> Flow[Permit]:
        if self._used:
            raise RuntimeError("slot is in use: call limit.slot() again for another one")
        self._used = True  # before the wait: a second block must not lose the permit of the first
        try:
            self._permit = yield from self._limit._acquire_flow(self._timeout)
        finally:
            self._used = self._permit is not None
        if self._permit is None:
            raise self._limit._refusal_error()
        return self._permit

    def _release_flow(self) -> Flow[None]:
        permit, self._permit, self._used = cast(Permit, self._permit), None, False
        yield from self._limit._release_flow(permit)


def _retry_delay_us(reply: PermitReply, poll_us: int, left_us: int) -> int:
    """Return how long to wait before the next attempt; more than the time left means to give up."""
    if left_us <= 2 * _FINAL_ATTEMPT_US:
        return max(left_us, 0) + 1
    usual_us = round(uniform(*_RETRY_US_RANGE))
    return min(max(1, reply.wait_us), usual_us, poll_us or usual_us, left_us - _FINAL_ATTEMPT_US)


def _check_store_capacity(store: Store, max_concurrent: int) -> None:
    if store.state_bytes_max is not None and max_concurrent > SHARED_PERMITS_MAX:
        raise ValueError(
            f"max_concurrent must be 1 to {SHARED_PERMITS_MAX} on a store of one machine, such as shared://, "
            f"got {max_concurrent}"
        )
