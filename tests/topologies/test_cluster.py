"""State on a cluster: the same store, whichever node has the keys, and while they move."""

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
    StateDeniedError,
    StateError,
    StateTimeoutError,
    StateUnavailableError,
)
from comporta.clock import Clock
from comporta.limits.operation import LimitOperation, Question
from comporta.limits.take import Asked, Take
from comporta.stores.base import Store
from comporta.stores.cluster import ClusterStore
from comporta.stores.records import Read, Write
from comporta.stores.slots import slot_of
from comporta.stores.urls import forget_stores, open_store
from comporta.testing import Cluster, FaultProxy, ManualClock, Server, StoreConformance

HOURLY = LimitConfig(10 / 3600, 10, 3600)


@contextmanager
def opened(cluster: Cluster, clock: Clock | None = None, timeout: float = 5) -> Iterator[ClusterStore]:
    for node in cluster.nodes:
        if node.process is not None:
            node.command("FLUSHALL")
    store = ClusterStore(cluster.url, timeout, clock, connect_timeout=5)
    yield store
    store.close()


def awaited(store: ClusterStore, work: Callable[[], Any]) -> Any:
    async def main() -> Any:
        try:
            return await work()
        finally:
            await store.aclose()

    return asyncio.run(main())


class TestCluster(StoreConformance):
    records_by_own_clock = True

    @pytest.fixture(autouse=True)
    def _on(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @contextmanager
    def store(self, clock: ManualClock) -> Iterator[Store]:
        with opened(self.cluster, clock) as store:
            yield store


def test_cluster__first_question_to_the_wrong_node__is_answered_by_the_right_one(cluster: Cluster) -> None:
    with opened(cluster) as store:
        take = Take(Asked(HOURLY.rule(), "n"), "k", 1)
        assert [store.apply(take) == 0 for _ in range(11)] == [True] * 10 + [False]
        assert sorted(store.slots.places()) == sorted(("127.0.0.1", node.port) for node in cluster.nodes)


def test_cluster__many_limits_at_once__are_asked_each_where_it_lives(cluster: Cluster) -> None:
    limiters: list[BaseLimiter] = []

    async def work() -> list[bool]:
        return await asyncio.gather(*(limiter.acquire("k") for limiter in limiters for _ in range(12)))

    with opened(cluster) as store:
        limiters += [BaseLimiter(HOURLY, store, f"limit-{number}") for number in range(30)]
        assert sum(awaited(store, work)) == 300
        counts = [len(node.command("KEYS", "rate_limiter:{*")) for node in cluster.nodes]
        assert sum(counts) == 30
        assert all(counts)


def test_cluster__same_script_for_limits_of_different_slots__is_called_for_each_slot(
    cluster: Cluster,
) -> None:
    async def work() -> list[Any]:
        asked = [LimitOperation([Question(HOURLY.rule(), f"n{number}", "k", 1)]) for number in range(20)]
        answers: list[Any] = await asyncio.gather(*map(store.apply_async, asked))
        return answers

    with opened(cluster) as store:
        assert all(answer.wait_us == 0 for [answer] in awaited(store, work))


def test_cluster__group_of_names_that_begin_alike__is_one_step_and_others_are_told_what_to_do(
    cluster: Cluster,
) -> None:
    with opened(cluster) as store:
        alike = LimitGroup(BaseLimiter(HOURLY, store, "api.read"), BaseLimiter(HOURLY, store, "api.write"))
        assert alike.sync.acquire(["k", "k"])
        unlike = LimitGroup(BaseLimiter(HOURLY, store, "read"), BaseLimiter(HOURLY, store, "write"))
        with pytest.raises(ValueError, match="begin alike before a dot"):
            unlike.sync.acquire(["k", "k"])


def test_cluster__change_of_a_limit__is_obeyed(cluster: Cluster) -> None:
    with opened(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "changing").sync
        assert limiter.acquire("k")
        limiter.change(LimitConfig(3 / 3600, 3, 3600))
        assert sum(limiter.acquire("other") for _ in range(5)) == 3


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_cluster__slot_on_the_move__every_decision_is_right_at_every_step(
    cluster: Cluster, strategy: LimitStrategy
) -> None:
    """Three keys with states, one without; moved one by one, there and back again."""
    limit = LimitConfig(10 / 3600, 10, 3600, strategy)
    at_once = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 10
    granted = 0
    with opened(cluster) as store:
        asked = Asked(limit.rule(), "moving")
        takes = [Take(asked, f"k{number}", 1) for number in range(4)]
        slot = slot_of(takes[0])
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)

        async def ask_async() -> int:
            async def all_of_them() -> list[int]:
                return await asyncio.gather(*map(store.apply_async, takes))

            return sum(wait == 0 for wait in await all_of_them())

        def ask() -> int:
            return sum(store.apply(take) == 0 for take in takes) + int(awaited(store, ask_async))

        granted += ask()
        for there in (target, source):
            cluster.begin_move(slot, there)
            granted += ask()
            while cluster.move_keys(slot, there, 1):
                granted += ask()
            cluster.end_move(slot, there)
            granted += ask()
        assert granted + sum(store.apply(take) == 0 for take in takes * 12) == 4 * at_once


