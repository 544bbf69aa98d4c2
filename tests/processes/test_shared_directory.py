"""The directory of ``shared://``: its permissions, its corruption, and a full table or disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.processes.fleet import Worker, new_state_name, remove_shared_state, run_together, start_workers

from comporta import BaseLimiter, CircuitBreaker, LimitGroup, StateFullError, StateUnavailableError
from comporta.clock import MONOTONIC, Clock
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.shared import directory
from comporta.stores.shared.directory import TABLE_NAME, boot_id, directory_path
from comporta.stores.shared.layout import HEADER_BYTES, MAGIC, MEMORY_MB_MIN, pack_header
from comporta.stores.shared.store import SharedStore
from comporta.testing import ManualClock

OTHER_UID = 65534
SMALL = MEMORY_MB_MIN
"""Megabytes: the smallest table there is."""

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
    with start_workers(8, "open_and_acquire", name=name, memory=SMALL, calls=5) as workers:
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
    with start_workers(8, "open_and_acquire", name=name, memory=SMALL, calls=5) as workers:
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
        (lambda path: overwrite(path, MAGIC + b"\1\0\0\0"), "has layout version 1, this comporta reads 2"),
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
    """Use new keys once until the table evicts or has no room; return how many were used."""
    store = limiter.store
    assert isinstance(store, SharedStore)
    for number in range(100_000):
        limiter.sync.acquire(f"k{number}")
        if store.table.has_evicted or store._locked._without_room:
            return number
    raise AssertionError("the table never became full")


def fill_with_exhausted(limiter: BaseLimiter) -> int:
    """Use new keys of a limit of 1 until no shard has room for another one; return how many were used."""
    refused = 0
    for number in range(100_000):
        refused = 0 if limiter.sync.acquire(f"k{number}") else refused + 1
        if refused == 100:
            return number
    raise AssertionError("the table never became full")


@pytest.fixture(scope="module")
def exhausted_table() -> Iterator[Path]:
    """Fill a table with exhausted keys of a limit "tested"; return its directory, for tests to copy."""
    name = new_state_name()
    with open_shared(name) as store:
        fill_with_exhausted(BaseLimiter("1/hour", store, "tested"))
    yield Path(store.path)
    remove_shared_state(name)


@pytest.fixture
def exhausted_name(name: str, exhausted_table: Path) -> str:
    """Return the name of a state of its own whose table is full of exhausted keys."""
    shutil.copytree(exhausted_table, directory_path(name))
    return name


@pytest.mark.unmeasured
def test_full_table__flood_of_new_keys__never_frees_an_exhausted_key(name: str) -> None:
    with open_shared(name) as store, open_shared(name) as other:
        limiter, elsewhere = (BaseLimiter("3/hour", each, "tested") for each in (store, other))
        victims = [f"victim {number}" for number in range(50)]
        for victim in victims:
            assert [limiter.sync.acquire(victim) for _ in range(4)] == [True, True, True, False]
        room = fill(limiter)
        assert room > 10_000
        assert all(limiter.sync.acquire(f"flood {number}") for number in range(2 * room))
        assert not any(each.sync.acquire(victim) for each in (limiter, elsewhere) for victim in victims)


@pytest.mark.unmeasured
def test_full_table__key_used_twice__outlives_keys_used_once(name: str) -> None:
    with open_shared(name) as store:
        limiter = BaseLimiter("3/hour", store, "tested")
        kept = [f"kept {number}" for number in range(50)]
        for key in kept:
            assert [limiter.sync.acquire(key) for _ in range(2)] == [True, True]
        room = fill(limiter)
        for number in range(room):
            limiter.sync.acquire(f"flood {number}")
        assert [limiter.sync.peek(key).remaining for key in kept] == [1] * len(kept)


@pytest.mark.unmeasured
def test_full_table__all_keys_exhausted__newcomers_share_one_state_of_their_limit(
    exhausted_name: str,
) -> None:
    with open_shared(exhausted_name) as store, open_shared(exhausted_name) as other:
        limiter = BaseLimiter("1/hour", store, "tested")
        newcomers = [f"newcomer {number}" for number in range(100)]
        assert not any(limiter.sync.acquire(key) for key in newcomers)
        assert limiter.sync.peek("newcomer 1").remaining == 0
        assert not any(BaseLimiter("1/hour", other, "tested").sync.acquire(key) for key in newcomers)
        assert not limiter.sync.acquire("k0")


def test_full_table__expired_states__make_room_for_others(name: str) -> None:
    clock = ManualClock()
    with open_shared(name, clock) as store, open_shared(name, clock) as other:
        limiter, elsewhere = (BaseLimiter("1/hour", each, "tested") for each in (store, other))
        room = fill_with_exhausted(limiter)
        assert not elsewhere.sync.acquire("k0")
        clock.advance(3600)
        others = BaseLimiter("1/hour", store, "others")
        assert all(others.sync.acquire(f"k{number}") for number in range(room // 2))
        # Slots of the first limiter's keys are gone, and both stores notice.
        assert [each.sync.acquire("k0") for each in (limiter, elsewhere, limiter)] == [True, False, False]


@pytest.mark.unmeasured
def test_full_table__key_reset__makes_room_for_another(exhausted_name: str) -> None:
    with open_shared(exhausted_name) as store:
        limiter = BaseLimiter("1/hour", store, "tested")
        for number in range(100):
            limiter.sync.reset(f"k{number}")
        assert sum(limiter.sync.acquire(f"new {number}") for number in range(100)) > 20
        assert not limiter.sync.acquire("k200")


@pytest.mark.unmeasured
def test_full_table__group_with_keys_without_room__decides_by_overflow_states(exhausted_name: str) -> None:
    with open_shared(exhausted_name) as store:
        first, second = (BaseLimiter("1/hour", store, each) for each in ("first", "second"))
        both = LimitGroup(first, second)
        granted = [both.sync.acquire([f"x{number}", f"y{number}"]) for number in range(200)]
        assert 1 <= sum(granted) < 50
        assert granted[-50:] == [False] * 50


@pytest.mark.unmeasured
def test_full_table__new_record__is_refused_and_live_records_stay_intact(name: str) -> None:
    with open_shared(name) as store:
        written, failures = {}, 0
        for number in range(10_000):
            key, value = f"r{number}", b"%4000d" % number
            try:
                store.apply(WriteRecord("records", key, value, None))
                written[key] = value
            except StateFullError:
                failures += 1
            if failures == 100:
                break
        assert store.entries("records") == written
        assert len(written) > 300
        assert store.apply(ReadRecord("records", "new")) is None
        with pytest.raises(StateFullError, match=r"'records:new': its 4 MB are full; .* a larger \?memory="):
            store.apply(WriteRecord("records", "new", b"%4000d" % 0, None))
        assert store.apply(WriteRecord("records", "r1", b"new", None))
        assert store.apply(ReadRecord("records", "r1")) == b"new"


@pytest.mark.unmeasured
def test_full_table__flood_of_limited_keys__leaves_room_for_records_and_breakers(exhausted_name: str) -> None:
    with open_shared(exhausted_name) as store:
        assert all(
            store.apply(WriteRecord("records", str(number), b"x" * 500, None)) for number in range(100)
        )
        breakers = [CircuitBreaker(f"b{number}", threshold=1, state=store) for number in range(50)]
        for breaker in breakers:
            breaker.sync.record_failure()
        assert not any(breaker.sync.allow() for breaker in breakers)


@pytest.mark.unmeasured
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


def test_disk__full__table_stays_smaller_and_says_so(name: str, tmp_path: Path) -> None:
    with Worker(
        "tiny_disk", prefix=mount_namespace(), number=0, name=name, directory=str(tmp_path)
    ) as worker:
        result = worker.wait_ready().go().result()
    assert "No space left on device: 18 MB are needed to begin with" in result["too large"]
    assert result["left behind"] == []
    assert result["flood"] == 25_000
    assert result["victim"] == [True, True, False, False]
    assert result["usage"]["is_disk_full"] is True
    assert 2 < result["usage"]["megabytes"] <= 4
    assert any("is full; the keys used least are evicted" in text for text in result["events"])
    assert result["finding"]["status"] == "warn"
    assert "the disk is full, so the table cannot grow" in result["finding"]["detail"]


def test_disk__read_only__raises_and_says_so(name: str, tmp_path: Path) -> None:
    with Worker(
        "tiny_disk", prefix=mount_namespace(), number=0, name=name, directory=str(tmp_path)
    ) as worker:
        result = worker.wait_ready().go().result()
    assert "Read-only file system" in result["read-only, new"]
    assert "Read-only file system" in result["read-only, there"]
