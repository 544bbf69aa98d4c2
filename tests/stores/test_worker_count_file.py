"""The saved worker count, for a worker that starts during an outage."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from comporta.stores.failover import worker_count_file
from comporta.stores.failover.worker_count_file import load_worker_count, save_worker_count


@pytest.fixture
def address() -> str:
    return f"test://{time.time_ns()}"


def test_load_worker_count__never_saved__is_one(address: str) -> None:
    assert load_worker_count(address) == 1


def test_load_worker_count__saved__is_the_last_one(address: str) -> None:
    save_worker_count(address, 7)
    save_worker_count(address, 8)
    assert load_worker_count(address) == 8
    path = Path(worker_count_file._path(address))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "1" * 30, "\0"])
def test_load_worker_count__malformed_file__is_one_or_the_maximum(address: str, text: str) -> None:
    path = Path(worker_count_file._path(address))
    path.write_text(text)
    assert 1 <= load_worker_count(address) <= worker_count_file.WORKER_COUNT_MAX


def test_load_worker_count__symlink_or_another_users_file__is_one(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x"
    target.write_text("99")
    path = Path(worker_count_file._path(address))
    path.symlink_to(target)
    assert load_worker_count(address) == 1
    save_worker_count(address, 5)
    assert target.read_text() == "99"
    assert load_worker_count(address) == 5
    user = os.geteuid()
    real_path = worker_count_file._path
    monkeypatch.setattr(worker_count_file, "_path", lambda _: str(path))
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert load_worker_count(address) == 1
    monkeypatch.setattr(worker_count_file, "_path", real_path)


def test_save_worker_count__directory_missing__is_ignored(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count_file, "_path", lambda _: "/nowhere/at/all")
    save_worker_count(address, 5)
    assert load_worker_count(address) == 1