def test_cluster__slot_moved_for_good__is_learnt(cluster: Cluster) -> None:
    with opened(cluster) as store:
        read = Read("s", "k")
        store.apply(read)
        slot = slot_of(read)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.move_slot(slot, target)
        assert store.apply(read) is None
        assert store.slots.place_of(slot) == ("127.0.0.1", target.port)
        cluster.move_slot(slot, source)
        assert store.apply(read) is None


def test_cluster__states_of_a_group_on_both_nodes__is_tried_again_until_the_deadline(
    cluster: Cluster,
) -> None:
    """One state has moved, the other has not: neither node can decide."""
    with opened(cluster, timeout=0.2) as store:
        store.reach()
        both = LimitOperation([Question(HOURLY.rule(), f"torn.{name}", "k", 1) for name in "ab"])
        with suppress(StateTimeoutError):  # a busy machine
            store.apply(both)
        slot = slot_of(both)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.begin_move(slot, target)
        assert cluster.move_keys(slot, target, 1) == 1
        with pytest.raises(StateUnavailableError, match="nothing was carried out"):
            store.apply(both)
        with pytest.raises(StateUnavailableError, match="nothing was carried out"):
            awaited(store, lambda: store.apply_async(both))
        cluster.move_keys(slot, target)
        store.apply(both)
        cluster.end_move(slot, target)
        cluster.move_slot(slot, source)


def test_cluster__change_that_moved_before_its_states__does_not_stop_them(cluster: Cluster) -> None:
    with opened(cluster) as store:
        take = Take(Asked(HOURLY.rule(), "torn"), "k", 1)
        change = Read("rate_limiter_change", "torn")
        store.apply(take)
        store.apply(Write("rate_limiter_change", "torn", HOURLY.rule().numbers.written("as ever"), None))
        slot = slot_of(take)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.begin_move(slot, target)
        while cluster.move_keys(slot, target, 1):
            assert store.apply(take) == 0
            assert store.apply(change) is not None
        cluster.end_move(slot, target)
        cluster.move_slot(slot, source)


def test_cluster__scripts_forgotten__are_sent_again_even_to_a_node_being_given_the_slot(
    cluster: Cluster,
) -> None:
    with opened(cluster) as store:
        take = Take(Asked(HOURLY.rule(), "flushed"), "k", 1)
        slot = slot_of(take)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.begin_move(slot, target)
        for node in cluster.nodes:
            node.command("SCRIPT", "FLUSH")
        assert store.apply(take) == 0
        for node in cluster.nodes:
            node.command("SCRIPT", "FLUSH")
        assert awaited(store, lambda: store.apply_async(take)) == 0
        cluster.move_keys(slot, target)
        cluster.end_move(slot, target)
        cluster.move_slot(slot, source)


def test_cluster__listing__leaves_out_what_is_no_record(cluster: Cluster) -> None:
    with opened(cluster) as store:
        for number in range(30):
            store.apply(Write("space", f"a.b:{number}", b"x", None))
            store.apply(Write("space", f"{number}", b"y", None))
            store.apply(Write("with:colon", f"{number}", b"z", None))
        cluster.node_of(slot_of(Read("space", "list"))).command("RPUSH", "space:{list}", "x")
        expected = {f"a.b:{number}": b"x" for number in range(30)} | {str(n): b"y" for n in range(30)}
        assert store.entries("space") == expected
        assert awaited(store, lambda: store.entries_async("space")) == expected
        assert store.entries("with:colon") == {str(number): b"z" for number in range(30)}


