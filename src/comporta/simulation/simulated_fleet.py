"""A whole fleet in one thread: workers, network, server and upstream, and the faults that affect them.

:func:`simulate` is the entry point: it installs the simulated runtime, runs a scenario to its end and returns
its history. What a worker does is in ``program.py``, what a fault does in ``fault_actions.py``.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from comporta.breaker.operation import BreakerOperation
from comporta.breaker.state import CHANGE_CLOSED, CHANGE_OPENED
from comporta.limits.charge import ChargeOperation
from comporta.limits.overrides.operation import OverrideReply, PauseLimit
from comporta.runtime import install, run_exit_functions
from comporta.simulation.connection import Endpoints
from comporta.simulation.fault_actions import FAULT_ACTIONS, Action
from comporta.simulation.faults import Fault
from comporta.simulation.host import SimulatedMachine, UnavailableLockFiles
from comporta.simulation.lua_engine import LuaEngine
from comporta.simulation.network import Network, seconds_ns
from comporta.simulation.program import Program
from comporta.simulation.run_history import FAILED, AppliedReport, Call, FleetHistory, Moment
from comporta.simulation.scenario import FleetScenario
from comporta.simulation.server import SimulatedServer
from comporta.simulation.simulated_runtime import SimulatedRuntime
from comporta.simulation.step_engine import StepEngine
from comporta.simulation.upstream import UpstreamSimulation
from comporta.simulation.virtual_time import Scheduler, SimulatedThread
from comporta.simulation.worker import SimulatedWorker
from comporta.simulation.workload import NAME
from comporta.stores.base import Operation
from comporta.stores.failover.lock_files import LOCK_FILES
from comporta.stores.failover.worker_count_file import WORKER_COUNT_FILES, WORKERS_VARIABLE

_COUNT_VARIABLES = (WORKERS_VARIABLE, "WEB_CONCURRENCY")
_CIRCUIT_MOMENTS = {CHANGE_OPENED: "circuit_opened", CHANGE_CLOSED: "circuit_closed"}


def simulate(scenario: FleetScenario) -> FleetHistory:
    """Run a scenario on virtual time and return what happened."""
    fleet = SimulatedFleet(scenario)
    with fleet_runtime(fleet):
        return fleet.run()


@contextmanager
def fleet_runtime(fleet: SimulatedFleet) -> Iterator[None]:
    """Use the runtime of a fleet in the ``with`` block, and hide the state of this process from the fleet."""
    with install(fleet.runtime), _quiet_log(), _clean_environment(), _no_garbage_collection():
        yield


class SimulatedFleet:
    """The parts of one simulation."""

    def __init__(self, scenario: FleetScenario) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler()
        self.history = FleetHistory(scenario)
        self.runtime = SimulatedRuntime(self.scheduler, seed=scenario.seed)
        random = Random(f"{scenario.seed}:network")
        self.network = Network(
            self.scheduler,
            scenario.workers,
            random,
            latency_ns=seconds_ns(scenario.latency),
            jitter_ns=seconds_ns(scenario.jitter),
        )
        engine = LuaEngine() if scenario.lua else StepEngine()
        self.server = SimulatedServer(self.scheduler, engine, self._observe)
        self.upstream = UpstreamSimulation(self.scheduler, self.history, Random(f"{scenario.seed}:upstream"))
        self.workers: list[SimulatedWorker] = []
        self.programs: dict[SimulatedWorker, Program] = {}
        self.files = ExitStack()
        self._machines = [SimulatedMachine() for _ in scenario.machines or (scenario.workers,)]
        self._random = Random(f"{scenario.seed}:fleet")
        self.scheduler.on_thread_error = self._record_thread_error

    def run(self) -> FleetHistory:
        """Start everything, run to the end of the scenario, and end all workers."""
        scheduler, scenario = self.scheduler, self.scenario
        start_spread_ns = seconds_ns(scenario.start_seconds)
        for index in range(scenario.workers):
            self.workers.append(self._new_worker(index, 0))
            scheduler.call_at(self._random.randrange(start_spread_ns), self._start_worker, index)
        if any(fault.value == "old" for fault in scenario.faults):
            self.server.keep_snapshots()
        for fault in scenario.faults:
            scheduler.call_at(seconds_ns(fault.at), self._begin_fault, fault)
        scheduler.run_until(seconds_ns(scenario.seconds))
        self._note_calls()
        self._note_permits()
        for worker in self.workers:
            self.end_worker(worker)
        scheduler.close()
        self.files.close()
        self.history.event_count = scheduler.event_count
        return self.history

    @cached_property
    def folder(self) -> Path:
        """A folder for the files of the fleet, which is removed at the end."""
        return Path(self.files.enter_context(TemporaryDirectory(prefix="comporta-simulation-")))

    def note(self, worker: str, kind: str, text: str = "") -> None:
        """Record a moment."""
        self.history.add(Moment(self.scheduler.now_ns, worker, kind, text))

    def _note_calls(self) -> None:
        """Record the workers whose calls have not ended."""
        for worker in self.workers:
            program = self.programs.get(worker)
            if program is not None and program.calls_in_flight and not worker.is_dead:
                self.note(worker.name, "calls_left", str(program.calls_in_flight))

    def _note_permits(self) -> None:
        """Record the permits that the server still counts for workers without a call in flight."""
        permits = self.server.live_permits(NAME)
        for worker in self.workers:
            program = self.programs.get(worker)
            if program is None or program.calls_in_flight or worker.is_dead:
                continue
            owner = f" {worker.host}:{worker.pid}"
            held = [permit for permit in permits if permit.endswith(owner)]
            if held:
                self.note(worker.name, "permits_left", str(len(held)))

    def endpoints(self, worker: SimulatedWorker) -> Endpoints:
        """Return what a client in a worker connects to."""
        return Endpoints(self.scheduler, self.network, self.server, worker)

    def make_program(self, worker: SimulatedWorker) -> Program:
        """Return what a worker runs."""
        return Program(self, worker)

    def _new_worker(self, index: int, incarnation: int) -> SimulatedWorker:
        drift_max = self.scenario.drift_ppm
        drift = self._random.randint(-drift_max, drift_max) if drift_max else 0
        worker = SimulatedWorker(self.scheduler, index, incarnation, seed=self.scenario.seed, drift_ppm=drift)
        number = self.scenario.machine_of(index)
        machine = self._machines[number]
        worker.process_objects[WORKER_COUNT_FILES] = machine.count_files
        if self.scenario.machines:
            worker.host = f"machine{number}"
            worker.process_objects[LOCK_FILES] = machine.lock_files(worker)
        else:
            worker.process_objects[LOCK_FILES] = UnavailableLockFiles()
        return worker

    def _start_worker(self, index: int) -> None:
        worker = self.workers[index]
        if worker.is_dead:
            return
        self.note(worker.name, "worker_started")
        program = self.programs[worker] = self.make_program(worker)
        worker.start_thread(program.run)

    def restart_worker(self, index: int) -> None:
        """Start another process after a worker has ended."""
        old = self.workers[index]
        self.workers[index] = self._new_worker(index, old.incarnation + 1)
        self._start_worker(index)

    def end_worker(self, worker: SimulatedWorker) -> None:
        """End a worker immediately, as a kill does: none of its code runs any more."""
        worker.kill()
        self.programs.pop(worker, None)

    def exit_worker(self, worker: SimulatedWorker) -> None:
        """End a worker as a program ends: its threads stop where they are, then it cleans up."""
        program = self.programs.get(worker)

        def leave() -> None:
            if program is not None:
                program.is_leaving = True
            run_exit_functions()
            self.note(worker.name, "worker_exited")
            self.scheduler.call_after(0, self.end_worker, worker)

        worker.start_thread(leave)

    def _begin_fault(self, fault: Fault) -> None:
        self.note("", "fault_begins", str(fault))
        begin, end = FAULT_ACTIONS[fault.kind]
        begin(self, fault)
        self.scheduler.call_after(seconds_ns(fault.seconds), self._end_fault, (fault, end))

    def _end_fault(self, ending: tuple[Fault, Action]) -> None:
        fault, end = ending
        end(self, fault)
        if fault.seconds:
            self.note("", "fault_ends", str(fault))

    def affected_workers(self, fault: Fault) -> list[int]:
        """Return the workers that a fault affects: those that it names, otherwise all."""
        every = range(self.scenario.workers)
        return [index for index in fault.workers or every if index < self.scenario.workers]

    def _observe(self, operation: Operation[Any], worker: str, reply: Any, changed: bool) -> None:
        """Record what the server carried out."""
        now_ns = self.scheduler.now_ns
        self.history.add_operation(f"{now_ns} {worker} {type(operation).__name__}\n")
        if isinstance(operation, ChargeOperation):
            report = f"{operation._reporter}:{operation._number}"
            self.history.add(AppliedReport(now_ns, worker, operation.name, operation.amount, report, changed))
        elif isinstance(operation, PauseLimit) and isinstance(reply, OverrideReply) and reply.changed:
            self.note(worker, "pause_stored", f"{reply.paused_us / 1e6:g}")
        elif isinstance(operation, BreakerOperation) and reply.change in _CIRCUIT_MOMENTS:
            self.note(worker, _CIRCUIT_MOMENTS[reply.change])

    def _record_thread_error(self, thread: SimulatedThread, error: Exception) -> None:
        now_ns = self.scheduler.now_ns
        name = thread.owner.name  # type: ignore[attr-defined]
        self.history.add(
            Call(now_ns, now_ns, now_ns, name, FAILED, False, 0, 0, "", f"a thread ended: {error!r}")
        )


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Keep the events of simulated workers out of the log; the history has them."""
    logger = logging.getLogger("comporta")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


@contextmanager
def _clean_environment() -> Iterator[None]:
    """Hide the worker count of the process that simulates."""
    hidden = {name: os.environ.pop(name) for name in _COUNT_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector from running code at moments that the seed does not determine."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
