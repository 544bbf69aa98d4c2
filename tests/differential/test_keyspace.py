"""The commands of the simulated server reply as those of a real one, after any commands before."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from redis import Redis

from comporta.simulation.keyspace import Keyspace
from comporta.testing import Server

STRINGS, HASHES, SETS = ("s1", "s2"), ("h1", "h2"), ("z1", "z2")
BOUNDS = ("-inf", "+inf", "0", "3", "(3", "7", "(7", "1700000000000001")


def draw_command(random: Random) -> list[str]:
    one = random.choice
    string, field_hash, sorted_set = one(STRINGS), one(HASHES), one(SETS)
    member, score = one("abc"), one(("0", "3", "3", "7", "-2", "1700000000000001"))
    rows = ["ZRANGEBYSCORE", sorted_set, one(BOUNDS), one(BOUNDS)]
    return one(
        [
            ["GET", string],
            ["SET", string, one("xyz")],
            ["EXISTS", *STRINGS, one(HASHES), "none"],
            ["DEL", one((string, field_hash, sorted_set))],
            ["PEXPIRE", one((string, field_hash, sorted_set, "none")), "600000"],
            ["HGET", field_hash, member],
            ["HMGET", field_hash, "a", "none", "c"],
            ["HSET", field_hash, member, score],
            ["HSET", field_hash, "a", "1", "b", "2", "a", "3"],
            ["HDEL", field_hash, member, "none"],
            ["HDEL", field_hash, "a", "b", "c"],
            ["ZADD", sorted_set, score, member],
            ["ZADD", sorted_set, score, member],
            ["ZADD", sorted_set, "NX", score, member],
            ["ZCARD", sorted_set],
            ["ZREM", sorted_set, member],
            rows,
            [*rows, "WITHSCORES"],
            [*rows, "WITHSCORES", "LIMIT", one("012"), one("12")],
            ["ZREMRANGEBYSCORE", sorted_set, one(BOUNDS), one(BOUNDS)],
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_keyspace__any_commands__replies_as_a_server_does(server: Server, seed: int) -> None:
    random, keyspace = Random(seed), Keyspace()
    with Redis(port=server.port, protocol=2) as client:
        client.flushall()
        client.response_callbacks.clear()
        for _ in range(300):
            command = draw_command(random)
            reply: Any = client.execute_command(*command)
            own = keyspace.call(command[0], *(word.encode() for word in command[1:]))
            assert own == reply, command
