"""A whole fleet in one thread: workers, network, server and upstream, and the faults that happen to them.

:func:`simulate` is the entry: it installs the simulated runtime, runs a scenario to its end and returns its
history. What a worker does is in ``workload.py``.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
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
from comporta.simulation.faults import Fault
from comporta.simulation.history import FAILED, AppliedReport, Call, FleetHistory, Moment
from comporta.simulation.host import SimulatedCountFiles, UnlistedWorkers
from comporta.simulation.lua_engine import LuaEngine
from comporta.simulation.network import REPLIES, REQUESTS, Network, seconds_ns
from comporta.simulation.scenario import FleetScenario
from comporta.simulation.scheduler import Scheduler, SimulatedThread
from comporta.simulation.server import SimulatedServer
from comporta.simulation.simulated_runtime import SimulatedRuntime
from comporta.simulation.step_engine import StepEngine
from comporta.simulation.upstream import UpstreamSimulation
from comporta.simulation.worker import SimulatedWorker
from comporta.simulation.workload import NAME, Program
from comporta.stores.base import Operation
from comporta.stores.failover.machine_workers import MACHINE_WORKERS
from comporta.stores.failover.worker_count_file import WORKER_COUNT_FILES, WORKERS_VARIABLE

_COUNT_VARIABLES = (WORKERS_VARIABLE, "WEB_CONCURRENCY")
_OLD_SNAPSHOT_NS = 2_000_000_000
_START_SPREAD_NS = 200_000_000
_CIRCUIT_MOMENTS = {CHANGE_OPENED: "circuit_opened", CHANGE_CLOSED: "circuit_closed"}


def simulate(scenario: FleetScenario) -> FleetHistory:
    """Run a scenario on virtual time and return what happened."""
    fleet = SimulatedFleet(scenario)
    with fleet_runtime(fleet):
        return fleet.run()


@contextmanager
def fleet_runtime(fleet: SimulatedFleet) -> Iterator[None]:
    """Use the runtime of a fleet in the ``with`` block, and keep what belongs to this process from it."""
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
        self._count_files = SimulatedCountFiles()
        self._random = Random(f"{scenario.seed}:fleet")
        self.scheduler.on_thread_error = self._record_thread_error

    def run(self) -> FleetHistory:
        """Start everything, run to the end of the scenario, and end all workers."""
        scheduler, scenario = self.scheduler, self.scenario
        for index in range(scenario.workers):
            self.workers.append(self._new_worker(index, 0))
            scheduler.call_at(self._random.randrange(_START_SPREAD_NS), self._start_worker, index)
        if any(fault.value == "old" for fault in scenario.faults):
            self.server.keep_snapshots()
        for fault in scenario.faults:
            scheduler.call_at(seconds_ns(fault.at), self._begin_fault, fault)
        scheduler.run_until(seconds_ns(scenario.seconds))
        self._note_calls()
        self._note_permits()
        for worker in self.workers:
            self._end_worker(worker)
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
        worker.process_objects[WORKER_COUNT_FILES] = self._count_files
        worker.process_objects[MACHINE_WORKERS] = UnlistedWorkers
        return worker

    def _start_worker(self, index: int) -> None:
        worker = self.workers[index]
        if worker.is_dead:
            return
        self.note(worker.name, "worker_started")
        program = self.programs[worker] = self.make_program(worker)
        worker.start_thread(program.run)

    def _restart_worker(self, index: int) -> None:
        old = self.workers[index]
        self.workers[index] = self._new_worker(index, old.incarnation + 1)
        self._start_worker(index)

    def _end_worker(self, worker: SimulatedWorker) -> None:
        worker.kill()
        self.programs.pop(worker, None)

    def _exit_worker(self, worker: SimulatedWorker) -> None:
        """End a worker as a program ends: its threads stop where they are, then it cleans up."""
        program = self.programs.get(worker)

        def leave() -> None:
            if program is not None:
                program.is_leaving = True
            run_exit_functions()
            self.note(worker.name, "worker_exited")
            self.scheduler.call_after(0, self._end_worker, worker)

        worker.start_thread(leave)

    def _begin_fault(self, fault: Fault) -> None:
        self.note("", "fault_begins", str(fault))
        begin, end = _ACTIONS[fault.kind]
        begin(self, fault)
        self.scheduler.call_after(seconds_ns(fault.seconds), self._end_fault, (fault, end))

    def _end_fault(self, ending: tuple[Fault, Callable[[SimulatedFleet, Fault], None]]) -> None:
        fault, end = ending
        end(self, fault)
        if fault.seconds:
            self.note("", "fault_ends", str(fault))

    def affected_workers(self, fault: Fault) -> list[int]:
        """Return the workers that a fault concerns: those that it names, else all."""
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


Action = Callable[[SimulatedFleet, Fault], None]


def _hang(fleet: SimulatedFleet, fault: Fault) -> None:
    if fleet.server.is_up:
        fleet.server.hang()


def _end_hang(fleet: SimulatedFleet, fault: Fault) -> None:
    if fleet.server.is_hung:
        fleet.server.resume()


def _crash(fleet: SimulatedFleet, fault: Fault) -> None:
    fleet.server.crash()


def _restart(fleet: SimulatedFleet, fault: Fault) -> None:
    if not fleet.server.is_up:
        fleet.server.restart(fault.value or "kept", _OLD_SNAPSHOT_NS)


def _slow(sign: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.network.extra_ns += sign * seconds_ns(fault.number)

    return change


def _loss(sign: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        for index in fleet.affected_workers(fault):
            fleet.network.links[index].set_loss(fault.number if sign > 0 else 0.0)

    return change


def _change_link(directions: tuple[int, ...], sign: int, *, swallows: bool) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        for index in fleet.affected_workers(fault):
            for direction in directions:
                fleet.network.links[index].add_fault(direction, sign, swallows=swallows)

    return change


def _link_faults(directions: tuple[int, ...], *, swallows: bool) -> tuple[Action, Action]:
    return _change_link(directions, 1, swallows=swallows), _change_link(directions, -1, swallows=swallows)


def _half_open(fleet: SimulatedFleet, fault: Fault) -> None:
    affected = fleet.affected_workers(fault)
    for connection in list(fleet.server.connections):
        if connection.ends.worker.index in affected:  # type: ignore[attr-defined]
            connection.is_half_open = True  # type: ignore[attr-defined]
            del fleet.server.connections[connection]


def _refuse(kind: str) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.server.refusal = kind

    return change


def _server_clock(fleet: SimulatedFleet, fault: Fault) -> None:
    fleet.server.clock_error_us += seconds_ns(fault.number) // 1000


def _worker_clock(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        fleet.workers[index].unix_error_ns += seconds_ns(fault.number)


def _pause(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        fleet.workers[index].pause()
        fleet.note(fleet.workers[index].name, "worker_paused")


def _resume(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        fleet.workers[index].resume()
        fleet.note(fleet.workers[index].name, "worker_resumed")


def _kill(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        fleet.note(fleet.workers[index].name, "worker_killed")
        fleet._end_worker(fleet.workers[index])


def _exit(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        if fleet.workers[index].is_running:
            fleet._exit_worker(fleet.workers[index])


def _start_again(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        if not fleet.workers[index].is_dead:
            _kill(fleet, fault._replace(workers=(index,)))
        fleet._restart_worker(index)


def _upstream(status: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.upstream.status = status
        fleet.upstream.retry_after = fault.number

    return change


def _upstream_flaky(sign: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.upstream.failing_share = fault.number if sign > 0 else 0.0

    return change


def _upstream_late(sign: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.upstream.late_share = fault.number if sign > 0 else 0.0

    return change


def _upstream_slow(sign: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.upstream.latency += sign * fault.number

    return change


def _do_nothing(fleet: SimulatedFleet, fault: Fault) -> None:
    """Do nothing: the fault has no end."""


_BOTH = (REQUESTS, REPLIES)
_ACTIONS: dict[str, tuple[Action, Action]] = {
    "hang": (_hang, _end_hang),
    "crash": (_crash, _restart),
    "slow": (_slow(1), _slow(-1)),
    "loss": (_loss(1), _loss(-1)),
    "partition": _link_faults(_BOTH, swallows=False),
    "black_hole": _link_faults(_BOTH, swallows=True),
    "requests_lost": _link_faults((REQUESTS,), swallows=True),
    "replies_lost": _link_faults((REPLIES,), swallows=True),
    "half_open": (_half_open, _do_nothing),
    "full": (_refuse("full"), _refuse("")),
    "read_only": (_refuse("read_only"), _refuse("")),
    "server_clock": (_server_clock, _do_nothing),
    "pause": (_pause, _resume),
    "kill": (_kill, _start_again),
    "exit": (_exit, _start_again),
    "worker_clock": (_worker_clock, _do_nothing),
    "upstream_errors": (_upstream(503), _upstream(200)),
    "upstream_flaky": (_upstream_flaky(1), _upstream_flaky(-1)),
    "upstream_late": (_upstream_late(1), _upstream_late(-1)),
    "upstream_slow": (_upstream_slow(1), _upstream_slow(-1)),
    "upstream_refuses": (_upstream(429), _upstream(200)),
}


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
    """Keep the collector from running code at moments that do not follow from the seed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
