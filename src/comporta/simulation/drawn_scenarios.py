"""The scenario of a seed: mostly a mix of everything; four in fourteen aim at a single promise.

A mix rarely reaches the states in which some bugs show: a worker count that is read while the registry fills
again, a bucket that is full while leases are held, failures that arrive after the circuit has closed. A
targeted scenario creates such a state on purpose, and leaves the details to the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from comporta.simulation.faults import Fault
from comporta.simulation.scenario import FleetScenario, draw_faults, draw_mixed_scenario

TARGETED_EVERY: Final = 7
_TARGETED_REST = 5
TARGETED_OUTAGES_EVERY: Final = 14
_TARGETED_OUTAGES_REST = 7
TARGETED_SHARES_EVERY: Final = 14
_TARGETED_SHARES_REST = 11
_AMPLE_LIMIT = FleetScenario(0, seconds=18.0, workload="upstream", rate=200.0, capacity=200, max_wait=0.5)
"""Calls of an upstream that the limit never delays."""


def draw_scenario(seed: int) -> FleetScenario:
    """Return the scenario of a seed."""
    random = Random(seed)
    if seed % TARGETED_EVERY == _TARGETED_REST:
        return random.choice(TARGETED)(seed, random)
    if seed % TARGETED_OUTAGES_EVERY == _TARGETED_OUTAGES_REST:
        return random.choice(TARGETED_OUTAGES)(seed, random)
    if seed % TARGETED_SHARES_EVERY == _TARGETED_SHARES_REST:
        return random.choice(TARGETED_SHARES)(seed, random)
    return draw_mixed_scenario(seed)


def draw_retries(seed: int, random: Random) -> FleetScenario:
    """An upstream that fails often and a breaker that does not notice: only the budget bounds retries."""
    workers = random.choice((3, 5, 8))
    return replace(
        _AMPLE_LIMIT,
        seed=seed,
        workers=workers,
        is_async=random.random() < 0.5,
        load=round(25 / workers, 3),
        callers=4,
        threshold=1000,
        retry_base=random.choice((0.1, 0.3)),
        faults=(Fault("upstream_flaky", 3.0, 8.0, (), random.choice(("0.7", "0.9"))),),
    )


def draw_late_results(seed: int, random: Random) -> FleetScenario:
    """Failures of calls that began before the circuit opened, and end after it has closed."""
    workers = random.choice((3, 5, 8))
    seconds = round(random.uniform(0.4, 0.9), 2)
    return replace(
        _AMPLE_LIMIT,
        seed=seed,
        workers=workers,
        is_async=random.random() < 0.5,
        load=round(60 / workers, 3),
        callers=8,
        threshold=random.choice((2, 3, 5)),
        cooldown=0.3,
        faults=tuple(Fault("upstream_late", at, seconds, (), "0.6") for at in (3.0, 6.5, 10.0)),
    )


def draw_lost_registry(seed: int, random: Random) -> FleetScenario:
    """An outage while the registry fills again: the server's clock jumped, and all workers seem dead."""
    workers = random.choice((5, 8))
    rate = random.choice((10.0, 20.0))
    jump = round(random.uniform(3.5, 5.0), 2)
    hang = round(jump + random.uniform(0.15, 0.7), 2)
    return FleetScenario(
        seed,
        workers=workers,
        seconds=16.0,
        is_async=random.random() < 0.3,
        load=round(4 * rate / workers, 3),
        callers=2,
        rate=rate,
        capacity=round(rate / 2),
        faults=(
            Fault("server_clock", jump, 0.0, (), random.choice(("10", "3600"))),
            Fault("hang", hang, round(random.uniform(2.5, 4.0), 2)),
        ),
    )


def draw_idle_leases(seed: int, random: Random) -> FleetScenario:
    """Bursts while workers hold leases that they did not use: both together must stay within the burst."""
    workers = random.choice((2, 3))
    rate = random.choice((20.0, 40.0))
    return FleetScenario(
        seed,
        workers=workers,
        seconds=18.0,
        workload="lease",
        is_async=random.random() < 0.3,
        load=round(8 * rate / workers, 3),
        callers=4,
        rate=rate,
        capacity=round(rate),
        burst_seconds=2.0,
        trickles=True,
        lease=random.choice((2.0, 4.0)),
    )


def draw_strategy(seed: int, random: Random) -> FleetScenario:
    """A limit with a strategy other than the token bucket, with faults of the whole fleet."""
    workers = random.choice((2, 3, 5))
    rate = random.choice((5.0, 10.0, 20.0))
    scenario = FleetScenario(
        seed,
        workers=workers,
        seconds=14.0,
        is_async=random.random() < 0.3,
        load=round(random.choice((0.7, 2.0, 4.0)) * rate / workers, 3),
        callers=2,
        rate=rate,
        capacity=round(rate * random.choice((0.5, 1, 2))) or 1,
        strategy=random.choice(("leaky_bucket", "fixed_window", "sliding_window")),
    )
    return scenario.with_faults(draw_faults(random, scenario, random.uniform(2.0, 3.5), for_all=True))


