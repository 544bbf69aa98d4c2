"""Joining reads into one call for each node: which ones, in what order, and where they are sent."""

from __future__ import annotations

from typing import Any

import pytest

from comporta.breaker.config import BreakerConfig
from comporta.breaker.operation import BreakerOperation, CircuitSnapshot
from comporta.breaker.state import ADMIT, EMPTY_CIRCUIT, READ, CircuitRequest, ForcedState
from comporta.stores.base import Operation
from comporta.stores.failover.worker_registry import ListWorkers
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.cluster_reads import join_reads
from comporta.stores.redis.cluster_slots import SLOT_COUNT, SlotMap, operation_slot
from comporta.stores.redis.connection import HostPort
from comporta.stores.redis.protocol import BATCHED_MAX, ScriptCall

EVEN, ODD = ("even", 1), ("odd", 2)


def slot_map(*unknown: int) -> SlotMap:
    """Return a map in which two nodes own the slots in turns, except some whose owner is unknown."""
    slots = SlotMap([("seed", 3)])
    for slot in set(range(SLOT_COUNT)) - set(unknown):
        slots._owners[slot] = (EVEN, ODD)[slot % 2]
    return slots


def read(name: str) -> ReadRecord:
    return ReadRecord("s", name)


def circuit(name: str, command: str = READ, calls: int = 0, slow: int = 0) -> BreakerOperation:
    request = CircuitRequest(command, calls=calls, slow=slow)
    snapshot = CircuitSnapshot(EMPTY_CIRCUIT, ForcedState())
    return BreakerOperation(name, BreakerConfig()._rules, request, lambda: snapshot)


def owner(operation: Operation[Any]) -> HostPort:
    return (EVEN, ODD)[operation_slot(operation) % 2]


def test_join__reads_of_two_nodes__one_call_for_each() -> None:
    reads = [read(f"{number}") for number in range(20)]
    joined = join_reads(reads, slot_map())
    assert sorted(each.host_port for each in joined) == [EVEN, ODD]
    for each in joined:
        assert each.operations == [reads[position] for position in each.positions]
        assert {owner(operation) for operation in each.operations} == {each.host_port}
        assert each.slot == operation_slot(each.operations[0])
    assert sorted(position for each in joined for position in each.positions) == list(range(20))


def test_join__reads_of_two_scripts__one_call_for_each_script() -> None:
    operations = [each for number in range(20) for each in (read(f"{number}"), circuit(f"{number}"))]
    joined = join_reads(operations, slot_map())
    assert len(joined) == 4
    assert all(len({operation.script for operation in each.operations}) == 1 for each in joined)


@pytest.mark.parametrize(
    "other",
    [
        WriteRecord("s", "k", b"x", None),
        circuit("k", ADMIT),
        circuit("k", calls=1),
        circuit("k", slow=1),
        ListWorkers(),
    ],
)
def test_join__operation_that_changes_something_or_has_its_own_call__is_left_out(
    other: Operation[Any],
) -> None:
    reads = [read("k"), other, read("k")]
    [joined] = join_reads(reads, slot_map())
    assert joined.positions == [0, 2]


def test_join__script_that_takes_no_batches__is_left_out() -> None:
    class LoneRead(ReadRecord):
        script = ReadRecord.script._replace(batchable=False)

    assert join_reads([LoneRead("s", "k")] * 2, slot_map()) == []


def test_join__slot_without_a_known_owner__is_left_out() -> None:
    operations = [read("known"), read("unknown"), read("known")]
    slots = slot_map(operation_slot(read("unknown")))
    [joined] = join_reads(operations, slots)
    assert joined.positions == [0, 2]


def test_join__single_read_of_a_node__is_sent_alone() -> None:
    assert join_reads([read("k")], slot_map()) == []


def test_join__more_reads_than_one_call_takes__several_calls() -> None:
    joined = join_reads([read("k")] * (2 * BATCHED_MAX + 1), slot_map())
    assert [len(each.operations) for each in joined] == [BATCHED_MAX, BATCHED_MAX]


def test_call__across_slots__declares_no_key_and_passes_all_as_arguments() -> None:
    script = ReadRecord.script._replace(across_slots=True)
    packed = ScriptCall(script, [read("one"), read("two")], uses_hash_tags=True).command_bytes(7)
    words = [line for line in packed.split(b"\r\n")[1:] if not line.startswith(b"$")]
    assert words[0] == b"EVALSHA"
    assert words[2:-1] == [b"0", b"7", b"s:{one}", b"s:{two}", b"2"]
