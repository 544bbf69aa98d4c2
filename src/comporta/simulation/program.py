"""The program of a simulated worker: it opens the store, creates its policies and calls them repeatedly.

The code under test is the real one, from ``FailoverStore`` upwards. ``workload.py`` defines what is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from comporta import events
from comporta.runtime import RUNTIME
from comporta.simulation.event_loop import run_loop
from comporta.simulation.network import seconds_ns
from comporta.simulation.store import SimulatedStore
from comporta.simulation.virtual_time import NANOSECONDS
from comporta.simulation.worker import SimulatedWorker
from comporta.simulation.workload import (
    STOP_BEFORE_END_SECONDS,
    Calls,
    LimitCalls,
    PriorityCalls,
    ReservationCalls,
    SimulatedCaller,
    UpstreamCalls,
)
from comporta.stores.failover.store import FailoverStore

if TYPE_CHECKING:
    from comporta.simulation.simulated_fleet import SimulatedFleet

_TRICKLE_DIVISOR = 40


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
