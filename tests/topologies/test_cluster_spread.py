"""Keys of one limit on several nodes of a cluster: where they are, and how overrides reach them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.support import assert_within, wait_until

from comporta import BaseLimiter, Degradation, LimitConfig, LimitGroup, LimitStrategy, StateError
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.charge import ChargeOperation
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.cluster import ClusterStore
from comporta.stores.redis.cluster_hop import RewrittenOperation
from comporta.stores.redis.cluster_slots import operation_slot
from comporta.stores.redis.override_copies import COPY_SECONDS_MAX
from comporta.stores.registry import open_store
from comporta.testing import Cluster, Server

HOURLY = LimitConfig(10 / 3600, 10, 3600)
THREE = LimitConfig(3 / 3600, 3, 3600)
KEYS = [f"user:{number}" for number in range(30)]


@contextmanager
def open_cluster(cluster: Cluster) -> Iterator[ClusterStore]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = worker(cluster)
    yield store
    store.close()


def worker(cluster: Cluster) -> ClusterStore:
    """Open the store as another worker would, without a heartbeat."""
    return ClusterStore(cluster.url, 5, connect_timeout=5)


def limit_keys(cluster: Cluster) -> list[list[str]]:
    """Return the states of limits on each node."""
    return [sorted(node.command("KEYS", "rate_limiter:*")) for node in cluster.nodes]


def all_limit_keys(cluster: Cluster) -> list[str]:
    return sorted(key for states in limit_keys(cluster) for key in states)


def other_node(cluster: Cluster, node: Server) -> Server:
    return next(each for each in cluster.nodes if each is not node)


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_keys__of_one_limit__are_on_every_node_and_each_is_exact(
    cluster: Cluster, strategy: LimitStrategy
) -> None:
    burst = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 10
    limit = LimitConfig(10 / 3600, 10, 3600, strategy)

    async def acquire_all(limiter: BaseLimiter) -> list[bool]:
        try:
            return await asyncio.gather(*(limiter.acquire(key) for key in KEYS for _ in range(6)))
        finally:
            await limiter.aclose()

    with open_cluster(cluster) as store:
        limiter = BaseLimiter(limit, store, "spread")
        replies = asyncio.run(acquire_all(limiter))
        for number, key in enumerate(KEYS):
            granted = sum(replies[6 * number : 6 * number + 6])
            assert granted + sum(limiter.sync.acquire(key) for _ in range(6)) == burst
        states = limit_keys(cluster)
        assert all(states), "every node has some of the keys"
        assert all_limit_keys(cluster) == sorted(f"rate_limiter:{{spread:{key}}}" for key in KEYS)


def test_key__every_method__uses_the_same_state(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "methods").sync
        key = KEYS[0]
        assert limiter.acquire(key)  # 9 left
        assert limiter.acquire(key, timeout=1)
        assert limiter.acquire(key, 2, timeout=1, priority="interactive")
        assert limiter.decide(key).remaining == 5
        assert limiter.acquire_up_to(key, 2) == 2
        assert limiter.peek(key).remaining == 3
        limiter.release(key)
        assert limiter.settle(key, reserved=1, used=3)
        assert limiter.stats(key).tokens_available == 2
        with limiter.reserve(key, 2) as budget:
            budget.used = 1
        wait_until(lambda: limiter.peek(key).remaining == 1)  # it is settled in the background
        assert all_limit_keys(cluster) == [f"rate_limiter:{{methods:{key}}}"]
        limiter.reset(key)
        assert all_limit_keys(cluster) == []


def test_key__with_a_lease__takes_from_the_same_state(cluster: Cluster) -> None:
    limit = LimitConfig(100 / 3600, 100, 3600, lease=True)
    with open_cluster(cluster) as store:
        limiter = BaseLimiter(limit, store, "leased")
        assert sum(limiter.sync.acquire(KEYS[0]) for _ in range(110)) == 100
        asyncio.run(limiter.aclose())
        assert all_limit_keys(cluster) == [f"rate_limiter:{{leased:{KEYS[0]}}}"]


def test_report__of_an_outage__is_charged_to_the_key_once(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "reported").sync
        report = ChargeOperation(HOURLY.build_strategy(), "reported", KEYS[0], 4).as_report("worker", 1)
        assert store.apply(report)
        assert not store.apply(report)
        assert sum(limiter.acquire(KEYS[0]) for _ in range(12)) == 6


def test_names__with_a_dot__keep_their_keys_together(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        limiters = [BaseLimiter(HOURLY, store, name) for name in ("api.read", "api.write")]
        for key in KEYS:
            assert LimitGroup(*limiters).sync.acquire([key, key])
        [states] = [states for states in limit_keys(cluster) if states]
        assert len(states) == 2 * len(KEYS)
        assert f"rate_limiter:{{api}}.read:{KEYS[0]}" in states


def test_group__of_limits_whose_keys_are_spread__is_refused(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        group = LimitGroup(BaseLimiter(HOURLY, store, "api"), BaseLimiter(HOURLY, store, "api.write"))
        with pytest.raises(ValueError, match="need names with a dot that begin alike"):
            group.sync.acquire(["k", "k"])
        assert group.sync.acquire([None, None]), "the limit as a whole is in the slot of its name"


def test_names__derived_from_numbers__are_spread_in_spite_of_their_dots(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        by_default = BaseLimiter(LimitConfig(0.5, 10), store)
        by_plan = BaseLimiter(HOURLY, store, "plans", limit_for=lambda key: LimitConfig(0.25, 2)).sync
        assert "." in by_default.name
        for key in KEYS:
            assert by_default.sync.acquire(key)
            assert by_plan.acquire(key)
        assert all(any("plans" in key for key in states) for states in limit_keys(cluster))
        assert all(any("plans" not in key for key in states) for states in limit_keys(cluster))
        by_default.sync.set_limit(None)
        assert by_default.sync.acquire(KEYS[0])


def test_override__by_this_worker__binds_its_next_decision_on_every_node(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "overridden").sync
        assert all(limiter.acquire(key) for key in KEYS)
        limiter.set_limit(THREE)
        for key in KEYS:
            assert sum(limiter.acquire(key) for _ in range(5)) == 3
            assert limiter.peek(key).limit == 3
        limiter.set_limit(None)
        assert all(limiter.peek(key).limit == 10 for key in KEYS)


def test_override__by_another_worker__is_in_force_within_a_second(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        operator = BaseLimiter(HOURLY, store, "operated").sync
        others = [worker(cluster) for _ in range(3)]
        limiters = [BaseLimiter(HOURLY, other, "operated").sync for other in others]
        for limiter in limiters:
            assert all(limiter.peek(key).limit == 10 for key in KEYS)
        operator.set_limit(THREE)
        written = time.monotonic()
        for limiter in limiters:
            wait_until(lambda limiter=limiter: limiter.peek(KEYS[0]).limit == 3)  # type: ignore[misc]
        assert_within(time.monotonic() - written, COPY_SECONDS_MAX + 0.2, "the override")
        assert [sum(limiter.acquire(KEYS[1]) for _ in range(5)) for limiter in limiters] == [3, 0, 0]
        late = worker(cluster)
        assert BaseLimiter(HOURLY, late, "operated").sync.peek(KEYS[2]).limit == 3, (
            "the first decision reads it"
        )
        for other in [*others, late]:
            other.close()


def test_override__written_by_hand__is_in_force_within_a_second(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "by-hand").sync
        assert limiter.peek(KEYS[0]).limit == 10
        node = cluster.node_of(operation_slot(ReadRecord("rate_limiter_change", "by-hand")))
        node.command("SET", "rate_limiter_change:{by-hand}", THREE.build_strategy().params.record_text("now"))
        wait_until(lambda: limiter.peek(KEYS[0]).limit == 3)
        node.command("DEL", "rate_limiter_change:{by-hand}")
        wait_until(lambda: limiter.peek(KEYS[0]).limit == 10)
        node.command("RPUSH", "rate_limiter_change:{by-hand}", "not a record")
        late = worker(cluster)
        assert BaseLimiter(HOURLY, late, "by-hand").sync.peek(KEYS[0]).limit == 10
        late.close()


def test_pause_and_degradation__of_a_limit__bind_its_keys(cluster: Cluster) -> None:
    with open_cluster(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "paused")
        limiter.sync.pause(60)
        assert not any(limiter.sync.acquire(key) for key in KEYS)
        limiter.sync.resume()
        assert all(limiter.sync.acquire(key) for key in KEYS)
        Degradation(limiter, drop=0.5).sync.record_error()
        assert all(limiter.sync.peek(key).limit == 5 for key in KEYS)


def test_heartbeat__of_a_worker__keeps_the_copy_up_to_date(cluster: Cluster) -> None:
    with open_cluster(cluster):
        store = open_store(f"{cluster.url}?timeout=5&connect_timeout=5")
        limiter = BaseLimiter(HOURLY, store, "followed").sync
        assert limiter.acquire(KEYS[0])
        copies = store.primary._override_copies  # type: ignore[attr-defined]
        record = THREE.build_strategy().params.record_text("now")
        store.primary.apply(WriteRecord("rate_limiter_change", "followed", record, None))
        wait_until(lambda: copies._copies["rate_limiter_change:followed"].record == record)
        store.close()


@pytest.mark.parametrize("is_overridden", [False, True])
def test_slot_being_moved__key_that_is_spread__every_decision_is_right(
    cluster: Cluster, is_overridden: bool
) -> None:
    with open_cluster(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "moving").sync
        if is_overridden:
            limiter.set_limit(THREE)
        slot = operation_slot(AcquireOperation(LimitDefinition(HOURLY.build_strategy(), "moving"), "k", 1))
        source = cluster.node_of(slot)
        target = other_node(cluster, source)
        granted = int(limiter.acquire("k"))
        for node in (target, source):
            cluster.begin_move(slot, node)
            granted += limiter.acquire("k")
            cluster.move_keys(slot, node)
            granted += limiter.acquire("k")
            cluster.end_move(slot, node)
        assert granted + sum(limiter.acquire("k") for _ in range(12)) == (3 if is_overridden else 10)


def test_cancelled_caller__under_an_override__gives_back_under_the_same() -> None:
    acquire = AcquireOperation(LimitDefinition(HOURLY.build_strategy(), "cancelled"), "k", 1)
    undo = RewrittenOperation(acquire, override=b"3 1 1 0").undo(0)
    assert undo is not None
    assert undo.script.override == b"3 1 1 0"
    plain = RewrittenOperation(acquire, states_only=True).undo(0)
    assert plain is not None
    assert plain.script.override is None


def test_node_fails__its_replica_takes_over__its_keys_go_on_where_they_were(program: str) -> None:
    with Cluster(3, program, replicas=True) as cluster, open_cluster(cluster) as store:
        limiter = BaseLimiter(HOURLY, store, "failing").sync
        limiter.set_limit(LimitConfig(7 / 3600, 7, 3600))
        for key in KEYS:
            assert limiter.acquire(key, 4)
        for node in cluster.nodes:
            node.command("WAIT", 1, 5000)  # replication is asynchronous
        cluster.nodes[0].kill()

        def left(key: str) -> Callable[[], bool]:
            def is_answered() -> bool:
                try:
                    return limiter.peek(key).remaining == 3
                except StateError:
                    return False

            return is_answered

        for key in KEYS:
            wait_until(left(key))
            assert sum(limiter.acquire(key) for _ in range(5)) == 3
        assert any(replica.command("KEYS", "rate_limiter:*") for replica in cluster.replicas[:1])