def test_cluster__many_records__are_listed_page_by_page(cluster: Cluster) -> None:
    with opened(cluster) as store:
        store.reach()
        for number in range(1_000):  # all in one slot
            cluster.node_of(slot_of(Read("many", "one"))).command("SET", f"many:{{one}}:{number}", "x")
        assert len(store.entries("many")) == 1_000


def test_cluster__slots_that_make_no_sense__are_an_error(cluster: Cluster) -> None:
    with FaultProxy.to(cluster.nodes[0]) as proxy:
        store = ClusterStore(proxy.url.replace("redis://", "redis+cluster://"), 5, connect_timeout=5)
        proxy.garble_replies(garbage=b"*1\r\n:5\r\n", to="SLOTS")
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            store.apply(Read("s", "k"))
        assert store.apply(Read("s", "k")) is None
        store.close()


def test_cluster__node_without_slots_any_more__is_left(cluster: Cluster) -> None:
    with opened(cluster) as store:
        elsewhere = store.node(("127.0.0.9", 1))
        elsewhere._pool.idle.append((store.node(store.slots.places()[0]).route.connect(5), 0))
        store.reach()
        assert not elsewhere._pool.idle


def test_cluster__after_a_fork__goes_on(cluster: Cluster) -> None:
    with opened(cluster) as store:
        store._making.acquire()
        store.after_fork()
        assert store.apply(Read("s", "k")) is None
        store.heard(3)  # never told on a cluster
        assert store.workers_heard == 0


def test_cluster__reach__learns_the_slots_and_connects_to_every_node(cluster: Cluster) -> None:
    with opened(cluster) as store:
        store.reach()
        assert len(store.slots.places()) == len(cluster.nodes)
        assert all(len(node._pool.idle) == 1 for node in store._nodes.values())


def test_cluster__one_node_gone__is_said_and_the_others_are_asked_who_has_its_slots(program: str) -> None:
    with Cluster(3, program, "--cluster-require-full-coverage", "no") as cluster, opened(cluster) as store:
        reads = [Read("s", str(number)) for number in range(30)]
        for read in reads:
            store.apply(read)
        gone = cluster.nodes[0]
        gone.kill()
        lost = answered = 0
        for read in reads:
            try:
                store.apply(read)
                answered += 1
            except StateError:
                lost += 1
        assert lost
        assert answered
        with pytest.raises(StateError):
            store.reach()


def test_cluster__nobody_there__is_said(program: str) -> None:
    with Server(program) as alone:
        url = alone.url.replace("redis://", "redis+cluster://")
        for scheme in ("redis+cluster", "valkey+cluster"):
            state: Any = open_store(url.replace("redis+cluster", scheme) + "?timeout=5&connect_timeout=5")
            store = state.primary
            with pytest.raises(StateUnavailableError, match="cluster support disabled"):
                store.apply(Read("s", "k"))
            with pytest.raises(StateUnavailableError, match="cluster support disabled"):
                store.reach()
    forget_stores()
    with FaultProxy.to(alone) as proxy:
        proxy.refuse()
        store = ClusterStore(proxy.url.replace("redis://", "redis+cluster://"))
        with pytest.raises(StateUnavailableError):
            store.reach()
        with pytest.raises(StateUnavailableError):
            store.apply(Read("s", "k"))


def test_cluster__password_and_tls__are_used_on_every_node(tls_program: str) -> None:
    with Cluster(3, tls_program, password="right", tls=True) as cluster:  # noqa: S106 - a secret of this test
        url = f"{cluster.url}?ssl_ca_certs={cluster.nodes[0].ca_file}"
        store = ClusterStore(url, 5, connect_timeout=5)
        store.reach()
        for number in range(10):
            assert store.apply(Write("s", str(number), b"x", None))
        assert awaited(store, lambda: store.entries_async("s")) == {str(n): b"x" for n in range(10)}
        store.close()
        store = ClusterStore(url.replace(":right@", ":wrong@"), 5, connect_timeout=5)
        with pytest.raises(StateDeniedError):
            store.apply(Read("s", "k"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+cluster://h:1/3", "database 0 only, got '3'"),
        ("redis+cluster:///0", "at least one host"),
        ("redis+cluster://h:x/0", "the port must be a number"),
    ],
)
def test_cluster__url_that_makes_no_sense__is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_store(url)
