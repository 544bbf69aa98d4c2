"""Failovers of a primary behind sentinels, and slot moves in a cluster, while a fleet is under load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.outages.promises import CALL_SECONDS_MAX, assert_limit, describe
from tests.outages.record import OutageRecord, Phase
from tests.processes.fleet import start_workers
from tests.processes.jobs import make_limiter
from tests.support import assert_within

from comporta.testing import Cluster, Sentinels, Server
from comporta.testing.redis_server import wait_until

RATE, CAPACITY, WORKERS = 100, 10, 4
_CYCLE_SECONDS = 8.0
_LEAD_SECONDS = 2.0


def fail_over(times: int) -> str:
    """Kill the primary repeatedly; every call must be answered, and the limit must hold within its bound.

    Replication is asynchronous: the new primary may not know the last grants of the old one. After each
    failover, grants that were not yet replicated may be repeated, at most one burst
    (docs/reference/failover.md).
    """
    with Server() as one, one.replica() as other, Sentinels(one) as sentinels:
        servers = {server.port: server for server in (one, other)}
        record = _under_load(sentinels.url, times, _CYCLE_SECONDS, lambda: _kill_primary(sentinels, servers))
    return _check(record, 2 * CAPACITY)


def move_slots(times: int, **limit: Any) -> str:
    """Move the slot of a limit from node to node; every call must be answered, and the limit must hold."""
    with Cluster() as cluster:
        key = make_limiter("memory://", _LIMIT | limit).name
        slot = int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", f"rate_limiter:{{{key}}}"))

        def move() -> Phase:
            began_ns = time.monotonic_ns()
            here = cluster.nodes.index(cluster.node_of(slot))
            cluster.move_slot(slot, cluster.nodes[(here + 1) % len(cluster.nodes)])
            return Phase("slot moved", began_ns, time.monotonic_ns(), falls_back=False)

        record = _under_load(cluster.url, times, 1.0, move, **limit)
    return _check(record, 2 * CAPACITY if limit else CAPACITY)


_LIMIT: dict[str, Any] = {"rate": RATE, "capacity": CAPACITY}


def _under_load(url: str, times: int, every: float, act: Callable[[], Phase], **limit: Any) -> OutageRecord:
    """Let workers call at twice the limit while ``act`` is repeated."""
    seconds = _LEAD_SECONDS + times * every
    arguments = {
        "limit": _LIMIT | limit,
        "pace": {"seconds": seconds, "per_second": 2 * RATE / WORKERS},
        "async_workers": [0, 2],
    }
    phases = []
    with start_workers(WORKERS, "steady_load", url=url, **arguments) as fleet:
        began_ns = time.monotonic_ns() + 200_000_000
        for worker in fleet:
            worker.go(began_ns)
        for number in range(times):
            time.sleep(max(0.0, began_ns / 1e9 + _LEAD_SECONDS + number * every - time.monotonic()))
            phases.append(act())
        results = [worker.result() for worker in fleet]
    return OutageRecord(results, phases, began_ns, RATE, CAPACITY)


def _check(record: OutageRecord, burst: int) -> str:
    """Assert that every call was answered in time and the limit held; return a summary."""
    summary = describe(record)
    assert record.errors == [], summary
    assert_within(record.slowest_seconds(), CALL_SECONDS_MAX, summary)
    assert_limit(record, burst, summary)
    return summary


def _kill_primary(sentinels: Sentinels, servers: dict[int, Server]) -> Phase:
    """Kill the primary, wait for the new one, and start the old one again as its replica."""
    primary = servers[sentinels.primary_address()[1]]
    began_ns = time.monotonic_ns()
    primary.kill()
    sentinels.wait_for_primary(other_than=primary.port)
    ended_ns = time.monotonic_ns()
    primary.start()
    wait_until(lambda: _is_replicating(sentinels, servers), "the old primary replicates the new one", 60)
    return Phase("primary killed", began_ns, ended_ns, falls_back=True)


def _is_replicating(sentinels: Sentinels, servers: dict[int, Server]) -> bool:
    """Return whether the other server replicates the primary. Command it to, in case no sentinel does."""
    port = sentinels.primary_address()[1]
    [replica] = [server for server in servers.values() if server.port != port]
    info = replica.info("replication")
    if info.get("master_port") != str(port):
        replica.command("REPLICAOF", "127.0.0.1", port)
    return info.get("master_port") == str(port) and info.get("master_link_status") == "up"
