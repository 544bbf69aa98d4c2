"""The directory of ``shared://``: its permissions, its corruption, and a full table or disk."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.processes.fleet import Worker, new_state_name, remove_shared_state, run_together, start_workers

from comporta import BaseLimiter, LimitGroup, LimitKey, StateFullError, StateUnavailableError
from comporta.clock import MONOTONIC, Clock
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.shared import directory
from comporta.stores.shared.directory import TABLE_NAME, boot_id, directory_path
from comporta.stores.shared.store import SharedStore
from comporta.stores.shared.table import HEADER_BYTES, MAGIC, pack_header
from comporta.testing import ManualClock

OTHER_UID = 65534
SMALL = 128
"""With this many keys a table has a single bucket, so that 128 states fill it."""

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another user")


@pytest.fixture
def name() -> Iterator[str]:
    new_name = new_state_name()
    yield new_name
    remove_shared_state(new_name)
    assert not list(Path(directory_path(new_name)).parent.glob(f"*{new_name}*")), "files were left behind"


@contextmanager
def open_shared(name: str, clock: Clock = MONOTONIC) -> Iterator[SharedStore]:
    store = SharedStore(name, clock, SMALL, lock_timeout=5)
    yield store
    store.close()


def create(name: str) -> Path:
    """Create a valid directory and return its path."""
    with open_shared(name) as store:
        return Path(store.path)


# permissions ------------------------------------------------------------------------------------------------


def test_directory__new__is_closed_to_other_users(name: str) -> None:
    path = create(name)
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}


@root_only
def test_directory__of_another_user__is_rejected_and_the_error_names_the_owner(name: str) -> None:
    os.chown(create(name), OTHER_UID, OTHER_UID)
    with (
        pytest.raises(StateUnavailableError, match=f"belongs to user {OTHER_UID}, not to 0"),
        open_shared(name),
    ):
        pass


def test_directory__open_to_others__is_rejected_and_the_error_says_why(name: str) -> None:
    create(name).chmod(0o755)
    with (
        pytest.raises(StateUnavailableError, match="has mode 0755, others could change it"),
        open_shared(name),
    ):
        pass


def test_directory__symbolic_link__is_rejected_and_left_unchanged(name: str, tmp_path: Path) -> None:
    path = create(name)
    elsewhere = shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    with pytest.raises(StateUnavailableError, match="symbolic link"), open_shared(name):
        pass
    assert path.is_symlink()


def test_directory__file_of_that_name__is_rejected_and_left_unchanged(name: str) -> None:
    path = Path(directory_path(name))
    path.write_text("other data")
    try:
        with pytest.raises(StateUnavailableError, match=f"cannot open {path}"), open_shared(name):
            pass
        assert path.read_text() == "other data"
    finally:
        path.unlink()


@root_only
def test_two_users__same_name__have_separate_private_states(name: str) -> None:
    with (
        open_shared(name) as store,
        Worker("acquire_as_user", number=0, uid=OTHER_UID, name=name, path=store.path) as worker,
    ):
        limiter = BaseLimiter("5/hour", store, "tested")
        assert sum(limiter.sync.acquire("k") for _ in range(10)) == 5
        result = worker.wait_ready().go().result()
    shutil.rmtree(result["path"])
    assert result["path"] != store.path
    assert result["granted"] == 5
    assert result["listing"] == "refused"


# corruption -------------------------------------------------------------------------------------------------


def overwrite(path: Path, start: bytes) -> None:
    with (path / TABLE_NAME).open("r+b") as file:
        file.write(start)


def test_directory__from_before_a_reboot__is_reset(name: str) -> None:
    with open_shared(name) as store:
        BaseLimiter("1/hour", store, "tested").sync.acquire("k")
        path = Path(store.path)
    overwrite(path, pack_header(SMALL, "an earlier start"))
    with open_shared(name) as store:
        assert BaseLimiter("1/hour", store, "tested").sync.acquire("k")


@pytest.mark.parametrize("round_", range(2))
def test_directory__from_before_a_reboot_opened_by_8_processes__is_replaced_once(
    name: str, round_: int
) -> None:
    overwrite(create(name), pack_header(SMALL, "an earlier start"))
    with start_workers(8, "open_and_acquire", name=name, keys=SMALL, calls=5) as workers:
        results = run_together(workers)
    assert sum(result["granted"] for result in results) == 20


def test_directory__from_before_a_reboot_removed_during_open__is_created_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may remove the directory between the moments at which it and its files are opened."""
    path, read_header = create(name), directory._read_table_header

    def remove_first(fd: int, opened_path: str) -> tuple[int, str]:
        monkeypatch.setattr(directory, "_read_table_header", read_header)
        shutil.rmtree(path)
        return read_header(fd, opened_path)

    overwrite(path, pack_header(SMALL, "an earlier start"))
    monkeypatch.setattr(directory, "_read_table_header", remove_first)
    with open_shared(name) as store:
        assert BaseLimiter("1/hour", store, "tested").sync.acquire("k")


