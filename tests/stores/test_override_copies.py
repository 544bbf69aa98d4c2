"""Copies of override records on a cluster: how old they get, and what a change does to them."""

from __future__ import annotations

from comporta.stores.redis.override_copies import COPIES_MAX, OverrideCopies

SECOND_NS = 1_000_000_000
NAME = "rate_limiter_change:api"


def test_copies__never_read__must_be_read() -> None:
    assert OverrideCopies().usable(NAME, 0) is None


def test_copies__just_read__are_used_for_less_than_a_second() -> None:
    copies = OverrideCopies()
    copies.store(NAME, b"10 1 100000 0", 5 * SECOND_NS)
    used = copies.usable(NAME, 5 * SECOND_NS + 900_000_000)
    assert used is not None
    assert used.record == b"10 1 100000 0"
    assert copies.usable(NAME, 6 * SECOND_NS) is None
    assert copies.usable(NAME, 6 * SECOND_NS) is None, "an outdated copy is of no use to the second caller"


def test_copies__nearly_a_second_old__one_caller_reads_and_the_others_go_on() -> None:
    copies = OverrideCopies()
    copies.store(NAME, None, 0)
    assert copies.usable(NAME, 960_000_000) is None
    used = copies.usable(NAME, 970_000_000)
    assert used is not None
    assert used.record is None


def test_copies__changed_by_this_process__are_read_again() -> None:
    copies = OverrideCopies()
    copies.store(NAME, b"old", 0)
    copies.forget(NAME, 10)
    assert copies.usable(NAME, 11) is None
    copies.store(NAME, b"old", 9)
    assert copies.usable(NAME, 12) is None, "a read that began before the change"
    copies.store(NAME, b"new", 13)
    used = copies.usable(NAME, 14)
    assert used is not None
    assert used.record == b"new"


def test_copies__too_many__start_over() -> None:
    copies = OverrideCopies()
    for number in range(COPIES_MAX):
        copies.store(f"{number}", b"record", 0)
    assert copies.usable("0", 1) is not None
    copies.store("one more", b"record", 0)
    assert copies.usable("0", 1) is None
    assert copies.usable("one more", 1) is not None
