"""The jobs of worker processes whose status is read (see ``tests/processes/fleet.py``)."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

from tests.processes.jobs import send_result, wait_for_start

from comporta import LimitConfig, Upstream, events
from comporta.fleet import FleetCounters, FleetPublisher
from comporta.fleet import publisher as publisher_module
from comporta.metrics import use_metrics
from comporta.stores.failover import heartbeat as heartbeat_module

CAPACITY = 1000

publisher_module._CLOSE_SECONDS = 60.0  # 1 s may be too short on a busy machine to publish the rest
heartbeat_module._STOP_SECONDS = 60.0  # likewise to leave the registry


def publish_calls(state: str, number: int, calls: int) -> None:
    """Make some calls, hold one in flight, and publish until a line arrives on stdin."""
    upstream = Upstream("pncp", "1000/s", max_concurrent=5, state=state)
    own = Upstream(f"own-{number}", "1000/s", state=state)
    counters = FleetCounters()
    use_metrics(counters)
    publisher = FleetPublisher(upstream.store, {"pncp": upstream, own.name: own}, counters, interval=0.05)
    publisher.start()
    wait_for_start()
    for _ in range(calls):
        upstream.sync.call(lambda: None)
    events.publish("deployed", "pncp", f"worker {number} is here", "info")

    def hold() -> None:
        send_result(os.getpid())
        sys.stdin.readline()

    upstream.sync.call(hold)
    publisher.close()
    send_result("done")


def publish_leases(state: str, number: int) -> None:
    """Acquire from a leased limit, and publish until a line arrives on stdin."""
    limit = LimitConfig(CAPACITY, CAPACITY, lease=10)
    upstream = Upstream("pncp", limit, state=state)
    publisher = FleetPublisher(upstream.store, {"pncp": upstream}, FleetCounters(), interval=0.05)
    publisher.start()
    wait_for_start()
    send_result(os.getpid())
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        upstream.limiter.sync.acquire()
    sys.stdin.readline()
    publisher.close()
    send_result("done")


JOBS: dict[str, Callable[..., None]] = {"publish_calls": publish_calls, "publish_leases": publish_leases}
