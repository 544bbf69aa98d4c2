"""What ``comporta doctor`` checks on a Redis or Valkey server.

Everything comporta needs is tried for real, because what a server allows is known only then: a proxy, a
hosted server or its administrator may have taken any command away. Keys are throw-away ones that end by
themselves. ``ACL DRYRUN`` is not asked: whoever may call it is hardly ever the one whose rights are in doubt.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from hashlib import sha1

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from comporta.breaker import operation as breaker
from comporta.cache import changes
from comporta.cli.checks import (
    Finding,
    decisions,
    good,
    mend,
    mind,
    promptness,
    throw_away_name,
    timed,
    workers,
)
from comporta.cli.line import Line, Word
from comporta.cli.states import PATIENCE_SECONDS
from comporta.clock import MONOTONIC
from comporta.limits import holding
from comporta.limits.operation import CHANGES, SPACE
from comporta.retry import budget
from comporta.stores import history, journal
from comporta.stores.redis import RedisStore
from comporta.stores.workers import RETURN, WORKERS
from comporta.watching import fleet

OLDEST = (6, 2)
_FULL_SHARE = 0.8
_CLOCK_SECONDS = 1.0
_KEYS_LIVE_MS = 10_000
_TRIVIAL = "return 1"
_TRIVIAL_SHA = sha1(_TRIVIAL.encode(), usedforsecurity=False).hexdigest()
_KEEPS_LIVE_LIMITS = ("noeviction", "volatile-ttl")
_OTHERS = (
    *(breaker.SPACE, breaker.CHANGES, holding.SPACE, budget.SPACE, changes.SPACE),
    *(history.SPACE, journal.SPACE, fleet.STANDINGS, fleet.TURNS, fleet.FLEET, fleet.STORY),
)
_NO_COMMAND = re.compile(r"permissions to run|unknown command", re.IGNORECASE)
_NO_KEY = re.compile(r"permissions to access", re.IGNORECASE)


def examine(store: RedisStore, deadline: float) -> Iterator[Finding]:
    """Check a server. What is built on something that must be mended first is left out."""
    line = Line(store.url, PATIENCE_SECONDS)
    try:
        reached = connect(line, store.address)
        yield reached
        if reached.verdict != "mend":
            yield from _on(line, store, deadline)
    except (RedisError, OSError) as error:
        yield mend("connection", f"lost while checking: {_why(error)}")
    finally:
        line.close()


def _on(line: Line, store: RedisStore, deadline: float) -> Iterator[Finding]:
    about = identity(line)
    yield version(about)
    yield (as_primary := role(about))
    if as_primary.verdict == "mend":
        return
    memory = line.info("memory") or line.pairs("CONFIG", "GET", "maxmemory*")
    yield eviction(memory)
    yield room(memory)
    yield clock(line)
    yield restart(line.info("persistence"))
    yield replicas(line.info("replication"))
    yield (may_run := commands(line))
    yield (may_use := keys(line))
    if "mend" in (may_run.verdict, may_use.verdict):
        return
    yield latency(line, deadline)
    yield decisions(store)
    yield workers(store)


def connect(line: Line, address: str) -> Finding:
    """Connect, be let in, and say how long that took."""
    began_ns = MONOTONIC.now_ns()
    try:
        line.connect()
        line.pairs("HELLO")  # not before the first command does a server say that it wants a password
    except AuthenticationError as error:
        return mend("connect", f"{address} does not let us in: {_why(error)}. Check user and password.")
    except (RedisError, OSError) as error:
        return mend(
            "connect", f"{address} cannot be reached: {_why(error)}. Is it running? Is the URL right?"
        )
    return good("connect", f"{address}, in {(MONOTONIC.now_ns() - began_ns) / 1e6:.1f} ms")


def identity(line: Line) -> dict[str, str]:
    """Return what a server says of itself: ``server``, ``version``, ``mode``, ``role``, as far as it tells.

    Nobody can be forbidden to greet; servers too old to answer that may still tell by INFO.
    """
    told = line.pairs("HELLO")
    if told:
        return told
    found = line.info("server") | line.info("replication")
    return {"server": "redis", "version": found.get("redis_version", ""), "role": found.get("role", "")}


def version(about: dict[str, str]) -> Finding:
    """See that scripts may do what ours do."""
    name, told = about.get("server", "server"), about.get("version", "")
    numbers = tuple(int(number) for number in re.findall(r"\d+", told)[:2])
    needed = ".".join(map(str, OLDEST))
    if not numbers:
        return mind("version", f"the server does not tell; {needed} or newer is needed")
    if numbers < OLDEST:
        return mend("version", f"{name} {told}: {needed} or newer is needed")
    return good("version", f"{name} {told}")


def role(about: dict[str, str]) -> Finding:
    """See that it takes writes, for all keys."""
    told = about.get("role")
    if about.get("mode") == "cluster":
        return mend("role", "a node of a cluster, which knows only some of the keys: use redis+cluster://")
    if told in ("slave", "replica"):
        return mend("role", "a replica, which takes no writes: point the URL to the primary")
    return good("role", "primary" if told == "master" else told or "the server does not tell")


def eviction(memory: dict[str, str]) -> Finding:
    """See that a server short of memory does not throw out limits that are in force."""
    most, policy = _named(memory, "maxmemory"), _named(memory, "maxmemory-policy")
    if most is None or policy is None:
        return mind(
            "eviction", "unknown, INFO and CONFIG GET are forbidden; maxmemory-policy noeviction is best"
        )
    if most == "0":
        return good("eviction", f"{policy}, and no maxmemory: nothing is evicted")
    if policy in _KEEPS_LIVE_LIMITS:
        return good("eviction", policy)
    return mind(
        "eviction",
        f"{policy}: live limits may be evicted, and then start full: one extra burst; use noeviction",
    )


def room(memory: dict[str, str]) -> Finding:
    """See how much of the memory allowed is taken."""
    most, used = _named(memory, "maxmemory"), _named(memory, "used_memory")
    if most == "0":
        return good("memory", "no maxmemory is set")
    if most is None or used is None:
        return mind("memory", "unknown, INFO is forbidden")
    share = int(used) / int(most)
    detail = f"{share:.0%} of {int(most) / 2**20:,.0f} MB used"
    return mind("memory", f"{detail}: raise maxmemory") if share > _FULL_SHARE else good("memory", detail)


def clock(line: Line) -> Finding:
    """Compare the server's clock with ours; limits go by the server's alone."""
    began = time.time()
    try:
        seconds, microseconds = line.ask("TIME")
    except ResponseError as error:
        return mind("clock", f"unknown: {error}")
    return clock_apart(int(seconds) + int(microseconds) / 1e6 - (began + time.time()) / 2)


def clock_apart(seconds: float) -> Finding:
    """Say what a difference means; above 0 the server is ahead."""
    detail = f"the server is {abs(seconds):.3f} s {'ahead' if seconds > 0 else 'behind'}"
    if abs(seconds) > _CLOCK_SECONDS:
        return mind("clock", f"{detail}: harmless, limits go by the server's clock, but one of them is wrong")
    return good("clock", detail)


def restart(persistence: dict[str, str]) -> Finding:
    """Say what a restart costs."""
    if persistence.get("aof_enabled") == "1":
        return good("restart", "append-only file: limits go on where they were, but for the last second")
    return good("restart", "no append-only file: limits may start full again, one extra burst at the most")


def replicas(replication: dict[str, str]) -> Finding:
    """Say what a failover costs."""
    count = replication.get("connected_slaves", "unknown")
    if count in ("0", "unknown"):
        return good("replicas", {"0": "none"}.get(count, count))
    return good("replicas", f"{count}: a failover costs one extra burst at the most")


def commands(line: Line) -> Finding:
    """Run every command that comporta needs, on keys that are thrown away."""
    missing, failed = [], []
    for words in trial(f"comporta_doctor:{{{throw_away_name()}}}"):
        error = _refused(line, words)
        if error and _NO_COMMAND.search(error):
            missing.append(str(words[0]))
        elif error and not _NO_KEY.search(error):  # what may be done on which keys is another check
            failed.append(f"{words[0]}: {error}")
    if missing:
        return mend("commands", f"not allowed to this user, needed: {', '.join(missing)}")
    if failed:
        return mend("commands", failed[0])
    return good("commands", "all that are needed work")


def trial(prefix: str) -> list[tuple[Word, ...]]:
    """Return one call of each command, in an order that leaves nothing behind even if some are refused."""
    text, table, line = f"{prefix}:text", f"{prefix}:hash", f"{prefix}:set"
    return [
        ("TIME",),
        ("SCAN", 0, "MATCH", f"{prefix}*", "COUNT", 1),
        ("EVAL", _TRIVIAL, 0),
        ("EVALSHA", _TRIVIAL_SHA, 0),
        ("SET", text, 1, "PX", _KEYS_LIVE_MS),
        ("GET", text),
        ("MGET", text),
        ("DEL", text),
        ("HSET", table, "field", 1),
        ("PEXPIRE", table, _KEYS_LIVE_MS),
        ("HGET", table, "field"),
        ("HMGET", table, "field"),
        ("HDEL", table, "field"),
        ("EXISTS", table),
        ("ZADD", line, 1, "member"),
        ("ZCARD", line),
        ("ZRANGEBYSCORE", line, "-inf", "+inf"),
        ("ZREM", line, "member"),
        ("ZREMRANGEBYSCORE", line, "-inf", "+inf"),
    ]


def keys(line: Line) -> Finding:
    """See that this user may read and write where comporta keeps things, changing nothing."""
    name = throw_away_name()
    trials: dict[str, list[tuple[Word, ...]]] = {
        f"{SPACE}:*": [("HMGET", f"{SPACE}:{name}", "n"), ("HDEL", f"{SPACE}:{name}", "n")],
        f"{CHANGES}:*": [("GET", f"{CHANGES}:{name}"), ("DEL", f"{CHANGES}:{name}")],
        **{f"{space}:*": [("GET", f"{space}:{name}"), ("DEL", f"{space}:{name}")] for space in _OTHERS},
        WORKERS: [("ZCARD", WORKERS), ("ZREM", WORKERS, name)],
        RETURN: [("GET", RETURN), ("HDEL", RETURN, name)],  # it is no hash: nothing can be deleted
    }
    refused = {pattern: [_refused(line, words) for words in asked] for pattern, asked in trials.items()}
    missing = [
        pattern for pattern, errors in refused.items() if any(_NO_KEY.search(error) for error in errors)
    ]
    if missing:
        return mend("keys", f"not allowed to this user, needed: {', '.join(missing)}")
    if any(error.startswith("WRONGTYPE") for error in refused[WORKERS]):
        return mend("keys", f"{WORKERS} holds something else, so workers cannot be counted: delete it")
    return good("keys", "all that are needed may be used")


def latency(line: Line, deadline: float) -> Finding:
    """Time the least that a decision asks of a server."""
    return promptness(timed(lambda: line.ask("EVALSHA", _TRIVIAL_SHA, 0)), deadline)


def _refused(line: Line, words: tuple[Word, ...]) -> str:
    """Run a command and return why the server refuses it; empty if it does not."""
    try:
        line.ask(*words)
    except ResponseError as error:
        return str(error)
    return ""


def _why(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _named(memory: dict[str, str], name: str) -> str | None:
    """INFO and CONFIG spell the same name in two ways."""
    return memory.get(name, memory.get(name.replace("-", "_")))
