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

from comporta import StateUnavailableError
from comporta.events import latest_events
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.redis.protocol import WORKERS_KEY
from comporta.stores.redis.store import RedisStore
from comporta.stores.shared.directory import directory_path
from comporta.testing import Cluster, Server
from comporta.testing.redis_server import wait_until

ADVICE = r"is a node of a cluster \({}\): use redis\+cluster://"


@fault("a cluster node gets a key of another node", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with Cluster(2, env.server.program) as cluster:
        node = cluster.node_of(_slot(cluster, WORKERS_KEY))
        [other] = [each for each in cluster.nodes if each is not node]
        name = next(_names_on(cluster, node, "rate_limiter_change:{}"))
        away = next(_names_on(cluster, other, f"rate_limiter:{name}:{{}}"))
        moving = next(_names_on(cluster, node, f"rate_limiter:{name}:{{}}"))
        cluster.begin_move(_slot(cluster, f"rate_limiter:{name}:{moving}"), to=other)
        for number, (key, code) in enumerate([(away, "MOVED"), (moving, "ASK")]):
            caller = env.caller_at(f"{node.url}?timeout={5 + number}", SLOW_REFILL, name, prompt=False)
            with pytest.raises(StateUnavailableError, match=ADVICE.format(code)):
                caller.limiter.sync.reset(key)
            assert not caller.acquire(), "the share answers"
            assert caller.fallback is not None


@fault("a cluster node gets keys of several slots", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with Cluster(2, env.server.program) as cluster:
        node = cluster.node_of(_slot(cluster, "{t}"))
        store = RedisStore(node.url, timeout=5)
        store.uses_hash_tags = True  # so that all its keys are in one slot
        operation = LimitOperation([LimitDemand(SLOW_REFILL.build_strategy(), "t", "k", 1)])
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
        with pytest.raises(StateUnavailableError, match="CLUSTERDOWN"):
            caller.limiter.sync.reset("k")
        assert not caller.acquire()
        assert caller.fallback is not None
        wait_until(fast.acquire, "the share grants something", RECOVERY_SECONDS_MAX)


@fault("the table of shared:// is full", BLOCKING)
def _(env: FaultEnvironment) -> None:
    with _shared() as name:
        url = f"shared://{name}?memory=4"
        caller, fast = (
            env.caller_at(url, SLOW_REFILL, "tested"),
            env.caller_at(url, FAST_REFILL, "fast"),
        )
        granted = [caller.acquire(f"key-{number}") for number in range(500)]
        assert granted == sorted(granted, reverse=True), "while there was room"
        assert [caller.decide("key-0").remaining for _ in range(2)] == [99_998, 99_997], (
            "existing keys keep their state"
        )
        wait_until(lambda: fast.acquire("new"), "a new key uses the share", RECOVERY_SECONDS_MAX)
        assert fast.fallback is None, "other keys are not affected"
        published = [event for event in latest_events() if event.source == f"shared://{name}"]
        assert {event.kind for event in published} == {"state_key_unusable"}
        assert len({event.text for event in published}) == len(published), "each is named once"


@fault("a process is stopped while it holds a lock of shared://")
def _(env: FaultEnvironment) -> None:
    with _shared() as name:
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


@contextmanager
def _shared() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        shutil.rmtree(directory_path(name))
