"""The data of a simulated Redis server: what expires, what is copied, and what is not a command.

``tests/differential/test_keyspace.py`` compares the commands with those of a real server.
"""

from __future__ import annotations

from copy import copy

import pytest

from comporta.simulation.keyspace import Keyspace

MILLISECOND_US = 1000


@pytest.fixture
def keyspace() -> Keyspace:
    keyspace = Keyspace()
    keyspace.now_us = 5_000_000
    return keyspace


@pytest.mark.parametrize(
    ("write", "read", "expected"),
    [
        (("HSET", b"k", b"field", b"x"), ("HGET", b"k", b"field"), None),
        (("ZADD", b"k", b"3", b"member"), ("ZCARD", b"k"), 0),
        (("SET", b"k", b"x"), ("GET", b"k"), None),
    ],
)
def test_key__its_time_is_over__is_gone(
    keyspace: Keyspace, write: tuple[str, bytes], read: tuple[str, bytes], expected: object
) -> None:
    keyspace.call(*write)
    assert keyspace.call("PEXPIRE", b"k", b"20") == 1
    keyspace.now_us += 20 * MILLISECOND_US
    assert keyspace.call(*read) != expected
    keyspace.now_us += MILLISECOND_US
    assert keyspace.call(*read) == expected
    assert keyspace.call("DEL", b"k") == 0


def test_string__set_again__keeps_the_time_of_the_last_command(keyspace: Keyspace) -> None:
    keyspace.call("SET", b"k", b"x", b"PX", b"20")
    keyspace.call("SET", b"k", b"y")
    keyspace.now_us += 60 * MILLISECOND_US
    assert keyspace.call("GET", b"k") == b"y"
    keyspace.call("SET", b"k", b"z", b"PX", b"20")
    keyspace.now_us += 60 * MILLISECOND_US
    assert keyspace.call("GET", b"k") is None


def test_pttl__no_key_no_expiry_and_expiry__is_the_time_left(keyspace: Keyspace) -> None:
    assert keyspace.call("PTTL", b"k") == -2
    keyspace.call("SET", b"k", b"x")
    assert keyspace.call("PTTL", b"k") == -1
    keyspace.call("PEXPIRE", b"k", b"20")
    keyspace.now_us += 5 * MILLISECOND_US
    assert keyspace.call("PTTL", b"k") == 15


def test_time__of_the_server__is_in_seconds_and_microseconds(keyspace: Keyspace) -> None:
    keyspace.now_us = 1_700_000_000_000_042
    assert keyspace.call("TIME") == [b"1700000000", b"42"]


def test_strings__live_and_expired_keys__have_the_prefix_and_are_live(keyspace: Keyspace) -> None:
    keyspace.call("SET", b"space:a", b"1")
    keyspace.call("SET", b"space:b", b"2", b"PX", b"20")
    keyspace.call("HSET", b"space:c", b"field", b"3")
    keyspace.call("SET", b"other:a", b"4")
    keyspace.now_us += 60 * MILLISECOND_US
    assert keyspace.strings(b"space:") == {b"a": b"1"}


def test_copy__either_is_changed__leaves_the_other_as_it_is(keyspace: Keyspace) -> None:
    keyspace.call("HSET", b"h", b"field", b"x")
    keyspace.call("ZADD", b"z", b"1", b"a")
    copied = copy(keyspace)
    keyspace.call("HSET", b"h", b"field", b"y")
    copied.call("ZADD", b"z", b"2", b"b")
    assert copied.call("HGET", b"h", b"field") == b"x"
    assert keyspace.call("ZCARD", b"z") == 1


@pytest.mark.parametrize(
    "command", [("GET", b"k"), ("DEL", b"k"), ("ZREM", b"k", b"a"), ("HDEL", b"k", b"a"), ("ZCARD", b"k")]
)
def test_is_changed__nothing_to_read_or_remove__stays_false(
    keyspace: Keyspace, command: tuple[str, bytes]
) -> None:
    keyspace.call(*command)
    assert not keyspace.is_changed


def test_call__no_command_of_a_script__raises(keyspace: Keyspace) -> None:
    with pytest.raises(KeyError, match="FLUSHALL"):
        keyspace.call("FLUSHALL")
