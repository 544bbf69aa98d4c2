"""Limits of records: sizes, times to live, keys."""

from __future__ import annotations

import pytest

from comporta.stores.records import DeleteRecord, ReadRecord, WriteRecord
from comporta.stores.redis.scan import RecordPage, ScanRecords


@pytest.mark.parametrize("value", [b"", b"x" * 4097])
def test_record__value_of_the_wrong_size__is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=f"value must be 1 to 4096 bytes, got {len(value)}"):
        WriteRecord("s", "k", value, None)


@pytest.mark.parametrize("ttl", [0, -1, 1e10, float("nan")])
def test_record__ttl_out_of_range__is_refused(ttl: float) -> None:
    with pytest.raises(ValueError, match=r"ttl must be 0\.001 to 1e9 seconds"):
        WriteRecord("s", "k", b"x", ttl)


@pytest.mark.parametrize("operation", [ReadRecord, DeleteRecord])
def test_record__key_too_long__is_refused(operation: type[ReadRecord] | type[DeleteRecord]) -> None:
    with pytest.raises(ValueError, match="key must be at most 512 bytes with its space, got 602"):
        operation("s", "é" * 300)


def test_record__caller_cancelled__is_not_undone() -> None:
    assert ReadRecord("s", "k").undo(b"x") is None


def test_scan_records__step__does_nothing() -> None:
    scan = ScanRecords("s", b"0")
    assert scan.step([], 0) == ([], RecordPage(b"0", {}))
    assert scan.undo(None) is None
