"""The sentinel route: finding the primary, also after a failover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from comporta import StateAuthError, StateError, StateUnavailableError
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.sentinel import SentinelRoute
from comporta.stores.redis.store import RedisStore
from comporta.stores.registry import close_stores, open_store
from comporta.testing import FaultProxy, Sentinels, Server

READ = ReadRecord("s", "k")
FAILOVER_SECONDS_MAX = 60.0


@pytest.fixture
def primary(program: str) -> Iterator[Server]:
    with Server(program) as primary:
        yield primary


def retry_until_answered(attempt: Callable[[], object]) -> None:
    """Call until there is a reply; state errors are expected until then."""
    deadline = time.monotonic() + FAILOVER_SECONDS_MAX
    while True:
        try:
            attempt()
        except StateError:
            assert time.monotonic() < deadline
        else:
            return


async def retry_until_answered_async(store: RedisStore) -> None:
    deadline = time.monotonic() + FAILOVER_SECONDS_MAX
    while True:
        try:
            await store.apply_async(WriteRecord("s", "k", b"x", None))
        except StateError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        else:
            return


def test_sentinel__primary_killed__the_next_primary_is_used(primary: Server) -> None:
    with primary.replica(), Sentinels(primary) as sentinels:
        store = RedisStore(sentinels.url, connect_timeout=5)

        async def story() -> None:
            await retry_until_answered_async(store)
            store.probe()
            primary.kill()
            _, port = sentinels.wait_for_primary(other_than=primary.port)
            assert port != primary.port
            await retry_until_answered_async(store)
            await store.aclose()

        asyncio.run(story())
        retry_until_answered(lambda: store.apply(WriteRecord("s", "k", b"y", None)))
        retry_until_answered(store.probe)
        assert store.apply(READ) == b"y"
        store.close()


def test_sentinel__primary_becomes_a_replica__the_new_primary_is_used(primary: Server) -> None:
    """The old primary answers READONLY, which closes the connections to it."""
    with primary.replica(), Sentinels(primary) as sentinels:
        store = RedisStore(sentinels.url, connect_timeout=5)
        retry_until_answered(lambda: store.apply(WriteRecord("s", "k", b"x", None)))
        sentinels.nodes[0].command("SENTINEL", "FAILOVER", sentinels.service)
        sentinels.wait_for_primary(other_than=primary.port)
        retry_until_answered(lambda: store.apply(WriteRecord("s", "k", b"y", None)))
        store.close()


def test_sentinel__some_dead_or_silent__the_others_are_asked(primary: Server) -> None:
    with Sentinels(primary) as sentinels, FaultProxy.to(sentinels.nodes[1]) as proxy:
        sentinels.nodes[0].kill()
        proxy.hang()
        hosts = [sentinels.nodes[0].port, proxy.port, sentinels.nodes[2].port]
        addresses = ",".join(f"127.0.0.1:{port}" for port in hosts)
        store = RedisStore(f"redis+sentinel://{addresses}/main/0", timeout=5, connect_timeout=2)

        async def story() -> None:
            assert await store.apply_async(READ) is None
            await store.aclose()

        assert store.apply(READ) is None
        assert isinstance(store.route, SentinelRoute)
        assert store.route._sentinel_hosts[0][1] == sentinels.nodes[2].port  # first from now on
        store.route._sentinel_hosts.reverse()
        asyncio.run(story())
        store.close()


def test_sentinel__out_of_date__is_not_believed(primary: Server) -> None:
    """It names a server that has become a replica."""
    with Sentinels(primary, 1, 1) as sentinels, Server(primary.program) as other:
        primary.command("REPLICAOF", "127.0.0.1", other.port)
        store = RedisStore(sentinels.url, timeout=5, connect_timeout=5)
        with pytest.raises(StateUnavailableError, match="is not the primary"):
            store.apply(READ)

        async def story() -> None:
            with pytest.raises(StateUnavailableError, match="is not the primary"):
                await store.apply_async(READ)
            await store.aclose()

        asyncio.run(story())
        store.close()


def test_sentinel__unknown_service__is_named(primary: Server) -> None:
    with Sentinels(primary, 1, 1) as sentinels:
        url = sentinels.url.replace("/main/", "/other/")
        unknown = pytest.raises(StateUnavailableError, match="no service 'other'")
        with closing(RedisStore(url, timeout=5)) as store, unknown:
            store.apply(READ)


def test_sentinel__none_reachable__raises_the_reason(primary: Server) -> None:
    with FaultProxy.to(primary) as proxy:
        proxy.refuse_connections()
        url = f"valkey+sentinel://127.0.0.1:{proxy.port}/main?timeout=5"
        state: Any = open_store(url)
        store = state.primary
        for attempt in (lambda: store.apply(READ), store.probe):
            with pytest.raises(StateUnavailableError, match="no sentinel led to a primary of 'main'"):
                attempt()
    close_stores()


def test_sentinel__passwords__are_separate_for_servers_and_sentinels(program: str) -> None:
    with Server(program, password="right") as primary, Sentinels(primary, 1, 1) as sentinels:  # noqa: S106
        [sentinel] = sentinels.nodes
        with closing(RedisStore(sentinels.url, timeout=5, connect_timeout=5)) as store:
            assert store.apply(READ) is None
        sentinel.command("ACL", "SETUSER", "asker", "on", ">se:cret@", "+@all", "~*", "&*")
        sentinel.command("ACL", "SETUSER", "default", "off")
        credentials = "?sentinel_username=asker&sentinel_password=se%3Acret%40"
        with closing(RedisStore(sentinels.url + credentials, timeout=5, connect_timeout=5)) as store:
            assert store.apply(READ) is None
        with closing(RedisStore(sentinels.url, timeout=5, connect_timeout=5)) as store:
            with pytest.raises(StateAuthError) as raised:
                store.apply(READ)
            assert "right" not in str(raised.value)


def test_sentinel__tls__is_used_for_sentinels_and_servers(tls_program: str) -> None:
    with Server(tls_program, tls=True) as primary, Sentinels(primary, 1, 1) as sentinels:
        url = f"{sentinels.url}?ssl_ca_certs={primary.ca_file}"
        store = RedisStore(url, timeout=5, connect_timeout=5)

        async def story() -> None:
            assert await store.apply_async(READ) is None
            await store.aclose()

        assert store.apply(READ) is None
        asyncio.run(story())
        store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://h:1", "must end in /service"),
        ("redis+sentinel://h:1/a/0/b", "must end in /service"),
        ("redis+sentinel:///main", "at least one host"),
        ("redis+sentinel://h:x/main", "the port must be a number"),
    ],
)
def test_sentinel__invalid_url__is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_store(url)


def test_sentinel__hosts_in_a_url__may_leave_out_the_port_or_be_numbers() -> None:
    route = RedisStore("redis+sentinel://a,b:7,[::1],[::2]:8/main").route
    assert isinstance(route, SentinelRoute)
    assert route._sentinel_hosts == [("a", 26379), ("b", 7), ("::1", 26379), ("::2", 8)]
