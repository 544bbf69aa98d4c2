"""Plays the upstreams of a settings file: a simulated fleet calls models of them, on virtual time.

Every worker creates its upstreams as a program does, with ``Upstreams``. Callers arrive at random times, at a
given rate, and what happens to their calls is recorded for each upstream (``playback_record.py``). The same
settings, options and seed give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

from comporta.errors import CircuitOpenError, RefusedError
from comporta.limits.manager import limit_configs_from_settings
from comporta.runtime import RUNTIME, PerProcess
from comporta.settings import Settings
from comporta.simulation.connection import Endpoints
from comporta.simulation.faults import Fault
from comporta.simulation.network import seconds_ns
from comporta.simulation.playback_record import UpstreamRecord
from comporta.simulation.program import Program
from comporta.simulation.run_history import FleetHistory
from comporta.simulation.scenario import FleetScenario
from comporta.simulation.simulated_fleet import SimulatedFleet, fleet_runtime
from comporta.simulation.store import SimulatedStore
from comporta.simulation.upstream import UpstreamAnswer
from comporta.simulation.upstream_model import ModelOptions, UpstreamModel
from comporta.simulation.virtual_time import NANOSECONDS, SimulatedThread
from comporta.simulation.worker import SimulatedWorker
from comporta.state_schemes import register_scheme
from comporta.stores.base import Operation, Store
from comporta.stores.failover.heartbeat import POLL_SECONDS
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import HEARTBEAT_SECONDS
from comporta.stores.registry import default_url
from comporta.upstream.registry import Upstreams
from comporta.upstream.upstream import Upstream

CALLERS_MAX: Final = 200
"""How many calls of one worker to one upstream may be in progress; one more is counted as ``busy``."""

SAMPLED_WORKERS_MAX: Final = 10
"""For how many workers the phases of the breakers are recorded."""

SLICES: Final = 100
"""Into how many parts a playback is divided for its progress."""

TIMEOUT_SECONDS: Final = 30.0
"""The client's time-out if the settings do not set one, as in ``Upstream``."""

_ENDPOINTS: PerProcess[Endpoints | None] = PerProcess(lambda: None)
_SCHEME = "simulated"
_ERROR_STATUS_MIN = 400

R = TypeVar("R")

Progress = Callable[[float], None]
"""Receives the fraction that is done, from 0 to 1."""


class UpstreamFault(NamedTuple):
    """A fault of one upstream: ``down``, ``slow`` or ``refuses``; ``value`` is in seconds."""

    upstream: str
    kind: str
    at: float
    seconds: float
    value: float = 0.0

    @property
    def end(self) -> float:
        """When the fault is over."""
        return self.at + self.seconds

    def __str__(self) -> str:
        return f"{self.upstream}-{self.kind}"


@dataclass(frozen=True, kw_only=True)
class PlaybackOptions:
    """What to play: ``demand`` is the calls per second of each worker to an upstream."""

    workers: int
    seconds: float
    seed: int
    demand: Mapping[str, float]
    models: Mapping[str, ModelOptions]
    faults: Sequence[Fault] = ()
    upstream_faults: Sequence[UpstreamFault] = ()


def play(settings: Settings, options: PlaybackOptions, on_progress: Progress) -> list[UpstreamRecord]:
    """Play the settings to the end and return what happened to the calls of each upstream."""
    fleet = PlaybackFleet(settings, options)
    for part in range(1, SLICES + 1):
        done = part / SLICES
        fleet.scheduler.call_at(seconds_ns(options.seconds * done), on_progress, done)
    with fleet_runtime(fleet):
        fleet.run()
    for error in fleet.errors[:1]:
        raise error
    return list(fleet.records.values())


