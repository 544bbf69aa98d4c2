"""The cluster engine: routing, redirects, and slots that move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from comporta import (
    BaseLimiter,
    LimitConfig,
    LimitGroup,
    LimitStrategy,
    StateAuthError,
    StateError,
    StateTimeoutError,
    StateUnavailableError,
)
from comporta.clock import Clock
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.base import Store
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.cluster import ClusterStore
from comporta.stores.redis.cluster_slots import operation_slot
from comporta.stores.registry import close_stores, open_store
from comporta.testing import Cluster, FaultProxy, ManualClock, Server, StoreConformance

HOURLY = LimitConfig(10 / 3600, 10, 3600)


@contextmanager
def open_cluster(cluster: Cluster, clock: Clock | None = None, timeout: float = 5) -> Iterator[ClusterStore]:
    for node in cluster.nodes:
        if node.process is not None:
            node.command("FLUSHALL")
    store = ClusterStore(cluster.url, timeout, clock, connect_timeout=5)
    yield store
    store.close()


def run_and_close(store: ClusterStore, work: Callable[[], Any]) -> Any:
    async def main() -> Any:
        try:
            return await work()
        finally:
            await store.aclose()

    return asyncio.run(main())


class TestCluster(StoreConformance):
    records_expire_by_own_clock = True

    @pytest.fixture(autouse=True)
    def _use_cluster(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @contextmanager
    def store(self, clock: ManualClock) -> Iterator[Store]:
        with open_cluster(self.cluster, clock) as store:
            yield store


def test_cluster__first_call_to_the_wrong_node__is_redirected(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        acquire = AcquireOperation(LimitDefinition(HOURLY.build_strategy(), "n"), "k", 1)
        assert [store.apply(acquire) == 0 for _ in range(11)] == [True] * 10 + [False]
        assert sorted(store.slot_map.owners()) == sorted(("127.0.0.1", node.port) for node in cluster.nodes)


def test_cluster__many_limits_at_once__go_to_the_nodes_that_own_them(cluster: Cluster) -> None:
    limiters: list[BaseLimiter] = []

    async def work() -> list[bool]:
        return await asyncio.gather(*(limiter.acquire("k") for limiter in limiters for _ in range(12)))

    with open_cluster(cluster) as store:
        limiters += [BaseLimiter(HOURLY, store, f"limit-{number}") for number in range(30)]
        assert sum(run_and_close(store, work)) == 300
        counts = [len(node.command("KEYS", "rate_limiter:{*")) for node in cluster.nodes]
        assert sum(counts) == 30
        assert all(counts)


def test_cluster__one_script_for_several_slots__is_called_once_per_slot(
    cluster: Cluster,
) -> None:
    async def work() -> list[Any]:
        operations = [
            LimitOperation([LimitDemand(HOURLY.build_strategy(), f"n{number}", "k", 1)])
            for number in range(20)
        ]
        replies: list[Any] = await asyncio.gather(*map(store.apply_async, operations))
        return replies

    with open_cluster(cluster) as store:
        assert all(reply.wait_us == 0 for [reply] in run_and_close(store, work))


def test_cluster__group_in_one_slot__is_one_operation_and_others_are_refused(
    cluster: Cluster,
) -> None:
    with open_cluster(cluster) as store:
        same_slot = LimitGroup(
            BaseLimiter(HOURLY, store, "api.read"), BaseLimiter(HOURLY, store, "api.write")
        )
        assert same_slot.sync.acquire(["k", "k"])
        several_slots = LimitGroup(BaseLimiter(HOURLY, store, "read"), BaseLimiter(HOURLY, store, "write"))
        with pytest.raises(ValueError, match="names with a dot that begin alike before it"):
            several_slots.sync.acquire(["k", "k"])


def test_cluster__override_of_a_limit__is_applied(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "overridden").sync
        assert limiter.acquire("k")
        limiter.set_limit(LimitConfig(3 / 3600, 3, 3600))
        assert sum(limiter.acquire("other") for _ in range(5)) == 3


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_cluster__slot_being_moved__every_decision_is_right_at_every_step(
    cluster: Cluster, strategy: LimitStrategy
) -> None:
    """Three keys with states and one without, moved one by one to another node and back."""
    limit = LimitConfig(10 / 3600, 10, 3600, strategy)
    burst = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 10
    granted = 0
    with open_cluster(cluster) as store:
        definition = LimitDefinition(limit.build_strategy(), "moving.limit")
        operations = [AcquireOperation(definition, f"k{number}", 1) for number in range(4)]
        slot = operation_slot(operations[0])
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)

        async def apply_all_async() -> int:
            async def gather_all() -> list[int]:
                return await asyncio.gather(*map(store.apply_async, operations))

            return sum(wait == 0 for wait in await gather_all())

        def apply_all() -> int:
            return sum(store.apply(operation) == 0 for operation in operations) + int(
                run_and_close(store, apply_all_async)
            )

        granted += apply_all()
        for node in (target, source):
            cluster.begin_move(slot, node)
            granted += apply_all()
            while cluster.move_keys(slot, node, 1):
                granted += apply_all()
            cluster.end_move(slot, node)
            granted += apply_all()
        assert granted + sum(store.apply(operation) == 0 for operation in operations * 12) == 4 * burst


def test_cluster__slot_moved__is_updated_in_the_slot_map(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        read = ReadRecord("s", "k")
        store.apply(read)
        slot = operation_slot(read)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.move_slot(slot, target)
        assert store.apply(read) is None
        assert store.slot_map.owner(slot) == ("127.0.0.1", target.port)
        cluster.move_slot(slot, source)
        assert store.apply(read) is None


def test_cluster__states_of_a_group_on_both_nodes__retries_until_the_deadline(
    cluster: Cluster,
) -> None:
    """One state has moved and the other has not: neither node can decide."""
    with open_cluster(cluster, timeout=0.2) as store:
        store.probe()
        both = LimitOperation([LimitDemand(HOURLY.build_strategy(), f"torn.{name}", "k", 1) for name in "ab"])
        with suppress(StateTimeoutError):  # on a busy machine
            store.apply(both)
        slot = operation_slot(both)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.begin_move(slot, target)
        assert cluster.move_keys(slot, target, 1) == 1
        with pytest.raises(StateUnavailableError, match="nothing was carried out"):
            store.apply(both)
        with pytest.raises(StateUnavailableError, match="nothing was carried out"):
            run_and_close(store, lambda: store.apply_async(both))
        cluster.move_keys(slot, target)
        store.apply(both)
        cluster.end_move(slot, target)
        cluster.move_slot(slot, source)


def test_cluster__override_moved_before_its_states__decisions_go_on(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        acquire = AcquireOperation(LimitDefinition(HOURLY.build_strategy(), "torn.limit"), "k", 1)
        override = ReadRecord("rate_limiter_change", "torn.limit")
        store.apply(acquire)
        store.apply(
            WriteRecord(
                "rate_limiter_change",
                "torn.limit",
                HOURLY.build_strategy().params.record_text("unchanged"),
                None,
            )
        )
        slot = operation_slot(acquire)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.begin_move(slot, target)
        while cluster.move_keys(slot, target, 1):
            assert store.apply(acquire) == 0
            assert store.apply(override) is not None
        cluster.end_move(slot, target)
        cluster.move_slot(slot, source)


def test_cluster__scripts_flushed__are_sent_again_also_to_an_importing_node(
    cluster: Cluster,
) -> None:
    with open_cluster(cluster) as store:
        acquire = AcquireOperation(LimitDefinition(HOURLY.build_strategy(), "flushed"), "k", 1)
        slot = operation_slot(acquire)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.begin_move(slot, target)
        for node in cluster.nodes:
            node.command("SCRIPT", "FLUSH")
        assert store.apply(acquire) == 0
        for node in cluster.nodes:
            node.command("SCRIPT", "FLUSH")
        assert run_and_close(store, lambda: store.apply_async(acquire)) == 0
        cluster.move_keys(slot, target)
        cluster.end_move(slot, target)
        cluster.move_slot(slot, source)


def test_cluster__entries__leave_out_keys_that_are_not_records(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        for number in range(30):
            store.apply(WriteRecord("space", f"a.b:{number}", b"x", None))
            store.apply(WriteRecord("space", f"{number}", b"y", None))
            store.apply(WriteRecord("with:colon", f"{number}", b"z", None))
        cluster.node_of(operation_slot(ReadRecord("space", "list"))).command("RPUSH", "space:{list}", "x")
        expected = {f"a.b:{number}": b"x" for number in range(30)} | {str(n): b"y" for n in range(30)}
        assert store.entries("space") == expected
        assert run_and_close(store, lambda: store.entries_async("space")) == expected
        assert store.entries("with:colon") == {str(number): b"z" for number in range(30)}


def test_cluster__many_records__are_listed_page_by_page(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        store.probe()
        for number in range(1_000):  # all in one slot
            cluster.node_of(operation_slot(ReadRecord("many", "one"))).command(
                "SET", f"many:{{one}}:{number}", "x"
            )
        assert len(store.entries("many")) == 1_000


def test_cluster__malformed_slots_reply__raises(cluster: Cluster) -> None:
    with FaultProxy.to(cluster.nodes[0]) as proxy:
        store = ClusterStore(proxy.url.replace("redis://", "redis+cluster://"), 5, connect_timeout=5)
        proxy.garble_replies(garbage=b"*1\r\n:5\r\n", matching="SLOTS")
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            store.apply(ReadRecord("s", "k"))
        assert store.apply(ReadRecord("s", "k")) is None
        store.close()


def test_cluster__node_without_slots__has_its_connections_closed(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        removed = store.node(("127.0.0.9", 1))
        removed._pool.idle.append((store.node(store.slot_map.owners()[0]).route.connect(5), 0))
        store.probe()
        assert not removed._pool.idle


def test_cluster__after_a_fork__still_answers(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        store._creation_lock.acquire()
        store.after_fork()
        assert store.apply(ReadRecord("s", "k")) is None


def test_cluster__probe__loads_the_slot_map_and_connects_to_every_node(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        store.probe()
        assert len(store.slot_map.owners()) == len(cluster.nodes)
        assert all(len(node._pool.idle) == 1 for node in store._nodes.values())


def test_cluster__one_node_killed__its_keys_fail_and_the_others_answer(program: str) -> None:
    with (
        Cluster(3, program, "--cluster-require-full-coverage", "no") as cluster,
        open_cluster(cluster) as store,
    ):
        reads = [ReadRecord("s", str(number)) for number in range(30)]
        for read in reads:
            store.apply(read)
        cluster.nodes[0].kill()
        failed = answered = 0
        for read in reads:
            try:
                store.apply(read)
                answered += 1
            except StateError:
                failed += 1
        assert failed
        assert answered
        with pytest.raises(StateError):
            store.probe()


def test_cluster__server_without_cluster_support__raises_the_reason(program: str) -> None:
    with Server(program) as server:
        url = server.url.replace("redis://", "redis+cluster://")
        for scheme in ("redis+cluster", "valkey+cluster"):
            state: Any = open_store(url.replace("redis+cluster", scheme) + "?timeout=5&connect_timeout=5")
            store = state.primary
            with pytest.raises(StateUnavailableError, match="cluster support disabled"):
                store.apply(ReadRecord("s", "k"))
            with pytest.raises(StateUnavailableError, match="cluster support disabled"):
                store.probe()
    close_stores()
    with FaultProxy.to(server) as proxy:
        proxy.refuse_connections()
        store = ClusterStore(proxy.url.replace("redis://", "redis+cluster://"))
        with pytest.raises(StateUnavailableError):
            store.probe()
        with pytest.raises(StateUnavailableError):
            store.apply(ReadRecord("s", "k"))


def test_cluster__password_and_tls__are_used_on_every_node(tls_program: str) -> None:
    with Cluster(3, tls_program, password="right", tls=True) as cluster:  # noqa: S106 - a secret of this test
        url = f"{cluster.url}?ssl_ca_certs={cluster.nodes[0].ca_file}"
        store = ClusterStore(url, 5, connect_timeout=5)
        store.probe()
        for number in range(10):
            assert store.apply(WriteRecord("s", str(number), b"x", None))
        assert run_and_close(store, lambda: store.entries_async("s")) == {str(n): b"x" for n in range(10)}
        store.close()
        store = ClusterStore(url.replace(":right@", ":wrong@"), 5, connect_timeout=5)
        with pytest.raises(StateAuthError):
            store.apply(ReadRecord("s", "k"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+cluster://h:1/3", "database 0 only, got '3'"),
        ("redis+cluster:///0", "at least one host"),
        ("redis+cluster://h:x/0", "the port must be a number"),
    ],
)
def test_cluster__invalid_url__is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_store(url)
