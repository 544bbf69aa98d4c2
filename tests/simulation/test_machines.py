"""Workers of one simulated machine count each other; those that start in an outage share one limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comporta.simulation import FleetScenario, parse_faults, run_scenario, simulate
from comporta.simulation.host import SimulatedMachine
from comporta.simulation.simulated_runtime import SimulatedRuntime
from comporta.simulation.virtual_time import Scheduler
from comporta.simulation.worker import SimulatedWorker
from comporta.stores.failover.lock_files import LockFiles

FOUR = FleetScenario(1, workers=4, seconds=14, load=40, callers=2, rate=40, capacity=20, machines=(4,))


def processes(number: int) -> list[tuple[SimulatedWorker, LockFiles]]:
    """Return processes of one machine, and the lock files as each sees them."""
    scheduler, machine = Scheduler(), SimulatedMachine()
    workers = [SimulatedWorker(scheduler, index, 0, seed=1) for index in range(number)]
    return [(worker, machine.lock_files(worker)) for worker in workers]


def lock(files: LockFiles, name: str, *, shared: bool = False) -> int:
    """Open and lock a file."""
    fd = files.open_directory().open(name)
    files.lock(fd, shared=shared)
    return fd


def test_lock_files__of_a_live_process__exclude_others_until_they_are_closed() -> None:
    (_, first), (_, second) = processes(2)
    fd = first.open_directory().create("a")
    with pytest.raises(FileExistsError):
        second.open_directory().create("a")
    first.lock(fd)
    with pytest.raises(BlockingIOError):
        lock(second, "a", shared=True)
    first.close(fd)
    lock(second, "a", shared=True)
    lock(first, "a", shared=True)
    with pytest.raises(BlockingIOError):
        lock(first, "a")


def test_lock_files__of_a_killed_process__are_unlocked_but_exist() -> None:
    (killed, first), (_, second) = processes(2)
    first.lock(first.open_directory().create("a"))
    killed.kill()
    assert second.open_directory().names() == ["a"]
    lock(second, "a")
    for action in (first.open_directory, lambda: first.unlink("a"), lambda: first.lock(3)):
        with pytest.raises(OSError, match="process has ended"):
            action()


def test_lock_files__of_a_paused_process__stay_locked() -> None:
    (paused, first), (_, second) = processes(2)
    first.lock(first.open_directory().create("a"))
    paused.pause()
    with pytest.raises(BlockingIOError):
        lock(second, "a", shared=True)


def test_lock_files__removed__are_gone() -> None:
    [(_, files)] = processes(1)
    directory = files.open_directory()
    directory.create("a")
    directory.create("b")
    files.unlink("a")
    directory.remove("b")
    directory.remove("b")
    directory.close()
    assert not directory.has("a")
    assert directory.names() == []
    for action in (lambda: files.unlink("a"), lambda: directory.open("a")):
        with pytest.raises(FileNotFoundError):
            action()


def test_scenario__machines__say_where_each_worker_runs() -> None:
    scenario = FleetScenario(1, workers=4, machines=(3, 1))
    assert [scenario.machine_of(index) for index in range(4)] == [0, 0, 0, 1]
    assert [scenario.machine_of_name(name) for name in ("w0", "w2.1", "w3.12")] == [0, 0, 1]
    assert FleetScenario(1).machine_of(4) == 0
    assert "machines (3, 1)" in str(scenario)
    with pytest.raises(ValueError, match="machines must have 5 workers in all"):
        FleetScenario(1, machines=(2, 2))


def divided_by(scenario: FleetScenario) -> list[int]:
    """Return by how many workers each worker divided last, in the order of their names."""
    counts: dict[str, int] = {}
    for moment in simulate(scenario).moments("state_fallback", "state_fallback_share"):
        counts[moment.worker] = int(moment.text.partition("1/")[2].partition(" ")[0])
    return [counts[worker] for worker in sorted(counts)]


@pytest.mark.parametrize(
    ("machines", "faults", "counts"),
    [
        ((), "crash@0+4", [1, 1, 1, 1]),
        ((4,), "crash@0+4", [4, 4, 4, 4]),
        ((3, 1), "crash@0+4", [3, 3, 3, 1]),
        ((2, 2), "hang@0+4", [2, 2, 2, 2]),
        ((4,), "crash@0+4; kill@0.3+9:w0; kill@0.31+1:w1", [3, 4, 3, 4, 4]),
        ((4,), "crash@0+4; pause@0.25+2:w0,w1,w2; kill@1+1:w3", [4, 4, 4, 4, 4]),
    ],
)
def test_workers__that_start_in_an_outage__count_those_of_their_machine(
    machines: tuple[int, ...], faults: str, counts: list[int]
) -> None:
    scenario = replace(FOUR, machines=machines).with_faults(parse_faults(faults))
    assert divided_by(scenario) == counts


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", ["crash", "hang", "black_hole", "full"])
def test_workers__that_start_in_an_outage__rejoin_together(kind: str, is_async: bool) -> None:
    """The first worker that reaches the server knows the others only by their locks, and waits for them."""
    scenario = replace(FOUR, is_async=is_async).with_faults(parse_faults(f"{kind}@0+4"))
    history, violations = run_scenario(scenario)
    assert violations == []
    recovered = [moment.at_ns for moment in history.moments("state_recovered")]
    assert len(recovered) == 4
    assert max(recovered) - min(recovered) < 60_000_000


def test_runtime__of_a_machine__names_its_host() -> None:
    history = simulate(replace(FOUR, machines=(2, 2), seconds=5))
    assert {moment.worker for moment in history.moments("worker_started")} == {"w0", "w1", "w2", "w3"}
    assert simulate(replace(FOUR, machines=(2, 2), seconds=5)).trace() == history.trace()
    assert SimulatedRuntime(Scheduler(), seed=1).host() == "simulated"