class PlaybackFleet(SimulatedFleet):
    """A fleet whose workers run the upstreams of a settings file."""

    def __init__(self, settings: Settings, options: PlaybackOptions) -> None:
        scenario = FleetScenario(
            options.seed, workers=options.workers, seconds=options.seconds, faults=tuple(options.faults)
        )
        super().__init__(scenario)
        Upstreams(replace(settings, state="memory://", reloader=None))  # a wrong value raises here
        register_scheme(_SCHEME, _open_store)
        self.errors: list[Exception] = []
        self.options = options
        self.settings = _with_simulated_state(settings)
        self.records = {
            name: UpstreamRecord(name, limit_configs_from_settings(table.limit), options.seconds)
            for name, table in settings.upstreams.items()
            if table.limit is not None  # checked above
        }
        self.models = {name: self._model(name) for name in settings.upstreams}
        self.timeouts = {name: _timeout(table.timeout) for name, table in settings.upstreams.items()}

    def _model(self, name: str) -> UpstreamModel:
        random = Random(f"{self.options.seed}:{name}")
        return UpstreamModel(self.options.models[name], random, self.now, _sleep)

    def now(self) -> float:
        """Return the virtual time since the start, in seconds."""
        return self.scheduler.now_ns / NANOSECONDS

    def run(self) -> FleetHistory:
        """Start the faults of upstreams, and everything else."""
        for fault in self.options.upstream_faults:
            self.scheduler.call_at(seconds_ns(fault.at), partial(self._change_model, 1), fault)
            self.scheduler.call_at(seconds_ns(fault.end), partial(self._change_model, -1), fault)
        return super().run()

    def note(self, worker: str, kind: str, text: str = "") -> None:
        """Record nothing: the records of the upstreams contain what the report shows."""

    def make_program(self, worker: SimulatedWorker) -> PlaybackProgram:
        """Return the program of a worker."""
        worker.process_objects[_ENDPOINTS] = self.endpoints(worker)
        return PlaybackProgram(self, worker)

    def _observe(self, operation: object, worker: str, reply: object, changed: bool) -> None:
        """Record nothing, as above."""

    def _record_thread_error(self, thread: SimulatedThread, error: Exception) -> None:
        """Keep the first error that no caller should see; ``play`` raises it."""
        if not self.errors:
            self.errors.append(error)

    def _change_model(self, sign: int, fault: UpstreamFault) -> None:
        wrong = self.models[fault.upstream].fault
        if fault.kind == "down":
            wrong.down += sign
        elif fault.kind == "slow":
            wrong.extra_seconds += sign * fault.value
        else:
            wrong.refusing += sign
            wrong.pause_seconds = fault.value


class PlaybackProgram(Program):
    """The program of one worker: its upstreams and their callers."""

    def __init__(self, fleet: PlaybackFleet, worker: SimulatedWorker) -> None:
        super().__init__(fleet, worker)
        self.playback = fleet
        self._in_progress = dict.fromkeys(fleet.records, 0)
        self._polled_at = 0.0
        self._ends = fleet.endpoints(worker)
        self._random_moments = Random(f"{fleet.options.seed}:{worker.name}:callers")

    def run(self) -> None:
        """Create the upstreams and start their callers."""
        upstreams = Upstreams(self.playback.settings)
        if upstreams.store.has_heartbeat:
            cast(FailoverStore, upstreams.store).heartbeat.poll_seconds = HEARTBEAT_SECONDS
        for name, upstream in upstreams.items():
            if self.playback.options.demand[name]:
                self._start_next_call(name, self._guard(name, upstream), upstreams.store)
        if self.worker.index < SAMPLED_WORKERS_MAX:
            self.worker.start_thread(partial(self._sample, upstreams))

    def _guard(self, name: str, upstream: Upstream) -> GuardedRequest:
        fleet, record, model = self.playback, self.playback.records[name], self.playback.models[name]
        timeout = fleet.timeouts[name]

        def request(call: PlaybackCall) -> UpstreamAnswer:
            now = fleet.now()
            record.add_attempt(now, waited=None if call.is_sent else now - call.began)
            call.is_sent = True
            return model.call(timeout)

        return upstream.guard(request)

    def _start_next_call(self, name: str, request: GuardedRequest, store: Store) -> None:
        """Schedule the next call to an upstream at a random moment, on its own thread."""
        delay = self._random_moments.expovariate(self.playback.options.demand[name])
        self.worker.start_thread_after(seconds_ns(delay), partial(self._make_call, name, request, store))

    def _make_call(self, name: str, request: GuardedRequest, store: Store) -> None:
        """Make one call now, and schedule the next one."""
        if self.is_leaving:
            return
        now, record = self.playback.now(), self.playback.records[name]
        record.add_call(now)
        is_busy = self._in_progress[name] >= CALLERS_MAX
        if not is_busy:
            self._in_progress[name] += 1
            self._poll(store, now)
        self._start_next_call(name, request, store)
        if is_busy:
            record.add_outcome(now, "busy")
            return
        try:
            outcome = _outcome(request, PlaybackCall(now))
        finally:
            self._in_progress[name] -= 1
        record.add_outcome(self.playback.now(), outcome)

    def _poll(self, store: Store, now: float) -> None:
        """Let a healthy worker poll for changes before a call, if its last poll is ``POLL_SECONDS`` ago.

        A real worker in use polls five times a second. Here it polls only before calls, which saves most of
        the work in a large fleet.
        """
        if store.has_heartbeat and store.is_healthy and now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            if self._ends.is_clear:  # a poll takes no time, so the heartbeat thread need not do it
                failover = cast(FailoverStore, store)
                failover.heartbeat.poll(failover, is_beat=False)
            else:
                store.poll_soon()

    def _sample(self, upstreams: Upstreams) -> None:
        """Record the phases of breakers, and whether the store is reachable, once in each slot."""
        records = self.playback.records
        while True:
            for name, upstream in upstreams.items():
                phase = "closed" if upstream.breaker is None else upstream.breaker.phase
                is_fallback = upstreams.store.fallback is not None
                records[name].add_sample(self.playback.now(), phase, is_fallback=is_fallback)
            RUNTIME.sleep(records[name].slot)


