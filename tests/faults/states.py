"""Servers that answer, but with an error; and servers that have forgotten something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import redis
from tests.faults.rows import outage, row
from tests.faults.stage import PATIENT, RETURN_SECONDS, UNHURRIED, Stage

from comporta import LimitConfig
from comporta.testing import FaultProxy, Server
from comporta.testing.programs import free_port
from comporta.testing.servers import HOST, wait_until

CAPACITY = 100
HUNDRED = LimitConfig(0.001, CAPACITY)

NOT_WRITTEN = {0}
"""The server says itself that it has not carried the call out."""

# Between two megabytes it has an ear for clients, and says that it is loading.
_KEYS_TO_LOAD = 24
_SLOW_TO_LOAD = ("--dbfilename", "kept.rdb", "--rdbcompression", "no", "--key-load-delay", "40000")
_FILL = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'filler:' .. i, string.rep('x', ARGV[2])) end"


@row("the server has forgotten the scripts")
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    stage.settle(tested)
    stage.server.command("CONFIG", "SET", "slowlog-log-slower-than", 0)  # so that it lists every call
    for ask in (tested.acquire, tested.decide):
        stage.server.command("SCRIPT", "FLUSH")
        stage.server.command("SLOWLOG", "RESET")
        before = stage.taken()
        assert ask()
        assert _calls(stage, "rate_limiter:tested:k") == ["EVALSHA", "EVAL"], "loaded by the same call, once"
        assert stage.taken() == before + 1
        assert ask()
        assert _calls(stage, "rate_limiter:tested:k") == ["EVALSHA", "EVAL", "EVALSHA"]
    assert tested.fallback is None


@outage("the server is a replica now", "READONLY", NOT_WRITTEN)
def _(stage: Stage) -> Iterator[None]:
    stage.server.command("REPLICAOF", HOST, free_port())
    connections = stage.proxy.connections
    yield
    wait_until(lambda: stage.proxy.connections > connections, "it connects anew", RETURN_SECONDS)
    stage.server.promote()


@outage("the server is a replica without its primary", "MASTERDOWN", NOT_WRITTEN)
def _(stage: Stage) -> Iterator[None]:
    stage.server.command("CONFIG", "SET", "replica-serve-stale-data", "no")
    stage.server.command("REPLICAOF", HOST, free_port())
    yield
    stage.server.promote()


@outage("the server is out of memory", "OOM", NOT_WRITTEN)
def _(stage: Stage) -> Iterator[None]:
    stage.server.command("CONFIG", "SET", "maxmemory", 1)
    yield
    stage.server.command("CONFIG", "SET", "maxmemory", 0)


@outage("too few replicas to write", "NOREPLICAS", NOT_WRITTEN)
def _(stage: Stage) -> Iterator[None]:
    stage.server.command("CONFIG", "SET", "min-replicas-to-write", 1)
    yield
    stage.server.command("CONFIG", "SET", "min-replicas-to-write", 0)


@outage("the server cannot save to disk", "MISCONF", NOT_WRITTEN)
def _(stage: Stage) -> Iterator[None]:
    in_the_way = stage.server._files() / "dump.rdb"
    in_the_way.mkdir()
    stage.server.command("CONFIG", "SET", "save", "3600 1")
    stage.server.command("BGSAVE")
    wait_until(lambda: _last_save(stage) == "err", "saving fails", RETURN_SECONDS)
    yield
    in_the_way.rmdir()
    stage.server.command("BGSAVE")
    wait_until(lambda: _last_save(stage) == "ok", "saving works", RETURN_SECONDS)


@outage("another script holds the server", "BUSY", NOT_WRITTEN)
def _(stage: Stage) -> Iterator[None]:
    stage.server.command("CONFIG", "SET", "lua-time-limit", 1)
    endless = threading.Thread(target=_loop, args=(stage.server,))
    endless.start()
    wait_until(lambda: _is_busy(stage.server), "it says that it is busy", RETURN_SECONDS)
    yield
    stage.server.command("SCRIPT", "KILL")
    endless.join()


@outage("the server pauses its clients", "did not answer in time", options="")
def _(stage: Stage) -> Iterator[None]:
    stage.server.command("CLIENT", "PAUSE", 60_000, "WRITE")
    yield
    stage.server.command("CLIENT", "UNPAUSE")


@outage("the server has too many clients", "cannot be (reached|used)", NOT_WRITTEN)
def _(stage: Stage) -> Iterator[None]:
    with redis.Redis(port=stage.server.port, single_connection_client=True) as operator:
        most = operator.config_get("maxclients")["maxclients"]
        operator.config_set("maxclients", 1)
        stage.proxy.cut()
        yield
        newcomer = stage.caller(options=f"{UNHURRIED}&connect_timeout=2")
        assert not newcomer.acquire()
        assert newcomer.fallback is not None
        assert "max number of clients" in newcomer.fallback.why
        operator.config_set("maxclients", most)


@row("the server is loading its data")
def _(stage: Stage) -> None:
    with stage.beside(*_SLOW_TO_LOAD) as slow, _restarting(slow.server):
        tested, patient = slow.caller(), slow.caller(options=PATIENT)
        assert not tested.acquire()
        assert tested.fallback is not None
        assert not patient.acquire()
        assert patient.fallback is not None
        assert "LOADING" in patient.fallback.why
        slow.back(tested)
        assert slow.server.command("DBSIZE") >= _KEYS_TO_LOAD, "it had its data when they came back"
        slow.settle(tested)


@row("the server evicts nothing and is full")
def _(stage: Stage) -> None:
    """Others filled it with their keys; with ``noeviction`` nobody gets a bucket that was thrown out anew."""
    victim = stage.caller(LimitConfig(0.001, 10), "victim", UNHURRIED)
    granted = sum(victim.acquire() for _ in range(5))
    stage.server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    stage.server.command("CONFIG", "SET", "maxmemory", "6mb")
    try:
        stage.server.command("EVAL", _FILL, 0, 100_000, 100, timeout=60)
    except RuntimeError as error:
        assert "OOM" in str(error)  # noqa: PT017 - that it is full is what was wanted
    granted += sum(victim.acquire() for _ in range(50))
    assert victim.fallback is not None
    assert "OOM" in victim.fallback.why
    stage.server.command("CONFIG", "SET", "maxmemory", 0)
    stage.back(victim)
    granted += sum(victim.acquire() for _ in range(50))
    assert granted == 10


@row("the server is started again, empty")
def _(stage: Stage) -> None:
    tested = stage.caller(HUNDRED, options=PATIENT)
    before = sum(tested.acquire() for _ in range(CAPACITY + 20))
    stage.server.restart()
    tested.acquire()
    stage.back(tested)
    after = sum(tested.acquire() for _ in range(CAPACITY + 20))
    assert before == CAPACITY
    assert 0 < after <= CAPACITY, "one burst at the most"


@row("a replica takes over that missed the last decisions")
def _(stage: Stage) -> None:
    """The callers' address stays, as with a virtual one; behind it is another server."""
    with FaultProxy.to(stage.server) as link, _replica(stage.server, link) as replica:
        tested = stage.caller(HUNDRED, options=PATIENT)
        assert tested.acquire()
        wait_until(lambda: replica.command("DBSIZE") > 1, "the replica has the bucket", RETURN_SECONDS)
        link.blackhole("replies")
        before = 1 + sum(tested.acquire() for _ in range(CAPACITY + 20))
        stage.server.kill()
        replica.promote()
        stage.proxy.target = (HOST, replica.port)
        tested.acquire()
        stage.back(tested)
        after = sum(tested.acquire() for _ in range(CAPACITY + 20))
        assert before == CAPACITY
        assert 0 < after <= CAPACITY, "what the replica missed, and no more than one burst"


