"""What errors are called, and which of them a connection does not outlive."""

from __future__ import annotations

import pytest
import redis

from comporta import (
    StateDeniedError,
    StateError,
    StateForbiddenError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.stores.naming import named, spoils, unreached

SAID = [
    # what an older server answers, bare
    (redis.ResponseError("READONLY You can't write against a read only replica."), "READONLY"),
    (
        redis.ResponseError("Error running script (call to f_1): @user_script:9: -READONLY No"),
        "READONLY",
    ),
    (redis.ResponseError("-OOM command not allowed when used memory > 'maxmemory'"), "OOM"),
    (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), "NOREPLICAS"),
    (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "MISCONF"),
    (redis.ResponseError("BUSY Redis is busy running a script."), "BUSY"),
    # what redis-py has a class for: it takes the word off
    (redis.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
    (redis.exceptions.OutOfMemoryError("command not allowed"), "OOM"),
    (redis.BusyLoadingError("Redis is loading the dataset in memory"), "LOADING"),
    (redis.exceptions.MasterDownError("Link with MASTER is down"), "MASTERDOWN"),
    (redis.exceptions.ClusterDownError("Hash slot not served"), "CLUSTERDOWN"),
    (redis.ConnectionError("max number of clients reached"), "max number of clients"),
    (redis.InvalidResponse("Protocol Error: b'x'"), "Protocol Error"),
    # what a parser raises that was fed something else
    (AttributeError("'list' object has no attribute 'get'"), "no attribute"),
    (ValueError("invalid literal"), "invalid literal"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "decode"),
    (OSError(), "OSError"),
]


@pytest.mark.parametrize(("error", "said"), SAID)
def test_named__a_server_that_cannot_be_used__says_why(error: Exception, said: str) -> None:
    for given in (named(error, "redis://h:1", "'k'"), unreached(error, "redis://h:1")):
        assert type(given) is StateUnavailableError
        assert "redis://h:1" in str(given)
        assert said in str(given)


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
def test_named__password_or_permission__is_denied(error: Exception) -> None:
    for given in (named(error, "redis://h:1"), unreached(error, "redis://h:1")):
        assert isinstance(given, StateDeniedError)
        assert isinstance(given, StateForbiddenError) == (
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
def test_named__node_of_a_cluster__names_the_remedy(error: Exception) -> None:
    given = named(error, "redis://h:1")
    assert type(given) is StateUnavailableError
    assert "redis+cluster://" in str(given)


@pytest.mark.parametrize("error", [redis.TimeoutError("slow"), TimeoutError()])
def test_named__no_answer__may_have_been_carried_out_but_not_while_connecting(error: Exception) -> None:
    assert type(named(error, "redis://h:1")) is StateTimeoutError
    assert type(unreached(error, "redis://h:1")) is StateUnavailableError


def test_named__another_type_at_the_key__names_the_keys() -> None:
    for text in ("WRONGTYPE Operation against a key", "Error running script: @user_script:1: WRONGTYPE x"):
        given = named(redis.ResponseError(text), "redis://h:1", "'k'")
        assert type(given) is StateTypeError
        assert "'k'" in str(given)


def test_unreached__one_of_ours_already__is_given_anew_to_each_who_waited() -> None:
    error = StateDeniedError("no sentinel lets us in")
    given = unreached(error, "redis://h:1")
    assert (type(given), str(given)) == (StateDeniedError, str(error))
    assert given is not error
    assert isinstance(given, StateError)


def test_spoils__what_a_failover_leaves_behind() -> None:
    assert spoils(redis.ReadOnlyError("You can't write"))
    assert spoils(redis.ResponseError("MASTERDOWN Link with MASTER is down"))
    assert not spoils(redis.ResponseError("WRONGTYPE Operation against a key"))
    assert not spoils(redis.exceptions.NoPermissionError("this user has no permissions"))
