"""Addresses that lead to a part of a cluster only, and states on this machine."""

from __future__ import annotations

import fcntl
import itertools
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.faults.rows import BLOCKING, row
from tests.faults.stage import LASTING, LIVELY, PATIENT, RETURN_SECONDS, UNHURRIED, Stage

from comporta import StateUnavailableError
from comporta.events import latest_events
from comporta.limits.operation import LimitOperation, Question
from comporta.stores.folder import path_of
from comporta.stores.redis import RedisStore
from comporta.stores.wire import WORKERS_KEY
from comporta.testing import Cluster, Server
from comporta.testing.servers import wait_until

ADVICE = r"is a node of a cluster \({}\): use redis\+cluster://"


@row("a node of a cluster is asked for another node's key", BLOCKING)
def _(stage: Stage) -> None:
    with Cluster(2, stage.server.program) as cluster:
        node = cluster.node_of(_slot(cluster, WORKERS_KEY))
        [other] = [each for each in cluster.nodes if each is not node]
        name = next(_names(cluster, node, "rate_limiter_change:{}"))
        away = next(_names(cluster, other, f"rate_limiter:{name}:{{}}"))
        moving = next(_names(cluster, node, f"rate_limiter:{name}:{{}}"))
        cluster.begin_move(_slot(cluster, f"rate_limiter:{name}:{moving}"), to=other)
        for number, (key, word) in enumerate([(away, "MOVED"), (moving, "ASK")]):
            caller = stage.caller_at(f"{node.url}?timeout={5 + number}", LASTING, name, prompt=False)
            with pytest.raises(StateUnavailableError, match=ADVICE.format(word)):
                caller.limiter.sync.reset(key)
            assert not caller.acquire(), "a decision is answered from the share"
            assert caller.fallback is not None


@row("a node of a cluster is asked for keys of several slots", BLOCKING)
def _(stage: Stage) -> None:
    with Cluster(2, stage.server.program) as cluster:
        node = cluster.node_of(_slot(cluster, "{t}"))
        store = RedisStore(node.url, timeout=5)
        store.tagged = True  # then all its keys are in one slot
        ask = LimitOperation([Question(LASTING.rule(), "t", "k", 1)])
        assert store.apply(ask)[0].wait_us == 0
        cluster.begin_move(_slot(cluster, "{t}"), to=next(each for each in cluster.nodes if each is not node))
        with pytest.raises(StateUnavailableError, match=ADVICE.format("TRYAGAIN|ASK")):
            store.apply(ask)
        store.close()
        caller = stage.caller_at(node.url + PATIENT, LASTING, "tested", prompt=False)
        assert not caller.acquire()
        assert caller.fallback is not None
        assert "use redis+cluster://" in caller.fallback.why


@row("a cluster is down", BLOCKING)
def _(stage: Stage) -> None:
    with stage.beside("--cluster-enabled", "yes") as down:  # nobody has its slots
        tested, lively = down.caller(options=UNHURRIED), down.caller(LIVELY, "lively", UNHURRIED)
        with pytest.raises(StateUnavailableError, match="CLUSTERDOWN"):
            tested.limiter.sync.reset("k")
        assert not tested.acquire()
        assert tested.fallback is not None
        wait_until(lively.acquire, "the share grants something", RETURN_SECONDS)


@row("the table of shared:// is full", BLOCKING)
def _(stage: Stage) -> None:
    with _shared() as name:
        url = f"shared://{name}?keys=1"
        tested, lively = stage.caller_at(url, LASTING, "tested"), stage.caller_at(url, LIVELY, "lively")
        granted = [tested.acquire(f"key-{number}") for number in range(500)]
        assert granted == sorted(granted, reverse=True), "as long as there was room"
        assert [tested.decide("key-0").remaining for _ in range(2)] == [99_998, 99_997], "who was in is in"
        wait_until(lambda: lively.acquire("new"), "a new key goes by the local share", RETURN_SECONDS)
        assert lively.fallback is None, "no other key is concerned"
        said = [event for event in latest_events() if event.source == f"shared://{name}"]
        assert {event.kind for event in said} == {"state_key_unusable"}
        assert len({event.text for event in said}) == len(said), "each is named once"


@row("a process is stopped while it holds a lock of shared://")
def _(stage: Stage) -> None:
    with _shared() as name:
        url = f"shared://{name}?lock_timeout=0.1"
        tested, lively = stage.caller_at(url, LASTING, "tested"), stage.caller_at(url, LIVELY, "lively")
        assert tested.acquire()
        lively.acquire()
        with ExitStack() as stopped:
            for lock in Path(path_of(name)).glob("lock.*"):
                fcntl.flock(stopped.enter_context(lock.open("r+b")), fcntl.LOCK_EX)
            assert not tested.acquire()
            assert tested.fallback is not None
            assert "was not free" in tested.fallback.why
            wait_until(lively.acquire, "the share grants something", RETURN_SECONDS)
        stage.back(tested)
        assert tested.acquire()


def _slot(cluster: Cluster, key: str) -> int:
    return int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", key))


def _names(cluster: Cluster, node: Server, pattern: str) -> Iterator[str]:
    """Give names of which a node has the key."""
    for number in itertools.count():
        if cluster.node_of(_slot(cluster, pattern.format(f"n{number}"))) is node:
            yield f"n{number}"


@contextmanager
def _shared() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        shutil.rmtree(path_of(name))