def test_directory__absent_opened_by_8_processes__is_created_once(name: str) -> None:
    with start_workers(8, "open_and_acquire", name=name, keys=SMALL, calls=5) as workers:
        results = run_together(workers)
    assert sum(result["granted"] for result in results) == 20


def truncate(path: Path, size: int) -> None:
    os.truncate(path / TABLE_NAME, size)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda path: overwrite(path, os.urandom(HEADER_BYTES)), "is not a comporta state file"),
        (lambda path: overwrite(path, bytes(HEADER_BYTES)), "is not a comporta state file"),
        (lambda path: truncate(path, 0), "is not a comporta state file"),
        (lambda path: truncate(path, 20), "is not a comporta state file"),
        (lambda path: truncate(path, HEADER_BYTES), f"has {HEADER_BYTES} bytes, .* are needed"),
        (lambda path: truncate(path, 1_000_000), "has 1000000 bytes, .* are needed"),
        (lambda path: overwrite(path, MAGIC + b"\2\0\0\0"), "has layout version 2, this comporta reads 1"),
        (lambda path: overwrite(path, pack_header(0, boot_id())), "remove"),
        (lambda path: overwrite(path, pack_header(2**32 - 1, boot_id())), "remove"),
        (lambda path: (path / TABLE_NAME).unlink(), "table"),
        (lambda path: (path / "lock.07").unlink(), "lock.07"),
        (lambda path: (path / "lock.00").unlink(), "lock.00"),
    ],
)
def test_table__corrupt__is_rejected_and_the_error_says_what_to_do(
    name: str, corrupt: Callable[[Path], object], message: str
) -> None:
    path = create(name)
    corrupt(path)
    with pytest.raises(StateUnavailableError, match=message) as caught, open_shared(name):
        pass
    assert str(path) in str(caught.value)


# a full table -----------------------------------------------------------------------------------------------


def fill(limiter: BaseLimiter) -> int:
    """Use new keys until the table is full; return how many it has room for."""
    for number in range(10 * SMALL):
        try:
            limiter.sync.acquire(f"k{number}")
        except StateFullError:
            return number
    raise AssertionError("the table never became full")


def test_full_table__new_key__is_refused_and_live_keys_keep_their_state(name: str) -> None:
    with open_shared(name) as store:
        limiter = BaseLimiter("2/hour", store, "tested")
        assert fill(limiter) == SMALL
        with pytest.raises(StateFullError, match=r"no room for 'rate_limiter:tested:new'.*\?keys="):
            limiter.sync.acquire("new")
        with pytest.raises(StateFullError):
            limiter.sync.acquire(LimitKey("a", "new"))
        assert limiter.sync.peek("new").remaining == 2
        for number in range(SMALL):
            assert [limiter.sync.acquire(f"k{number}") for _ in range(2)] == [True, False]


