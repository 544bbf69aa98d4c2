"""What is particular to state shared by a machine, as far as one process can show it."""

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
from comporta.stores import folder, shared, shared_bound
from comporta.stores.records import Read, Write
from comporta.stores.shared import SharedStore
from comporta.stores.table import SLOTS_PER_BUCKET, Table
from comporta.testing import ManualClock


def test_shared__awaited_listing__is_the_same() -> None:
    with shared_store() as store:
        store.apply(Write("s", "a", b"x", None))
        assert asyncio.run(store.entries_async("s")) == {"a": b"x"}


def test_shared__on_another_system__names_the_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(StateUnavailableError, match="needs Linux or macOS, this is win32: use memory"):
        SharedStore("x")


def test_shared__cannot_be_mapped__says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    name = f"t-{uuid.uuid4().hex}"
    monkeypatch.setattr(shared, "Table", no_memory)
    with pytest.raises(StateUnavailableError, match=r"cannot map .*: Cannot allocate memory"):
        SharedStore(name, keys=128)
    shutil.rmtree(folder.path_of(name))


def test_shared__closed__is_left_alone_after_a_fork() -> None:
    with shared_store() as store:
        pass
    store.after_fork()
    assert store._fds == []


def test_shared__after_a_fork__has_locks_of_its_own() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter("2/hour", store).sync
        assert limiter.acquire("k") is True
        before = list(store._locks)
        store.after_fork()
        assert not set(map(id, before)) & set(map(id, store._locks))
        assert [limiter.acquire("k"), limiter.acquire("k")] == [True, False]


def test_shared__lock_taken_by_another__is_waited_for_and_then_given_up() -> None:
    """Another descriptor of the same file is what another process would have."""
    with shared_store() as store:
        limiter = TokenBucketLimiter("10/hour", store)
        limiter.sync.acquire("k")
        store.lock_timeout = 0.02
        others = store._folder.locks()
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


def test_shared__more_keys_than_places_are_remembered__stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_bound, "_SPOTS_MAX", 2)
    with shared_store() as store:
        limiter = TokenBucketLimiter("1/hour", store).sync
        assert [limiter.acquire(key) for key in "abcdabcd"] == [True] * 4 + [False] * 4


def test_shared__change_and_lock_contended__is_followed_without_holding_the_loop() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter("10/hour", store, "n")
        limiter.sync.acquire("k")
        limiter.sync.change("3/hour")
        assert asyncio.run(limiter.peek("k")).limit == 3
        limiter.sync.change(None)
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


def test_table__used__counts_the_keys_of_each_class() -> None:
    with shared_store(keys=128) as store:
        for number in range(3):
            TokenBucketLimiter("2/hour", store).sync.acquire(str(number))
        store.apply(Write("s", "a", b"x", None))
        assert store.table.used() == [(3, 128), (0, 128), (1, 128)]


def test_table__digest_found_across_two_others__is_not_taken_for_a_key() -> None:
    """Two digests side by side may spell a third; only whole places count."""
    with shared_store(keys=128) as store:
        table: Table = store.table
        place = table.place("s", "k", TokenBucketLimiter("1/s", store).config.rule().codec)
        at = place.slot_at
        table.memory[at + 8 : at + 24] = place.digest
        assert table.find(place) is None


# the folder ---------------------------------------------------------------------------------------------


def test_folder__keeps_disappearing__is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_make", lambda *_: None)
    with pytest.raises(StateUnavailableError, match="keeps disappearing"):
        SharedStore(f"t-{uuid.uuid4().hex}", keys=128)


def test_folder__no_space__says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    name = f"t-{uuid.uuid4().hex}"
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StateUnavailableError, match=r"No space left on device: \d+ MB are needed.*\?keys="):
        SharedStore(name)
    assert not list(Path(folder.path_of(name)).parent.glob(f"*{name}*"))


def test_folder__no_permission__says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(StateUnavailableError, match=r"cannot make .*: Permission denied"):
        SharedStore(f"t-{uuid.uuid4().hex}")


def test_folder__made_by_another_meanwhile__is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_store() as store:
        folder._make(store.path, 128, folder.boot_id())
        assert TokenBucketLimiter("1/hour", store).sync.acquire() is True


def test_folder__without_allocation_by_the_system__is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with shared_store(keys=2048) as store:
        assert Path(store.path, "table").stat().st_blocks * 512 >= len(store.table.memory)


def test_folder__table_cannot_be_opened__says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refused(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "table" and dir_fd is not None:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)

    with shared_store() as store:
        monkeypatch.setattr(os, "open", refused)
        with pytest.raises(StateUnavailableError, match=r"cannot open .*table: Permission denied"):
            folder.Folder(store.path, 128, folder.boot_id())
        monkeypatch.undo()


def test_folder__from_before_a_restart_held_by_another__is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_REPLACE_WAIT_SECONDS", 0.01)
    with shared_store() as store:
        holder = store._folder.locks()[0]
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StateTimeoutError, match="is being replaced by another process"):
            folder.Folder(store.path, 128, "another boot")
        for fd in store._folder.locks():
            os.close(fd)
        os.close(holder)


def test_folder__replaced_by_another_while_waiting_for_its_lock__is_left_to_it() -> None:
    with shared_store() as store:
        old = os.open(store.path, os.O_RDONLY)
        moved = f"{store.path}.moved"
        Path(store.path).rename(moved)
        folder._make(store.path, 128, folder.boot_id())
        folder._put_away(old, store.path)
        assert Path(store.path).exists()
        os.close(old)
        shutil.rmtree(moved)


def test_boot_id__on_macos__is_asked_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "D7F9\n", "")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", answered)
    assert folder.boot_id() == "D7F9"


def test_table__bucket_full_and_one_state_ended__is_not_given_to_another_key_of_the_same_operation() -> None:
    clock = ManualClock()
    with shared_store(clock, keys=1) as store:
        one, other = TokenBucketLimiter("50/s", store, "one"), TokenBucketLimiter("9/hour", store, "other")
        one.sync.acquire("x", 44)
        for number in range(SLOTS_PER_BUCKET - 1):
            other.sync.acquire(f"k{number}")
        clock.advance(61)  # the state of one:x has ended, the others live
        with pytest.raises(StateFullError):
            LimitGroup(one, other).sync.acquire(["x", "new"])
        assert one.sync.peek("x").remaining == 50
        assert other.sync.acquire("new") is True
        assert other.sync.peek("new").remaining == 8


def test_locks__lost__are_an_error_with_a_name() -> None:
    with shared_store() as store:
        fds, store._fds = store._fds, []
        with pytest.raises(StateUnavailableError, match="are not open: closed, or lost in a fork"):
            store.apply(Read("s", "k"))
        store._fds = fds
