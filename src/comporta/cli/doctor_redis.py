"""The checks of ``comporta doctor`` for a Redis or Valkey server.

The checks run every command that comporta needs, because a proxy, a hosting provider or an administrator may
have disabled any of them. They use temporary keys that expire. They do not use ``ACL DRYRUN``: a user with
restricted rights may rarely call it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from hashlib import sha1

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from comporta.breaker import operation as breaker
from comporta.cache import invalidation
from comporta.cli.doctor_checks import (
    Finding,
    call_times_ms,
    check_decisions,
    check_workers,
    fail,
    latency_finding,
    ok,
    temporary_name,
    warn,
)
from comporta.cli.redis_connection import CommandWord, DiagnosticConnection
from comporta.cli.state_option import DIAGNOSTIC_TIMEOUT_SECONDS
from comporta.clock import MONOTONIC
from comporta.fleet import reader
from comporta.limits.concurrency import permits
from comporta.limits.scripts import LIMIT_SPACE, OVERRIDE_SPACE, REPORT_SPACE
from comporta.retry import budget
from comporta.stores import history, journal
from comporta.stores.changes import CHANGES_KEY
from comporta.stores.failover.worker_registry import REGISTRY_KEY, REJOIN_SPACE
from comporta.stores.redis.store import RedisStore

VERSION_MIN = (6, 2)
_FULL_SHARE = 0.8
_CLOCK_SKEW_SECONDS = 1.0
_KEY_TTL_MS = 10_000
_TRIVIAL = "return 1"
_TRIVIAL_SHA = sha1(_TRIVIAL.encode(), usedforsecurity=False).hexdigest()
_SAFE_POLICIES = ("noeviction", "volatile-ttl")
_OTHER_SPACES = (
    *(breaker.SPACE, breaker.FORCED_SPACE, permits.PERMIT_SPACE, budget.SPACE, invalidation.NAMESPACE),
    *(history.SPACE, journal.SPACE, reader.SUMMARIES, reader.TURNS, reader.FLEET, reader.STORY),
    *(REPORT_SPACE, REJOIN_SPACE),
)
_NO_COMMAND = re.compile(r"permissions to run|unknown command", re.IGNORECASE)
_NO_KEY = re.compile(r"permissions to access", re.IGNORECASE)


def check_server(store: RedisStore, deadline: float) -> Iterator[Finding]:
    """Check a server. Skip the checks that depend on one that failed."""
    connection = DiagnosticConnection(store.url, DIAGNOSTIC_TIMEOUT_SECONDS)
    try:
        connected = check_connection(connection, store.address)
        yield connected
        if connected.status != "fail":
            yield from _check_connected(connection, store, deadline)
    except (RedisError, OSError) as error:
        yield fail("connection", f"lost during the checks: {_reason(error)}")
    finally:
        connection.close()


def _check_connected(
    connection: DiagnosticConnection, store: RedisStore, deadline: float
) -> Iterator[Finding]:
    about = server_identity(connection)
    yield check_version(about)
    yield (as_primary := check_role(about))
    if as_primary.status == "fail":
        return
    memory = connection.info("memory") or connection.call_pairs("CONFIG", "GET", "maxmemory*")
    yield check_eviction(memory)
    yield check_memory(memory)
    yield check_clock(connection)
    yield check_persistence(connection.info("persistence"))
    yield check_replicas(connection.info("replication"))
    yield (may_run := check_commands(connection))
    yield (may_use := check_keys(connection))
    if "fail" in (may_run.status, may_use.status):
        return
    yield check_latency(connection, deadline)
    yield check_decisions(store)
    yield check_workers(store)


def check_connection(connection: DiagnosticConnection, address: str) -> Finding:
    """Connect and authenticate, and report how long that took."""
    began_ns = MONOTONIC.now_ns()
    try:
        connection.connect()
        connection.call_pairs("HELLO")  # a server asks for a password only at the first command
    except AuthenticationError as error:
        return fail(
            "connect", f"{address} rejects the login: {_reason(error)}. Check the user and the password."
        )
    except (RedisError, OSError) as error:
        advice = "Check that the server is running and that the URL is right."
        return fail("connect", f"{address} is unreachable: {_reason(error)}. {advice}")
    return ok("connect", f"{address}, in {(MONOTONIC.now_ns() - began_ns) / 1e6:.1f} ms")


def server_identity(connection: DiagnosticConnection) -> dict[str, str]:
    """Return ``server``, ``version``, ``mode`` and ``role``, as far as the server reports them.

    Every user may call HELLO; servers too old to know it may still answer INFO.
    """
    hello = connection.call_pairs("HELLO")
    if hello:
        return hello
    info = connection.info("server") | connection.info("replication")
    return {"server": "redis", "version": info.get("redis_version", ""), "role": info.get("role", "")}


def check_version(about: dict[str, str]) -> Finding:
    """Check that the server is new enough for the scripts."""
    name, version = about.get("server", "server"), about.get("version", "")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    needed = ".".join(map(str, VERSION_MIN))
    if not numbers:
        return warn("version", f"unknown: the server does not report it; {needed} or newer is required")
    if numbers < VERSION_MIN:
        return fail("version", f"{name} {version}: {needed} or newer is required")
    return ok("version", f"{name} {version}")


def check_role(about: dict[str, str]) -> Finding:
    """Check that the server accepts writes for all keys."""
    role = about.get("role")
    if about.get("mode") == "cluster":
        return fail("role", "a node of a cluster, which holds only some of the keys: use redis+cluster://")
    if role in ("slave", "replica"):
        return fail("role", "a replica, which rejects writes: use the URL of the primary")
    return ok("role", "primary" if role == "master" else role or "the server does not report it")


def check_eviction(memory: dict[str, str]) -> Finding:
    """Check that a server that runs out of memory does not evict live limits."""
    most, policy = _memory_setting(memory, "maxmemory"), _memory_setting(memory, "maxmemory-policy")
    if most is None or policy is None:
        return warn(
            "eviction",
            "unknown: this user may not call INFO and CONFIG GET; use maxmemory-policy noeviction",
        )
    if most == "0":
        return ok("eviction", f"{policy}, and maxmemory is not set: the server evicts nothing")
    if policy in _SAFE_POLICIES:
        return ok("eviction", policy)
    return warn(
        "eviction",
        f"{policy}: the server may evict live limits, which then grant one extra burst; use noeviction",
    )


def check_memory(memory: dict[str, str]) -> Finding:
    """Check how much of ``maxmemory`` is used."""
    most, used = _memory_setting(memory, "maxmemory"), _memory_setting(memory, "used_memory")
    if most == "0":
        return ok("memory", "maxmemory is not set")
    if most is None or used is None:
        return warn("memory", "unknown: this user may not call INFO")
    share = int(used) / int(most)
    detail = f"{share:.0%} of {int(most) / 2**20:,.0f} MB used"
    return warn("memory", f"{detail}: raise maxmemory") if share > _FULL_SHARE else ok("memory", detail)


def check_clock(connection: DiagnosticConnection) -> Finding:
    """Compare the server's clock with this machine's; limits use only the server's."""
    began = time.time()
    try:
        seconds, microseconds = connection.call("TIME")
    except ResponseError as error:
        return warn("clock", f"unknown: {error}")
    return clock_finding(int(seconds) + int(microseconds) / 1e6 - (began + time.time()) / 2)


