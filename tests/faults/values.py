"""Keys that callers choose, and values that somebody else wrote."""

from __future__ import annotations

import time

import pytest
from tests.faults.rows import row
from tests.faults.stage import LASTING, LIVELY, PATIENT, RETURN_SECONDS, Stage

from comporta import LimitConfig
from comporta.testing.servers import wait_until

TEN_A_SECOND = LimitConfig(10, 10)

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
POISON = ("garbage", "", "nan", "-nan", "inf", "-inf", "1e400", "-1e400", "-5", "1e17", "-1e17", "0x10")


@row("something else lives at a limit's key")
def _(stage: Stage) -> None:
    lively, tested = stage.caller(LIVELY, "lively", PATIENT), stage.caller(options=PATIENT)
    key = "rate_limiter:lively:taken"
    stage.server.command("RPUSH", key, "a", "b")
    wait_until(lambda: lively.acquire("taken"), "this key goes by the local share", RETURN_SECONDS)
    assert lively.decide("taken").limit == LIVELY.capacity
    assert lively.fallback is None, "no other key is concerned"
    assert tested.acquire()
    assert stage.taken() == 1
    [said] = stage.events("state_key_unusable", "state_fallback")
    assert said.severity == "error"
    assert f"'{key}'" in said.text
    assert "WRONGTYPE" in said.text
    assert stage.server.command("LRANGE", key, 0, -1) == ["a", "b"], "left as it is"


@row("a limit's key holds impossible values")
def _(stage: Stage) -> None:
    """Whatever was written, nobody gets more than a burst, and nobody waits longer than for a new bucket."""
    tested = stage.caller(TEN_A_SECOND, options=PATIENT)
    for number, poison in enumerate(POISON):
        for field in ("tokens", "last_refill"):
            key = f"{field}-{number}"
            assert tested.acquire(key)
            stage.server.command("HSET", f"rate_limiter:tested:{key}", field, poison)
            _limited(stage, key)
    for hours in (-1, 1):
        assert tested.acquire(f"hours{hours}")
        moment = time.time() + hours * 3600
        stage.server.command("HSET", f"rate_limiter:tested:hours{hours}", "last_refill", f"{moment:.6f}")
        _limited(stage, f"hours{hours}")
    assert tested.fallback is None


@row("keys with control characters, braces or any script")
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    for number, key in enumerate(AWKWARD, 1):
        decisions = [tested.decide(key) for _ in range(number)]
        assert decisions[-1].remaining == LASTING.capacity - number, "each has a bucket of its own"
    assert len(stage.server.command("KEYS", "rate_limiter:tested:*")) == len(AWKWARD), (
        "and nothing else came of it"
    )
    with pytest.raises(ValueError, match="key must not be empty"):
        tested.decide("")
    assert tested.fallback is None


@row("keys that are no Unicode text")
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    assert [tested.decide(key).remaining for key in ("\ud800", "\udfff", "\ud800")] == [
        99_999,
        99_999,
        99_998,
    ]
    assert tested.fallback is None


@row("keys of the wrong type")
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    for key in (True, 7, b"bytes", ["list"], {"a": 1}, object()):
        for ask in (tested.acquire, tested.decide):
            with pytest.raises(TypeError, match="key must be a LimitKey, a str or None"):
                ask(key)
    assert stage.server.command("KEYS", "rate_limiter*") == [], "nothing was asked"
    assert tested.acquire(None)
    assert stage.server.command("KEYS", "rate_limiter*") == ["rate_limiter:tested"], "the limit as a whole"
    assert tested.fallback is None


@row("keys of many megabytes")
def _(stage: Stage) -> None:
    tested = stage.caller(options=PATIENT)
    stage.server.command("CONFIG", "SET", "proto-max-bulk-len", 1 << 20)
    for size in (201, 1 << 20, 16 << 20):
        assert [tested.decide("k" * size).remaining for _ in range(2)] == [99_999, 99_998]
    keys = stage.server.command("KEYS", "rate_limiter:tested:*")
    assert len(keys) == 3
    assert max(map(len, keys)) < 100
    assert tested.fallback is None


def _limited(stage: Stage, key: str) -> None:
    tested = stage.caller(TEN_A_SECOND, options=PATIENT)
    began = time.monotonic()
    decisions = [tested.decide(key) for _ in range(25)]
    refilled = 1 + int((time.monotonic() - began) * TEN_A_SECOND.rate)
    assert sum(decision.allowed for decision in decisions) <= TEN_A_SECOND.capacity + refilled
    assert decisions[-1].retry_after <= 1.1, "a second of debt at the most, and then the next token"
