"""What a fleet costs one server: idle workers, busy workers, and a decision next to a minimal script.

50 real worker processes share 20 upstreams. The server's own CPU time and its number of commands are read
before and after each phase, and divided by workers and seconds.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import redis

from benchmarks import server
from benchmarks.measure import Effort
from benchmarks.report import TIMES, Goal, Section, Table
from comporta import BaseLimiter, LimitConfig, Upstream
from comporta.fleet.counters import FleetCounters
from comporta.fleet.publisher import FleetPublisher
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.metrics import use_metrics
from comporta.stores.base import Operation, Script, State, StateKey
from comporta.stores.records import RECORD
from comporta.stores.redis.store import RedisStore
from comporta.stores.registry import open_store
from comporta.testing import Server

WORKERS = 50
UPSTREAMS = 20
CALLS_PER_SECOND = 20

_IDLE_COMMANDS_MAX = 2.0
_BOOKKEEPING_MS_MAX = 0.3
_DECISION_RATIO_MAX = 1.15
_LIMIT = LimitConfig(1_000_000, 1_000_000, 1)
_MAX_WAIT = 5.0
"""How long a call of an upstream waits by default: a decision that may wait runs a different script."""

_ANSWER_SECONDS_MAX = 120
_STOP_SECONDS_MAX = 20
_SETTLE_SECONDS = 12.0
"""Breakers are polled for 10 s after their last use: only then is a worker idle."""

_MINIMAL_SCRIPT = """
local time = redis.call('TIME')
local version = redis.call('GET', KEYS[1])
local state = redis.call('HMGET', KEYS[2], 'tokens', 'last_refill', 'n', 'o')
redis.call('HSET', KEYS[2], 'tokens', ARGV[2], 'last_refill', time[1] .. '.' .. time[2], 'n', '1')
redis.call('PEXPIRE', KEYS[2], '60000')
return {0}
"""


@dataclass(frozen=True)
class Usage:
    """What the server did: its CPU time in seconds, and the commands and script calls that it ran."""

    cpu: float
    commands: int
    scripts: int

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.cpu - other.cpu, self.commands - other.commands, self.scripts - other.scripts)


@dataclass(frozen=True)
class Phase:
    """What one worker costs the server in one second of a phase, and how many calls it made."""

    cpu_ms: float
    commands: float
    scripts: float
    calls: float


def run(effort: Effort) -> Section:
    """Measure a fleet of 50 workers, and one decision."""
    seconds = 5.0 if effort.quick else 20.0
    with server.start() as running:
        own = _server_alone(running, seconds)
        decisions = _decisions_only(running, seconds, own)
        idle, busy = _fleet(running, seconds, own)
        ratio, costs = _decision_ratio(running, effort)
    bookkeeping_ms = busy.cpu_ms - decisions.cpu_ms * busy.calls / decisions.calls
    return Section(
        "A fleet on one server",
        f"{WORKERS} worker processes with {UPSTREAMS} upstreams each (limit, breaker, retry, published "
        f"counters) and one server. Busy: {CALLS_PER_SECOND} calls a second in each worker, each of another "
        "upstream. Decisions only: the same decisions without breakers, retries, heartbeat and counters; "
        "bookkeeping is the difference. CPU time and commands are those of the server, for one worker and "
        "one second. A decision is compared with a script that only runs TIME, GET, HMGET, HSET and PEXPIRE.",
        [
            Table(
                "One worker in one second",
                ["", "server CPU", "commands", "script calls", "calls"],
                [
                    _row("idle", idle),
                    _row("busy", busy),
                    _row("decisions only", decisions),
                    ["bookkeeping of a busy worker", f"{bookkeeping_ms:.2f} ms", "", "", ""],
                ],
            ),
            Table(
                "One blocking decision",
                ["", "server CPU"],
                [[name, f"{1e6 * cost:.2f} µs"] for name, cost in costs.items()],
            ),
        ],
        [
            Goal(
                f"an idle worker, {UPSTREAMS} upstreams: at most {_IDLE_COMMANDS_MAX:g} commands a second",
                f"{idle.commands:.2f}",
                idle.commands <= _IDLE_COMMANDS_MAX,
            ),
            Goal(
                f"bookkeeping of a busy worker: at most {_BOOKKEEPING_MS_MAX:g} ms of server CPU a second",
                f"{bookkeeping_ms:.2f} ms",
                bookkeeping_ms <= _BOOKKEEPING_MS_MAX,
            ),
            Goal(
                f"a blocking decision: at most {_DECISION_RATIO_MAX:g} {TIMES} the CPU of a minimal script",
                f"{ratio:.2f} {TIMES}",
                ratio <= _DECISION_RATIO_MAX,
            ),
        ],
    )


def _row(name: str, phase: Phase) -> list[str]:
    numbers = (phase.commands, phase.scripts, phase.calls)
    return [name, f"{phase.cpu_ms:.2f} ms", *(f"{number:.1f}" for number in numbers)]


def _server_alone(running: Server, seconds: float) -> float:
    """Return the CPU time, in seconds per second, of an idle server."""
    return _usage_during(running, seconds).cpu / seconds


def _decisions_only(running: Server, seconds: float, own: float) -> Phase:
    with _workers(running.url, _decide_plainly) as fleet:
        return _phase(running, fleet, "busy", seconds, own)


def _fleet(running: Server, seconds: float, own: float) -> tuple[Phase, Phase]:
    with _workers(running.url, _use_upstreams) as fleet:
        _phase(running, fleet, "busy", 3.0, own)  # every circuit and history exists from here on
        busy = _phase(running, fleet, "busy", seconds, own)
        time.sleep(_SETTLE_SECONDS)
        idle = _phase(running, fleet, "idle", seconds, own)
    return idle, busy


def _phase(running: Server, fleet: list[Connection], what: str, seconds: float, own: float) -> Phase:
    for worker in fleet:
        worker.send((what, seconds + 2.0))
    time.sleep(1.0)
    used = _usage_during(running, seconds)
    calls = sum(map(_receive, fleet)) / (seconds + 2.0) / len(fleet)
    parts = len(fleet) * seconds
    cpu_ms = 1000 * (used.cpu - own * seconds) / parts
    return Phase(cpu_ms, used.commands / parts, used.scripts / parts, calls)


def _usage_during(running: Server, seconds: float) -> Usage:
    with redis.Redis.from_url(running.url) as client:
        before = _usage(client)
        time.sleep(seconds)
        used = _usage(client) - before
    return Usage(used.cpu, used.commands - 2, used.scripts)  # without the INFO that ended it


def _usage(client: redis.Redis) -> Usage:
    about: dict[str, Any] = client.info("everything")
    scripts = sum(about.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))
    # commands of scripts are part of total_commands_processed: what clients sent is counted here
    sent = sum(
        value["calls"]
        for name, value in about.items()
        if name.startswith("cmdstat_") and name.removeprefix("cmdstat_") in _CLIENT_COMMANDS
    )
    return Usage(about["used_cpu_user"] + about["used_cpu_sys"], sent, scripts)


_CLIENT_COMMANDS = ("evalsha", "eval", "ping", "client", "select", "hello", "auth", "script", "info")


@contextmanager
def _workers(url: str, work: Callable[[Connection, str], None]) -> Iterator[list[Connection]]:
    """Start the workers, and end them afterwards."""
    context = get_context("fork")  # forked before anything connects: it saves 50 starts of the interpreter
    processes = []
    pipes: list[Connection] = []
    gc.freeze()
    try:
        for _ in range(WORKERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, url), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        for pipe in pipes:
            _receive(pipe)
        yield pipes
    finally:
        gc.unfreeze()
        for pipe in pipes:
            pipe.send(("stop", 0.0))
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()


def _receive(pipe: Connection) -> int:
    """Return how many calls a worker made."""
    if not pipe.poll(_ANSWER_SECONDS_MAX):
        raise RuntimeError(f"a worker did not answer within {_ANSWER_SECONDS_MAX} s")
    return int(pipe.recv())


def _serve(pipe: Connection, call: Callable[[int], object]) -> None:
    """Be idle or make calls at an even pace, as the parent says, until it says stop."""
    pipe.send(0)
    while True:
        what, seconds = pipe.recv()
        if what == "stop":
            return
        calls = 0
        if what == "idle":
            time.sleep(seconds)
        else:
            calls = _call_evenly(call, seconds)
        pipe.send(calls)


def _call_evenly(call: Callable[[int], object], seconds: float) -> int:
    """Make calls at an even pace for some seconds; returns how many, fewer if the machine is too slow."""
    started = time.monotonic() + (os.getpid() % WORKERS) / WORKERS / CALLS_PER_SECOND
    number = 0
    while time.monotonic() < started + seconds:
        time.sleep(max(0.0, started + number / CALLS_PER_SECOND - time.monotonic()))
        call(number)
        number += 1
    return number


def _use_upstreams(pipe: Connection, url: str) -> None:
    state = (
        f"{url}?timeout=5&connect_timeout=30"  # a fallback on a busy machine would cost the server nothing
    )
    counters = FleetCounters()
    use_metrics(counters)
    upstreams = [Upstream(f"upstream-{n}", limit=_LIMIT, state=state) for n in range(UPSTREAMS)]
    publisher = FleetPublisher(open_store(state), {each.name: each for each in upstreams}, counters)
    publisher.start()
    for each in upstreams:
        each.sync.call(_nothing)
    _serve(pipe, lambda number: upstreams[number % UPSTREAMS].sync.call(_nothing))
    publisher.close()
    open_store(state).close()


def _nothing() -> None:
    """Do nothing, successfully."""


def _decide_plainly(pipe: Connection, url: str) -> None:
    store = RedisStore(url, timeout=5, connect_timeout=30)  # without failover, so without a heartbeat
    limiters = [BaseLimiter(_LIMIT, store, f"upstream-{n}") for n in range(UPSTREAMS)]
    _serve(pipe, lambda number: limiters[number % UPSTREAMS].sync.acquire(timeout=_MAX_WAIT))
    store.close()


class _MinimalOperation(Operation[int]):
    """The minimal script, sent as a decision is."""

    script = Script("minimal", lambda: _MINIMAL_SCRIPT)
    state_keys = (StateKey("comporta_version", "", RECORD), StateKey("rate_limiter:minimal", "", RECORD))

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Do nothing: only a server runs it."""
        return [None, None], 0

    def script_args(self) -> list[int | str | bytes]:
        """Return one number to write."""
        return ["999999.5"]

    def parse(self, raw: Sequence[Any]) -> int:
        """Return the number of the reply."""
        return int(raw[0])


def _decision_ratio(running: Server, effort: Effort) -> tuple[float, dict[str, float]]:
    """Return how much more a decision costs the server than the minimal script, and both costs in seconds."""
    decision = AcquireOperation(LimitDefinition(_LIMIT.build_strategy(), "decision"), "", 1)
    store = RedisStore(running.url, timeout=5, connect_timeout=30)
    count = 500 if effort.quick else 3000
    costs: dict[str, list[float]] = {"comporta, one decision": [], "minimal script": []}
    with redis.Redis.from_url(running.url) as control:
        for _ in range(effort.rounds):
            for name, operation in zip(costs, (decision, _MinimalOperation()), strict=True):
                before = _usage(control)
                for _ in range(count):
                    store.apply(operation)
                costs[name].append((_usage(control) - before).cpu / count)
    store.close()
    ours, minimal = costs.values()
    ratio = median(a / b for a, b in zip(ours, minimal, strict=True))
    return ratio, {name: median(values) for name, values in costs.items()}
