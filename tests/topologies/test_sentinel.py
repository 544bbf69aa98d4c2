"""State on a primary that sentinels watch: whoever is the primary, is found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from comporta import StateDeniedError, StateError, StateUnavailableError
from comporta.stores.records import Read, Write
from comporta.stores.redis import RedisStore
from comporta.stores.routes import Watched
from comporta.stores.urls import forget_stores, open_store
from comporta.testing import FaultProxy, Sentinels, Server

READ = Read("s", "k")
FOLLOWED_SECONDS = 60.0


@pytest.fixture
def primary(program: str) -> Iterator[Server]:
    with Server(program) as primary:
        yield primary


def answered(attempt: Callable[[], object]) -> None:
    """Ask until there is an answer; errors of ours are expected meanwhile."""
    deadline = time.monotonic() + FOLLOWED_SECONDS
    while True:
        try:
            attempt()
        except StateError:
            assert time.monotonic() < deadline
        else:
            return


async def answered_async(store: RedisStore) -> None:
    deadline = time.monotonic() + FOLLOWED_SECONDS
    while True:
        try:
            await store.apply_async(Write("s", "k", b"x", None))
        except StateError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        else:
            return


def test_sentinel__primary_killed__the_next_one_is_followed_on_both_faces(primary: Server) -> None:
    with primary.replica(), Sentinels(primary) as sentinels:
        store = RedisStore(sentinels.url, connect_timeout=5)

        async def story() -> None:
            await answered_async(store)
            store.reach()
            primary.kill()
            _, port = sentinels.wait_for_primary(other_than=primary.port)
            assert port != primary.port
            await answered_async(store)
            await store.aclose()

        asyncio.run(story())
        answered(lambda: store.apply(Write("s", "k", b"y", None)))
        answered(store.reach)
        assert store.apply(READ) == b"y"
        store.close()


def test_sentinel__primary_made_a_replica__is_left(primary: Server) -> None:
    """The old primary lives on and answers READONLY: that ends its connections."""
    with primary.replica(), Sentinels(primary) as sentinels:
        store = RedisStore(sentinels.url, connect_timeout=5)
        answered(lambda: store.apply(Write("s", "k", b"x", None)))
        sentinels.nodes[0].command("SENTINEL", "FAILOVER", sentinels.service)
        sentinels.wait_for_primary(other_than=primary.port)
        answered(lambda: store.apply(Write("s", "k", b"y", None)))
        store.close()


def test_sentinel__some_of_them_gone_or_silent__the_others_are_asked(primary: Server) -> None:
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
        assert isinstance(store.route, Watched)
        assert store.route._places[0][1] == sentinels.nodes[2].port  # asked first from now on
        store.route._places.reverse()
        asyncio.run(story())
        store.close()


def test_sentinel__that_is_behind__is_not_believed(primary: Server) -> None:
    """It names a server that is a replica by now."""
    with Sentinels(primary, 1, 1) as sentinels, Server(primary.program) as other:
        primary.command("REPLICAOF", "127.0.0.1", other.port)
        store = RedisStore(sentinels.url, timeout=5, connect_timeout=5)
        with pytest.raises(StateUnavailableError, match="is no primary"):
            store.apply(READ)

        async def story() -> None:
            with pytest.raises(StateUnavailableError, match="is no primary"):
                await store.apply_async(READ)
            await store.aclose()

        asyncio.run(story())
        store.close()


def test_sentinel__service_nobody_knows__is_named(primary: Server) -> None:
    with Sentinels(primary, 1, 1) as sentinels:
        url = sentinels.url.replace("/main/", "/other/")
        unknown = pytest.raises(StateUnavailableError, match="no service 'other'")
        with closing(RedisStore(url, timeout=5)) as store, unknown:
            store.apply(READ)


def test_sentinel__none_of_them_there__is_said(primary: Server) -> None:
    with FaultProxy.to(primary) as proxy:
        proxy.refuse()
        url = f"valkey+sentinel://127.0.0.1:{proxy.port}/main?timeout=5"
        state: Any = open_store(url)
        store = state.primary
        for attempt in (lambda: store.apply(READ), store.reach):
            with pytest.raises(StateUnavailableError, match="no sentinel led to a primary of 'main'"):
                attempt()
    forget_stores()


def test_sentinel__passwords__are_the_servers_and_the_sentinels_own(program: str) -> None:
    with Server(program, password="right") as primary, Sentinels(primary, 1, 1) as sentinels:  # noqa: S106
        [watcher] = sentinels.nodes
        with closing(RedisStore(sentinels.url, timeout=5, connect_timeout=5)) as store:
            assert store.apply(READ) is None
        watcher.command("ACL", "SETUSER", "asker", "on", ">se:cret@", "+@all", "~*", "&*")
        watcher.command("ACL", "SETUSER", "default", "off")
        given = "?sentinel_username=asker&sentinel_password=se%3Acret%40"
        with closing(RedisStore(sentinels.url + given, timeout=5, connect_timeout=5)) as store:
            assert store.apply(READ) is None
        with closing(RedisStore(sentinels.url, timeout=5, connect_timeout=5)) as store:
            with pytest.raises(StateDeniedError) as raised:
                store.apply(READ)
            assert "right" not in str(raised.value)


def test_sentinel__tls__is_spoken_to_all(tls_program: str) -> None:
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
    ("url", "said"),
    [
        ("redis+sentinel://h:1", "must end in /service"),
        ("redis+sentinel://h:1/a/0/b", "must end in /service"),
        ("redis+sentinel:///main", "at least one host"),
        ("redis+sentinel://h:x/main", "the port must be a number"),
    ],
)
def test_sentinel__url_that_makes_no_sense__is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_store(url)


def test_sentinel__hosts_in_a_url__may_leave_out_the_port_or_be_numbers() -> None:
    route = RedisStore("redis+sentinel://a,b:7,[::1],[::2]:8/main").route
    assert isinstance(route, Watched)
    assert route._places == [("a", 26379), ("b", 7), ("::1", 26379), ("::2", 8)]