def _calls(stage: Stage, key: str) -> list[str]:
    """Return the script calls for a key, in their order."""
    entries = stage.server.command("SLOWLOG", "GET", 100)
    words = [entry[3] for entry in reversed(entries)]
    return [said[0] for said in words if said[0].startswith("EVAL") and key in said]


def _last_save(stage: Stage) -> str:
    return stage.server.info("persistence")["rdb_last_bgsave_status"]


def _loop(server: Server) -> None:
    with suppress(RuntimeError):  # killed, as was to be
        server.command("EVAL", "while true do end", 0, timeout=60)


def _is_busy(server: Server) -> bool:
    try:
        server.command("PING")
    except RuntimeError as error:
        return str(error).startswith("BUSY")
    return False


@contextmanager
def _restarting(server: Server) -> Iterator[None]:
    """Have a server load data that takes a while, and be there while it does."""
    server.command("EVAL", _FILL, 0, _KEYS_TO_LOAD, 1 << 20)
    server.command("SAVE")
    server.kill()
    start = threading.Thread(target=server.start)
    start.start()
    wait_until(lambda: _is_loading(server), "it loads", RETURN_SECONDS)
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
        pass  # it does not listen yet
    return False


@contextmanager
def _replica(primary: Server, link: FaultProxy) -> Iterator[Server]:
    """Give a replica that hears of its primary through a proxy."""
    with Server(primary.program, "--replicaof", HOST, str(link.port)) as replica:
        wait_until(
            lambda: replica.info("replication").get("master_link_status") == "up",
            "the replica is in step",
            RETURN_SECONDS,
        )
        yield replica
