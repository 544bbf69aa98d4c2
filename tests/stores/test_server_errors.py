"""Servers that answer with an error: which ``StateError`` blocking and awaiting callers get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import SERVERS

from comporta import (
    LimitConfig,
    StateAuthError,
    StateError,
    StatePermissionError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.stores.failover.worker_registry import REGISTRY_KEY
from comporta.stores.records import ReadRecord
from comporta.stores.redis.protocol import pack
from comporta.stores.redis.store import RedisStore
from comporta.testing import Cluster, FaultProxy, Server
from comporta.testing.redis_server import wait_until

ACQUIRE = AcquireOperation(LimitDefinition(LimitConfig(10, 10).build_strategy(), "n"), "k", 1)
PROGRAMS = sorted(SERVERS)


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    return SERVERS[request.param]


@pytest.fixture
def own(program: str) -> Iterator[Server]:
    """Yield a server that the test may break."""
    with Server(program) as server:
        yield server


def attempts_on(store: RedisStore) -> list[Callable[[], object]]:
    async def apply_async() -> object:
        try:
            return await store.apply_async(ACQUIRE)
        finally:
            await store.aclose()

    return [lambda: store.apply(ACQUIRE), lambda: asyncio.run(apply_async())]


def assert_refused(url: str, error_class: type[StateError], message: str, *, probes: bool = True) -> None:
    """Check that blocking and awaiting calls and the probe all raise this error."""
    store = RedisStore(url, timeout=5)
    attempts = [*attempts_on(store), *([store.probe] if probes else [])]
    for attempt in attempts:
        with pytest.raises(StateError, match=message) as raised:
            attempt()
        assert type(raised.value) is error_class
    store.close()


def test_replica__call__raises_readonly_and_drops_the_connection(own: Server) -> None:
    with own.replica() as replica:
        assert_refused(replica.url, StateUnavailableError, "READONLY")
        store = RedisStore(replica.url, timeout=5)
        with pytest.raises(StateUnavailableError, match="READONLY"):
            store.apply(ACQUIRE)
        assert not store._pool.idle
        replica.promote()
        assert store.apply(ACQUIRE) == 0
        store.close()


def test_replica__async_call__raises_readonly_and_drops_the_connection(own: Server) -> None:
    async def story(replica: Server) -> None:
        store = RedisStore(replica.url, timeout=5)
        with pytest.raises(StateUnavailableError, match="READONLY"):
            await store.apply_async(ACQUIRE)
        assert store.pipelines()._pipeline_for(asyncio.get_running_loop())._connection is None
        replica.promote()
        assert await store.apply_async(ACQUIRE) == 0
        await store.aclose()

    with own.replica() as replica:
        asyncio.run(story(replica))


def test_replica__without_its_primary__raises_masterdown(own: Server) -> None:
    with own.replica(replica_serve_stale_data="no") as replica:
        own.kill()
        wait_until(
            lambda: replica.info("replication")["master_link_status"] != "up", "the replica noticed", 30
        )
        assert_refused(replica.url, StateUnavailableError, "MASTERDOWN")


def test_server__out_of_memory__raises_oom(own: Server) -> None:
    own.command("CONFIG", "SET", "maxmemory", "1")
    assert_refused(own.url, StateUnavailableError, "OOM")


def test_server__too_few_replicas__raises_noreplicas(own: Server) -> None:
    own.command("CONFIG", "SET", "min-replicas-to-write", "1")
    assert_refused(own.url, StateUnavailableError, "NOREPLICAS")


def test_server__cannot_save__raises_misconf(program: str) -> None:
    with Server(program, "--dbfilename", "a-folder") as own:
        own.command("CONFIG", "SET", "save", "3600 1")
        (Path(own.command("CONFIG", "GET", "dir")[1]) / "a-folder").mkdir()
        own.command("SET", "x", "y")
        own.command("BGSAVE")
        wait_until(lambda: own.info("persistence")["rdb_last_bgsave_status"] == "err", "the save failed", 30)
        assert_refused(own.url, StateUnavailableError, "MISCONF")


def test_server__too_many_clients__raises_the_reason(own: Server) -> None:
    holder = RedisStore(own.url, timeout=5)
    holder.apply(ReadRecord("s", "k"))  # before the command, whose connection the server may still count
    own.command("CONFIG", "SET", "maxclients", "1")
    assert_refused(own.url, StateUnavailableError, "max number of clients")
    holder.close()


def test_server__wrong_or_missing_password__raises_an_auth_error(program: str) -> None:
    with Server(program, password="right") as own:  # noqa: S106 - a secret of this test
        wrong = own.url.replace(":right@", ":hunter2@")
        none = own.url.replace(":right@", "")
        assert_refused(wrong, StateAuthError, "WRONGPASS|invalid")
        assert_refused(none, StateAuthError, "NOAUTH|Authentication required")


def test_user__no_permission_to_write__raises_a_permission_error(own: Server) -> None:
    own.command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-@write")
    assert_refused(
        own.url.replace("redis://", "redis://reader:secret@"), StatePermissionError, "permission|can't run"
    )


def test_user__no_permission_for_the_key__raises_a_permission_error(own: Server) -> None:
    own.command("ACL", "SETUSER", "other", "on", ">secret", "~other:*", "+@all")
    assert_refused(
        own.url.replace("redis://", "redis://other:secret@"), StatePermissionError, "permission|can't"
    )


def test_cluster_node__plain_url__names_the_right_scheme(program: str) -> None:
    with Cluster(2, program) as cluster:
        for node in cluster.nodes:
            assert_refused(node.url, StateUnavailableError, r"redis\+cluster://", probes=False)


def test_server__busy_with_a_script__raises_busy(own: Server) -> None:
    own.command("CONFIG", "SET", "lua-time-limit", "1")
    stuck = RedisStore(own.url, timeout=5)
    stuck.probe()
    connection = stuck._pool.idle.pop()[0]
    connection.send_packed_command([pack(("EVAL", "while true do end", 0))], check_health=False)
    wait_until(lambda: not _pings(own), "the server is busy", 30)
    assert_refused(own.url, StateUnavailableError, "BUSY")
    own.command("SCRIPT", "KILL")
    connection.disconnect()


def _pings(server: Server) -> bool:
    try:
        return bool(server.command("PING", timeout=1))
    except RuntimeError:
        return False


# usable servers ---------------------------------------------------------------------------------------------


def test_probe__usable_server__leaves_a_connection_and_changes_nothing(own: Server) -> None:
    store = RedisStore(own.url, timeout=5)
    store.probe()
    [(connection, _)] = store._pool.idle
    store.probe()
    assert store._pool.idle[0][0] is connection
    assert own.command("KEYS", "*") == []
    own.command("RPUSH", REGISTRY_KEY, "another type")
    store.probe()
    store.close()


def test_probe__unexpected_reply__is_unavailable(own: Server) -> None:
    store = RedisStore(own.url, timeout=5)
    store.probe()
    store._pool.idle[0][0].read_response = lambda: b"OK"  # type: ignore[method-assign]
    with pytest.raises(StateUnavailableError, match="cannot be used"):
        store.probe()
    store.close()


def test_probe__no_reply__is_a_timeout(own: Server) -> None:
    with FaultProxy.to(own) as proxy:
        store = RedisStore(proxy.url)
        store.probe()
        proxy.hang()
        with pytest.raises(StateTimeoutError):
            store.probe()
        proxy.refuse_connections()
        proxy.reset_connections()
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            store.probe()
        store.close()


def test_unix_socket__url__works_like_any_server(program: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Server(program, "--unixsocket", str(path)):
        store = RedisStore(f"unix://{path}", timeout=5)
        assert [attempt() for attempt in attempts_on(store)] == [0, 0]
        store.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls__authority_given__works_for_blocking_and_awaiting_callers(host: str, tls_program: str) -> None:
    with Server(tls_program, tls=True) as server:
        url = f"{server.url.replace('127.0.0.1', host)}?ssl_ca_certs={server.ca_file}"
        store = RedisStore(url, timeout=5, connect_timeout=5)
        assert [attempt() for attempt in attempts_on(store)] == [0, 0]
        store.close()


def test_tls__untrusted_certificate__is_refused(tls_program: str) -> None:
    with Server(tls_program, tls=True) as server:
        assert_refused(server.url, StateUnavailableError, "certificate")


def test_key__of_another_type__is_named(own: Server) -> None:
    own.command("SET", "rate_limiter:n:k", "x")
    assert_refused(own.url, StateTypeError, "rate_limiter:n:k", probes=False)
