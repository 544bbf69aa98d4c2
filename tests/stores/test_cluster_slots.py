"""Hash slots: which slot a key is in, and which node owns it."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.cluster_slots import (
    NODES_MAX,
    SLOT_COUNT,
    SlotMap,
    _key_slot,
    add_hash_tag,
    operation_slot,
    strip_hash_tag,
)
from comporta.stores.redis.scan import ScanKeys, ScanRecords
from comporta.testing import Server


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rate_limiter:pncp:user", "rate_limiter:{pncp}:user"),
        ("rate_limiter:pncp", "rate_limiter:{pncp}"),
        ("rate_limiter_change:pncp", "rate_limiter_change:{pncp}"),
        ("rate_limiter:api.global:k", "rate_limiter:{api}.global:k"),
        ("rate_limiter:api:a.b", "rate_limiter:{api}:a.b"),
        ("comporta_workers", "comporta_workers"),
        ("s:", "s:"),
        ("s:.hidden:k", "s:{.hidden}:k"),
        ("s:new\nline", "s:{new\nline}"),
    ],
)
def test_hash_tag__key__is_the_first_part_of_the_limits_name(name: str, expected: str) -> None:
    assert add_hash_tag(name) == expected


@given(st.text(alphabet=st.sampled_from("ab:.{}\n"), max_size=8))
def test_strip_hash_tag__any_key__restores_it(key: str) -> None:
    assert strip_hash_tag(add_hash_tag(f"s:{key}").removeprefix("s:")) == key


@given(st.text(alphabet=st.sampled_from("ab:."), max_size=8))
def test_hash_tag__state_and_override_of_a_limit__share_a_slot(name: str) -> None:
    names = [add_hash_tag(f"{space}:x{name}") for space in ("rate_limiter", "rate_limiter_change")]
    assert len({_key_slot(name) for name in names}) == 1


def test_key_slot__any_key__is_the_servers() -> None:
    with Server(None, "--cluster-enabled", "yes") as node:
        for name in (
            "",
            "a",
            "{a}b",
            "x{a}b",
            "{}a",
            "{a",
            "a}b{c}",
            "é 漢",
            "{{a}}",
            "rate_limiter:{pncp}:k",
        ):
            assert node.command("CLUSTER", "KEYSLOT", name) == _key_slot(name)


def test_operation_slot__no_keys__is_zero() -> None:
    assert operation_slot(ScanRecords("s", b"0")) == 0
    assert operation_slot(WriteRecord("s", "k", b"x", None)) == operation_slot(ReadRecord("s", "k"))


def test_scan__applied_to_a_local_store__does_nothing() -> None:
    assert ScanKeys("s", b"0").step([], 0) == ([], (b"0", []))
    assert ScanRecords("s", b"0").step([], 0) == ([], (b"0", {}))


def test_slot_map__empty__uses_the_seeds_in_turn() -> None:
    slots = SlotMap([("a", 1), ("b", 2)])
    assert slots.owner(7) == ("a", 1)
    slots.mark_unreachable(7, ("a", 1))
    assert slots.owner(7) == ("b", 2)
    assert slots.owners() == [("a", 1), ("b", 2)]


def test_slot_map__loaded__knows_owners_and_fills_in_missing_hosts() -> None:
    slots = SlotMap([("a", 1)])
    ranges = [
        [0, 99, [b"b", 2, b"id"], [b"replica", 3]],
        [100, 200, [b"", 4]],
        [201, SLOT_COUNT - 1, [None, 5]],
    ]
    slots.load(ranges, ("source", 9))
    assert [slots.owner(slot) for slot in (0, 99, 100, 201, SLOT_COUNT - 1)] == [
        ("b", 2),
        ("b", 2),
        ("source", 4),
        ("source", 5),
        ("source", 5),
    ]
    slots.set_owner(0, ("c", 6))
    assert slots.owner(0) == ("c", 6)
    slots.set_owner(0, ("c", 6))  # another caller of the same tick
    slots.mark_unreachable(1, ("b", 2))
    slots.mark_unreachable(1, ("b", 2))
    assert slots.owner(1) in slots.known_nodes()
    assert ("b", 2) not in slots.known_nodes()


def test_slot_map__more_nodes_than_the_maximum__are_ignored() -> None:
    slots = SlotMap([("a", 1)])
    for number in range(NODES_MAX + 5):
        slots.set_owner(number, ("node", number))
    assert len(slots.owners()) == NODES_MAX
