"""Translation of server and network errors, and which of them close a connection."""

from __future__ import annotations

import pytest
import redis

from comporta import (
    StateAuthError,
    StateError,
    StatePermissionError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.stores.redis.errors import invalidates_connection, translate_connect_error, translate_error

UNUSABLE = [
    # bare errors of older servers
    (redis.ResponseError("READONLY You can't write against a read only replica."), "READONLY"),
    (
        redis.ResponseError("Error running script (call to f_1): @user_script:9: -READONLY No"),
        "READONLY",
    ),
    (redis.ResponseError("-OOM command not allowed when used memory > 'maxmemory'"), "OOM"),
    (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), "NOREPLICAS"),
    (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "MISCONF"),
    (redis.ResponseError("BUSY Redis is busy running a script."), "BUSY"),
    # errors with a class of redis-py, which removes the code
    (redis.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
    (redis.exceptions.OutOfMemoryError("command not allowed"), "OOM"),
    (redis.BusyLoadingError("Redis is loading the dataset in memory"), "LOADING"),
    (redis.exceptions.MasterDownError("Link with MASTER is down"), "MASTERDOWN"),
    (redis.exceptions.ClusterDownError("Hash slot not served"), "CLUSTERDOWN"),
    (redis.ConnectionError("max number of clients reached"), "max number of clients"),
    (redis.InvalidResponse("Protocol Error: b'x'"), "Protocol Error"),
    # exceptions of a parser that was fed something else
    (AttributeError("'list' object has no attribute 'get'"), "no attribute"),
    (ValueError("invalid literal"), "invalid literal"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "decode"),
    (OSError(), "OSError"),
]


@pytest.mark.parametrize(("error", "reason"), UNUSABLE)
def test_translate_error__unusable_server__contains_the_reason(error: Exception, reason: str) -> None:
    for translated in (
        translate_error(error, "redis://h:1", "'k'"),
        translate_connect_error(error, "redis://h:1"),
    ):
        assert type(translated) is StateUnavailableError
        assert "redis://h:1" in str(translated)
        assert reason in str(translated)


@pytest.mark.parametrize(
    "error",
    [
        redis.AuthenticationError("invalid username-password pair or user is disabled."),
        redis.AuthenticationError("Authentication required."),
        redis.exceptions.NoPermissionError("this user has no permissions to run the 'eval' command"),
        redis.ResponseError("WRONGPASS invalid username-password pair"),
        redis.ResponseError("NOAUTH Authentication required."),
        redis.ResponseError("NOPERM this user has no permissions"),
        redis.ResponseError("invalid password"),
        redis.ResponseError("ACL failure in script: User bob has no permissions to run the 'hset' command"),
        redis.ResponseError("The user executing the script can't run this command or subcommand"),
    ],
)
def test_translate_error__password_or_permission__is_an_auth_error(error: Exception) -> None:
    for translated in (translate_error(error, "redis://h:1"), translate_connect_error(error, "redis://h:1")):
        assert isinstance(translated, StateAuthError)
        assert isinstance(translated, StatePermissionError) == (
            "permission" in str(error) or "script" in str(error)
        )


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.MovedError("866 127.0.0.1:7001"),
        redis.exceptions.AskError("866 127.0.0.1:7001"),
        redis.exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"),
        redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        redis.ResponseError("MOVED 866 127.0.0.1:7001"),
    ],
)
def test_translate_error__node_of_a_cluster__names_the_right_scheme(error: Exception) -> None:
    translated = translate_error(error, "redis://h:1")
    assert type(translated) is StateUnavailableError
    assert "redis+cluster://" in str(translated)


@pytest.mark.parametrize("error", [redis.TimeoutError("slow"), TimeoutError()])
def test_translate_error__timeout__is_a_timeout_except_while_connecting(error: Exception) -> None:
    assert type(translate_error(error, "redis://h:1")) is StateTimeoutError
    assert type(translate_connect_error(error, "redis://h:1")) is StateUnavailableError


def test_translate_error__key_of_another_type__names_the_keys() -> None:
    for text in ("WRONGTYPE Operation against a key", "Error running script: @user_script:1: WRONGTYPE x"):
        translated = translate_error(redis.ResponseError(text), "redis://h:1", "'k'")
        assert type(translated) is StateTypeError
        assert "'k'" in str(translated)


def test_translate_connect_error__state_error__is_copied_for_each_caller() -> None:
    error = StateAuthError("no sentinel grants access")
    translated = translate_connect_error(error, "redis://h:1")
    assert (type(translated), str(translated)) == (StateAuthError, str(error))
    assert translated is not error
    assert isinstance(translated, StateError)


def test_invalidates_connection__errors_after_a_failover__are_those() -> None:
    assert invalidates_connection(redis.ReadOnlyError("You can't write"))
    assert invalidates_connection(redis.ResponseError("MASTERDOWN Link with MASTER is down"))
    assert not invalidates_connection(redis.ResponseError("WRONGTYPE Operation against a key"))
    assert not invalidates_connection(redis.exceptions.NoPermissionError("this user has no permissions"))
