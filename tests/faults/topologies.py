"""Single nodes of a cluster, and the files of ``shared://``."""

from __future__ import annotations

import fcntl
import itertools
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.faults.catalog import BLOCKING, fault
from tests.faults.environment import (
    FAST_REFILL,
    NO_DEADLINE,
    RECOVERY_SECONDS_MAX,
    RELIABLE,
    SLOW_REFILL,
    FaultEnvironment,
)
from tests.support import fill_with_records

from comporta import CircuitBreaker, LimitConfig, StateUnavailableError
from comporta.events import latest_events
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.failover.worker_registry import REGISTRY_KEY
from comporta.stores.redis.store import RedisStore
from comporta.stores.registry import open_store
from comporta.stores.shared.directory import directory_path
from comporta.stores.shared.store import SharedStore
from comporta.testing import Cluster, Server
from comporta.testing.redis_server import wait_until

TWO_AT_ONCE = LimitConfig(0.001, 2)
ADVICE = r"is a node of a cluster \((?:{})\): use redis\+cluster://"
"""The heartbeat may be the first to find out: its keys are in different slots (CROSSSLOT)."""


@fault("a cluster node gets a key of another node", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with Cluster(2, env.server.program) as cluster:
        node = cluster.node_of(_slot(cluster, REGISTRY_KEY))
        [other] = [each for each in cluster.nodes if each is not node]
        name = next(_names_on(cluster, node, "rate_limiter_change:{}"))
        away = next(_names_on(cluster, other, f"rate_limiter:{name}:{{}}"))
        moving = next(_names_on(cluster, node, f"rate_limiter:{name}:{{}}"))
        cluster.begin_move(_slot(cluster, f"rate_limiter:{name}:{moving}"), to=other)
        for number, (key, code) in enumerate([(away, "MOVED"), (moving, "ASK")]):
            caller = env.caller_at(f"{node.url}?timeout={5 + number}", SLOW_REFILL, name, prompt=False)
            with pytest.raises(StateUnavailableError, match=ADVICE.format(f"{code}|CROSSSLOT")):
                caller.limiter.sync.reset(key)
            assert not caller.acquire(), "the share answers"
            assert caller.fallback is not None


@fault("a cluster node gets keys of several slots", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with Cluster(2, env.server.program) as cluster:
        node = cluster.node_of(_slot(cluster, "{t}"))
        store = RedisStore(node.url, timeout=5)
        store.uses_hash_tags = True  # so that all its keys are in one slot
        operation = LimitOperation([LimitDemand(SLOW_REFILL.build_strategy(), "t.limit", "k", 1)])
        assert store.apply(operation)[0].wait_us == 0
        cluster.begin_move(_slot(cluster, "{t}"), to=next(each for each in cluster.nodes if each is not node))
        with pytest.raises(StateUnavailableError, match=ADVICE.format("TRYAGAIN|ASK")):
            store.apply(operation)
        store.close()
        caller = env.caller_at(node.url + RELIABLE, SLOW_REFILL, "tested", prompt=False)
        assert not caller.acquire()
        assert caller.fallback is not None
        assert "use redis+cluster://" in caller.fallback.reason


@fault("a cluster is down", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with env.another("--cluster-enabled", "yes") as down:  # no node owns its slots
        caller, fast = down.caller(options=NO_DEADLINE), down.caller(FAST_REFILL, "fast", NO_DEADLINE)
        with pytest.raises(StateUnavailableError, match=r"CLUSTERDOWN|CROSSSLOT"):
            caller.limiter.sync.reset("k")
        assert not caller.acquire()
        assert caller.fallback is not None
        wait_until(fast.acquire, "the share grants something", RECOVERY_SECONDS_MAX)


@fault("the table of shared:// is full", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with _shared_state() as name:
        caller = env.caller_at(f"shared://{name}?memory=4", TWO_AT_ONCE, "tested")
        assert [caller.acquire("victim") for _ in range(3)] == [True, True, False]
        assert all(caller.limiter.sync.acquire(f"key-{number}") for number in range(40_000))
        assert not caller.acquire("victim"), "a flood of new keys does not free a key"
        assert caller.fallback is None
        assert _event_kinds(name) == ["state_full"]


@fault("the table of shared:// has no room for a breaker, a permit or a record", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with _shared_state() as name:
        engine = SharedStore(name, memory=4)
        fill_with_records(engine)
        engine.close()
        store = open_store(f"shared://{name}?memory=4")
        breaker = CircuitBreaker("tested", threshold=3, cooldown_seconds=60, state=store).sync
        reached = 0
        while admission := breaker.allow():
            reached += 1
            breaker.record_failure(admission=admission)
        assert reached == 3, "every call of the circuit uses the same state"
        assert store.fallback is None, "other keys are not affected"
        assert _event_kinds(name).count("state_key_unusable") == 1


@fault("the directory of shared:// is removed", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with _shared_state() as name:
        caller = env.caller_at(f"shared://{name}", TWO_AT_ONCE, "tested")
        assert [caller.acquire() for _ in range(3)] == [True, True, False]
        shutil.rmtree(directory_path(name))
        wait_until(caller.acquire, "the new directory is in use", RECOVERY_SECONDS_MAX)
        assert Path(directory_path(name)).is_dir()
        assert caller.fallback is None
        assert _event_kinds(name) == ["state_replaced"]


@fault("a process is stopped while it holds a lock of shared://")
def _(env: FaultEnvironment) -> None:
    with _shared_state() as name:
        url = f"shared://{name}?lock_timeout=0.1"
        caller, fast = (
            env.caller_at(url, SLOW_REFILL, "tested"),
            env.caller_at(url, FAST_REFILL, "fast"),
        )
        assert caller.acquire()
        fast.acquire()
        with ExitStack() as stopped:
            for lock in Path(directory_path(name)).glob("lock.*"):
                fcntl.flock(stopped.enter_context(lock.open("r+b")), fcntl.LOCK_EX)
            assert not caller.acquire()
            assert caller.fallback is not None
            assert "was not free" in caller.fallback.reason
            wait_until(fast.acquire, "the share grants something", RECOVERY_SECONDS_MAX)
        env.wait_for_recovery(caller)
        assert caller.acquire()


def _slot(cluster: Cluster, key: str) -> int:
    return int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", key))


def _names_on(cluster: Cluster, node: Server, pattern: str) -> Iterator[str]:
    """Yield names whose key a node owns."""
    for number in itertools.count():
        if cluster.node_of(_slot(cluster, pattern.format(f"n{number}"))) is node:
            yield f"n{number}"


def _event_kinds(name: str) -> list[str]:
    """Return the kinds of the events about a shared state."""
    return [event.kind for event in latest_events() if event.source == f"shared://{name}"]


@contextmanager
def _shared_state() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        shutil.rmtree(directory_path(name))
