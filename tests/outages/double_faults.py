"""Faults that follow each other quickly or keep probes waiting, so that a rejoin meets the next fault.

The grants of all workers together must stay within what one bucket would have granted, plus one token for
each worker and outage (docs/reference/failover.md). A worker that the machine does not run may miss the
barrier: the bound then adds its share for the time in which it decided alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.outages.promises import describe
from tests.outages.record import OutageRecord, Phase
from tests.outages.scenario import FaultyServer
from tests.processes.fleet import start_workers

from comporta import BaseLimiter, LimitConfig
from comporta.testing import FaultProxy, Server
from comporta.testing.redis_server import wait_until

RATE, CAPACITY = 100, 10
_LEAD_SECONDS = 2.0
_HANG_SECONDS = 1.5
_AGAIN_SECONDS = 0.3
_SHORT_HANG_SECONDS = 0.2
"""Short enough that the moment of the first rejoin, if a worker took it for the second, would seem near."""

_END_SECONDS = 3.0
_RETURN_SECONDS_MAX = 10.0

Script = Callable[[FaultyServer, BaseLimiter], list[Phase]]
"""Provokes faults; the limiter belongs to one more worker of the fleet, which shows when it has rejoined."""


def hang_twice(target: FaultyServer, watcher: BaseLimiter) -> list[Phase]:
    """Suspend the server twice, the second time 0.3 s after the fleet's return."""
    first = _apply("hangs", target.server.freeze, target.server.thaw)
    wait_until(lambda: watcher.fallback is None, "the fleet has rejoined", _RETURN_SECONDS_MAX)
    time.sleep(_AGAIN_SECONDS)
    return [first, _apply("hangs again", target.server.freeze, target.server.thaw, _SHORT_HANG_SECONDS)]


def lose_packets(target: FaultyServer, watcher: BaseLimiter) -> list[Phase]:
    """Drop all packets for some time."""
    return [_apply("loses packets", target.proxy.blackhole, target.proxy.heal)]


def lose_requests(target: FaultyServer, watcher: BaseLimiter) -> list[Phase]:
    """Drop the packets to the server for some time."""
    return [_apply("loses requests", lambda: target.proxy.blackhole("requests"), target.proxy.heal)]


def check_excess(script: Script, workers: int) -> str:
    """Run a fleet through the faults and assert that it keeps its bound; return a summary."""
    record = _run(script, workers)
    summary = f"{workers} workers: {describe(record)}"
    assert record.errors == [], summary
    bound = (workers + 1) * len(record.phases) + record.stalled_grants_max()
    assert record.excess <= bound, f"bound {bound:.1f}: {summary}"
    return summary


def _run(script: Script, workers: int) -> OutageRecord:
    limit = {"rate": RATE, "capacity": CAPACITY}
    seconds = _LEAD_SECONDS + 2 * (_HANG_SECONDS + _END_SECONDS)
    arguments: dict[str, Any] = {
        "limit": limit,
        "pace": {"seconds": seconds, "per_second": 2 * RATE / workers},
        "async_workers": list(range(0, workers, 2)),
    }
    with (
        Server() as server,
        FaultProxy.to(server) as proxy,
        _watcher(proxy.url) as watcher,
        start_workers(workers, "steady_load", url=proxy.url, **arguments) as fleet,
    ):
        began_ns = time.monotonic_ns() + 200_000_000
        for worker in fleet:
            worker.go(began_ns)
        time.sleep(max(0.0, began_ns / 1e9 + _LEAD_SECONDS - time.monotonic()))
        phases = script(FaultyServer(server, proxy), watcher)
        results = [worker.result() for worker in fleet]
    return OutageRecord(results, phases, began_ns, RATE, CAPACITY)


@contextmanager
def _watcher(url: str) -> Iterator[BaseLimiter]:
    limiter = BaseLimiter(LimitConfig(RATE, CAPACITY), url, "watcher")
    limiter.sync.acquire()
    yield limiter
    limiter.sync.close()


def _apply(
    name: str, begin: Callable[[], object], end: Callable[[], object], seconds: float = _HANG_SECONDS
) -> Phase:
    began_ns = time.monotonic_ns()
    begin()
    time.sleep(seconds)
    end()
    return Phase(name, began_ns, time.monotonic_ns(), falls_back=True)
