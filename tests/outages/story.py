"""A fleet under load, and what is done to its server meanwhile, one fault after the other.

All traffic goes through a proxy, because one of the faults is a slow network; when the server is killed the
proxy resets connections, old and new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.outages.record import Phase, Record
from tests.processes.fleet import started

from comporta.testing import FaultProxy, Server

_START_AFTER_SECONDS = 0.2


@dataclass(frozen=True)
class Scene:
    """The server, and the proxy in front of it."""

    server: Server
    proxy: FaultProxy


@dataclass(frozen=True)
class Fault:
    """Something done to a server, and undone; ``alone``: nobody can use it meanwhile."""

    name: str
    begin: Callable[[Scene], object]
    end: Callable[[Scene], object]
    alone: bool = True


def _fill(scene: Scene) -> None:
    scene.server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    scene.server.command("CONFIG", "SET", "maxmemory", "1mb")


def _nothing(scene: Scene) -> None:
    """What was done needs no undoing."""


KILLED = Fault("killed", lambda s: s.server.kill(), lambda s: s.server.start())
STOPPED = Fault("stopped", lambda s: s.server.freeze(), lambda s: s.server.thaw())
SLOWED = Fault(
    "slowed to 200 ms", lambda s: s.proxy.delay(0.2, direction="replies"), lambda s: s.proxy.heal()
)
READ_ONLY = Fault(
    "read-only", lambda s: s.server.command("REPLICAOF", "127.0.0.1", "1"), lambda s: s.server.promote()
)
FULL = Fault("out of memory", _fill, lambda s: s.server.command("CONFIG", "SET", "maxmemory", "0"))
FORGETFUL = Fault("scripts flushed", lambda s: s.server.command("SCRIPT", "FLUSH"), _nothing, alone=False)
RESTARTED = Fault("restarted, empty", lambda s: s.server.restart(), _nothing, alone=False)

ALL = (
    *((KILLED, 5.0), (STOPPED, 5.0), (SLOWED, 5.0), (READ_ONLY, 5.0)),
    *((FULL, 5.0), (FORGETFUL, 1.0), (RESTARTED, 1.0)),
)
"""The whole story: each fault and for how many seconds."""


def play(
    faults: Sequence[tuple[Fault, float]],
    *,
    capacity: int,
    rate: int = 100,
    workers: int = 4,
    asked: float = 2.0,
    lead: float = 2.0,
    health: float = 3.0,
) -> Record:
    """Let workers ask for ``asked`` times the limit while one fault follows the other.

    Every other worker awaits, the rest block. The server is in good health for ``lead`` seconds at first
    and for ``health`` seconds after each fault.
    """
    seconds = lead + sum(lasting + health for _, lasting in faults)
    told = {
        "limit": {"rate": rate, "capacity": capacity},
        "pace": {"seconds": seconds, "per_second": asked * rate / workers},
        "awaiting": list(range(0, workers, 2)),
    }
    with Server() as server, FaultProxy.to(server) as proxy:
        scene = Scene(server, proxy)
        with started(workers, "steady_load", url=proxy.url, **told) as fleet:
            began_ns = time.monotonic_ns() + int(_START_AFTER_SECONDS * 1e9)
            for worker in fleet:
                worker.go(began_ns)
            phases = _done(scene, faults, began_ns / 1e9 + lead, health)
            answers = [worker.answer() for worker in fleet]
    return Record(answers, phases, began_ns, rate, capacity)


def _done(scene: Scene, faults: Sequence[tuple[Fault, float]], due: float, health: float) -> list[Phase]:
    """Do one fault after the other, at the moments they are due."""
    phases = []
    for fault, lasting in faults:
        _wait_until(due)
        start_ns = time.monotonic_ns()
        fault.begin(scene)
        _wait_until(due + lasting)
        fault.end(scene)
        phases.append(Phase(fault.name, start_ns, time.monotonic_ns(), fault.alone))
        due += lasting + health
    return phases


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
