"""Script calls as bytes, and malformed replies."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from comporta import LimitConfig, StateAuthError, StateTypeError, StateUnavailableError
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.base import Operation
from comporta.stores.changes import CHANGES_KEY
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.protocol import (
    BATCHED_MAX,
    ScriptCall,
    _pack_python,
    _packer,
    pack,
    script_calls,
    script_text,
)
from comporta.stores.redis.scan import ScanRecords


def _limit_operation(key: str = "k") -> LimitOperation:
    return LimitOperation([LimitDemand(LimitConfig(10, 10).build_strategy(), "n", key, 1)])


def test_pack__with_and_without_hiredis__is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("EVALSHA", b"\0\xff", 12, "é", b"")
    assert _pack_python(command) == pack(command)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    assert _packer() is _pack_python


def test_script_calls__neighbours_of_one_script__are_joined_up_to_the_maximum() -> None:
    operations: list[Operation[Any]] = [
        *(_limit_operation() for _ in range(BATCHED_MAX + 1)),
        WriteRecord("s", "k", b"x", None),
        WriteRecord("s", "k", b"x", None),
        ReadRecord("s", "k"),
        ReadRecord("s", "l"),
        _limit_operation(),
    ]
    assert [len(call.operations) for call in script_calls(operations)] == [BATCHED_MAX, 1, 1, 1, 2, 1]


@pytest.mark.parametrize(
    "raw",
    [[1, 2], ["x"] * 5, [], [1] * 7, [1] * 9, [*[1] * 7, b"7", 1], [[]] * 8, b"OK", None, 5, {}],
)
def test_parse_replies__malformed_limit_reply__raises(raw: object) -> None:
    [call] = script_calls([_limit_operation()])
    with pytest.raises(StateUnavailableError, match="wrong shape"):
        call.parse_replies(raw)


@pytest.mark.parametrize(
    "operation",
    [
        ReadRecord("s", "k"),
        WriteRecord("s", "k", b"x", None),
        ScanRecords("s", b"0"),
        AcquireOperation(LimitDefinition(LimitConfig(1, 1).build_strategy(), "n"), "k", 1),
    ],
)
@pytest.mark.parametrize("raw", [b"OK", [b"0", 5, 5], [1.5], [7, 7, 7], 1.5, None])
def test_parse_replies__malformed_other_reply__raises(operation: Operation[Any], raw: object) -> None:
    with pytest.raises(StateUnavailableError, match="wrong shape"):
        ScriptCall(operation.script, [operation]).parse_replies(raw)


def test_parse_replies__type_error_of_one_operation__names_the_key() -> None:
    for error in (b"WRONGTYPE nonsense", "WRONGTYPE nonsense"):
        [call] = script_calls([_limit_operation("mine")])
        [reply] = call.parse_replies([error, *[0] * 7])
        assert isinstance(reply, StateTypeError)
        assert "'rate_limiter:n:mine'" in str(reply)


def test_parse_replies__other_error_of_one_operation__is_translated() -> None:
    [call] = script_calls([_limit_operation("mine")])
    [reply] = call.parse_replies([b"NOPERM no permissions", *[0] * 7])
    assert isinstance(reply, StateAuthError)
    assert "'rate_limiter:n:mine'" in str(reply)


def test_parse_replies__error_of_one_record__names_the_key() -> None:
    [call] = script_calls([ReadRecord("s", "good"), ReadRecord("s", "bad"), ReadRecord("s", "none")])
    good, bad, none = call.parse_replies([b"x", [b"WRONGTYPE nonsense"], None])
    assert (good, none) == (b"x", None)
    assert isinstance(bad, StateTypeError)
    assert "'s:bad'" in str(bad)


def test_command_bytes__script_that_notes_changes__names_the_change_log_outside_a_cluster() -> None:
    for uses_hash_tags in (False, True):
        operation = WriteRecord("s", "k", b"x", None, change_name="s:k")
        [call] = script_calls([operation], uses_hash_tags=uses_hash_tags)
        assert (CHANGES_KEY.encode() in call.command_bytes(1)) is not uses_hash_tags
        assert (b"s:{k}" in call.command_bytes(1)) is uses_hash_tags
        text = script_text(call.script, has_change_log=not uses_hash_tags)[1]
        assert ("ZADD" in text) is not uses_hash_tags
    assert CHANGES_KEY.encode() not in script_calls([_limit_operation()])[0].command_bytes(1)


def test_key_summary__large_call__has_the_first_few_keys() -> None:
    [call] = script_calls([_limit_operation(key) for key in "abc"])
    assert call.key_summary().endswith("'rate_limiter:n:b', …")
    [call] = script_calls([WriteRecord("s", "k", b"x", None)])
    assert call.key_summary() == "'s:k'"