def test_full_table__expired_states__make_room_for_others(name: str) -> None:
    clock = ManualClock()
    with open_shared(name, clock) as store, open_shared(name, clock) as other:
        limiter, elsewhere = (BaseLimiter("2/hour", each, "tested") for each in (store, other))
        fill(limiter)
        assert elsewhere.sync.acquire("k0")
        clock.advance(3600)
        assert fill(BaseLimiter("2/hour", store, "others")) == SMALL
        # The slots of the first limiter's keys are gone, and both stores notice.
        for each in (limiter, elsewhere):
            with pytest.raises(StateFullError):
                each.sync.acquire("k0")
        clock.advance(3600)
        assert [each.sync.acquire("k0") for each in (limiter, elsewhere, limiter)] == [True, True, False]


def test_full_table__key_reset__makes_room_for_another(name: str) -> None:
    with open_shared(name) as store:
        limiter = BaseLimiter("2/hour", store, "tested")
        fill(limiter)
        limiter.sync.reset("k5")
        assert limiter.sync.acquire("new")
        with pytest.raises(StateFullError):
            limiter.sync.acquire("k5")


def test_full_table__group_with_room_for_one_of_two__charges_neither(name: str) -> None:
    with open_shared(name) as store:
        limiter = BaseLimiter("2/hour", store, "tested")
        fill(limiter)
        limiter.sync.reset("k5")
        first, second = (BaseLimiter("5/hour", store, each) for each in ("first", "second"))
        both = LimitGroup(first, second)
        with pytest.raises(StateFullError):
            both.sync.acquire(["x", "x"])
        assert first.sync.peek("x").remaining == 5
        assert limiter.sync.acquire("one more")
        with pytest.raises(StateFullError):
            LimitGroup(limiter, first).sync.acquire(["k7", "x"])
        assert limiter.sync.peek("k7").remaining == 1


def test_full_table__new_record__is_refused_and_live_records_stay_intact(name: str) -> None:
    with open_shared(name) as store:
        values = ((f"r{number}", b"%d" % number) for number in range(10 * SMALL))
        with pytest.raises(StateFullError):
            deque(store.apply(WriteRecord("records", key, value, None)) for key, value in values)
        entries = store.entries("records")
        assert entries == {f"r{number}": b"%d" % number for number in range(len(entries))}
        assert len(entries) >= 100
        assert store.apply(WriteRecord("records", "r1", b"new", None))
        assert store.apply(ReadRecord("records", "r1")) == b"new"


@pytest.mark.parametrize("length", [200, 201, 511, 512, 513, 10_240])
@pytest.mark.parametrize("letter", ["k", "é", "🚪", "\0", "\ud800"])
def test_long_key__any_length__has_its_own_state(name: str, letter: str, length: int) -> None:
    with open_shared(name) as store, open_shared(name) as other:
        limiter, elsewhere = (BaseLimiter("3/hour", each, "tested") for each in (store, other))
        key, neighbour = letter * length, letter * (length - 1) + "x"
        assert limiter.sync.acquire(key)
        assert elsewhere.sync.acquire(key)
        assert [limiter.sync.peek(each).remaining for each in (key, neighbour)] == [1, 3]
        limiter.sync.reset(key)
        assert elsewhere.sync.peek(key).remaining == 3


# a full or read-only disk -----------------------------------------------------------------------------------


def mount_namespace() -> list[str]:
    """Return the command that runs a process in its own mount namespace."""
    return (
        ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    )


def test_disk__full__error_says_how_much_is_needed_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    with Worker(
        "tiny_disk", prefix=mount_namespace(), number=0, name=name, directory=str(tmp_path)
    ) as worker:
        result = worker.wait_ready().go().result()
    assert "No space left on device: 12 MB are needed; ask for fewer with ?keys=" in result["too large"]
    assert result["left behind"] == []
    assert result["small enough"] is True


def test_disk__read_only__raises_and_says_so(name: str, tmp_path: Path) -> None:
    with Worker(
        "tiny_disk", prefix=mount_namespace(), number=0, name=name, directory=str(tmp_path)
    ) as worker:
        result = worker.wait_ready().go().result()
    assert "Read-only file system" in result["read-only, new"]
    assert "Read-only file system" in result["read-only, there"]
