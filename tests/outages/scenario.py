"""Run a fleet under load while one fault after the other happens to its server.

All traffic goes through a proxy, because one of the faults is a slow network. When the server is killed, the
proxy resets open and new connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.outages.record import RECOVERY_SECONDS_MAX, OutageRecord, Phase
from tests.processes.fleet import start_workers

from comporta.testing import FaultProxy, Server

_START_AFTER_SECONDS = 0.2
_HEALTHY_SECONDS = RECOVERY_SECONDS_MAX + 0.5
"""The time after a fault until the next one or the end, in which the server starts and all workers rejoin."""


@dataclass(frozen=True)
class FaultyServer:
    """The server, and the proxy in front of it."""

    server: Server
    proxy: FaultProxy


@dataclass(frozen=True)
class Fault:
    """A fault and its repair; ``falls_back``: the server is unusable meanwhile."""

    name: str
    begin: Callable[[FaultyServer], object]
    end: Callable[[FaultyServer], object]
    falls_back: bool = True


def _fill(target: FaultyServer) -> None:
    target.server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    target.server.command("CONFIG", "SET", "maxmemory", "1mb")


def _no_repair(target: FaultyServer) -> None:
    """The fault needs no repair."""


KILLED = Fault("killed", lambda s: s.server.kill(), lambda s: s.server.start())
STOPPED = Fault("stopped", lambda s: s.server.freeze(), lambda s: s.server.thaw())
SLOWED = Fault(
    "slowed to 200 ms", lambda s: s.proxy.delay(0.2, direction="replies"), lambda s: s.proxy.heal()
)
READ_ONLY = Fault(
    "read-only", lambda s: s.server.command("REPLICAOF", "127.0.0.1", "1"), lambda s: s.server.promote()
)
FULL = Fault("out of memory", _fill, lambda s: s.server.command("CONFIG", "SET", "maxmemory", "0"))
SCRIPTS_FLUSHED = Fault(
    "scripts flushed", lambda s: s.server.command("SCRIPT", "FLUSH"), _no_repair, falls_back=False
)
RESTARTED = Fault("restarted, empty", lambda s: s.server.restart(), _no_repair, falls_back=False)

ALL_FAULTS = (
    *((KILLED, 5.0), (STOPPED, 5.0), (SLOWED, 5.0), (READ_ONLY, 5.0)),
    *((FULL, 5.0), (SCRIPTS_FLUSHED, 1.0), (RESTARTED, 1.0)),
)
"""All faults, each with its duration in seconds."""


def run_faults(
    faults: Sequence[tuple[Fault, float]],
    *,
    capacity: int,
    rate: int = 100,
    workers: int = 4,
    load: float = 2.0,
    lead: float = 2.0,
) -> OutageRecord:
    """Let workers call at ``load`` times the limit while one fault follows the other.

    Every second worker is asynchronous, the others block. The first fault begins after ``lead`` seconds.
    """
    seconds = lead + sum(lasting + _HEALTHY_SECONDS for _, lasting in faults)
    arguments = {
        "limit": {"rate": rate, "capacity": capacity},
        "pace": {"seconds": seconds, "per_second": load * rate / workers},
        "async_workers": list(range(0, workers, 2)),
    }
    with Server() as server, FaultProxy.to(server) as proxy:
        target = FaultyServer(server, proxy)
        with start_workers(workers, "steady_load", url=proxy.url, **arguments) as fleet:
            began_ns = time.monotonic_ns() + int(_START_AFTER_SECONDS * 1e9)
            for worker in fleet:
                worker.go(began_ns)
            phases = _apply_faults(target, faults, began_ns / 1e9 + lead)
            results = [worker.result() for worker in fleet]
    return OutageRecord(results, phases, began_ns, rate, capacity)


def _apply_faults(target: FaultyServer, faults: Sequence[tuple[Fault, float]], due: float) -> list[Phase]:
    """Apply one fault after the other, at the moments they are due."""
    phases = []
    for fault, lasting in faults:
        _wait_until(due)
        start_ns = time.monotonic_ns()
        fault.begin(target)
        _wait_until(due + lasting)
        fault.end(target)
        phases.append(Phase(fault.name, start_ns, time.monotonic_ns(), fault.falls_back))
        due += lasting + _HEALTHY_SECONDS
    return phases


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
