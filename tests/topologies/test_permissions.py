"""A user with exactly the permissions that docs/guides/stores.md lists can use every feature."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comporta import (
    BaseLimiter,
    CircuitBreaker,
    ConcurrencyLimit,
    Degradation,
    LimitConfig,
    LimitGroup,
    LimitStrategy,
    RetryBudget,
    StateAuthError,
    Upstream,
)
from comporta.events import Event
from comporta.fleet import FleetCounters, FleetPublisher, fleet_history_flow, fleet_status_flow
from comporta.flow import run
from comporta.stores.failover.worker_registry import REGISTRY_KEY
from comporta.stores.records import DeleteRecord, ReadRecord, WriteRecord
from comporta.stores.redis.cluster import ClusterStore
from comporta.stores.redis.store import RedisStore
from comporta.testing import Cluster, Sentinels, Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "stores.md"
HEARTBEAT = f"""
local now = redis.call('TIME')[1]
redis.call('ZADD', KEYS[1], now, 'me')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 0)
redis.call('ZRANGEBYSCORE', KEYS[1], 0, now)
redis.call('ZREM', KEYS[1], 'me')
return redis.call('ZCARD', '{REGISTRY_KEY}')
"""


def page_permissions() -> list[str]:
    """Return the words of the ACL rule on the page."""
    [rule] = re.findall(r"^ACL SETUSER comporta (.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [word for word in rule.split() if word != "\\"]


@pytest.fixture
def limited_server(program: str) -> Iterator[Server]:
    with Server(program) as server:
        server.command("ACL", "SETUSER", "comporta", *page_permissions())
        yield server


def user_url(url: str) -> str:
    return url.replace("://", "://comporta:secret@", 1)


def work(store: RedisStore | ClusterStore) -> None:
    """Use every feature that needs the store."""
    store.probe()
    for strategy in LimitStrategy:
        limiter = BaseLimiter(LimitConfig(10, 10, 1, strategy), store, f"all.{strategy.value}").sync
        assert limiter.acquire("k")
        limiter.decide("k", 2)
        limiter.peek("k")
        limiter.stats("k")
        limiter.release("k")
        limiter.set_limit(LimitConfig(5, 5, 1, strategy))
        assert limiter.acquire("other")
        limiter.reset("k")
    leased = BaseLimiter(LimitConfig(100, 10, lease=True), store, "all.leased").sync
    assert leased.acquire("k")
    leased.pause(1)
    leased.resume()
    Degradation(BaseLimiter("5/s", store, "all.degraded")).sync.record_error()
    breaker = CircuitBreaker("all", 1, state=store, failure_ratio=0.5).sync
    breaker.record_failure("no route")
    breaker.force("closed")
    breaker.reset()
    permits = ConcurrencyLimit("all", 1, state=store).sync
    with permits.slot():
        assert permits.in_use() == 1
    assert run(RetryBudget("all", store)._withdraw_flow())
    limits = [BaseLimiter("5/s", store, f"all.{name}") for name in "ab"]
    assert LimitGroup(*limits).sync.acquire(["k", "k"])
    assert store.apply(WriteRecord("comporta_notes", "k", b"x", 60))
    assert store.apply(ReadRecord("comporta_notes", "k")) == b"x"
    assert store.entries("comporta_notes") == {"k": b"x"}
    assert store.apply(DeleteRecord("comporta_notes", "k", b"x"))
    publish_and_read_fleet(store)


def publish_and_read_fleet(store: RedisStore | ClusterStore) -> None:
    """Publish the status of upstreams and read it back."""
    upstreams = {name: Upstream(name, "5/s", max_concurrent=2, state=store) for name in ("api.one", "two")}
    counters = FleetCounters()
    publisher = FleetPublisher(store, upstreams, counters)
    for name in upstreams:
        counters.counter("upstream_calls", 1, upstream=name, outcome="ok")
        publisher._writer.events.record(Event(1.0, "kind", name, "text", "info"))
    publisher.publish()
    status = run(fleet_status_flow(store))
    assert [(upstream["name"], upstream["minute"]["ok"]) for upstream in status["upstreams"]] == [
        ("api.one", 1),
        ("two", 1),
    ]
    assert len(status["events"]) == 2
    assert run(fleet_history_flow(store))["series"]["two"]["calls"] == [1]
    assert status["reasons"] == []


async def work_async(store: RedisStore | ClusterStore) -> None:
    limiter = BaseLimiter("5/s", store, "awaited")
    assert all(await asyncio.gather(*(limiter.acquire("k") for _ in range(5))))
    assert await store.entries_async("comporta_notes") == {}
    await store.aclose()


def test_permissions__of_the_page__are_enough_for_everything(limited_server: Server) -> None:
    store = RedisStore(user_url(limited_server.url), timeout=5)
    work(store)
    asyncio.run(work_async(store))
    store.close()


def test_permissions__of_the_page__are_enough_for_a_heartbeat(limited_server: Server) -> None:
    store = RedisStore(user_url(limited_server.url), timeout=5)
    store.probe()
    connection: Any = store._pool.idle[0][0]
    for command in (("EVAL", HEARTBEAT, 1, REGISTRY_KEY), ("ZADD", REGISTRY_KEY, 1, "me"), ("TIME",)):
        connection.send_command(*command)
        connection.read_response()
    store.close()


def test_permissions__of_the_page__are_not_enough_for_anything_else(limited_server: Server) -> None:
    store = RedisStore(user_url(limited_server.url), timeout=5)
    with pytest.raises(StateAuthError):
        store.apply(ReadRecord("other_application", "k"))
    store.close()


def test_permissions__of_the_page__are_enough_behind_sentinels(limited_server: Server) -> None:
    with Sentinels(limited_server, 1, 1) as sentinels:
        limited_server.command("ACL", "SETUSER", "comporta", "+role")
        store = RedisStore(user_url(sentinels.url), timeout=5, connect_timeout=5)
        work(store)
        store.close()


def test_permissions__of_the_page__are_enough_on_a_cluster(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.command("FLUSHALL")
        node.command("ACL", "SETUSER", "comporta", *page_permissions(), *("+cluster|slots", "+asking"))
    store = ClusterStore(user_url(cluster.url), 5, connect_timeout=5)
    work(store)
    asyncio.run(work_async(store))
    store.close()
    for node in cluster.nodes:
        node.command("ACL", "DELUSER", "comporta")
