"""Servers that answer with an error, and servers that lost scripts or data."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import redis
from tests.faults.catalog import fault, outage
from tests.faults.environment import NO_DEADLINE, RECOVERY_SECONDS_MAX, RELIABLE, FaultEnvironment

from comporta import LimitConfig
from comporta.testing import FaultProxy, Server
from comporta.testing.programs import free_port
from comporta.testing.redis_server import HOST, wait_until

CAPACITY = 100
HUNDRED = LimitConfig(0.001, CAPACITY)

NOT_WRITTEN = {0}
"""The server itself says that it did not carry out the call."""

# Between two megabytes the server answers clients that it is loading.
_KEYS_TO_LOAD = 24
_SLOW_TO_LOAD = ("--dbfilename", "kept.rdb", "--rdbcompression", "no", "--key-load-delay", "40000")
_FILL = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'filler:' .. i, string.rep('x', ARGV[2])) end"


@fault("the server's scripts are flushed")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    env.wait_until_served(caller)
    env.server.command("CONFIG", "SET", "slowlog-log-slower-than", 0)  # so that the slow log lists every call
    for call in (caller.acquire, caller.decide):
        env.server.command("SCRIPT", "FLUSH")
        env.server.command("SLOWLOG", "RESET")
        before = env.charged()
        assert call()
        assert _calls(env, "rate_limiter:tested:k") == ["EVALSHA", "EVAL"], "loaded by the same call, once"
        assert env.charged() == before + 1
        assert call()
        assert _calls(env, "rate_limiter:tested:k") == ["EVALSHA", "EVAL", "EVALSHA"]
    assert caller.fallback is None


@outage("the server becomes a replica", "READONLY", NOT_WRITTEN)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.server.command("REPLICAOF", HOST, free_port())
    connections = env.proxy.connections
    yield
    wait_until(lambda: env.proxy.connections > connections, "a new connection is made", RECOVERY_SECONDS_MAX)
    env.server.promote()


@outage("the server is a replica without its primary", "MASTERDOWN", NOT_WRITTEN)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.server.command("CONFIG", "SET", "replica-serve-stale-data", "no")
    env.server.command("REPLICAOF", HOST, free_port())
    yield
    env.server.promote()


@outage("the server is out of memory", "OOM", NOT_WRITTEN)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.server.command("CONFIG", "SET", "maxmemory", 1)
    yield
    env.server.command("CONFIG", "SET", "maxmemory", 0)


@outage("too few replicas for a write", "NOREPLICAS", NOT_WRITTEN)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.server.command("CONFIG", "SET", "min-replicas-to-write", 1)
    yield
    env.server.command("CONFIG", "SET", "min-replicas-to-write", 0)


@outage("the server cannot save to disk", "MISCONF", NOT_WRITTEN)
def _(env: FaultEnvironment) -> Iterator[None]:
    obstacle = env.server._directory_path() / "dump.rdb"
    obstacle.mkdir()
    env.server.command("CONFIG", "SET", "save", "3600 1")
    env.server.command("BGSAVE")
    wait_until(lambda: _last_save(env) == "err", "saving fails", RECOVERY_SECONDS_MAX)
    yield
    obstacle.rmdir()
    env.server.command("BGSAVE")
    wait_until(lambda: _last_save(env) == "ok", "saving works", RECOVERY_SECONDS_MAX)


@outage("another script blocks the server", "BUSY", NOT_WRITTEN)
def _(env: FaultEnvironment) -> Iterator[None]:
    env.server.command("CONFIG", "SET", "lua-time-limit", 1)
    endless = threading.Thread(target=_loop, args=(env.server,))
    endless.start()
    wait_until(lambda: _is_busy(env.server), "the server says that it is busy", RECOVERY_SECONDS_MAX)
    yield
    env.server.command("SCRIPT", "KILL")
    endless.join()


@outage("the server pauses its clients", "did not answer in time", options="")
def _(env: FaultEnvironment) -> Iterator[None]:
    env.server.command("CLIENT", "PAUSE", 60_000, "WRITE")
    yield
    env.server.command("CLIENT", "UNPAUSE")


@outage("the server has too many clients", "cannot be (reached|used)", NOT_WRITTEN)
def _(env: FaultEnvironment) -> Iterator[None]:
    with redis.Redis(port=env.server.port, single_connection_client=True) as operator:
        max_clients = operator.config_get("maxclients")["maxclients"]
        operator.config_set("maxclients", 1)
        env.proxy.reset_connections()
        yield
        newcomer = env.caller(options=f"{NO_DEADLINE}&connect_timeout=2")
        assert not newcomer.acquire()
        assert newcomer.fallback is not None
        assert "max number of clients" in newcomer.fallback.reason
        operator.config_set("maxclients", max_clients)


@fault("the server is loading its data")
def _(env: FaultEnvironment) -> None:
    with env.another(*_SLOW_TO_LOAD) as slow, _restart_slowly(slow.server):
        caller, reliable = slow.caller(), slow.caller(options=RELIABLE)
        assert not caller.acquire()
        assert caller.fallback is not None
        assert not reliable.acquire()
        assert reliable.fallback is not None
        assert "LOADING" in reliable.fallback.reason
        slow.wait_for_recovery(caller)
        assert slow.server.command("DBSIZE") >= _KEYS_TO_LOAD, "the data was loaded at the recovery"
        slow.wait_until_served(caller)


@fault("the server is full and evicts nothing")
def _(env: FaultEnvironment) -> None:
    """Other keys fill the server; with ``noeviction`` no limit loses its bucket and starts full."""
    victim = env.caller(LimitConfig(0.001, 10), "victim", NO_DEADLINE)
    granted = sum(victim.acquire() for _ in range(5))
    env.server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    env.server.command("CONFIG", "SET", "maxmemory", "6mb")
    try:
        env.server.command("EVAL", _FILL, 0, 100_000, 100, timeout=60)
    except RuntimeError as error:
        assert "OOM" in str(error)  # noqa: PT017 - it is full, as intended
    granted += sum(victim.acquire() for _ in range(50))
    assert victim.fallback is not None
    assert "OOM" in victim.fallback.reason
    env.server.command("CONFIG", "SET", "maxmemory", 0)
    env.wait_for_recovery(victim)
    granted += sum(victim.acquire() for _ in range(50))
    assert granted == 10


@fault("the server restarts empty")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(HUNDRED, options=RELIABLE)
    before = sum(caller.acquire() for _ in range(CAPACITY + 20))
    env.server.restart()
    caller.acquire()
    env.wait_for_recovery(caller)
    after = sum(caller.acquire() for _ in range(CAPACITY + 20))
    assert before == CAPACITY
    assert 0 < after <= CAPACITY, "at most one burst"


@fault("a replica takes over that missed the last decisions")
def _(env: FaultEnvironment) -> None:
    """The address stays the same, as with a virtual IP, and leads to another server."""
    with FaultProxy.to(env.server) as link, _replica(env.server, link) as replica:
        caller = env.caller(HUNDRED, options=RELIABLE)
        assert caller.acquire()
        wait_until(lambda: replica.command("DBSIZE") > 1, "the replica has the bucket", RECOVERY_SECONDS_MAX)
        link.blackhole("replies")
        before = 1 + sum(caller.acquire() for _ in range(CAPACITY + 20))
        env.server.kill()
        replica.promote()
        env.proxy.target = (HOST, replica.port)
        caller.acquire()
        env.wait_for_recovery(caller)
        after = sum(caller.acquire() for _ in range(CAPACITY + 20))
        assert before == CAPACITY
        assert 0 < after <= CAPACITY, "what the replica missed, at most one burst"


def _calls(env: FaultEnvironment, key: str) -> list[str]:
    """Return the script calls for a key, in order."""
    entries = env.server.command("SLOWLOG", "GET", 100)
    commands = [entry[3] for entry in reversed(entries)]
    return [command[0] for command in commands if command[0].startswith("EVAL") and key in command]


def _last_save(env: FaultEnvironment) -> str:
    return env.server.info("persistence")["rdb_last_bgsave_status"]


def _loop(server: Server) -> None:
    with suppress(RuntimeError):  # killed by the test
        server.command("EVAL", "while true do end", 0, timeout=60)


def _is_busy(server: Server) -> bool:
    try:
        server.command("PING")
    except RuntimeError as error:
        return str(error).startswith("BUSY")
    return False


@contextmanager
def _restart_slowly(server: Server) -> Iterator[None]:
    """Restart a server whose data takes a while to load, and run the body while it loads."""
    server.command("EVAL", _FILL, 0, _KEYS_TO_LOAD, 1 << 20)
    server.command("SAVE")
    server.kill()
    start = threading.Thread(target=server.start)
    start.start()
    wait_until(lambda: _is_loading(server), "the server loads its data", RECOVERY_SECONDS_MAX)
    try:
        yield
    finally:
        start.join()


def _is_loading(server: Server) -> bool:
    try:
        server.command("PING")
    except RuntimeError as error:
        return str(error).startswith("LOADING")
    except OSError:
        pass  # not listening yet
    return False


@contextmanager
def _replica(primary: Server, link: FaultProxy) -> Iterator[Server]:
    """Yield a replica that is connected to its primary through a proxy."""
    with Server(primary.program, "--replicaof", HOST, str(link.port)) as replica:
        wait_until(
            lambda: replica.info("replication").get("master_link_status") == "up",
            "the replica is in sync",
            RECOVERY_SECONDS_MAX,
        )
        yield replica
