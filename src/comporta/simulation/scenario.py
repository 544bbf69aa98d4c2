"""A scenario: everything that determines a simulation, as one value drawn from a seed.

Two scenarios that are equal give the same history. A scenario can be printed as text. Its fault script can be
replaced, which is how ``shrinker.py`` shrinks a failing seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from comporta.simulation.faults import Fault, format_faults

WORKLOADS: Final = ("limit", "wait", "lease", "upstream")
"""What workers do: take without waiting, wait for a limit, take with leases, call an upstream.

Scenarios that aim at one promise also use ``"priority"``, ``"reserve"`` and ``"cache"``
(``drawn_scenarios.py``).
"""

QUIET_SECONDS = 6.0
"""All faults end at least this long before the end, so that every worker can recover."""


@dataclass(frozen=True)
class FleetScenario:
    """One simulation. Times are in seconds, ``load`` in calls per second and worker.

    With ``burst_seconds`` all callers alternately call and pause, for this long each; with ``trickles`` they
    call at a fortieth of the load instead of pausing. ``lease``, ``threshold``, ``cooldown`` and
    ``retry_base`` are options of the limit, the breaker and the retry. With ``lua`` the server runs the Lua
    scripts instead of the Python steps, which takes longer and gives the same history.

    ``machines`` is how many workers run on each machine, in order; those of one machine count each other
    during an outage. Without it, workers have one file of the last worker count in common but cannot count
    each other. They start within ``start_seconds``. ``fallback`` and ``closed_after`` are options of the
    limit.
    """

    seed: int
    workers: int = 5
    seconds: float = 30.0
    workload: str = "limit"
    is_async: bool = False
    load: float = 1.0
    callers: int = 1
    rate: float = 3.0
    capacity: int = 5
    strategy: str = "token_bucket"
    max_wait: float = 0.0
    max_concurrent: int | None = None
    latency: float = 0.0005
    jitter: float = 0.0005
    drift_ppm: int = 0
    burst_seconds: float = 0.0
    trickles: bool = False
    lease: float = 0.5
    threshold: int = 5
    cooldown: float = 2.0
    retry_base: float = 2.0
    faults: tuple[Fault, ...] = ()
    lua: bool = False
    machines: tuple[int, ...] = ()
    start_seconds: float = 0.2
    fallback: str = "share"
    closed_after: float = 0.0

    def __post_init__(self) -> None:
        if self.machines and sum(self.machines) != self.workers:
            raise ValueError(f"machines must have {self.workers} workers in all, got {self.machines}")

    def machine_of(self, index: int) -> int:
        """Return the number of the machine on which a worker runs."""
        first = 0
        for machine, workers in enumerate(self.machines):
            first += workers
            if index < first:
                return machine
        return 0

    def machine_of_name(self, worker: str) -> int:
        """Return the number of the machine of a process by its name: ``w3``, or ``w3.1`` after a restart."""
        return self.machine_of(int(worker.removeprefix("w").partition(".")[0]))

    @property
    def burst(self) -> int:
        """The most grants at one moment that the strategy allows; this and the rate bound all grants."""
        return {"fixed_window": 2 * self.capacity, "leaky_bucket": 1}.get(self.strategy, self.capacity)

    def with_faults(self, faults: tuple[Fault, ...]) -> FleetScenario:
        """Return the same scenario with another fault script."""
        return replace(self, faults=faults)

    def __str__(self) -> str:
        style = "async" if self.is_async else "blocking"
        return (
            f"seed {self.seed}: {self.workers} workers, {self.seconds:g} s, {style} {self.workload}, "
            f"{self.load:g} calls/s each by {self.callers}, {self.strategy} {self.rate:g}/s burst "
            f"{self.capacity}, wait {self.max_wait:g} s, permits {self.max_concurrent}, latency "
            f"{self.latency:g}+{self.jitter:g} s, drift {self.drift_ppm} ppm, "
            f"bursts of {self.burst_seconds:g} s{self._options_text()}, "
            f"faults: {format_faults(self.faults) or 'none'}"
        )

    def _options_text(self) -> str:
        """Return those options that few scenarios set, if they are set."""
        options: tuple[str, ...] = ("trickles", "lease", "threshold", "cooldown", "retry_base", "lua")
        options += ("machines", "start_seconds", "fallback", "closed_after")
        given = [(name, getattr(self, name)) for name in options]
        return "".join(f", {name} {value}" for name, value in given if value != getattr(FleetScenario, name))


def draw_mixed_scenario(seed: int) -> FleetScenario:
    """Return a scenario of any workload with any faults."""
    random = Random(seed)
    workload = random.choices(WORKLOADS, (4, 2, 2, 3))[0]
    workers = random.choice((2, 3, 4, 5, 5, 8))
    rate = random.choice((5.0, 10.0, 20.0, 40.0))
    demand = rate * random.choice((0.7, 2.0, 4.0))
    scenario = FleetScenario(
        seed=seed,
        workers=workers,
        seconds=random.choice((14.0, 18.0)),
        workload=workload,
        is_async=random.random() < 0.3,
        load=round(demand / workers, 3),
        callers=random.choice((1, 2, 4)),
        rate=rate,
        capacity=max(1, round(rate * random.choice((0.5, 1, 2)))),
        max_wait=random.choice((0.5, 2.0)) if workload in {"wait", "upstream"} else 0.0,
        max_concurrent=random.choice((None, 2, 5)) if workload == "upstream" else None,
        latency=random.choice((0.0002, 0.0005, 0.002, 0.01)),
        jitter=random.choice((0.0001, 0.001, 0.005)),
        drift_ppm=random.choice((0, 0, 50, 500)),
        burst_seconds=2.0 if workload == "lease" and seed % 2 else 0.0,
    )
    at = random.uniform(2.0, 3.5)
    for_all = workload != "upstream" and random.random() < _FOR_ALL
    return scenario.with_faults(draw_faults(random, scenario, at, for_all=for_all))


def draw_faults(random: Random, scenario: FleetScenario, at: float, *, for_all: bool) -> tuple[Fault, ...]:
    """Draw a few faults, the first at ``at``; ``for_all``: only faults of the whole fleet.

    Some follow shortly after the end of another, where protocols are weakest.
    """
    faults: list[Fault] = []
    last = scenario.seconds - QUIET_SECONDS
    for _ in range(random.choice((0, 1, 1, 2, 2, 2, 3, 4))):
        fault = _draw_fault(random, scenario, round(at, 2), for_all=for_all)
        if faults and random.random() < _REPEATED:
            fault = faults[-1]._replace(at=fault.at, seconds=fault.seconds and faults[-1].seconds)
        if fault.end > last:
            break
        faults.append(fault)
        overlaps = random.random() < _OVERLAPPING
        at = fault.at + random.uniform(0, fault.seconds) if overlaps else fault.end + _draw_gap(random)
    return tuple(faults)


_FOR_ALL = 0.5
"""The fraction of scenarios, besides those that call an upstream, with faults of the whole fleet only.

