"""A fleet behind sentinels or on a cluster while one node after the other takes over, under load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.outages.promises import CALL_SECONDS_MAX, described, hold_to_limit
from tests.outages.record import Phase, Record
from tests.processes.fleet import started
from tests.processes.jobs import limiter_of
from tests.support import hold_to

from comporta.testing import Cluster, Sentinels, Server
from comporta.testing.servers import wait_until

RATE, CAPACITY, WORKERS = 100, 10, 4
_CYCLE_SECONDS = 8.0
_LEAD_SECONDS = 2.0


def fail_over(times: int) -> str:
    """Kill the primary so many times; every caller is answered, and the limit holds within its bound.

    Replication is asynchronous: what the old primary granted last, its successor may not know. So each
    failover may cost what was not yet replicated, a burst at the most (docs/failover.md).
    """
    with Server() as one, one.replica() as other, Sentinels(one) as sentinels:
        servers = {server.port: server for server in (one, other)}
        record = _under_load(sentinels.url, times, _CYCLE_SECONDS, lambda: _killed(sentinels, servers))
    return _held(record, 2 * CAPACITY)


def move_slots(times: int, **limit: Any) -> str:
    """Move the slot of a limit from node to node; every caller is answered, and the limit holds."""
    with Cluster() as cluster:
        key = limiter_of("memory://", _LIMIT | limit).name
        slot = int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", f"rate_limiter:{{{key}}}"))

        def move() -> Phase:
            began_ns = time.monotonic_ns()
            here = cluster.nodes.index(cluster.node_of(slot))
            cluster.move_slot(slot, cluster.nodes[(here + 1) % len(cluster.nodes)])
            return Phase("slot moved", began_ns, time.monotonic_ns(), alone=False)

        record = _under_load(cluster.url, times, 1.0, move, **limit)
    return _held(record, 2 * CAPACITY if limit else CAPACITY)


_LIMIT: dict[str, Any] = {"rate": RATE, "capacity": CAPACITY}


def _under_load(url: str, times: int, every: float, act: Callable[[], Phase], **limit: Any) -> Record:
    """Let workers ask for twice the limit while something is done again and again."""
    seconds = _LEAD_SECONDS + times * every
    told = {
        "limit": _LIMIT | limit,
        "pace": {"seconds": seconds, "per_second": 2 * RATE / WORKERS},
        "awaiting": [0, 2],
    }
    phases = []
    with started(WORKERS, "steady_load", url=url, **told) as fleet:
        began_ns = time.monotonic_ns() + 200_000_000
        for worker in fleet:
            worker.go(began_ns)
        for number in range(times):
            time.sleep(max(0.0, began_ns / 1e9 + _LEAD_SECONDS + number * every - time.monotonic()))
            phases.append(act())
        answers = [worker.answer() for worker in fleet]
    return Record(answers, phases, began_ns, RATE, CAPACITY)


def _held(record: Record, burst: int) -> str:
    figures = described(record)
    assert record.errors == [], figures
    hold_to(record.slowest_seconds(), CALL_SECONDS_MAX, figures)
    hold_to_limit(record, burst, figures)
    return figures


def _killed(sentinels: Sentinels, servers: dict[int, Server]) -> Phase:
    """Kill the primary, wait until its successor is named, and bring it back as a replica."""
    primary = servers[sentinels.primary_address()[1]]
    began_ns = time.monotonic_ns()
    primary.kill()
    sentinels.wait_for_primary(other_than=primary.port)
    ended_ns = time.monotonic_ns()
    primary.start()
    wait_until(lambda: _linked(sentinels, servers), "the other server follows the primary", 60)
    return Phase("primary killed", began_ns, ended_ns, alone=True)


def _linked(sentinels: Sentinels, servers: dict[int, Server]) -> bool:
    """Whether the server that is not the primary follows it; it is told to, until the sentinels have."""
    port = sentinels.primary_address()[1]
    [replica] = [server for server in servers.values() if server.port != port]
    found = replica.info("replication")
    if found.get("master_port") != str(port):
        replica.command("REPLICAOF", "127.0.0.1", port)
    return found.get("master_port") == str(port) and found.get("master_link_status") == "up"
