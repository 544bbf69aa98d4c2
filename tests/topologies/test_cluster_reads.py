"""What a heartbeat reads from a cluster: one call for each node, and right whatever the nodes do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import WeakMethod

import pytest
from tests.support import assert_within, fallback_of, wait_until

from comporta import BaseLimiter, CircuitBreaker, LimitConfig, StateError, Upstream
from comporta.breaker import poller
from comporta.breaker.config import BreakerConfig
from comporta.breaker.operation import BreakerOperation, CircuitSnapshot
from comporta.breaker.state import EMPTY_CIRCUIT, READ, CircuitRequest, ForcedState
from comporta.stores.base import Operation
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.cluster import ClusterStore
from comporta.stores.redis.cluster_slots import operation_slot
from comporta.stores.registry import close_stores, open_store
from comporta.testing import Cluster, Server

UPSTREAMS = 20
KEYS = [f"key-{number}" for number in range(30)]
WINDOW_SECONDS = 4.0
STALENESS = 0.25
SCHEDULING_SECONDS = 0.15
"""Allowance for a machine that runs the heartbeat's thread late."""


@contextmanager
def open_cluster(cluster: Cluster) -> Iterator[ClusterStore]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = ClusterStore(cluster.url, 5, connect_timeout=5)
    store.probe()
    store.apply(ReadRecord("s", "first"))
    yield store
    store.close()


def script_calls(node: Server) -> int:
    """Return how many script calls the node has received."""
    counts = re.findall(r"cmdstat_(?:eval|evalsha):calls=(\d+)", node.command("INFO", "commandstats"))
    return sum(map(int, counts))


def calls_during(cluster: Cluster, work: Callable[[], object]) -> list[int]:
    before = [script_calls(node) for node in cluster.nodes]
    work()
    return [script_calls(node) - former for node, former in zip(cluster.nodes, before, strict=True)]


def reads() -> list[ReadRecord]:
    return [ReadRecord("s", key) for key in KEYS]


def circuits() -> list[BreakerOperation]:
    """Return reads of as many circuits."""
    rules, snapshot = BreakerConfig()._rules, CircuitSnapshot(EMPTY_CIRCUIT, ForcedState())
    return [BreakerOperation(key, rules, CircuitRequest(READ), lambda: snapshot) for key in KEYS]


def write_all(store: ClusterStore) -> None:
    for key in KEYS[::2]:
        store.apply(WriteRecord("s", key, key.encode(), None))


VALUES = [key.encode() if number % 2 == 0 else None for number, key in enumerate(KEYS)]
"""The records after ``write_all``: every second key has none."""


