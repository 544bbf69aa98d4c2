"""The engine of ``shared://`` in one process: locks, the table, its directory, forks."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.support import shared_store

from comporta import LimitGroup, StateFullError, StateTimeoutError, StateUnavailableError, TokenBucketLimiter
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.shared import directory, fast_path, locked_table
from comporta.stores.shared.store import SharedStore
from comporta.stores.shared.table import SLOTS_PER_BUCKET, Table
from comporta.testing import ManualClock


def test_shared__entries_async__are_the_same() -> None:
    with shared_store() as store:
        store.apply(WriteRecord("s", "a", b"x", None))
        assert asyncio.run(store.entries_async("s")) == {"a": b"x"}


def test_shared__unsupported_platform__names_the_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(StateUnavailableError, match="needs Linux or macOS, this is win32: use memory"):
        SharedStore("x")


def test_shared__table_cannot_be_mapped__raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    name = f"t-{uuid.uuid4().hex}"
    monkeypatch.setattr(locked_table, "Table", no_memory)
    with pytest.raises(StateUnavailableError, match=r"cannot map .*: Cannot allocate memory"):
        SharedStore(name, keys=128)
    shutil.rmtree(directory.directory_path(name))


def test_shared__closed__stays_closed_after_a_fork() -> None:
    with shared_store() as store:
        pass
    store.after_fork()
    assert store._locked._fds == []


def test_shared__after_a_fork__has_its_own_locks() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter("2/hour", store).sync
        assert limiter.acquire("k") is True
        before = list(store._locked._mutexes)
        store.after_fork()
        assert not set(map(id, before)) & set(map(id, store._locked._mutexes))
        assert [limiter.acquire("k"), limiter.acquire("k")] == [True, False]


def test_shared__lock_held_by_another_process__times_out() -> None:
    """Another descriptor of the same file is what another process would have."""
    with shared_store() as store:
        limiter = TokenBucketLimiter("10/hour", store)
        limiter.sync.acquire("k")
        store.lock_timeout = 0.02
        others = store._directory.open_locks()
        for fd in others:
            fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(StateTimeoutError, match=r"was not free for 0\.02 s"):
            limiter.sync.acquire("k")
        with pytest.raises(StateTimeoutError):
            asyncio.run(limiter.acquire("k"))
        with pytest.raises(StateTimeoutError):
            limiter.sync.peek("k")
        for fd in others:
            os.close(fd)
        assert limiter.sync.peek("k").remaining == 9


def test_shared__more_keys_than_cached_locations__decides_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "_LOCATIONS_MAX", 2)
    with shared_store() as store:
        limiter = TokenBucketLimiter("1/hour", store).sync
        assert [limiter.acquire(key) for key in "abcdabcd"] == [True] * 4 + [False] * 4


def test_shared__override_under_contention__is_read_without_blocking_the_loop() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter("10/hour", store, "n")
        limiter.sync.acquire("k")
        limiter.sync.set_limit("3/hour")
        assert asyncio.run(limiter.peek("k")).limit == 3
        limiter.sync.set_limit(None)
        assert limiter.sync.peek("k").limit == 10


def test_table__full__refuses_new_keys_and_charges_no_limit_of_a_group() -> None:
    clock = ManualClock()
    with shared_store(clock, keys=1) as store:
        one, other = TokenBucketLimiter("9/hour", store, "one"), TokenBucketLimiter("9/hour", store, "other")
        fill = (one.sync.acquire(f"k{number}") for number in range(1000))
        with pytest.raises(StateFullError, match=r"has no room for 'rate_limiter:one:.*larger \?keys="):
            all(fill)
        with pytest.raises(StateFullError):
            LimitGroup(one, other).sync.acquire(["k1", "new"])
        assert one.sync.peek("k1").remaining == 8
        clock.advance(10_000)
        assert LimitGroup(one, other).sync.acquire(["new", "newer"]) is True


def test_table__room_for_one_of_two_new_keys__takes_neither() -> None:
    with shared_store(ManualClock(), keys=1) as store:
        one, other = TokenBucketLimiter("9/hour", store, "one"), TokenBucketLimiter("9/hour", store, "other")
        for number in range(SLOTS_PER_BUCKET - 1):
            one.sync.acquire(f"k{number}")
        with pytest.raises(StateFullError):
            LimitGroup(one, other).sync.acquire(["new", "newer"])
        assert store.table.slot_usage()[0] == (SLOTS_PER_BUCKET - 1, SLOTS_PER_BUCKET)
        assert one.sync.peek("new").remaining == 9


def test_table__slot_usage__counts_the_keys_of_each_class() -> None:
    with shared_store(keys=128) as store:
        for number in range(3):
            TokenBucketLimiter("2/hour", store).sync.acquire(str(number))
        store.apply(WriteRecord("s", "a", b"x", None))
        assert store.table.slot_usage() == [(3, 128), (0, 128), (1, 128)]


def test_table__digest_across_two_others__is_not_found() -> None:
    """Two adjacent digests may contain a third; only aligned ones count."""
    with shared_store(keys=128) as store:
        table: Table = store.table
        bucket = table.bucket_position(
            "s", "k", TokenBucketLimiter("1/s", store).config.build_strategy().codec
        )
        offset = bucket.slot_offset
        table.memory[offset + 8 : offset + 24] = bucket.digest
        assert table.find_slot(bucket) is None


# the directory ------------------------------------------------------------------------------------------


def test_directory__disappears_each_time__raises_after_20_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_create", lambda *_: None)
    with pytest.raises(StateUnavailableError, match="disappeared 20 times"):
        SharedStore(f"t-{uuid.uuid4().hex}", keys=128)


def test_directory__disk_full__says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    name = f"t-{uuid.uuid4().hex}"
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StateUnavailableError, match=r"No space left on device: \d+ MB are needed.*\?keys="):
        SharedStore(name)
    assert not list(Path(directory.directory_path(name)).parent.glob(f"*{name}*"))


def test_directory__no_permission__raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StateUnavailableError, match=r"cannot create .*: Permission denied"):
        SharedStore(f"t-{uuid.uuid4().hex}")


def test_directory__created_by_another_process_meanwhile__is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_store() as store:
        directory._create(store.path, 128, directory.boot_id())
        assert TokenBucketLimiter("1/hour", store).sync.acquire() is True


def test_directory__no_posix_fallocate__writes_the_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with shared_store(keys=2048) as store:
        assert Path(store.path, "table").stat().st_blocks * 512 >= len(store.table.memory)


def test_directory__table_cannot_be_opened__raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def refuse_table(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "table" and dir_fd is not None:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(path, flags, mode, dir_fd=dir_fd)

    with shared_store() as store:
        monkeypatch.setattr(os, "open", refuse_table)
        with pytest.raises(StateUnavailableError, match=r"cannot open .*table: Permission denied"):
            directory.StateDirectory(store.path, 128, directory.boot_id())
        monkeypatch.undo()


def test_directory__from_before_a_boot_and_locked__times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_REPLACE_WAIT_SECONDS", 0.01)
    with shared_store() as store:
        holder = store._directory.open_locks()[0]
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StateTimeoutError, match="another process has been replacing"):
            directory.StateDirectory(store.path, 128, "another boot")
        for fd in store._directory.open_locks():
            os.close(fd)
        os.close(holder)


def test_directory__replaced_while_waiting_for_its_lock__is_left_alone() -> None:
    with shared_store() as store:
        old = os.open(store.path, os.O_RDONLY)
        renamed = f"{store.path}.renamed"
        Path(store.path).rename(renamed)
        directory._create(store.path, 128, directory.boot_id())
        directory._remove_stale(old, store.path)
        assert Path(store.path).exists()
        os.close(old)
        shutil.rmtree(renamed)


def test_boot_id__on_macos__is_read_with_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "D7F9\n", "")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    assert directory.boot_id() == "D7F9"


def test_table__expired_slot_of_the_same_operation__is_not_reused() -> None:
    clock = ManualClock()
    with shared_store(clock, keys=1) as store:
        one, other = TokenBucketLimiter("50/s", store, "one"), TokenBucketLimiter("9/hour", store, "other")
        one.sync.acquire("x", 44)
        for number in range(SLOTS_PER_BUCKET - 1):
            other.sync.acquire(f"k{number}")
        clock.advance(61)  # the state of one:x has expired, the others are alive
        with pytest.raises(StateFullError):
            LimitGroup(one, other).sync.acquire(["x", "new"])
        assert one.sync.peek("x").remaining == 50
        assert other.sync.acquire("new") is True
        assert other.sync.peek("new").remaining == 8


def test_guards__locks_closed__raises() -> None:
    with shared_store() as store:
        fds, store._locked._fds = store._locked._fds, []
        with pytest.raises(StateUnavailableError, match="are not open: closed, or lost in a fork"):
            store.apply(ReadRecord("s", "k"))
        store._locked._fds = fds