def clock_finding(seconds: float) -> Finding:
    """Return the finding for a difference of clocks; above 0 the server is ahead."""
    detail = f"the server is {abs(seconds):.3f} s {'ahead' if seconds > 0 else 'behind'}"
    if abs(seconds) > _CLOCK_SKEW_SECONDS:
        return warn("clock", f"{detail}: one clock is wrong; harmless, limits use only the server's clock")
    return ok("clock", detail)


def check_persistence(persistence: dict[str, str]) -> Finding:
    """Report what a restart of the server costs."""
    if persistence.get("aof_enabled") == "1":
        return ok("restart", "append-only file: a restart loses at most the last second of the limits")
    return ok("restart", "no append-only file: a restart resets limits, at most one extra burst each")


def check_replicas(replication: dict[str, str]) -> Finding:
    """Report what a failover of the server costs."""
    count = replication.get("connected_slaves", "unknown")
    if count in ("0", "unknown"):
        return ok("replicas", {"0": "none"}.get(count, count))
    return ok("replicas", f"{count}: a failover costs at most one extra burst of each limit")


def check_commands(connection: DiagnosticConnection) -> Finding:
    """Run every command that comporta needs, on temporary keys."""
    missing, failed = [], []
    for words in command_trials(f"comporta_doctor:{{{temporary_name()}}}"):
        error = _refusal(connection, words)
        if error and _NO_COMMAND.search(error):
            missing.append(str(words[0]))
        elif error and not _NO_KEY.search(error):  # ``check_keys`` reports rights on keys
            failed.append(f"{words[0]}: {error}")
    if missing:
        return fail("commands", f"this user may not run required commands: {', '.join(missing)}")
    if failed:
        return fail("commands", failed[0])
    return ok("commands", "all required commands work")