Their bounds are the tightest.
"""

_REPEATED = 0.3
_OVERLAPPING = 0.2


def _draw_gap(random: Random) -> float:
    """Draw the pause between two faults: mostly about as long as a fleet needs to rejoin."""
    return random.uniform(0.05, 1.5) if random.random() < 0.75 else random.uniform(1.5, 5.0)


_SERVER_FAULTS = ("hang", "hang", "hang", "crash", "crash", "slow", "full", "read_only", "server_clock")
_NETWORK_FAULTS = ("loss", "partition", "black_hole", "requests_lost", "replies_lost", "half_open")
_WORKER_FAULTS = ("pause", "pause", "kill", "exit", "worker_clock")
_UPSTREAM_FAULTS = ("upstream_errors", "upstream_flaky", "upstream_slow", "upstream_refuses")


_FLEET_FAULTS = ("hang", "hang", "crash", "partition", "black_hole", "requests_lost", "replies_lost", "full")


def _draw_fault(random: Random, scenario: FleetScenario, at: float, *, for_all: bool) -> Fault:
    families: list[tuple[str, ...]] = [_SERVER_FAULTS, _NETWORK_FAULTS, _WORKER_FAULTS]
    if scenario.workload == "upstream":
        families += [_UPSTREAM_FAULTS, _UPSTREAM_FAULTS]
    elif for_all:
        families = [_FLEET_FAULTS]
    kind = random.choice(random.choice(families))
    seconds = round(random.choice((random.uniform(0.02, 0.3), random.uniform(0.3, 4.0))), 2)
    workers: tuple[int, ...] = ()
    if kind in _WORKER_FAULTS or (kind in _NETWORK_FAULTS and not for_all and random.random() < 0.5):
        some = random.sample(range(scenario.workers), random.randint(1, max(1, scenario.workers // 2)))
        workers = tuple(sorted(some))
    return Fault(
        kind, at, 0.0 if kind in _MOMENTARY else seconds, workers, _draw_value(random, kind, for_all=for_all)
    )


_MOMENTARY = frozenset({"half_open", "server_clock", "worker_clock"})


def _draw_value(random: Random, kind: str, *, for_all: bool) -> str:
    if kind == "crash":
        return "" if for_all else random.choice(("", "", "empty", "old"))
    if kind == "slow":
        return f"{random.choice((0.01, 0.02, 0.03, 0.2)):g}"
    if kind == "loss":
        return f"{random.choice((0.05, 0.2, 0.5)):g}"
    if kind in {"server_clock", "worker_clock"}:
        return f"{random.choice((-3600, -1, -0.3, 0.3, 1, 3600)):g}"
    if kind == "upstream_flaky":
        return "0.5"
    if kind in {"upstream_slow", "upstream_refuses"}:
        return f"{random.choice((0.5, 1, 2)):g}"
    return ""
