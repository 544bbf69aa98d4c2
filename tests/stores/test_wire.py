"""What goes over the wire, and what names its errors get."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from comporta import LimitConfig, StateDeniedError, StateTypeError, StateUnavailableError
from comporta.limits.operation import LimitOperation, Question
from comporta.limits.take import Asked, Take
from comporta.stores.base import Operation
from comporta.stores.listing import ListRecords
from comporta.stores.records import Read, Write
from comporta.stores.wire import JOINED_MAX, WORKERS_KEY, Call, _pack_here, _packer, calls_for, loaded, pack


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


def _deaf(_: int) -> None:
    """Hear nothing of workers."""


@pytest.mark.parametrize(
    "raw",
    [[1, 2], ["x"] * 5, [], [1] * 8, [1] * 10, [*[1] * 8, b"7"], [[]] * 9, b"OK", None, 5, {}],
)
def test_reply__of_the_wrong_shape__is_an_error_not_an_answer(raw: object) -> None:
    [call] = calls_for([_asking()])
    with pytest.raises(StateUnavailableError, match="wrong shape"):
        call.replies(raw, _deaf)


@pytest.mark.parametrize(
    "operation",
    [
        Read("s", "k"),
        Write("s", "k", b"x", None),
        ListRecords("s", b"0"),
        Take(Asked(LimitConfig(1, 1).rule(), "n"), "k", 1),
    ],
)
@pytest.mark.parametrize("raw", [b"OK", [b"0", 5, 5], [None], [7, 7, 7], 1.5, None])
def test_reply__to_anything_else__of_the_wrong_shape__is_an_error(
    operation: Operation[Any], raw: object
) -> None:
    with pytest.raises(StateUnavailableError, match="wrong shape"):
        Call(operation.script, [operation]).replies(raw, _deaf)


def test_reply__error_in_the_place_of_an_answer__names_the_key() -> None:
    for error in (b"WRONGTYPE nonsense", "WRONGTYPE nonsense"):
        [call] = calls_for([_asking("mine")])
        [reply] = call.replies([error, *[0] * 7, 3], _deaf)
        assert isinstance(reply, StateTypeError)
        assert "'rate_limiter:n:mine'" in str(reply)


def test_reply__error_of_another_kind_in_the_place_of_an_answer__is_named_after_it() -> None:
    [call] = calls_for([_asking("mine")])
    [reply] = call.replies([b"NOPERM no permissions", *[0] * 7, 3], _deaf)
    assert isinstance(reply, StateDeniedError)
    assert "'rate_limiter:n:mine'" in str(reply)


def test_reply__of_a_counted_script__tells_how_many_workers_live() -> None:
    heard: list[int] = []
    [call] = calls_for([_asking("a"), _asking("b")])
    assert len(call.replies([0, 10, 9, 0, 1, 0, 0, 10] * 2 + [7], heard.append)) == 2
    assert heard == [7]
    [uncounted] = calls_for([_asking("a")], tagged=True)
    assert len(uncounted.replies([0, 10, 9, 0, 1, 0, 0, 10], heard.append)) == 1
    assert heard == [7]


def test_packed__counted_or_not__names_the_workers_only_if_it_counts_them() -> None:
    for tagged in (False, True):
        [call] = calls_for([_asking()], tagged=tagged)
        assert (WORKERS_KEY.encode() in call.packed(1)) is not tagged
        assert (b"rate_limiter:{n}:k" in call.packed(1)) is tagged
        text = loaded(call.script, counted=call.counted)[1]
        assert text.rstrip().endswith("return reply")
        assert ("ZCARD" in text) is not tagged
    assert WORKERS_KEY.encode() not in Call(Read.script, [Read("s", "k")]).packed(1)


def test_names__of_a_large_call__are_the_first_few() -> None:
    [call] = calls_for([_asking(key) for key in "abc"])
    assert call.names().endswith("'rate_limiter:n:b', …")
    [call] = calls_for([Write("s", "k", b"x", None)])
    assert call.names() == "'s:k'"