def command_trials(prefix: str) -> list[tuple[CommandWord, ...]]:
    """Return one call of each command, in an order that leaves no key behind even if some fail."""
    text, table, members = f"{prefix}:text", f"{prefix}:hash", f"{prefix}:set"
    return [
        ("TIME",),
        ("SCAN", 0, "MATCH", f"{prefix}*", "COUNT", 1),
        ("EVAL", _TRIVIAL, 0),
        ("EVALSHA", _TRIVIAL_SHA, 0),
        ("SET", text, 1, "PX", _KEY_TTL_MS),
        ("GET", text),
        ("MGET", text),
        ("DEL", text),
        ("HSET", table, "field", 1),
        ("PEXPIRE", table, _KEY_TTL_MS),
        ("PTTL", table),
        ("HGET", table, "field"),
        ("HMGET", table, "field"),
        ("HDEL", table, "field"),
        ("EXISTS", table),
        ("ZADD", members, 1, "member"),
        ("ZCARD", members),
        ("ZRANGEBYSCORE", members, "-inf", "+inf"),
        ("ZREM", members, "member"),
        ("ZREMRANGEBYSCORE", members, "-inf", "+inf"),
    ]


def check_keys(connection: DiagnosticConnection) -> Finding:
    """Check that this user may read and write the keys of comporta, without changing any."""
    name = temporary_name()
    trials: dict[str, list[tuple[CommandWord, ...]]] = {
        f"{LIMIT_SPACE}:*": [("HMGET", f"{LIMIT_SPACE}:{name}", "n"), ("HDEL", f"{LIMIT_SPACE}:{name}", "n")],
        f"{OVERRIDE_SPACE}:*": [("GET", f"{OVERRIDE_SPACE}:{name}"), ("DEL", f"{OVERRIDE_SPACE}:{name}")],
        **{f"{space}:*": [("GET", f"{space}:{name}"), ("DEL", f"{space}:{name}")] for space in _OTHER_SPACES},
        REGISTRY_KEY: [("ZCARD", REGISTRY_KEY), ("ZREM", REGISTRY_KEY, name)],
        CHANGES_KEY: [("ZCARD", CHANGES_KEY), ("ZREM", CHANGES_KEY, name)],
    }
    refusals = {
        pattern: [_refusal(connection, words) for words in commands] for pattern, commands in trials.items()
    }
    missing = [
        pattern for pattern, errors in refusals.items() if any(_NO_KEY.search(error) for error in errors)
    ]
    if missing:
        return fail("keys", f"this user may not use required keys: {', '.join(missing)}")
    if any(error.startswith("WRONGTYPE") for error in refusals[REGISTRY_KEY]):
        return fail("keys", f"{REGISTRY_KEY} holds a foreign value, so workers cannot be counted: delete it")
    return ok("keys", "this user may use all required keys")


def check_latency(connection: DiagnosticConnection, deadline: float) -> Finding:
    """Time a trivial script, which takes as long as the fastest possible decision."""
    return latency_finding(call_times_ms(lambda: connection.call("EVALSHA", _TRIVIAL_SHA, 0)), deadline)


def _refusal(connection: DiagnosticConnection, words: tuple[CommandWord, ...]) -> str:
    """Run a command and return why the server rejects it; empty if it does not."""
    try:
        connection.call(*words)
    except ResponseError as error:
        return str(error)
    return ""


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _memory_setting(memory: dict[str, str], name: str) -> str | None:
    """Return a memory setting, whose name INFO and CONFIG spell differently."""
    return memory.get(name, memory.get(name.replace("-", "_")))
