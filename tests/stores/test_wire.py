"""What goes over the wire, and what names its errors get."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import redis

from comporta import LimitConfig, StateTimeoutError, StateTypeError, StateUnavailableError
from comporta.limits.operation import LimitOperation, Question
from comporta.stores.base import Operation
from comporta.stores.records import Read, Write
from comporta.stores.wire import JOINED_MAX, _pack_here, _packer, calls_for, named, pack


def _asking(key: str = "k") -> LimitOperation:
    return LimitOperation([Question(LimitConfig(10, 10).rule(), "n", key, 1)])


def test_pack__with_and_without_hiredis__is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("EVALSHA", b"\0\xff", 12, "é", b"")
    assert _pack_here(command) == pack(command)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    assert _packer() is _pack_here


def test_calls__neighbours_of_one_script__are_joined_up_to_a_bound() -> None:
    operations: list[Operation[Any]] = [
        *(_asking() for _ in range(JOINED_MAX + 1)),
        Read("s", "k"),
        Read("s", "k"),
        _asking(),
    ]
    assert [len(call.operations) for call in calls_for(operations)] == [JOINED_MAX, 1, 1, 1, 1]


@pytest.mark.parametrize("raw", [[1, 2], ["x"] * 5, [], [1] * 7, b"OK", None, 5])
def test_reply__of_the_wrong_shape__is_an_error_not_an_answer(raw: object) -> None:
    [call] = calls_for([_asking()])
    [reply] = call.replies(raw)
    assert isinstance(reply, StateUnavailableError)
    assert "wrong shape" in str(reply)


def test_reply__to_a_record__of_the_wrong_shape__is_an_error() -> None:
    [call] = calls_for([Write("s", "k", b"x", None)])
    odd: list[Any] = [[], b"OK"]
    for raw in odd:
        [reply] = call.replies(raw)
        assert isinstance(reply, StateUnavailableError)


def test_reply__error_in_the_place_of_an_answer__names_the_key() -> None:
    for error in (b"WRONGTYPE nonsense", "WRONGTYPE nonsense"):
        [call] = calls_for([_asking("mine")])
        [reply] = call.replies([error, 0, 0, 0, 0, 0])
        assert isinstance(reply, StateTypeError)
        assert "'rate_limiter:n:mine'" in str(reply)


def test_names__of_a_large_call__are_the_first_few() -> None:
    [call] = calls_for([_asking(key) for key in "abc"])
    assert call.names().endswith("'rate_limiter:n:b', …")
    [call] = calls_for([Write("s", "k", b"x", None)])
    assert call.names() == "'s:k'"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.TimeoutError("slow"), StateTimeoutError),
        (TimeoutError(), StateTimeoutError),
        (redis.ResponseError("WRONGTYPE Operation against a key"), StateTypeError),
        (redis.ResponseError("OOM command not allowed"), StateUnavailableError),
        (redis.ConnectionError(""), StateUnavailableError),
    ],
)
def test_named__what_redis_py_raises__becomes_ours(error: Exception, kind: type[Exception]) -> None:
    assert type(named(error, "redis://h:1", "'k'")) is kind
