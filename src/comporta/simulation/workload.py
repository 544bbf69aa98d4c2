"""The calls that simulated workers make: of limits, reservations and upstreams.

The policies are the real ones. Each call becomes one record of the history. ``program.py`` decides when a
worker calls.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from comporta.breaker.config import BreakerConfig
from comporta.errors import RefusedError
from comporta.limits.config import LimitConfig
from comporta.limits.limiter import BaseLimiter
from comporta.limits.priority import PRIORITIES
from comporta.retry.retry import Retry
from comporta.runtime import RUNTIME
from comporta.simulation.network import seconds_ns
from comporta.simulation.run_history import FAILED, GRANTED, REFUSED, Call
from comporta.simulation.store import decided_ns
from comporta.upstream.upstream import Upstream

if TYPE_CHECKING:
    from comporta.simulation.program import Program

NAME = "portal"
"""The name of the limit and of the upstream that all workers share."""

STOP_BEFORE_END_SECONDS = 3.0
"""Callers start no call in the last seconds of a scenario, so that every call can end."""

UPSTREAM_TIMEOUT_SECONDS = 2.0
"""How long an attempt of an awaiting caller may take."""


class SimulatedCaller(NamedTuple):
    """One of the users of a worker, who calls repeatedly."""

    number: int
    random: Random


class Calls(ABC):
    """One kind of call, for blocking and for awaiting callers; subclasses say what is called."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.fleet = program.fleet
        self.scenario = program.fleet.scenario
        self.timeout = self.scenario.max_wait

    @abstractmethod
    def perform(self, caller: SimulatedCaller) -> int:
        """Make the call; returns how many units it was granted, 0 if it was refused."""

    @abstractmethod
    async def perform_async(self, caller: SimulatedCaller) -> int:
        """Do the same without blocking the event loop."""

    def priority(self, caller: SimulatedCaller) -> str:
        """Return the priority class of a caller; none in most workloads."""
        return ""

    def call(self, caller: SimulatedCaller) -> None:
        """Make one call and record it."""
        began = self._begin()
        try:
            self._record(caller, began, self.perform(caller))
        except RefusedError:
            self._record(caller, began, 0)
        except Exception as error:
            self._record(caller, began, 0, repr(error))

    async def call_async(self, caller: SimulatedCaller) -> None:
        """Make one call without blocking the event loop, and record it."""
        began = self._begin()
        try:
            self._record(caller, began, await self.perform_async(caller))
        except RefusedError:
            self._record(caller, began, 0)
        except Exception as error:
            self._record(caller, began, 0, repr(error))

    def _begin(self) -> int:
        decided_ns.set(0)
        self.program.calls_in_flight += 1
        return self.fleet.scheduler.now_ns

    def _record(self, caller: SimulatedCaller, began_ns: int, granted: int, detail: str = "") -> None:
        self.program.calls_in_flight -= 1
        now_ns, store = self.fleet.scheduler.now_ns, self.program.store
        is_local = store.fallback is not None
        decided = decided_ns.get()
        result = FAILED if detail else GRANTED if granted else REFUSED
        self.fleet.history.add(
            Call(
                began_ns,
                now_ns,
                now_ns if is_local or not decided else decided,
                self.program.worker.name,
                result,
                is_local,
                max(1, granted),
                seconds_ns(self.timeout),
                self.priority(caller),
                detail,
            )
        )


class LimitCalls(Calls):
    """Takes one unit of a limit, immediately or within ``max_wait`` seconds, with or without leases."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        scenario = self.scenario
        config = LimitConfig(
            scenario.rate,
            scenario.capacity,
            window=scenario.capacity / scenario.rate,
            strategy=scenario.strategy,
            lease=scenario.lease if scenario.workload == "lease" else False,
            fallback=scenario.fallback,
            closed_after=scenario.closed_after,
        )
        self.limiter = BaseLimiter(config, program.store, NAME)

    def perform(self, caller: SimulatedCaller) -> int:
        """Take a unit."""
        return self.limiter.sync.acquire(timeout=self.timeout)

    async def perform_async(self, caller: SimulatedCaller) -> int:
        """Take a unit."""
        return await self.limiter.acquire(timeout=self.timeout)


class PriorityCalls(LimitCalls):
    """Takes one unit of a limit for a caller of some class; most callers are of the lowest."""

    def priority(self, caller: SimulatedCaller) -> str:
        """Return the class of a caller."""
        return PRIORITIES[min(caller.number, len(PRIORITIES) - 1)]

    def perform(self, caller: SimulatedCaller) -> int:
        """Take a unit."""
        return self.limiter.sync.acquire(timeout=self.timeout, priority=self.priority(caller))

    async def perform_async(self, caller: SimulatedCaller) -> int:
        """Take a unit."""
        return await self.limiter.acquire(timeout=self.timeout, priority=self.priority(caller))


RESERVED_UNITS = 4
"""How many units a call reserves; it uses between 1 and all of them."""

_WORK_SECONDS = 0.02


class ReservationCalls(LimitCalls):
    """Reserves some units of a limit, works, and settles what it used."""

    def perform(self, caller: SimulatedCaller) -> int:
        """Reserve, work and settle."""
        with self.limiter.sync.reserve(cost=RESERVED_UNITS) as reservation:
            RUNTIME.sleep(_WORK_SECONDS)
            reservation.used = used = caller.random.randint(1, RESERVED_UNITS)
        return used

    async def perform_async(self, caller: SimulatedCaller) -> int:
        """Reserve, work and settle."""
        async with self.limiter.reserve(cost=RESERVED_UNITS) as reservation:
            await asyncio.sleep(_WORK_SECONDS)
            reservation.used = used = caller.random.randint(1, RESERVED_UNITS)
        return used


class UpstreamCalls(Calls):
    """Calls an upstream through breaker, permits, limit and retry."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        scenario = self.scenario
        self._upstream = Upstream(
            NAME,
            LimitConfig(
                scenario.rate,
                scenario.capacity,
                fallback=scenario.fallback,
                closed_after=scenario.closed_after,
            ),
            max_wait=scenario.max_wait,
            breaker=BreakerConfig(scenario.threshold, scenario.cooldown, probe_seconds=3.0),
            retry=Retry(base=scenario.retry_base),
            timeout=UPSTREAM_TIMEOUT_SECONDS,
            max_concurrent=scenario.max_concurrent,
            state=program.store,
        )
        self.timeout = scenario.max_wait

    def perform(self, caller: SimulatedCaller) -> int:
        """Call the upstream."""
        attempts = 0

        def request() -> object:
            nonlocal attempts
            attempts += 1
            return self.fleet.upstream.request(self.program.worker.name, is_retry=attempts > 1)

        self._upstream.sync.call(request)
        return True

    async def perform_async(self, caller: SimulatedCaller) -> int:
        """Call the upstream."""
        attempts = 0

        async def request() -> object:
            nonlocal attempts
            attempts += 1
            return await self.fleet.upstream.request_async(self.program.worker.name, is_retry=attempts > 1)

        try:
            await self._upstream.call(request)
        except TimeoutError:  # the upstream was too slow, which the caller has to handle
            return False
        return True