def draw_priorities(seed: int, random: Random) -> FleetScenario:
    """Callers of all classes, and more of the lowest than the limit has units."""
    workers = random.choice((2, 3, 5))
    rate = random.choice((10.0, 20.0, 40.0))
    return FleetScenario(
        seed,
        workers=workers,
        seconds=14.0,
        workload="priority",
        is_async=random.random() < 0.3,
        load=round(random.choice((2.0, 3.0)) * rate / workers, 3),
        callers=8,
        rate=rate,
        capacity=round(rate),
        max_wait=random.choice((0.0, 0.5)),
    )


def draw_reservations(seed: int, random: Random) -> FleetScenario:
    """Callers that reserve more than they use."""
    workers = random.choice((2, 3, 5))
    rate = random.choice((20.0, 40.0))
    return FleetScenario(
        seed,
        workers=workers,
        seconds=14.0,
        workload="reserve",
        is_async=random.random() < 0.3,
        load=round(rate / workers, 3),
        callers=4,
        rate=rate,
        capacity=round(rate),
        strategy=random.choice(("token_bucket", "token_bucket", "fixed_window", "sliding_window")),
    )


def draw_cache(seed: int, random: Random) -> FleetScenario:
    """Workers that fetch the same few keys, and stop or die while they load them."""
    workers = random.choice((2, 3, 5))
    scenario = FleetScenario(
        seed, workers=workers, seconds=14.0, workload="cache", load=round(20 / workers, 3), callers=4
    )
    kinds = random.choice(((), ("kill", "pause"), ("kill",), ("hang",)))
    faults = [
        Fault(
            kind,
            round(3.0 + 2.5 * at + random.uniform(0, 1), 2),
            round(random.uniform(0.5, 1.5), 2),
            () if kind == "hang" else (random.randrange(workers),),
        )
        for at, kind in enumerate(kinds)
    ]
    return replace(scenario, faults=tuple(faults), is_async=random.random() < 0.3)


def draw_short_hang(seed: int, random: Random) -> FleetScenario:
    """A hang about as long as a deadline, of which some workers notice only the end."""
    workers = random.choice((4, 8, 8, 12))
    rate = random.choice((100.0, 200.0, 500.0))
    workload = random.choice(("limit", "limit", "wait"))
    return FleetScenario(
        seed,
        workers=workers,
        seconds=9.5,
        workload=workload,
        is_async=random.random() < 0.3,
        load=round(random.choice((2, 4)) * rate / workers, 3),
        callers=random.choice((2, 4)),
        rate=rate,
        capacity=round(rate * random.choice((0.2, 1, 2))),
        max_wait=1.0 if workload == "wait" else 0.0,
        jitter=random.choice((0.0001, 0.001)),
        faults=(Fault("hang", round(random.uniform(2.2, 3), 3), round(random.uniform(0.05, 0.15), 3)),),
    )


def draw_repeated_outage(seed: int, random: Random) -> FleetScenario:
    """A second, short outage soon after the fleet has rejoined; a high limit shows who rejoins alone."""
    workers = random.choice((4, 8))
    rate = random.choice((200.0, 500.0))
    kind = random.choice(("hang", "hang", "crash", "black_hole", "requests_lost", "replies_lost"))
    first = Fault(kind, round(random.uniform(2.2, 3), 2), round(random.uniform(0.3, 1.5), 2))
    again_at = round(first.end + random.uniform(0.6, 1.1), 2)
    second = Fault(random.choice((kind, "hang")), again_at, round(random.uniform(0.1, 0.3), 2))
    return FleetScenario(
        seed,
        workers=workers,
        seconds=13.0,
        is_async=random.random() < 0.3,
        load=round(2 * rate / workers, 3),
        callers=2,
        rate=rate,
        capacity=round(rate * random.choice((0.1, 0.5, 1))),
        faults=(first, second),
    )


def draw_large_fleet(seed: int, random: Random) -> FleetScenario:
    """A fleet of up to 50 workers that all lose the store."""
    workers = random.choice((20, 30, 50))
    workload = random.choice(("limit", "limit", "wait"))
    scenario = FleetScenario(
        seed,
        workers=workers,
        seconds=14.0,
        workload=workload,
        is_async=random.random() < 0.3,
        load=round(400 / workers, 3),
        callers=2,
        rate=200.0,
        capacity=random.choice((20, 200)),
        max_wait=1.0 if workload == "wait" else 0.0,
    )
    return scenario.with_faults(draw_faults(random, scenario, random.uniform(2.0, 3.5), for_all=True))


def draw_priorities_in_outage(seed: int, random: Random) -> FleetScenario:
    """Callers of all classes while anything goes wrong."""
    return _with_any_faults(draw_priorities(seed, random), random)


def draw_reservations_in_outage(seed: int, random: Random) -> FleetScenario:
    """Callers that reserve and settle while anything goes wrong."""
    return _with_any_faults(draw_reservations(seed, random), random)


