"""Awkward keys of callers, and values that another program wrote."""

from __future__ import annotations

import time

import pytest
from tests.faults.catalog import fault
from tests.faults.environment import (
    FAST_REFILL,
    RECOVERY_SECONDS_MAX,
    RELIABLE,
    SLOW_REFILL,
    FaultEnvironment,
)

from comporta import LimitConfig
from comporta.testing.redis_server import wait_until

TEN_PER_SECOND = LimitConfig(10, 10)

AWKWARD = (
    "nul\0",
    "new\r\nline\r\n$3\r\nfoo",
    "{braces}",
    "{",
    "é 漢 🚪",
    "*?[glob]\\",
    " ",
    "~mark",
    "$1",
    "'\"--",
)
INVALID_VALUES = (
    "garbage",
    "",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "1e400",
    "-1e400",
    "-5",
    "1e17",
    "-1e17",
    "0x10",
)


@fault("a limit's key holds a value of another type")
def _(env: FaultEnvironment) -> None:
    fast, caller = env.caller(FAST_REFILL, "fast", RELIABLE), env.caller(options=RELIABLE)
    key = "rate_limiter:fast:taken"
    env.server.command("RPUSH", key, "a", "b")
    wait_until(lambda: fast.acquire("taken"), "this key uses the share", RECOVERY_SECONDS_MAX)
    assert fast.decide("taken").limit == FAST_REFILL.capacity
    assert fast.fallback is None, "other keys are not affected"
    assert caller.acquire()
    assert env.charged() == 1
    [event] = env.events("state_key_unusable", "state_fallback")
    assert event.severity == "error"
    assert f"'{key}'" in event.text
    assert "WRONGTYPE" in event.text
    assert env.server.command("LRANGE", key, 0, -1) == ["a", "b"], "left as it is"


@fault("a limit's key holds invalid values")
def _(env: FaultEnvironment) -> None:
    """With any value a caller gets at most one burst and waits at most as long as for a new bucket."""
    caller = env.caller(TEN_PER_SECOND, options=RELIABLE)
    for number, value in enumerate(INVALID_VALUES):
        for field in ("tokens", "last_refill"):
            key = f"{field}-{number}"
            assert caller.acquire(key)
            env.server.command("HSET", f"rate_limiter:tested:{key}", field, value)
            _assert_limited(env, key)
    for hours in (-1, 1):
        assert caller.acquire(f"hours{hours}")
        moment = time.time() + hours * 3600
        env.server.command("HSET", f"rate_limiter:tested:hours{hours}", "last_refill", f"{moment:.6f}")
        _assert_limited(env, f"hours{hours}")
    assert caller.fallback is None


@fault("keys with control characters, braces or any script")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    for number, key in enumerate(AWKWARD, 1):
        decisions = [caller.decide(key) for _ in range(number)]
        assert decisions[-1].remaining == SLOW_REFILL.capacity - number, "each key has its own bucket"
    assert len(env.server.command("KEYS", "rate_limiter:tested:*")) == len(AWKWARD), "and no other keys"
    with pytest.raises(ValueError, match="key must not be empty"):
        caller.decide("")
    assert caller.fallback is None


@fault("keys that are not valid Unicode")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    assert [caller.decide(key).remaining for key in ("\ud800", "\udfff", "\ud800")] == [
        99_999,
        99_999,
        99_998,
    ]
    assert caller.fallback is None


@fault("keys of the wrong type")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    for key in (True, 7, b"bytes", ["list"], {"a": 1}, object()):
        for call in (caller.acquire, caller.decide):
            with pytest.raises(TypeError, match="key must be a LimitKey, a str or None"):
                call(key)
    assert env.server.command("KEYS", "rate_limiter*") == [], "the server was not called"
    assert caller.acquire(None)
    assert env.server.command("KEYS", "rate_limiter*") == ["rate_limiter:tested"], "the limit as a whole"
    assert caller.fallback is None


@fault("keys of many megabytes")
def _(env: FaultEnvironment) -> None:
    caller = env.caller(options=RELIABLE)
    env.server.command("CONFIG", "SET", "proto-max-bulk-len", 1 << 20)
    for size in (201, 1 << 20, 16 << 20):
        assert [caller.decide("k" * size).remaining for _ in range(2)] == [99_999, 99_998]
    keys = env.server.command("KEYS", "rate_limiter:tested:*")
    assert len(keys) == 3
    assert max(map(len, keys)) < 100
    assert caller.fallback is None


def _assert_limited(env: FaultEnvironment, key: str) -> None:
    caller = env.caller(TEN_PER_SECOND, options=RELIABLE)
    began = time.monotonic()
    decisions = [caller.decide(key) for _ in range(25)]
    refilled = 1 + int((time.monotonic() - began) * TEN_PER_SECOND.rate)
    assert sum(decision.allowed for decision in decisions) <= TEN_PER_SECOND.capacity + refilled
    assert decisions[-1].retry_after <= 1.1, "at most a second of debt, and then the next token"
