"""What each kind of fault does to a simulated fleet, when it begins and when it ends.

``faults.py`` defines the faults as values; ``simulated_fleet.py`` calls these functions at their times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from comporta.simulation.faults import Fault
from comporta.simulation.network import REPLIES, REQUESTS, seconds_ns

if TYPE_CHECKING:
    from comporta.simulation.simulated_fleet import SimulatedFleet

_OLD_SNAPSHOT_NS = 2_000_000_000

Action = Callable[["SimulatedFleet", Fault], None]


def _hang(fleet: SimulatedFleet, fault: Fault) -> None:
    if fleet.server.is_up:
        fleet.server.hang()


def _end_hang(fleet: SimulatedFleet, fault: Fault) -> None:
    if fleet.server.is_hung:
        fleet.server.resume()


def _crash(fleet: SimulatedFleet, fault: Fault) -> None:
    fleet.server.crash()


def _restart(fleet: SimulatedFleet, fault: Fault) -> None:
    if not fleet.server.is_up:
        fleet.server.restart(fault.value or "kept", _OLD_SNAPSHOT_NS)


def _slow(sign: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.network.extra_ns += sign * seconds_ns(fault.number)

    return change


def _loss(sign: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        for index in fleet.affected_workers(fault):
            fleet.network.links[index].set_loss(fault.number if sign > 0 else 0.0)

    return change


def _change_link(directions: tuple[int, ...], sign: int, *, swallows: bool) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        for index in fleet.affected_workers(fault):
            for direction in directions:
                fleet.network.links[index].add_fault(direction, sign, swallows=swallows)

    return change


def _link_faults(directions: tuple[int, ...], *, swallows: bool) -> tuple[Action, Action]:
    return _change_link(directions, 1, swallows=swallows), _change_link(directions, -1, swallows=swallows)


def _duplicates(sign: int) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.network.duplicate_share = fault.number if sign > 0 else 0.0

    return change


def _half_open(fleet: SimulatedFleet, fault: Fault) -> None:
    affected = fleet.affected_workers(fault)
    for connection in list(fleet.server.connections):
        if connection.ends.worker.index in affected:  # type: ignore[attr-defined]
            connection.is_half_open = True  # type: ignore[attr-defined]
            del fleet.server.connections[connection]


def _refuse(kind: str) -> Action:
    def change(fleet: SimulatedFleet, fault: Fault) -> None:
        fleet.server.refusal = kind

    return change


def _server_clock(fleet: SimulatedFleet, fault: Fault) -> None:
    fleet.server.clock_error_us += seconds_ns(fault.number) // 1000


def _worker_clock(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        fleet.workers[index].unix_error_ns += seconds_ns(fault.number)


def _pause(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        fleet.workers[index].pause()
        fleet.note(fleet.workers[index].name, "worker_paused")


def _resume(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        fleet.workers[index].resume()
        fleet.note(fleet.workers[index].name, "worker_resumed")


def _kill(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        fleet.note(fleet.workers[index].name, "worker_killed")
        fleet.end_worker(fleet.workers[index])


def _exit(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        if fleet.workers[index].is_running:
            fleet.exit_worker(fleet.workers[index])


def _start_again(fleet: SimulatedFleet, fault: Fault) -> None:
    for index in fleet.affected_workers(fault):
        if not fleet.workers[index].is_dead:
            _kill(fleet, fault._replace(workers=(index,)))
        fleet.restart_worker(index)


def _upstream_begins(fleet: SimulatedFleet, fault: Fault) -> None:
    fleet.upstream.begin(fault)


def _upstream_ends(fleet: SimulatedFleet, fault: Fault) -> None:
    fleet.upstream.end(fault)


def _do_nothing(fleet: SimulatedFleet, fault: Fault) -> None:
    """Do nothing: the fault has no end."""


_BOTH = (REQUESTS, REPLIES)
_UPSTREAM: Final = (_upstream_begins, _upstream_ends)
FAULT_ACTIONS: Final[dict[str, tuple[Action, Action]]] = {
    "hang": (_hang, _end_hang),
    "crash": (_crash, _restart),
    "slow": (_slow(1), _slow(-1)),
    "loss": (_loss(1), _loss(-1)),
    "partition": _link_faults(_BOTH, swallows=False),
    "black_hole": _link_faults(_BOTH, swallows=True),
    "requests_lost": _link_faults((REQUESTS,), swallows=True),
    "replies_lost": _link_faults((REPLIES,), swallows=True),
    "duplicates": (_duplicates(1), _duplicates(-1)),
    "half_open": (_half_open, _do_nothing),
    "full": (_refuse("full"), _refuse("")),
    "read_only": (_refuse("read_only"), _refuse("")),
    "server_clock": (_server_clock, _do_nothing),
    "pause": (_pause, _resume),
    "kill": (_kill, _start_again),
    "exit": (_exit, _start_again),
    "worker_clock": (_worker_clock, _do_nothing),
    "upstream_errors": _UPSTREAM,
    "upstream_flaky": _UPSTREAM,
    "upstream_late": _UPSTREAM,
    "upstream_slow": _UPSTREAM,
    "upstream_refuses": _UPSTREAM,
}
"""What happens when a fault of a kind begins, and when it ends."""
