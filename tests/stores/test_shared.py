"""The engine of ``shared://`` in one process: locks, the table, its directory, forks."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.processes.table_integrity import table_problems
from tests.support import assert_within, fill_with_records, shared_store, wait_until

from comporta import (
    BaseLimiter,
    CircuitBreaker,
    FixedWindowLimiter,
    LimitConfig,
    LimitStrategy,
    SlidingWindowLimiter,
    StateFullError,
    StateTimeoutError,
    StateUnavailableError,
    TokenBucketLimiter,
    events,
)
from comporta.clock import MONOTONIC, Clock
from comporta.stores.base import State, StateKey
from comporta.stores.bound_limit import Binding
from comporta.stores.failover.store import FailoverStore
from comporta.stores.records import NEVER_US, RECORD, DeleteRecord, ReadRecord, WriteRecord
from comporta.stores.shared import directory, fast_path, locked_table
from comporta.stores.shared.index import locate
from comporta.stores.shared.layout import ENTRIES_PER_PAGE, PAGE_BYTES
from comporta.stores.shared.slots import allocate
from comporta.stores.shared.store import SharedStore
from comporta.stores.shared.table import SlotRequest
from comporta.testing import ManualClock


@contextmanager
def second_store(store: SharedStore, clock: Clock = MONOTONIC) -> Iterator[SharedStore]:
    """Open the state of a store once more, as another process would."""
    other = SharedStore(store.address.removeprefix("shared://"), clock)
    yield other
    other.close()


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
        SharedStore(name, memory=8)
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


# the table -----------------------------------------------------------------------------------------------


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
def test_table__thousands_of_keys__grows_and_keeps_each_state(strategy: LimitStrategy) -> None:
    with shared_store(memory=32) as store, second_store(store) as other:
        limiter, elsewhere = (
            BaseLimiter(LimitConfig(0.001, 2, 3600, strategy), each, "n") for each in (store, other)
        )
        before = store.table.usage().megabytes
        assert all(limiter.sync.acquire(f"k{number}") for number in range(10_000))
        usage = elsewhere.store.table.usage()  # type: ignore[attr-defined]
        assert usage.keys == 10_000
        assert before < usage.megabytes < 5
        assert (usage.is_disk_full, usage.has_evicted) == (False, False)
        assert all(elsewhere.sync.peek(f"k{number}").remaining == 1 for number in range(0, 10_000, 500))


def test_table__sliding_window__takes_room_as_its_log_grows() -> None:
    with shared_store() as store:
        limiter = SlidingWindowLimiter("200/hour", store, "n")
        numbers, key = [], StateKey("rate_limiter:n", "k", limiter.config.build_strategy())
        for used in range(1, 201):
            assert limiter.sync.acquire("k")
            slot = store.table.find(locate(key))
            assert slot is not None
            numbers.append(slot.number)
            assert limiter.sync.peek("k").remaining == 200 - used
        assert not limiter.sync.acquire("k")
        assert numbers == sorted(numbers)
        assert len(set(numbers)) > 4


def test_table__programs_with_and_without_leases__share_a_bucket() -> None:
    plain, leased = LimitConfig(0.001, 9), LimitConfig(0.001, 9, lease=True)
    with shared_store() as store:
        first = BaseLimiter(plain, store, "n").sync
        assert first.acquire("k")
        second = SharedStore(store.address.removeprefix("shared://"))
        assert BaseLimiter(leased, second, "n").sync.peek("k").remaining == 8
        bound = second.bind(_binding(leased))
        assert bound.acquire("k", 9) > 0
        assert bound.acquire("k", 2) == 0
        assert first.peek("k").remaining == 6
        second.close()


def _binding(config: LimitConfig) -> Binding:
    override = StateKey("rate_limiter_change", "n", RECORD)
    return Binding(
        config.build_strategy(), "rate_limiter:n", override, str, lambda key, cost: pytest.fail(key)
    )


def test_table__another_strategy_under_the_same_name__has_its_own_state() -> None:
    with shared_store() as store, second_store(store) as other:
        assert TokenBucketLimiter("1/minute", store, "n").sync.acquire("k")
        fixed = FixedWindowLimiter("1/minute", other, "n").sync
        assert fixed.acquire("k")
        assert fixed.decide("k").retry_after <= 60


def test_table__digest_across_two_entries__is_not_found() -> None:
    """Two adjacent entries may contain a digest; only aligned ones count."""
    with shared_store() as store:
        key = StateKey("s", "k", TokenBucketLimiter("1/s", store).config.build_strategy())
        position = locate(key)
        store.apply(WriteRecord("s", "k", b"x", None))
        TokenBucketLimiter("1/s", store, "n").sync.acquire("k")
        page = store.table._slots.take_page(
            position.lock, store.table.geometry.directory_offset(position.lock, 0), 1000
        )
        assert page is not None
        store.table.memory[page + 8 : page + 24] = position.digest
        assert store.table.find(position) is None


def test_table__no_index_page_left__evicts_a_state_of_the_path() -> None:
    with shared_store(ManualClock(), memory=4) as store:
        index = store.table._index
        index._geometry = index._geometry._replace(generations=1)
        limiter = TokenBucketLimiter("2/hour", store, "n").sync
        assert all(limiter.acquire(f"k{number}") for number in range(20 * ENTRIES_PER_PAGE))
        assert store.table.usage().keys == 16 * ENTRIES_PER_PAGE


@pytest.mark.unmeasured
def test_table__short_lived_keys__does_not_grow() -> None:
    clock = ManualClock()
    with shared_store(clock) as store:
        limiter = TokenBucketLimiter("10/s", store, "n").sync
        for number in range(20_000):
            limiter.acquire(f"k{number}")
            clock.advance(0.1)
        assert store.table.usage().keys < 5_000


class _WriteTwo(WriteRecord):
    """Writes a small record and a large one in one step."""

    @property
    def state_keys(self) -> list[StateKey]:
        return [StateKey("s", "small", RECORD), StateKey("s", "large", RECORD)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], bool]:
        return [(NEVER_US, b"x"), (NEVER_US, b"x" * 4000)], True


def test_table__room_for_one_of_two_states__writes_neither() -> None:
    with shared_store(memory=4) as store:
        fill_with_records(store, small=500)
        for number in range(500):
            store.apply(DeleteRecord("fill", f"small-{number}"))
        with pytest.raises(StateFullError, match="no room for 's:large'"):
            store.apply(_WriteTwo("s", "", b"x", None))
        assert store.entries("s") == {}


def test_table__state_that_cannot_grow__keeps_its_value() -> None:
    with shared_store(memory=4) as store:
        fill_with_records(store, small=500)
        with pytest.raises(StateFullError):
            store.apply(WriteRecord("fill", "small-1", b"y" * 4000, None))
        assert store.apply(ReadRecord("fill", "small-1")) == b"x"


def test_table__full_window_that_cannot_grow__shares_the_overflow_state() -> None:
    with shared_store(memory=4) as store:
        limiter = SlidingWindowLimiter("3/hour", store, "n").sync
        assert limiter.acquire("k")
        fill_with_records(store)
        assert limiter.peek("k").remaining == 2
        with pytest.raises(StateFullError, match="its 4 MB are full"):
            limiter.acquire("k")  # not even the overflow state finds room


@pytest.mark.unmeasured
def test_table__10_000_breakers__all_open() -> None:
    with shared_store(memory=64) as store:
        breakers = [
            CircuitBreaker(f"b{n}", threshold=1, cooldown_seconds=3600, state=store) for n in range(10_000)
        ]
        for breaker in breakers:
            breaker.sync.record_failure()
        assert not any(breaker.sync.allow() for breaker in breakers[::100])
        usage = store.table.usage()
        assert usage.keys >= 10_000
        assert usage.has_evicted is False


def test_breaker__no_room_for_its_state__opens_at_its_threshold() -> None:
    with shared_store(memory=4) as engine:
        fill_with_records(engine)
        store = FailoverStore.wrap(engine, engine.address)
        breaker = CircuitBreaker("b", threshold=3, cooldown_seconds=60, state=store).sync
        reached = 0
        for _ in range(50):
            admission = breaker.allow()
            if admission:
                reached += 1
                breaker.record_failure(admission=admission)
        store.close()
        assert reached == 3


@pytest.mark.unmeasured
def test_table__full__is_reported_once() -> None:
    found: list[events.Event] = []
    stop = events.listen(found.append)
    with shared_store(memory=4) as store:
        limiter = TokenBucketLimiter("2/hour", store, "n").sync
        number = 0
        while not store.table.has_evicted:
            number += 1
            limiter.acquire(f"k{number}")
        for later in range(1000):
            limiter.acquire(f"later-{later}")
        full = "its 4 MB are full; open another name with a larger ?memory="
        consequence = "the keys used least are evicted to make room for new ones"
        assert [event.text for event in found if event.kind == "state_full"] == [f"{full}; {consequence}"]
        assert store.table.usage().has_evicted is True
    stop()


def test_table__more_keys_without_room_than_are_remembered__decides_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locked_table, "_WITHOUT_ROOM_MAX", 2)
    with shared_store(memory=4) as store:
        fill_with_records(store)
        for number in range(5):
            with pytest.raises(StateFullError):
                CircuitBreaker(f"b{number}", threshold=1, state=store).sync.record_failure()
        assert len(store._locked._without_room) <= 2


def test_allocate__no_posix_fallocate__writes_the_whole_range(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    path = tmp_path / "file"
    with path.open("wb") as file:
        allocate(file.fileno(), PAGE_BYTES, 100_000)
    assert path.stat().st_blocks * 512 >= 100_000


def test_shared__disk_full_at_the_beginning__raises_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        StateUnavailableError, match=r"No space left on device: \d+ MB are needed to begin with"
    ):
        SharedStore(f"t-{uuid.uuid4().hex}", memory=8)


def test_slots__no_chunk_for_an_index_page__take_none() -> None:
    with shared_store() as store:
        position = locate(StateKey("s", "k", RECORD))
        entry = store.table.geometry.directory_offset(position.lock, 0)
        assert store.table._slots.take_page(position.lock, entry, 0) is None


def test_table__disk_full__does_not_grow_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with shared_store() as store:
        limiter = TokenBucketLimiter("2/hour", store, "n").sync
        monkeypatch.setattr(os, "posix_fallocate", full)
        assert all(limiter.acquire(f"k{number}") for number in range(20_000))
        usage = store.table.usage()
        assert usage.is_disk_full is True
        monkeypatch.undo()
        store.table._slots._retry_growth_at = 0.0
        assert all(limiter.acquire(f"new {number}") for number in range(5_000))
        assert store.table.usage().megabytes > usage.megabytes
        assert store.table.is_disk_full is False


def test_slots__process_died_after_the_class_got_its_chunk__is_completed() -> None:
    with shared_store() as store:
        slots = store.table._slots
        TokenBucketLimiter("2/hour", store, "n").sync.acquire("k")
        taken = slots.chunks_taken
        slots.write_u32(136, taken - 1)  # as if the process had been killed before it counted the chunk
        for number in range(600):
            store.apply(WriteRecord("s", str(number), b"x" * 300, None))
        assert store.entries("s").keys() == set(map(str, range(600)))
        assert slots.chunks_taken > taken


def test_slots__process_died_with_a_slot_in_hand__the_next_one_frees_it() -> None:
    with shared_store() as store:
        key = StateKey("s", "k", RECORD)
        request = SlotRequest(key, locate(key), 0)
        taken = store.table.create(request, 10)
        assert store.table.create(request, 10).slot_offset == taken.slot_offset, "it was on the free list"
        store.table.publish(taken)
        store.table._slots._note(taken.lock, taken.entry_offset, taken.slot_offset)
        store.table._slots.recover(taken.lock)
        assert store.table.find(locate(key)) == taken, "a slot that its entry leads to stays"
        store.table.free(taken)
        store.table._slots._note(taken.lock, taken.entry_offset, taken.slot_offset)
        assert store.table.create(request, 10).slot_offset == taken.slot_offset, "it was freed once"
        assert table_problems(store.table) == []


# refusals without a lock ------------------------------------------------------------------------------------


def test_refusal__remembered__is_given_without_a_lock_and_only_while_nothing_changed() -> None:
    clock = ManualClock()
    with shared_store(clock) as store, second_store(store, clock) as other:
        limiter, elsewhere = (TokenBucketLimiter("2/hour", each, "n").sync for each in (store, other))
        assert [limiter.acquire("k") for _ in range(4)] == [True, True, False, False]
        holders = store._directory.open_locks()
        for fd in holders:
            fcntl.flock(fd, fcntl.LOCK_EX)
        assert limiter.acquire("k") is False, "it needs no lock"
        for fd in holders:
            os.close(fd)
        elsewhere.release("k")
        assert [limiter.acquire("k"), limiter.acquire("k")] == [True, False]
        elsewhere.reset("k")
        assert [limiter.acquire("k") for _ in range(3)] == [True, True, False]
        elsewhere.set_limit("3/hour")
        assert limiter.acquire("k") is False
        clock.advance(1200)
        assert [limiter.acquire("k"), limiter.acquire("k")] == [True, False]


def test_refusal__more_than_are_remembered__decides_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "_REFUSALS_MAX", 2)
    with shared_store() as store:
        limiter = TokenBucketLimiter("1/hour", store).sync
        assert [limiter.acquire(key) for key in "abcdabcdabcdabcd"] == [True] * 4 + [False] * 12


def test_refusal__threads_on_one_key__are_never_granted_too_much() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter(LimitConfig(2000, 10), store, "n").sync
        began, granted = time.monotonic(), [0] * 4

        def acquire(number: int) -> None:
            while time.monotonic() < began + 0.5:
                granted[number] += limiter.acquire("k")

        threads = [Thread(target=acquire, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 10 < sum(granted) <= 10 + 2000 * (time.monotonic() - began)


# a directory that is removed while it is in use -----------------------------------------------------------


def remove_directory(path: Path) -> None:
    shutil.rmtree(path)


def remove_table(path: Path) -> None:
    (path / "table").unlink()


def truncate_table(path: Path) -> None:
    table = path / "table"
    os.truncate(table, table.stat().st_size - 1)


@pytest.mark.parametrize("damage", [remove_directory, remove_table, truncate_table])
def test_verify__directory_damaged__all_workers_use_the_new_one(damage: Callable[[Path], None]) -> None:
    with shared_store() as store, second_store(store) as other:
        limiters = [TokenBucketLimiter("2/hour", each, "n").sync for each in (store, other)]
        assert [limiter.acquire("k") for limiter in limiters] == [True, True]
        limiters[0].set_limit("1/hour")
        assert not any(limiter.acquire("k") for limiter in limiters for _ in range(2))
        store.verify()
        assert not limiters[0].acquire("k"), "an intact directory stays in use"
        damage(Path(store.path))
        store.verify()
        other.verify()
        assert [limiter.acquire("k") for limiter in [*limiters, *limiters]] == [True, True, False, False]
        kinds = [event.kind for event in events.latest_events() if event.source == store.address]
        assert kinds.count("state_replaced") >= 1


def test_operation__table_truncated_just_now__raises_before_it_reads_the_missing_part() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter("2/hour", store, "n").sync
        os.truncate(Path(store.path) / "table", 0)
        for call in (limiter.acquire, limiter.peek):
            with pytest.raises(StateUnavailableError, match=r"was truncated to 0 bytes: remove /"):
                call("k")
        store.verify()
        assert limiter.acquire("k")


def test_failover__table_truncated__decides_locally_until_the_heartbeat_opens_a_new_one() -> None:
    with shared_store() as engine:
        store = FailoverStore.wrap(engine, engine.address)
        limiter = TokenBucketLimiter("2/hour", store, "n").sync
        os.truncate(Path(engine.path) / "table", 0)
        limiter.acquire("k")  # raises nothing
        wait_until(lambda: engine._retired is not None and store.fallback is None)
        assert limiter.acquire("other")
        store.heartbeat.stop()


def test_open__table_truncated_while_it_is_mapped__raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_store() as store:
        opened = directory.StateDirectory(store.path, 8, directory.boot_id())
        os.truncate(Path(store.path) / "table", 5000)
        with pytest.raises(StateUnavailableError, match=r"cannot map .*: mmap length is greater"):
            locked_table.LockedTable(opened, MONOTONIC, 0.5, store.address)


def test_verify__directory_damaged_twice__closes_the_first_one() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter("1/hour", store, "n").sync
        for _ in range(3):
            assert [limiter.acquire("k"), limiter.acquire("k")] == [True, False]
            shutil.rmtree(store.path)
            store.probe()


def test_heartbeat__directory_removed__shares_a_new_one_within_2_s() -> None:
    with shared_store() as engine, second_store(engine) as other_engine:
        stores = [FailoverStore.wrap(each, each.address) for each in (engine, other_engine)]
        limiters = [TokenBucketLimiter("1/hour", each, "n").sync for each in stores]
        assert [limiter.acquire("k") for limiter in limiters] == [True, False]
        began = time.monotonic()
        shutil.rmtree(engine.path)
        wait_until(lambda: engine._retired is not None and other_engine._retired is not None)
        assert_within(time.monotonic() - began, 2, "noticing the removal")
        assert [limiter.acquire("k") for limiter in limiters] == [True, False]
        for store in stores:
            store.heartbeat.stop()


def test_fast_path__table_replaced_during_a_decision__caches_nothing_of_the_old_one() -> None:
    with shared_store() as store:
        bound = store.bind(_binding(LimitConfig(0.001, 1)))
        assert bound.acquire("k", 1) == 0
        old_memory, _, old_locations = bound._open_table
        shutil.rmtree(store.path)
        retired = store._locked
        store.verify()
        slot = retired.table.find(locate(StateKey("rate_limiter:n", "k", bound.cached_algorithm)))
        assert slot is not None
        bound._cache_location("k", retired, slot, bound.cached_algorithm.codec)
        bound._remember_refusal("k", old_memory, old_locations["k"], (b"", 0, 1))
        assert (bound._open_table[2], bound._refusals) == ({}, {})


# the directory ------------------------------------------------------------------------------------------


def test_directory__disappears_each_time__raises_after_20_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_create", lambda *_: None)
    with pytest.raises(StateUnavailableError, match="disappeared 20 times"):
        SharedStore(f"t-{uuid.uuid4().hex}", memory=8)


def test_directory__no_permission__raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StateUnavailableError, match=r"cannot create .*: Permission denied"):
        SharedStore(f"t-{uuid.uuid4().hex}")


def test_directory__created_by_another_process_meanwhile__is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_store() as store:
        directory._create(store.path, 8, directory.boot_id())
        assert TokenBucketLimiter("1/hour", store).sync.acquire() is True


def test_directory__table_cannot_be_opened__raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def refuse_table(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "table" and dir_fd is not None:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(path, flags, mode, dir_fd=dir_fd)

    with shared_store() as store:
        monkeypatch.setattr(os, "open", refuse_table)
        with pytest.raises(StateUnavailableError, match=r"cannot open .*table: Permission denied"):
            directory.StateDirectory(store.path, 8, directory.boot_id())
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
        directory._create(store.path, 8, directory.boot_id())
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


def test_guards__locks_closed__raises() -> None:
    with shared_store() as store:
        fds, store._locked._fds = store._locked._fds, []
        with pytest.raises(StateUnavailableError, match="are not open: closed, or lost in a fork"):
            store.apply(ReadRecord("s", "k"))
        store._locked._fds = fds
