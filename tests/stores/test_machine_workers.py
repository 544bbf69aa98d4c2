"""The workers of one machine that are in fallback for one state."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from tests.stores.manual_heartbeat import (
    STORE_DOWN,
    FailingStore,
    another_worker,
    kinds_since,
    manual_failover,
    run_heartbeat,
)
from tests.support import fallback_of

from comporta import events
from comporta.errors import StateAuthError
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.config import LimitConfig
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.failover import lock_files, machine_workers
from comporta.stores.failover.lock_files import LOCK_FILES
from comporta.stores.failover.machine_workers import MACHINE_WORKERS_MAX, MachineWorkers
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import REJOIN_SECONDS
from comporta.testing import ManualClock

ADDRESS = "test://one"
SLOW = LimitDefinition(LimitConfig(0.001, 8).build_strategy(), "slow")
FILL_SECONDS = 8_000


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a directory of this test's own."""
    monkeypatch.setattr(lock_files, "machine_directory", lambda: str(tmp_path))
    return tmp_path / f"comporta-{os.geteuid()}-fallback"


def test_join__several_workers__are_counted_for_their_own_state() -> None:
    first, second, other = MachineWorkers(ADDRESS), MachineWorkers(ADDRESS), MachineWorkers("test://other")
    assert (first.join(), second.join(), other.join()) == (1, 2, 1)
    assert (first.join(), first.join()) == (2, 2)
    second.leave()
    second.leave()
    assert (first.join(), other.join()) == (1, 1)


def test_join__files_of_dead_workers__are_removed(directory: Path) -> None:
    own = MachineWorkers(ADDRESS)
    assert own.join() == 1
    prefix = next(directory.iterdir()).name.partition("-")[0]
    (directory / f"{prefix}-dead").touch()
    assert own.join() == 1
    (directory / "anothers-dead").touch()
    late = MachineWorkers(ADDRESS)
    assert late.join() == 2
    assert len(list(directory.iterdir())) == 2


def test_join__more_workers_than_the_maximum__counts_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MACHINE_WORKERS_MAX == 1000
    monkeypatch.setattr(machine_workers, "MACHINE_WORKERS_MAX", 2)
    workers = [MachineWorkers(ADDRESS) for _ in range(4)]
    assert [worker.join() for worker in workers] == [1, 2, 2, 2]


def test_join__own_file_was_removed__lists_the_worker_again(directory: Path) -> None:
    first, second = MachineWorkers(ADDRESS), MachineWorkers(ADDRESS)
    assert (first.join(), second.join()) == (1, 2)
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    assert (first.join(), second.join()) == (1, 2)
    for file in directory.iterdir():
        file.unlink()
    first.leave()
    assert second.join() == 1


def test_worker__no_longer_referenced__is_not_counted() -> None:
    first, second = MachineWorkers(ADDRESS), MachineWorkers(ADDRESS)
    assert (first.join(), second.join()) == (1, 2)
    del first
    assert second.join() == 1


def test_after_fork__worker_in_fallback__is_counted_beside_its_parent() -> None:
    worker = MachineWorkers(ADDRESS)
    worker.after_fork()
    assert worker.join() == 1
    assert worker._own_file is not None
    descriptor_of_the_parent = os.dup(worker._own_file.fd)
    try:
        worker.after_fork()
        assert worker.join() == 2
    finally:
        os.close(descriptor_of_the_parent)
    assert worker.join() == 1


@pytest.mark.parametrize("problem", ["mode", "owner", "link", "file", "parent"])
def test_join__unusable_directory__counts_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    if problem == "mode":
        directory.mkdir()
        directory.chmod(0o755)
    elif problem == "owner":
        directory.mkdir(0o700)
        status = os.stat_result((0o40700, 0, 0, 0, os.geteuid() + 1, 0, 0, 0, 0, 0))
        monkeypatch.setattr(os, "fstat", lambda _: status)
    elif problem == "link":
        (directory.parent / "elsewhere").mkdir(0o700)
        directory.symlink_to(directory.parent / "elsewhere")
    elif problem == "file":
        directory.touch()
    else:
        monkeypatch.setattr(lock_files, "machine_directory", lambda: "/nowhere/at/all")
    worker = MachineWorkers(ADDRESS)
    assert worker.join() == 0
    worker.leave()