class PlaybackCall:
    """One call of a user: when it began, and whether a request was sent for it."""

    __slots__ = ("began", "is_sent")

    def __init__(self, began: float) -> None:
        self.began = began
        self.is_sent = False


GuardedRequest = Callable[[PlaybackCall], UpstreamAnswer]
"""Sends the requests of a call through the policies of its upstream."""


def _outcome(request: GuardedRequest, call: PlaybackCall) -> str:
    try:
        answer = request(call)
    except CircuitOpenError:
        return "open"
    except RefusedError:
        return "limited"
    except Exception:  # what the upstream or its client raised
        return "failed"
    return "ok" if answer.status_code < _ERROR_STATUS_MIN else "failed"


def _sleep(seconds: float) -> None:
    RUNTIME.sleep(seconds)  # looked up now: the simulated runtime is installed after this


class PlaybackStore(SimulatedStore):
    """A client of the simulated server that needs fewer events while nothing is wrong, for large fleets.

    Heartbeats take no time then, because whether one takes a millisecond makes no difference to any call. A
    decision is made at the end of its round trip. The first decision of a worker opens the connection on
    which the next ones would be sent, so that a fault finds the worker with a connection.
    """

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation: a heartbeat immediately, everything else after a round trip."""
        ends = self.ends
        has_arrived = type(operation) is ReadChanges or self._wait_round_trip()
        if not (has_arrived and ends.is_clear):
            return super().apply(operation)
        reply: R = ends.server.execute(operation, ends.worker.name)
        return reply

    def _wait_round_trip(self) -> bool:
        """Wait for as long as a round trip takes; false if something is wrong, or there is no connection."""
        if not (self._pool.idle and self.ends.is_clear):
            return False
        self.ends.network.wait_round_trip()
        return True

    def apply_many(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Carry out what the heartbeat polls immediately, too; a caller's operation carries a log read."""
        has_arrived = type(operations[-1]) is not ReadChanges or self._wait_round_trip()
        if has_arrived and self.ends.is_clear:
            return [self.ends.server.execute(operation, self.ends.worker.name) for operation in operations]
        return super().apply_many(operations)


def _open_store(url: str) -> Store:
    """Open a client of the simulated server in the worker that runs."""
    options: dict[str, Any] = {name: float(value) for name, value in parse_qsl(urlsplit(url).query)}
    return PlaybackStore(cast(Endpoints, _ENDPOINTS.get()), **options)


def _with_simulated_state(settings: Settings) -> Settings:
    """Return the settings with a state on the simulated server; ``memory://`` stays unchanged."""
    state = settings.state or default_url(distributed=True)
    if state.startswith("memory://"):
        return replace(settings, state=state, reloader=None)
    options = [
        f"{name}={value}"
        for name, value in parse_qsl(urlsplit(state).query)
        if name in ("timeout", "connect_timeout")
    ]
    return replace(settings, state=f"{_SCHEME}://fleet?{'&'.join(options)}", reloader=None)


def _timeout(given: float | bool | None) -> float | None:
    if given is None:
        return TIMEOUT_SECONDS
    return None if given is False else float(given)
