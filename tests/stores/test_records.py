"""What a record may be."""

from __future__ import annotations

import pytest

from comporta.stores.listing import ListRecords, Page
from comporta.stores.records import Delete, Read, Write


@pytest.mark.parametrize("value", [b"", b"x" * 4097])
def test_record__value_of_the_wrong_size__is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=f"value must be 1 to 4096 bytes, got {len(value)}"):
        Write("s", "k", value, None)


@pytest.mark.parametrize("ttl", [0, -1, 1e10, float("nan")])
def test_record__life_out_of_range__is_refused(ttl: float) -> None:
    with pytest.raises(ValueError, match=r"ttl must be 0\.001 to 1e9 seconds"):
        Write("s", "k", b"x", ttl)


@pytest.mark.parametrize("operation", [Read, Delete])
def test_record__key_too_long__is_refused(operation: type[Read] | type[Delete]) -> None:
    with pytest.raises(ValueError, match="key must be at most 512 bytes with its space, got 602"):
        operation("s", "é" * 300)


def test_record__answer_nobody_waits_for__is_not_undone() -> None:
    assert Read("s", "k").undo(b"x") is None


def test_listing__on_a_local_store__is_the_stores_own_business() -> None:
    listing = ListRecords("s", b"0")
    assert listing.step([], 0) == ([], Page(b"0", {}))
    assert listing.undo(None) is None