def test_join__file_system_without_locks__counts_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert MachineWorkers(ADDRESS).join() == 0
    assert not list(directory.iterdir())


def test_join__others_take_the_new_file_for_a_dead_workers__makes_another(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, calls = fcntl.flock, 0

    def remove_first(fd: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            next(directory.iterdir()).unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    worker = MachineWorkers(ADDRESS)
    assert worker.join() == 1
    assert calls == 3, "two files were locked, and one looked at"


def test_is_locked__worker_has_just_left__is_false() -> None:
    worker = MachineWorkers(ADDRESS)
    worker.join()
    files = LOCK_FILES.get()
    opened = files.open_directory()
    try:
        assert not machine_workers._is_locked(files, opened, "gone")
    finally:
        opened.close()


# shares -----------------------------------------------------------------------------------------------------


def begin_outage(store: FailoverStore) -> int:
    """Begin the outage of a worker and return by how many workers it divides."""
    return store.fail_over(STORE_DOWN).outage.worker_count


def test_share__another_worker_of_the_machine_falls_back__is_divided() -> None:
    first, primary = manual_failover()
    second = another_worker(primary)
    primary.error = STORE_DOWN
    assert (begin_outage(first), begin_outage(second)) == (1, 2)
    count = len(events.latest_events())
    run_heartbeat(first)
    run_heartbeat(first)
    assert kinds_since(count) == ["state_fallback_share"]
    assert "2 workers of this machine are in fallback: 1/2 of each" in events.latest_events(1)[0].text
    fallback = fallback_of(first)
    assert fallback is not None
    assert fallback.worker_count == 2


def test_share__other_workers_of_the_machine_recover__stays_as_it_is() -> None:
    first, primary = manual_failover()
    second = another_worker(primary)
    primary.error = STORE_DOWN
    assert (begin_outage(first), begin_outage(second)) == (1, 2)
    run_heartbeat(first)
    second.recover()
    run_heartbeat(first)
    fallback = fallback_of(first)
    assert fallback is not None
    assert fallback.worker_count == 2
    first.recover()
    assert begin_outage(second) == 1


def test_share__more_workers_are_known_than_are_on_the_machine__is_divided_by_all() -> None:
    first, primary = manual_failover()
    second = another_worker(primary)
    first.heartbeat.worker_count.record(5)
    second.heartbeat.worker_count.record(5)
    primary.error = STORE_DOWN
    assert (begin_outage(first), begin_outage(second)) == (5, 5)
    run_heartbeat(first)
    fallback = fallback_of(first)
    assert fallback is not None
    assert fallback.worker_count == 5


def test_share__server_denies_the_worker__keeps_the_count() -> None:
    first, primary = manual_failover()
    second = another_worker(primary)
    first.was_reached = True
    primary.error = STORE_DOWN
    assert (begin_outage(second), begin_outage(first)) == (1, 2)
    second.recover()
    first.record_denial(StateAuthError("wrong password"))
    fallback = fallback_of(first)
    assert fallback is not None
    assert fallback.worker_count == 2


def test_share__forked_during_an_outage__is_no_larger_than_the_parents() -> None:
    first, primary = manual_failover()
    second = another_worker(primary)
    primary.error = STORE_DOWN
    assert (begin_outage(first), begin_outage(second)) == (1, 2)
    first.recover()
    second.after_fork()
    fallback = fallback_of(second)
    assert fallback is not None
    assert fallback.worker_count == 2


def test_heartbeat__stopped_in_an_outage__is_not_counted_on_the_machine() -> None:
    primary = FailingStore(ManualClock())
    primary.error = STORE_DOWN
    store = FailoverStore.wrap(primary, primary.address)
    assert begin_outage(store) == 1
    store.close()
    assert begin_outage(another_worker(primary)) == 1


def test_heartbeat__asked_to_stop_while_it_probes__does_not_list_the_worker_again() -> None:
    store, primary = manual_failover()
    primary.error = STORE_DOWN
    begin_outage(store)
    heartbeat = store.heartbeat
    assert heartbeat._run is not None
    run = heartbeat._run

    def stop_while_probing() -> None:
        run.stop_requested = True
        heartbeat.machine_workers.leave()
        raise STORE_DOWN

    primary.probe = stop_while_probing  # type: ignore[method-assign]
    run_heartbeat(store)
    assert begin_outage(another_worker(primary)) == 1


def rejoin_seconds(store: FailoverStore, clock: ManualClock) -> float:
    """Let a worker rejoin, and return how long that takes."""
    began_ns = clock.now_ns()
    run_heartbeat(store)
    assert fallback_of(store) is None
    return (clock.now_ns() - began_ns) / 1e9


def test_rejoin__another_worker_of_the_machine_is_unknown_to_the_registry__waits_for_it() -> None:
    """Both started during the outage, so each is known to the other only by its lock."""
    clock = ManualClock()
    first, primary = manual_failover(clock)
    second = another_worker(primary)
    primary.error = STORE_DOWN
    begin_outage(first)
    begin_outage(second)
    run_heartbeat(first)
    run_heartbeat(second)
    clock.advance(1)
    primary.error = None
    assert rejoin_seconds(first, clock) >= REJOIN_SECONDS
    assert first.heartbeat.machine_workers.count == 0


def test_rejoin__no_other_worker_is_known__does_not_wait() -> None:
    clock = ManualClock()
    only, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    begin_outage(only)
    run_heartbeat(only)
    primary.error = None
    assert rejoin_seconds(only, clock) == 0


def test_limit_with_fallback_open__share_is_divided__still_grants() -> None:
    opened = LimitDefinition(LimitConfig(0.001, 8).build_strategy(), "opened", "open")
    store, primary = manual_failover()
    other = another_worker(primary)
    primary.error = STORE_DOWN
    assert store.apply(AcquireOperation(opened, "k", 1)) == 0
    assert (store.apply(AcquireOperation(SLOW, "k", 1)) > 0, begin_outage(other)) == (True, 2)
    run_heartbeat(store)
    assert store.local_share is not None
    assert store.local_share.outage.worker_count == 2
    assert store.apply(AcquireOperation(opened, "k", 1)) == 0


def units_left(store: FailoverStore) -> int:
    [reply] = store.apply(LimitOperation([LimitDemand(SLOW.strategy, "slow", "k", 0)]))
    return reply.remaining


def grants(store: FailoverStore) -> int:
    """Take all that a worker can get."""
    return sum(store.apply(AcquireOperation(SLOW, "k", 1)) == 0 for _ in range(20))


def test_reports__share_was_divided_after_its_grants__contain_all_of_them() -> None:
    """Each worker reports once what it granted itself, also when its share holds less by now."""
    clock = ManualClock()
    first, primary = manual_failover(clock)
    second = another_worker(primary)
    primary.error = STORE_DOWN
    begin_outage(first)
    clock.advance(FILL_SECONDS / 2)
    assert grants(first) == 4
    begin_outage(second)
    run_heartbeat(first)
    run_heartbeat(second)
    assert (grants(first), grants(second)) == (0, 0)
    clock.advance(2000)
    assert (grants(first), grants(second)) == (1, 1)
    primary.error = None
    run_heartbeat(first)
    assert fallback_of(first) is None
    run_heartbeat(second)
    assert fallback_of(second) is None
    assert units_left(first) == 8 - 5 - 1


def test_reports__share_was_divided_long_ago__leave_out_what_was_refilled() -> None:
    clock = ManualClock()
    first, primary = manual_failover(clock)
    second = another_worker(primary)
    primary.error = STORE_DOWN
    begin_outage(first)
    clock.advance(FILL_SECONDS)
    assert grants(first) == 8
    begin_outage(second)
    run_heartbeat(first)
    clock.advance(FILL_SECONDS)
    assert first.local_share is not None
    [charge] = first.local_share.collect_reports()
    assert charge.amount == 4, "refilled at half of the rate"  # type: ignore[attr-defined]
