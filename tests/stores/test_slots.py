"""Which slot a key lives in, and what a cluster tells of its nodes."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from comporta.stores.listing import ListKeys, ListRecords
from comporta.stores.records import Read, Write
from comporta.stores.slots import NODES_MAX, SLOTS, Slots, _slot, slot_of, tagged, untagged
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
def test_tagged__name_of_a_key__carries_the_beginning_of_the_limits_name(name: str, expected: str) -> None:
    assert tagged(name) == expected


@given(st.text(alphabet=st.sampled_from("ab:.{}\n"), max_size=8))
def test_untagged__whatever_the_key__is_what_was_tagged(key: str) -> None:
    assert untagged(tagged(f"s:{key}").removeprefix("s:")) == key


@given(st.text(alphabet=st.sampled_from("ab:."), max_size=8))
def test_tagged__state_and_change_of_a_limit__live_in_one_slot(name: str) -> None:
    names = [tagged(f"{space}:x{name}") for space in ("rate_limiter", "rate_limiter_change")]
    assert len({_slot(found) for found in names}) == 1


def test_slot__by_our_account__is_the_servers() -> None:
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
            assert node.command("CLUSTER", "KEYSLOT", name) == _slot(name)


def test_slot_of__operation_without_keys__is_any() -> None:
    assert slot_of(ListRecords("s", b"0")) == 0
    assert slot_of(Write("s", "k", b"x", None)) == slot_of(Read("s", "k"))


def test_listing__on_a_local_store__is_nothing() -> None:
    assert ListKeys("s", b"0").step([], 0) == ([], (b"0", []))
    assert ListRecords("s", b"0").step([], 0) == ([], (b"0", {}))


def test_slots__nothing_known__asks_those_named_in_the_beginning_by_turns() -> None:
    slots = Slots([("a", 1), ("b", 2)])
    assert slots.place_of(7) == ("a", 1)
    slots.forget(7, ("a", 1))
    assert slots.place_of(7) == ("b", 2)
    assert slots.places() == [("a", 1), ("b", 2)]


def test_slots__told__are_known_and_a_missing_host_is_the_tellers() -> None:
    slots = Slots([("a", 1)])
    ranges = [[0, 99, [b"b", 2, b"id"], [b"replica", 3]], [100, 200, [b"", 4]], [201, SLOTS - 1, [None, 5]]]
    slots.load(ranges, ("teller", 9))
    assert [slots.place_of(slot) for slot in (0, 99, 100, 201, SLOTS - 1)] == [
        ("b", 2),
        ("b", 2),
        ("teller", 4),
        ("teller", 5),
        ("teller", 5),
    ]
    slots.learn(0, ("c", 6))
    assert slots.place_of(0) == ("c", 6)
    slots.learn(0, ("c", 6))  # the next caller of the same tick
    slots.forget(1, ("b", 2))
    slots.forget(1, ("b", 2))
    assert slots.place_of(1) in slots.known()
    assert ("b", 2) not in slots.known()


def test_slots__more_nodes_than_there_can_be__are_not_learnt() -> None:
    slots = Slots([("a", 1)])
    for number in range(NODES_MAX + 5):
        slots.learn(number, ("node", number))
    assert len(slots.places()) == NODES_MAX