def test_reads__of_all_nodes__one_call_for_each_node(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        write_all(store)
        assert store.apply_many(reads()) == VALUES  # the nodes learn the script
        assert calls_during(cluster, lambda: store.apply_many(reads())) == [1, 1, 1]
        assert store.apply_many([]) == []


def test_reads__before_the_slots_are_known__are_redirected(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        write_all(store)
        fresh = ClusterStore(cluster.url, 5, connect_timeout=5)
        assert [fresh.apply_many(reads()) for _ in range(2)] == [VALUES, VALUES]
        assert calls_during(cluster, lambda: fresh.apply_many(reads())) == [1, 1, 1]
        fresh.close()


def test_circuits__in_every_phase__are_read_together_as_alone(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        breakers = [CircuitBreaker(key, 1, 60, state=store).sync for key in KEYS]
        assert all(breaker.allow() for breaker in breakers)
        for number, breaker in enumerate(breakers):
            if number % 4 == 1:
                breaker.record_failure("down")
            elif number % 4 == 2:
                breaker.force("closed", "by an operator")
        alone = [store.apply(circuit) for circuit in circuits()]
        replies = store.apply_many(circuits())
        assert calls_during(cluster, lambda: store.apply_many(circuits())) == [1, 1, 1]
        for one, other in zip(alone, replies, strict=True):
            assert other.phase == one.phase
            assert other.generation == one.generation
            assert other.forced == one.forced
            assert other.reason == one.reason
        assert {reply.phase for reply in replies} == {0, 1}


def test_reads__with_changes__reads_see_the_changes(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        operations: list[Operation[Any]] = []
        for key in KEYS:
            operations += [WriteRecord("s", key, key.encode(), None), ReadRecord("s", key)]
        replies = store.apply_many(operations)
        assert replies[::2] == [True] * len(KEYS)
        assert replies[1::2] == [key.encode() for key in KEYS]


def test_reads__one_key_of_another_type__only_that_one_has_an_error(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        write_all(store)
        node = cluster.node_of(operation_slot(reads()[5]))
        node.command("RPUSH", f"s:{{{KEYS[5]}}}", "x")
        replies = store.apply_many(reads())
        assert [number for number, each in enumerate(replies) if isinstance(each, StateError)] == [5]
        assert replies[:5] + replies[6:] == VALUES[:5] + VALUES[6:]


def test_slot_moved__reads__are_right_and_then_joined_again(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        write_all(store)
        slot = operation_slot(reads()[0])
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        assert store.apply_many(reads()) == VALUES
        for node in (target, source):
            cluster.move_slot(slot, node)
            assert store.apply_many(reads()) == VALUES
            assert store.slot_map.owner(slot)[1] == node.port
            assert calls_during(cluster, lambda: store.apply_many(reads())) == [1, 1, 1]


@pytest.mark.parametrize("key", [0, 1])
def test_slot_being_moved__reads__are_right_at_every_step(cluster: Cluster, key: int) -> None:
    """The record of key 0 exists, that of key 1 does not: the old node redirects reads of it."""
    with open_cluster(cluster) as store:
        write_all(store)
        slot = operation_slot(reads()[key])
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        for node in (target, source):
            cluster.begin_move(slot, node)
            assert store.apply_many(reads()) == VALUES
            while cluster.move_keys(slot, node, 1):
                assert store.apply_many(reads()) == VALUES
            assert store.apply_many(reads()) == VALUES
            cluster.end_move(slot, node)
            assert store.apply_many(reads()) == VALUES


def test_user_without_permission_for_a_key__the_other_reads_are_answered(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        write_all(store)
        allowed = [f"~s:{{{key}}}" for key in KEYS[1:]]
        for node in cluster.nodes:
            node.command("ACL", "SETUSER", "reader", "on", ">secret", "resetkeys", *allowed, "+@all")
        try:
            reader = ClusterStore(cluster.url.replace("://", "://reader:secret@"), 5, connect_timeout=5)
            reader.apply(ReadRecord("s", KEYS[1]))
            replies = reader.apply_many(reads())
            assert isinstance(replies[0], StateError)
            assert replies[1:] == VALUES[1:]
            reader.close()
        finally:
            for node in cluster.nodes:
                node.command("ACL", "DELUSER", "reader")


def test_circuits__call_refused_by_the_server__are_read_one_by_one(cluster: Cluster) -> None:
    with open_cluster(cluster):
        allowed = [f"~circuit_breaker*:{{{key}}}*" for key in KEYS[1:]]
        for node in cluster.nodes:
            node.command("ACL", "SETUSER", "caller", "on", ">secret", "resetkeys", *allowed, "+@all")
        try:
            caller = ClusterStore(cluster.url.replace("://", "://caller:secret@"), 5, connect_timeout=5)
            caller.apply(circuits()[1])
            replies = caller.apply_many(circuits())
            assert isinstance(replies[0], StateError)
            assert [reply.phase for reply in replies[1:]] == [0] * (len(KEYS) - 1)
            caller.close()
        finally:
            for node in cluster.nodes:
                node.command("ACL", "DELUSER", "caller")


def test_node_fails__reads__raise_until_its_replica_takes_over(program: str) -> None:
    with Cluster(3, program, replicas=True) as cluster, open_cluster(cluster) as store:
        write_all(store)
        assert store.apply_many(reads()) == VALUES
        wait_for_replicas(cluster)
        cluster.nodes[0].kill()
        with pytest.raises(StateError):
            store.apply_many(reads())

        def is_answered() -> bool:
            try:
                return store.apply_many(reads()) == VALUES
            except StateError:
                return False

        wait_until(is_answered)
        assert is_answered()


def test_node_becomes_a_replica__reads__never_come_from_its_copy(program: str) -> None:
    with Cluster(3, program, replicas=True) as cluster, open_cluster(cluster) as store:
        write_all(store)
        assert store.apply_many(reads()) == VALUES
        wait_for_replicas(cluster)
        cluster.replicas[0].command("CLUSTER", "FAILOVER", "FORCE")
        wait_until(lambda: "role:slave" in cluster.nodes[0].command("INFO", "replication"))
        slot = next(
            operation_slot(each)
            for each in reads()[::2]
            if store.slot_map.owner(operation_slot(each))[1] == cluster.nodes[0].port
        )
        wait_until(lambda: cluster.node_of(slot) is cluster.replicas[0])
        assert store.apply_many(reads()) == VALUES
        assert store.slot_map.owner(slot)[1] == cluster.replicas[0].port


def wait_for_replicas(cluster: Cluster) -> None:
    """Wait until each replica has the keys of its primary: replication is asynchronous."""
    for node, replica in zip(cluster.nodes, cluster.replicas, strict=True):
        wait_until(lambda node=node, replica=replica: key_count(replica) == key_count(node))  # type: ignore[misc]


def key_count(node: Server) -> int:
    return int(node.command("DBSIZE"))


_openings = count()


@contextmanager
def open_upstreams(cluster: Cluster) -> Iterator[list[Upstream]]:
    """Yield the upstreams of a worker with a heartbeat, each of them used once."""
    for node in cluster.nodes:
        node.command("FLUSHALL")
    state = f"{cluster.url}?timeout=5&connect_timeout=5"
    limit = LimitConfig(1000, 1000, 1)
    opening = next(_openings)  # a test that is retried must not find the circuits of its first attempt
    names = [f"upstream-{opening}-{number}" for number in range(UPSTREAMS)]
    upstreams = [Upstream(name, state=state, limit=limit) for name in names]
    try:
        for upstream in upstreams:
            upstream.sync.call(int)
        yield upstreams
        assert fallback_of(open_store(state)) is None
    finally:
        close_stores()


def pass_time() -> None:
    ends = time.monotonic() + WINDOW_SECONDS
    wait_until(lambda: time.monotonic() >= ends)


def test_idle_worker__twenty_upstreams__at_most_three_commands_a_second(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "IDLE_AFTER_NS", 0)
    with open_upstreams(cluster):
        pass_time()  # until the worker has reported the calls
        calls = calls_during(cluster, pass_time)
    assert all(each <= 3 * WINDOW_SECONDS for each in calls), calls
    assert sum(calls) >= 3, "it does read"


def test_worker_with_circuits_in_use__twenty_upstreams__at_most_ten_commands_a_second(
    cluster: Cluster,
) -> None:
    with open_upstreams(cluster):
        calls = calls_during(cluster, pass_time)
    assert all(each <= 10 * WINDOW_SECONDS for each in calls), calls


def test_worker__change_by_another__is_known_in_time(cluster: Cluster) -> None:
    with open_upstreams(cluster) as upstreams:
        operator = ClusterStore(cluster.url, 5, connect_timeout=5)
        for upstream in upstreams[::4]:
            breaker = CircuitBreaker(upstream.name, state=operator).sync
            breaker.force("open", "maintenance")
            written = time.monotonic()
            wait_until(lambda upstream=upstream: upstream.breaker.is_degraded)  # type: ignore[misc]
            assert_within(time.monotonic() - written, STALENESS + SCHEDULING_SECONDS, upstream.name)
        operator.close()


def test_idle_worker__override_by_another__is_known_within_a_second(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "IDLE_AFTER_NS", 0)
    known: dict[str, bytes | None] = {}

    class Listener:
        def __init__(self, name: str) -> None:
            self.name = name
            store.follow("rate_limiter_change", name, WeakMethod(self.on_override))

        def on_override(self, override: bytes | None) -> None:
            known[self.name] = override

    with open_upstreams(cluster) as upstreams:
        store = open_store(f"{cluster.url}?timeout=5&connect_timeout=5")
        listeners = [Listener(upstream.name) for upstream in upstreams]
        wait_until(lambda: len(known) == len(listeners))
        operator = ClusterStore(cluster.url, 5, connect_timeout=5)
        for upstream in upstreams:
            BaseLimiter(LimitConfig(1000, 1000, 1), operator, upstream.name).sync.set_limit(
                LimitConfig(3, 3, 1)
            )
        written = time.monotonic()
        wait_until(lambda: all(known.values()))
        assert_within(time.monotonic() - written, 1, "the last override")
        operator.close()