def draw_duplicates(seed: int, random: Random) -> FleetScenario:
    """Requests that arrive twice, even while the fleet reports and rejoins."""
    workers = random.choice((2, 3, 5, 8))
    rate = random.choice((10.0, 40.0, 200.0))
    workload = random.choice(("limit", "wait", "lease", "reserve"))
    hang = Fault("hang", round(random.uniform(3, 4), 2), round(random.uniform(0.1, 1.5), 2))
    return FleetScenario(
        seed,
        workers=workers,
        seconds=14.0,
        workload=workload,
        is_async=random.random() < 0.3,
        load=round(random.choice((0.7, 2.0)) * rate / workers, 3),
        callers=2,
        rate=rate,
        capacity=round(rate * random.choice((0.5, 1, 2))),
        max_wait=1.0 if workload == "wait" else 0.0,
        faults=(Fault("duplicates", 2.0, 5.5, (), random.choice(("0.1", "0.5"))), hang),
    )


_STRATEGIES = (*("token_bucket",) * 3, "leaky_bucket", "fixed_window", "sliding_window")


def draw_start_in_outage(seed: int, random: Random) -> FleetScenario:
    """Workers that start while the server is dead, and learn of each other only on their machine."""
    machines = random.choice(((2,), (3,), (5,), (8,), (2, 2), (3, 1), (4, 4)))
    workers, rate = sum(machines), random.choice((10.0, 20.0, 40.0))
    workload = random.choice(("limit", "limit", "wait"))
    kind = random.choice(("crash", "crash", "hang", "black_hole", "partition", "requests_lost", "full"))
    first = Fault(kind, 0.0, round(random.uniform(2.5, 5), 2))
    faults = [first]
    if random.random() < 0.4:
        at, seconds = round(random.uniform(0.3, 2), 2), round(random.uniform(0.1, 1), 2)
        faults.append(
            Fault(random.choice(("kill", "pause", "exit")), at, seconds, (random.randrange(workers),))
        )
    if random.random() < 0.3:
        faults.append(Fault("hang", round(first.end + random.uniform(0.5, 3), 2), 1.0))
    return FleetScenario(
        seed,
        workers=workers,
        seconds=16.0,
        workload=workload,
        is_async=random.random() < 0.3,
        load=round(random.choice((1.2, 2.0)) * rate, 3),
        callers=2,
        rate=rate,
        capacity=round(rate * random.choice((0.1, 0.5, 1))),
        max_wait=1.0 if workload == "wait" else 0.0,
        machines=machines,
        start_seconds=random.choice((0.05, 0.2, 2.0)),
        faults=tuple(faults),
        strategy=random.choice(_STRATEGIES),
    )


def draw_closed(seed: int, random: Random) -> FleetScenario:
    """A limit that refuses everything some time after an outage has begun."""
    workers = random.choice((2, 3, 5))
    rate = random.choice((10.0, 20.0, 40.0))
    workload = random.choice(("limit", "limit", "wait", "lease", "upstream"))
    kinds = ("hang", "crash", "partition", "black_hole", "requests_lost", "replies_lost", "full")
    starts_dead = random.random() < 0.3
    first_at = 0.0 if starts_dead else round(random.uniform(2, 3), 2)
    first = Fault(random.choice(kinds), first_at, round(random.uniform(1, 4), 2))
    again = Fault(random.choice(kinds), round(first.end + random.uniform(0.3, 2), 2), 1.0)
    return FleetScenario(
        seed,
        workers=workers,
        seconds=17.0,
        workload=workload,
        is_async=random.random() < 0.3,
        load=round(random.choice((2.0, 4.0)) * rate / workers, 3),
        callers=2,
        rate=rate,
        capacity=round(rate * random.choice((0.5, 1))),
        max_wait=1.0 if workload in {"wait", "upstream"} else 0.0,
        drift_ppm=random.choice((0, 500)),
        machines=(workers,) if starts_dead else (),
        fallback="closed",
        closed_after=random.choice((0.0, 0.5, 1.0, 2.0)),
        faults=(first, again) if random.random() < 0.5 else (first,),
        strategy="token_bucket" if workload == "upstream" else random.choice(_STRATEGIES),
    )


def _with_any_faults(scenario: FleetScenario, random: Random) -> FleetScenario:
    for_all = random.random() < 0.5
    return scenario.with_faults(draw_faults(random, scenario, random.uniform(2.0, 3.5), for_all=for_all))


TARGETED: Final[tuple[Callable[[int, Random], FleetScenario], ...]] = (
    draw_retries,
    draw_late_results,
    draw_lost_registry,
    draw_idle_leases,
    draw_strategy,
    draw_priorities,
    draw_reservations,
    draw_cache,
    draw_short_hang,
)
"""What targeted scenarios aim at; the seed chooses one."""

TARGETED_OUTAGES: Final[tuple[Callable[[int, Random], FleetScenario], ...]] = (
    draw_repeated_outage,
    draw_large_fleet,
    draw_priorities_in_outage,
    draw_reservations_in_outage,
    draw_duplicates,
)
"""What scenarios that aim at one policy during outages are drawn by; the seed chooses one."""

TARGETED_SHARES: Final[tuple[Callable[[int, Random], FleetScenario], ...]] = (
    draw_start_in_outage,
    draw_closed,
)
"""What scenarios that aim at the local shares are drawn by; the seed chooses one."""
