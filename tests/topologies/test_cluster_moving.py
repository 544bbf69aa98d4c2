"""Operations on keys of a slot while it moves: absent keys, keys of one node, and keys of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from comporta import BreakerConfig, LimitConfig, StateMovingError, StateUnavailableError
from comporta.breaker.operation import BreakerOperation, CircuitSnapshot
from comporta.breaker.state import EMPTY_CIRCUIT, FAIL, READ, CircuitReply, CircuitRequest, ForcedState
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.charge import ChargeOperation
from comporta.limits.concurrency.call import AcquireForCall
from comporta.limits.concurrency.operation import (
    AcquirePermit,
    AwaitPermit,
    ListHolders,
    ReleasePermits,
    RenewPermit,
)
from comporta.limits.concurrency.permits import Permit, PermitPool
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.scripts import call_script
from comporta.retry.budget import Budget, BudgetOperation
from comporta.stores.base import Operation, Store
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import ListWorkers, RecordHeartbeat, Worker
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.cluster import ClusterNode, ClusterStore
from comporta.stores.redis.cluster_hop import ClusterRedirectError, CountKeys, JoinedReadsRefusedError
from comporta.stores.redis.cluster_slots import operation_slot
from comporta.testing import Cluster, Server

HOURLY = LimitConfig(10 / 3600, 10, 3600).build_strategy()
RULES = BreakerConfig(threshold=5)._rules
SNAPSHOT = CircuitSnapshot(EMPTY_CIRCUIT, ForcedState())


class Move(NamedTuple):
    """A slot of a cluster, the node that has it, and the node that it moves to and back from."""

    cluster: Cluster
    slot: int
    source: Server
    target: Server

    def begin(self) -> None:
        self.cluster.begin_move(self.slot, self.target)

    def move_keys(self, count: int | None = None) -> int:
        return self.cluster.move_keys(self.slot, self.target, count)

    def migrate(self, key: str) -> None:
        """Move one key."""
        self.source.command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)

    def end(self) -> None:
        self.move_keys()
        self.cluster.end_move(self.slot, self.target)

    def return_slot(self) -> None:
        if self.cluster.node_of(self.slot) is self.target:
            self.cluster.move_slot(self.slot, self.source)
        else:
            self.end()
            self.cluster.move_slot(self.slot, self.source)


@pytest.fixture
def store(cluster: Cluster) -> Iterator[ClusterStore]:
    """Yield a store that knows the slots and retries for 0.3 s."""
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = ClusterStore(cluster.url, 0.4, connect_timeout=5, timeout_max=5)
    store.probe()
    store.apply(ReadRecord("s", "first"))
    yield store
    store.close()


@contextmanager
def slot_of(cluster: Cluster, operation: Operation[Any]) -> Iterator[Move]:
    """Yield the slot of an operation, and return it in the end."""
    slot = operation_slot(operation)
    source = cluster.node_of(slot)
    move = Move(cluster, slot, source, next(node for node in cluster.nodes if node is not source))
    try:
        yield move
    finally:
        move.return_slot()


def apply_awaiting(store: Store, operation: Operation[Any]) -> Any:
    async def main() -> Any:
        try:
            return await store.apply_async(operation)
        finally:
            await store.aclose()

    return asyncio.run(main())


def circuit(command: str = READ, name: str = "moving") -> BreakerOperation:
    return BreakerOperation(name, RULES, CircuitRequest(command, owner="worker"), lambda: SNAPSHOT)


def failures(reply: CircuitReply) -> int:
    return reply.failures


def group(*names: str) -> LimitOperation:
    return LimitOperation([LimitDemand(HOURLY, f"moving.{name}", "k", 1) for name in names])


def assert_moving(store: Store, operation: Operation[Any]) -> None:
    with pytest.raises(StateMovingError, match="nothing was carried out"):
        store.apply(operation)
    with pytest.raises(StateMovingError, match="nothing was carried out"):
        apply_awaiting(store, operation)


POOL, PERMITS = PermitPool("moving", 2, 60_000_000), [Permit(f"p{number}", "h:1") for number in range(4)]

CLEAN: dict[str, tuple[Callable[[], Operation[Any]], Callable[[Any], Any], list[Any]]] = {
    "circuit": (lambda: circuit(FAIL), failures, [1, 2, 3, 4]),
    "limit": (
        lambda: AcquireOperation(LimitDefinition(HOURLY, "moving.limit"), "k", 4),
        lambda wait_us: wait_us == 0,
        [True, True, False, False],
    ),
    "group": (
        lambda: group("a", "b", "c"),
        lambda replies: [reply.remaining for reply in replies],
        [[9] * 3, [8] * 3, [7] * 3, [6] * 3],
    ),
    "permits": (
        lambda: AcquirePermit(POOL, PERMITS.pop()),
        lambda reply: reply.succeeded,
        [True, True, False, False],
    ),
    "budget": (
        lambda: BudgetOperation("moving", Budget(0, least=2), 1, retry=True),
        lambda usage: usage.calls,
        [1, 2, 3, 4],
    ),
    "record": (
        lambda: WriteRecord("s", "moving", b"x", None, expected=b""),
        bool,
        [True, False, False, False],
    ),
    "report": (
        lambda: ChargeOperation(HOURLY, "moving.report", "k", 4).as_report("worker", 1),
        bool,
        [True, False, False, False],
    ),
    "registry": (
        lambda: RecordHeartbeat(Worker("h", 1, 1, 1)),
        lambda pulse: pulse.worker_count,
        [1, 1, 1, 1],
    ),
}


@pytest.mark.parametrize("name", sorted(CLEAN))
def test_absent_keys__while_their_slot_moves__are_created_on_the_new_node(
    cluster: Cluster, store: ClusterStore, name: str
) -> None:
    build, value_of, expected = CLEAN[name]
    PERMITS[:] = [Permit(f"p{number}", "h:1") for number in range(5)]
    with slot_of(cluster, build()) as move:
        move.begin()
        seen = [value_of(store.apply(build())), value_of(apply_awaiting(store, build()))]
        assert move.source.command("CLUSTER", "COUNTKEYSINSLOT", move.slot) == 0
        move.end()
        seen += [value_of(store.apply(build())), value_of(apply_awaiting(store, build()))]
    assert seen == expected


def test_circuit__keys_of_both_nodes__fails_alone_until_one_node_has_all(
    cluster: Cluster, store: ClusterStore
) -> None:
    with slot_of(cluster, circuit()) as move:
        assert store.apply(circuit(FAIL)).failures == 1
        move.begin()
        assert_moving(store, circuit(FAIL))
        assert move.move_keys(1) == 1
        assert_moving(store, circuit())
        failover = FailoverStore.wrap(store, store.address)
        assert failover.apply(circuit(FAIL)).is_fallback
        assert isinstance(failover.apply_many([circuit(), circuit(FAIL, "other")])[0], StateMovingError)
        assert failover.apply(circuit(FAIL, "other")).failures == 2
        assert failover.fallback is None, "no outage"
        failover.heartbeat.stop()
        move.move_keys()
        assert store.apply(circuit(FAIL)).failures == 2
        assert apply_awaiting(store, circuit(FAIL)).failures == 3
        move.end()
        assert store.apply(circuit()).failures == 3


def test_circuit__keys_follow_within_the_deadline__waits_for_them(
    cluster: Cluster, store: ClusterStore
) -> None:
    store.timeout = 60.0
    with slot_of(cluster, circuit()) as move:
        store.apply(circuit(FAIL))
        move.begin()
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(store.apply, circuit(FAIL))
            time.sleep(0.03)  # sleeps: the call retries meanwhile
            move.move_keys()
            assert reply.result().failures == 2


def test_group__one_state_moved_and_one_absent__is_decided_on_the_new_node(
    cluster: Cluster, store: ClusterStore
) -> None:
    with slot_of(cluster, group("a")) as move:
        store.apply(group("a"))
        move.begin()
        assert_moving(store, group("a", "b"))
        move.move_keys()
        assert [reply.remaining for reply in store.apply(group("a", "b"))] == [8, 9]


def test_limit__on_either_node__is_decided_there_and_its_override_counts_where_it_is(
    cluster: Cluster, store: ClusterStore
) -> None:
    acquire = AcquireOperation(LimitDefinition(HOURLY, "moving.limit"), "k", 4)
    with slot_of(cluster, acquire) as move:
        assert store.apply(acquire) == 0
        move.begin()
        assert store.apply(acquire) == 0, "the override may be on the other node"
        move.move_keys()
        assert apply_awaiting(store, acquire) > 0


def test_permits__on_the_old_node__are_taken_without_the_claims_to_them(
    cluster: Cluster, store: ClusterStore
) -> None:
    first, second, third = (Permit(f"p{number}", "h:1") for number in range(3))
    with slot_of(cluster, AcquirePermit(POOL, first)) as move:
        assert store.apply(AcquirePermit(POOL, first)).succeeded
        move.begin()
        assert store.apply(AcquirePermit(POOL, second)).succeeded
        assert not store.apply(AcquirePermit(POOL, third)).succeeded
        assert not apply_awaiting(store, AwaitPermit(POOL, third)).succeeded
        assert store.apply(RenewPermit(POOL, first)).succeeded
        assert store.apply(ReleasePermits(POOL, first)).succeeded
        assert store.apply(AcquirePermit(POOL, third)).succeeded
        move.move_keys()
        assert not store.apply(AcquirePermit(POOL, first)).succeeded
        assert store.apply(ReleasePermits(POOL, second)).succeeded


def test_permits__only_one_is_renewed_or_replaced_on_the_old_node__no_permit_too_many(
    cluster: Cluster, store: ClusterStore
) -> None:
    """A node that is giving the slot away cannot create a key again that became empty."""
    first, second = (Permit(f"p{number}", "h:1") for number in range(2))
    with slot_of(cluster, AcquirePermit(POOL, first)) as move:
        store.apply(AcquirePermit(POOL, first))
        move.begin()
        assert store.apply(RenewPermit(POOL, first)).succeeded
        with pytest.raises(StateMovingError, match="may be incomplete"):
            store.apply(AcquirePermit(POOL, second, first))
        assert store.apply(ReleasePermits(POOL, first)).succeeded is False
        assert store.apply(AcquirePermit(POOL, second)).succeeded
        assert len(store.apply(ListHolders(POOL))) == 1


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_call__on_one_node_or_both__takes_the_token_and_the_permit_or_neither(
    cluster: Cluster, store: ClusterStore, moved: int
) -> None:
    script = call_script(HOURLY.name, "moving", tuple(HOURLY.params))
    demand = LimitDemand(HOURLY, "moving", "", 1)
    calls = [AcquireForCall(script, demand, POOL, Permit(f"p{number}", "h:1")) for number in range(3)]
    with slot_of(cluster, calls[0]) as move:
        assert store.apply(calls[0]).granted
        move.begin()
        assert move.move_keys(moved) == moved
        if moved == 1:
            assert_moving(store, calls[1])
            move.move_keys()
        assert store.apply(calls[1]).granted
        assert not store.apply(calls[2]).granted
        [peek] = store.apply(LimitOperation([demand._replace(amount=0)]))
        assert peek.remaining == 8


def test_registry__moves_with_a_barrier_apart__heartbeat_goes_on(
    cluster: Cluster, store: ClusterStore
) -> None:
    beat = RecordHeartbeat(Worker("h", 1, 1, 1))
    failover = FailoverStore.wrap(store, store.address)
    with slot_of(cluster, beat) as move:
        store.apply(beat)
        move.begin()
        assert_moving(store, beat)
        registration = failover.heartbeat.registration
        assert registration.apply(failover, beat) is None
        assert len(store.apply(ListWorkers())) == 1
        assert failover.fallback is None
        move.move_keys()
        assert store.apply(beat).worker_count == 1


def test_report__marker_on_the_other_node__is_not_counted_twice(
    cluster: Cluster, store: ClusterStore
) -> None:
    report = ChargeOperation(HOURLY, "moving.report", "k", 4).as_report("worker", 1)
    with slot_of(cluster, report) as move:
        assert store.apply(report)
        move.begin()
        assert not store.apply(report), "the old node has both states"
        move.migrate("rate_limiter_reports:{moving}.report:worker")
        assert_moving(store, report)
        move.move_keys()
        assert not store.apply(report)


def test_slot_moves_on__from_the_new_node__no_key_is_lost(cluster: Cluster, store: ClusterStore) -> None:
    """The slot moves to a third node before the store knows of the first move."""
    with slot_of(cluster, circuit()) as move:
        assert store.apply(circuit(FAIL)).failures == 1
        move.begin()
        move.end()
        third = next(node for node in cluster.nodes if node not in (move.source, move.target))
        cluster.begin_move(move.slot, third)
        assert_moving(store, circuit(FAIL))
        cluster.move_keys(move.slot, third)
        assert store.apply(circuit(FAIL)).failures == 2
        cluster.end_move(move.slot, third)
        assert store.apply(circuit(FAIL)).failures == 3
        cluster.move_slot(move.slot, move.target)


def test_redirect__from_the_importing_node__goes_back_to_the_owner(
    cluster: Cluster, store: ClusterStore
) -> None:
    """A node that was asked to decide, and no longer can, does not name the node that can."""
    with slot_of(cluster, circuit()) as move:
        move.begin()
        target = store.node(("127.0.0.1", move.target.port))
        apply, count = target.apply_since, 0

        def refuse_once(operation: Operation[Any], began_ns: int) -> Any:
            nonlocal count
            count += 1
            if count == 1:
                raise ClusterRedirectError("later", "TRYAGAIN", None)
            return apply(operation, began_ns)

        target.apply_since = refuse_once  # type: ignore[method-assign]
        assert store.apply(circuit(FAIL)).failures == 1
        assert count == 2


def test_count__refused__is_answered_by_the_new_node_only_for_a_single_state(
    cluster: Cluster, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(node: ClusterNode, operation: Operation[Any], began_ns: int) -> Any:
        if isinstance(operation, CountKeys):
            raise JoinedReadsRefusedError("no script without keys")
        return apply_since(node, operation, began_ns)

    apply_since = ClusterNode.apply_since
    monkeypatch.setattr(ClusterNode, "apply_since", refuse)
    acquire = AcquireOperation(LimitDefinition(HOURLY, "moving.limit"), "k", 4)
    with slot_of(cluster, acquire) as move:
        move.begin()
        assert store.apply(acquire) == 0
        with pytest.raises(StateMovingError):
            store.apply(circuit(FAIL))


def test_redirect__without_end__is_followed_five_times(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[int] = []

    def redirect(node: ClusterNode, operation: Operation[Any], began_ns: int) -> Any:
        targets.append(node.host_port[1])
        raise ClusterRedirectError("elsewhere", "MOVED", node.host_port)

    monkeypatch.setattr(ClusterNode, "apply_since", redirect)
    with pytest.raises(StateUnavailableError, match="redirected a call too often") as caught:
        store.apply(circuit())
    assert not isinstance(caught.value, StateMovingError)
    assert len(targets) == 6


def test_count_keys__locally__does_nothing() -> None:
    assert CountKeys(["k"]).step([], 0) == ([], 0)
