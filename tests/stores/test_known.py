"""What a worker that starts during an outage can know of the others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from comporta.stores import known
from comporta.stores.known import recalled, remember


@pytest.fixture
def address() -> str:
    return f"test://{time.time_ns()}"


def test_count__never_written__is_one(address: str) -> None:
    assert recalled(address) == 1


def test_count__written__is_recalled_by_others(address: str) -> None:
    remember(address, 7)
    remember(address, 8)
    assert recalled(address) == 8
    path = Path(known._path(address))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "1" * 30, "\0"])
def test_count__file_holds_something_else__is_one_or_bounded(address: str, text: str) -> None:
    path = Path(known._path(address))
    path.write_text(text)
    assert 1 <= recalled(address) <= known.WORKERS_KNOWN_MAX


def test_count__file_is_a_link_or_another_users__is_not_trusted(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x"
    target.write_text("99")
    path = Path(known._path(address))
    path.symlink_to(target)
    assert recalled(address) == 1
    remember(address, 5)
    assert target.read_text() == "99"
    assert recalled(address) == 5
    mine = os.geteuid()
    path_of = known._path
    monkeypatch.setattr(known, "_path", lambda _: str(path))
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert recalled(address) == 1
    monkeypatch.setattr(known, "_path", path_of)


def test_count__nowhere_to_write__is_simply_not_kept(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_path", lambda _: "/nowhere/at/all")
    remember(address, 5)
    assert recalled(address) == 1
