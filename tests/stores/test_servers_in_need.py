"""Servers that answer, but not with what was asked for: each says why, and what is the matter is named.

What is asked for is a decision; both faces are tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import SERVERS

from comporta import (
    LimitConfig,
    StateDeniedError,
    StateError,
    StateForbiddenError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.limits.take import Asked, Take
from comporta.stores.records import Read
from comporta.stores.redis import RedisStore
from comporta.stores.wire import WORKERS_KEY, pack
from comporta.testing import Cluster, FaultProxy, Server, find_servers
from comporta.testing.servers import wait_until

TAKE = Take(Asked(LimitConfig(10, 10).rule(), "n"), "k", 1)
KINDS = sorted(SERVERS)


@pytest.fixture(params=KINDS)
def program(request: pytest.FixtureRequest) -> str:
    return SERVERS[request.param]


@pytest.fixture
def own(program: str) -> Iterator[Server]:
    """Give a server that the test may spoil."""
    with Server(program) as server:
        yield server


def faces(store: RedisStore) -> list[Callable[[], object]]:
    async def awaited() -> object:
        try:
            return await store.apply_async(TAKE)
        finally:
            await store.aclose()

    return [lambda: store.apply(TAKE), lambda: asyncio.run(awaited())]


def refused(url: str, kind: type[StateError], said: str, *, reach: bool = True) -> None:
    """See that every way to ask ends in this error, and leaves no connection that would do so again."""
    store = RedisStore(url, timeout=5)
    attempts = [*faces(store), *([store.reach] if reach else [])]
    for attempt in attempts:
        with pytest.raises(StateError, match=said) as raised:
            attempt()
        assert type(raised.value) is kind
    store.close()


def test_replica__asked__is_read_only_and_not_asked_again_on_that_connection(own: Server) -> None:
    with own.replica() as replica:
        refused(replica.url, StateUnavailableError, "READONLY")
        store = RedisStore(replica.url, timeout=5)
        with pytest.raises(StateUnavailableError, match="READONLY"):
            store.apply(TAKE)
        assert not store._pool.idle
        replica.promote()
        assert store.apply(TAKE) == 0
        store.close()


def test_replica__awaited__is_read_only_and_not_asked_again_on_that_connection(own: Server) -> None:
    async def story(replica: Server) -> None:
        store = RedisStore(replica.url, timeout=5)
        with pytest.raises(StateUnavailableError, match="READONLY"):
            await store.apply_async(TAKE)
        assert store.lines()._line_of(asyncio.get_running_loop())._connection is None
        replica.promote()
        assert await store.apply_async(TAKE) == 0
        await store.aclose()

    with own.replica() as replica:
        asyncio.run(story(replica))


def test_replica__without_its_primary__is_master_down(own: Server) -> None:
    with own.replica(replica_serve_stale_data="no") as replica:
        own.kill()
        wait_until(lambda: replica.info("replication")["master_link_status"] != "up", "it noticed", 30)
        refused(replica.url, StateUnavailableError, "MASTERDOWN")


def test_server__out_of_memory__says_so(own: Server) -> None:
    own.command("CONFIG", "SET", "maxmemory", "1")
    refused(own.url, StateUnavailableError, "OOM")


def test_server__too_few_replicas__says_so(own: Server) -> None:
    own.command("CONFIG", "SET", "min-replicas-to-write", "1")
    refused(own.url, StateUnavailableError, "NOREPLICAS")


def test_server__cannot_save__says_so(program: str) -> None:
    with Server(program, "--dbfilename", "a-folder") as own:
        own.command("CONFIG", "SET", "save", "3600 1")
        (Path(own.command("CONFIG", "GET", "dir")[1]) / "a-folder").mkdir()
        own.command("SET", "x", "y")
        own.command("BGSAVE")
        wait_until(lambda: own.info("persistence")["rdb_last_bgsave_status"] == "err", "it failed", 30)
        refused(own.url, StateUnavailableError, "MISCONF")


def test_server__too_many_clients__says_so(own: Server) -> None:
    own.command("CONFIG", "SET", "maxclients", "1")
    holder = RedisStore(own.url, timeout=5)
    holder.apply(Read("s", "k"))
    refused(own.url, StateUnavailableError, "max number of clients")
    holder.close()


def test_server__wants_another_password__denies(program: str) -> None:
    with Server(program, password="right") as own:  # noqa: S106 - a secret of this test
        wrong = own.url.replace(":right@", ":hunter2@")
        none = own.url.replace(":right@", "")
        refused(wrong, StateDeniedError, "WRONGPASS|invalid")
        refused(none, StateDeniedError, "NOAUTH|Authentication required")


def test_user__may_not_write__is_denied(own: Server) -> None:
    own.command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-@write")
    refused(
        own.url.replace("redis://", "redis://reader:secret@"), StateForbiddenError, "permission|can't run"
    )


def test_user__may_not_touch_the_key__is_denied(own: Server) -> None:
    own.command("ACL", "SETUSER", "other", "on", ">secret", "~other:*", "+@all")
    refused(own.url.replace("redis://", "redis://other:secret@"), StateForbiddenError, "permission|can't")


def test_node_of_a_cluster__by_a_plain_url__names_the_remedy(program: str) -> None:
    with Cluster(2, program) as cluster:
        for node in cluster.nodes:
            refused(node.url, StateUnavailableError, r"redis\+cluster://", reach=False)


def test_server__busy_with_a_script__says_so(own: Server) -> None:
    own.command("CONFIG", "SET", "lua-time-limit", "1")
    stuck = RedisStore(own.url, timeout=5)
    stuck.reach()
    connection = stuck._pool.idle.pop()[0]
    connection.send_packed_command([pack(("EVAL", "while true do end", 0))], check_health=False)
    wait_until(lambda: not _pings(own), "it is busy", 30)
    refused(own.url, StateUnavailableError, "BUSY")
    own.command("SCRIPT", "KILL")
    connection.disconnect()


def _pings(server: Server) -> bool:
    try:
        return bool(server.command("PING", timeout=1))
    except RuntimeError:
        return False


# what is not in need ----------------------------------------------------------------------------------------


def test_reach__server_is_well__leaves_a_connection_and_changes_nothing(own: Server) -> None:
    store = RedisStore(own.url, timeout=5)
    store.reach()
    [(connection, _)] = store._pool.idle
    store.reach()
    assert store._pool.idle[0][0] is connection
    assert own.command("KEYS", "*") == []
    own.command("RPUSH", WORKERS_KEY, "not ours")
    store.reach()
    store.close()


def test_reach__something_else_answers__is_unavailable(own: Server) -> None:
    store = RedisStore(own.url, timeout=5)
    store.reach()
    store._pool.idle[0][0].read_response = lambda: b"OK"  # type: ignore[method-assign]
    with pytest.raises(StateUnavailableError, match="cannot be used"):
        store.reach()
    store.close()


def test_reach__no_answer_at_all__is_a_timeout(own: Server) -> None:
    with FaultProxy.to(own) as proxy:
        store = RedisStore(proxy.url)
        store.reach()
        proxy.hang()
        with pytest.raises(StateTimeoutError):
            store.reach()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            store.reach()
        store.close()


@pytest.mark.parametrize("members", [0, 3])
def test_workers__that_live__are_heard_of_with_every_decision(own: Server, members: int) -> None:
    for number in range(members):
        own.command("ZADD", WORKERS_KEY, number, f"worker-{number}")
    store = RedisStore(own.url, timeout=5)
    for ask in faces(store):
        store.workers_heard = -1
        assert ask() == 0
        assert store.workers_heard == members
    store.close()


def test_workers__something_else_at_their_key__counts_as_none(own: Server) -> None:
    own.command("SET", WORKERS_KEY, "not ours")
    store = RedisStore(own.url, timeout=5)
    heard: list[int] = []
    store.heard = heard.append
    for ask in faces(store):
        assert ask() == 0
    assert heard == [0, 0]
    assert own.command("GET", WORKERS_KEY) == "not ours"
    store.close()


def test_unix_socket__is_a_server_like_any_other(program: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Server(program, "--unixsocket", str(path)):
        store = RedisStore(f"unix://{path}", timeout=5)
        assert [ask() for ask in faces(store)] == [0, 0]
        store.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls__with_an_authority_given__is_spoken_on_both_faces(host: str) -> None:
    program = next(iter(find_servers(tls=True).values()))
    with Server(program, tls=True) as server:
        url = f"{server.url.replace('127.0.0.1', host)}?ssl_ca_certs={server.ca_file}"
        store = RedisStore(url, timeout=5, connect_timeout=5)
        assert [ask() for ask in faces(store)] == [0, 0]
        store.close()


def test_tls__certificate_of_nobody_we_trust__is_refused() -> None:
    program = next(iter(find_servers(tls=True).values()))
    with Server(program, tls=True) as server:
        refused(server.url, StateUnavailableError, "certificate")


def test_wrong_type__at_the_key__is_named(own: Server) -> None:
    own.command("SET", "rate_limiter:n:k", "x")
    refused(own.url, StateTypeError, "rate_limiter:n:k", reach=False)
