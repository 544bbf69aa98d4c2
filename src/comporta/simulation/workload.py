"""What a simulated worker does: it opens the store, creates its policies and calls them repeatedly.

The code under test is the real one, from ``FailoverStore`` upwards. Each call becomes one record of the
history.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta import events
from comporta.breaker.config import BreakerConfig
from comporta.errors import RefusedError
from comporta.limits.config import LimitConfig
from comporta.limits.limiter import BaseLimiter
from comporta.limits.priority import PRIORITIES
from comporta.retry.retry import Retry
from comporta.runtime import RUNTIME
from comporta.simulation.event_loop import run_loop
from comporta.simulation.network import seconds_ns
from comporta.simulation.run_history import FAILED, GRANTED, REFUSED, Call
from comporta.simulation.store import SimulatedStore, decided_ns
from comporta.simulation.virtual_time import NANOSECONDS
from comporta.simulation.worker import SimulatedWorker
from comporta.stores.failover.store import FailoverStore
from comporta.upstream.upstream import Upstream

if TYPE_CHECKING:
    from comporta.simulation.simulated_fleet import SimulatedFleet

NAME = "portal"
"""The name of the limit and of the upstream that all workers share."""

STOP_BEFORE_END_SECONDS = 3.0
"""Callers start no call in the last seconds of a scenario, so that every call can end."""

UPSTREAM_TIMEOUT_SECONDS = 2.0
"""How long an attempt of an awaiting caller may take."""

_TRICKLE_DIVISOR = 40


class SimulatedCaller(NamedTuple):
    """One of the users of a worker, who calls repeatedly."""

    number: int
    random: Random


class Program:
    """The program of one worker. ``is_leaving``: the process exits, and starts no more calls.

    ``store`` is the store that its policies share.
    """

    def __init__(self, fleet: SimulatedFleet, worker: SimulatedWorker) -> None:
        self.fleet = fleet
        self.worker = worker
        self.is_leaving = False
        self.calls_in_flight = 0
        self._scenario = fleet.scenario
        self._last_call_ns = seconds_ns(fleet.scenario.seconds - STOP_BEFORE_END_SECONDS)

    def run(self) -> None:
        """Open the store, create the policies and start the callers; the main thread of the process."""
        scenario, name = self._scenario, self.worker.name
        events.listen(lambda event: self.fleet.note(name, event.kind, event.text))
        engine = SimulatedStore(self.fleet.endpoints(self.worker))
        self.store = FailoverStore.wrap(engine, engine.address)
        calls = _calls(self)
        if scenario.is_async:
            run_loop(self.fleet.scheduler, lambda: self._run_tasks(calls))
            return
        for number in range(scenario.callers):
            self.worker.start_thread(lambda number=number: self._call_repeatedly(number, calls.call))  # type: ignore[misc]

    def _call_repeatedly(self, number: int, call: Callable[[SimulatedCaller], None]) -> None:
        caller = self._caller(number)
        while True:
            RUNTIME.sleep(self._pause(caller.random))
            if self._is_over():
                return
            call(caller)

    async def _run_tasks(self, calls: Calls) -> None:
        await asyncio.gather(
            *(self._await_repeatedly(number, calls.call_async) for number in range(self._scenario.callers))
        )
        await asyncio.Event().wait()  # the heartbeat continues; the program ends with the scenario

    async def _await_repeatedly(
        self, number: int, call: Callable[[SimulatedCaller], Coroutine[Any, Any, None]]
    ) -> None:
        caller = self._caller(number)
        while True:
            await asyncio.sleep(self._pause(caller.random))
            if self._is_over():
                return
            await call(caller)

    def _caller(self, number: int) -> SimulatedCaller:
        return SimulatedCaller(number, Random(f"{self._scenario.seed}:{self.worker.name}:{number}"))

    def _pause(self, random: Random) -> float:
        """Draw the time until a caller's next call; callers that pause all come back in the next burst."""
        load, burst = self._scenario.load / self._scenario.callers, self._scenario.burst_seconds
        pause = random.expovariate(load)
        if burst:
            now = self.fleet.scheduler.now_ns / NANOSECONDS
            into_cycle = (now + pause) % (2 * burst)
            if into_cycle >= burst:
                until_burst = pause + 2 * burst - into_cycle
                trickle = (
                    random.expovariate(load / _TRICKLE_DIVISOR) if self._scenario.trickles else until_burst
                )
                pause = min(until_burst, max(pause, trickle))
        return pause

    def _is_over(self) -> bool:
        return self.is_leaving or self.fleet.scheduler.now_ns > self._last_call_ns


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
            LimitConfig(scenario.rate, scenario.capacity),
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


_CALLS: dict[str, type[Calls]] = {
    "upstream": UpstreamCalls,
    "priority": PriorityCalls,
    "reserve": ReservationCalls,
}


def _calls(program: Program) -> Calls:
    if program.fleet.scenario.workload == "cache":
        from comporta.simulation.cache_workload import CacheCalls  # noqa: PLC0415 - few scenarios need it

        return CacheCalls(program)
    return _CALLS.get(program.fleet.scenario.workload, LimitCalls)(program)
