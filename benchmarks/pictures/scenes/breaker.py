"""A circuit breaker through an outage of its upstream: it opens, probes, and closes in steps."""

from __future__ import annotations

import asyncio
from itertools import groupby

from benchmarks.pictures.simulated import SimulatedClock, arrivals, counts_per_slot, evenly, run_scene
from comporta import CircuitBreaker, CircuitOpenError
from comporta.cli.sim_charts import Bars, Dots, Key, Mark, Note, Panel, Picture, Point, Shade, Spans
from comporta.stores.memory import MemoryStore

_ENDS, _FAILS, _HEALS, _RATE = 60.0, 8.0, 27.0, 10.0
_COLORS = {"closed": "green", "open": "red", "half_open": "orange", "ramp": "violet"}


class Observations:
    """The outcomes of the calls, and the phases of the circuit."""

    def __init__(self) -> None:
        self.well: list[float] = []
        self.failed: list[float] = []
        self.refused: list[float] = []
        self.probes: list[tuple[float, bool]] = []
        self.phases: list[tuple[float, str]] = []


def picture() -> Picture:
    """Simulate the outage."""
    observed = _run()
    well, failed = (counts_per_slot(moments, 1, _ENDS) for moments in (observed.well, observed.failed))
    reached = [sum(pair) for pair in zip(well, failed, strict=True)]
    shade = Shade(_FAILS, _HEALS, "the upstream is down")
    return Picture(
        "A circuit breaker through an outage",
        "Ten calls a second. Five consecutive failures open it for 10 s; one probe decides; then it admits "
        "more calls in four steps.",
        [
            Panel("the circuit", [*_phases(observed), Key("half-open: one probe", "orange")], 1, (), 26),
            Panel(
                f"calls per second, {len(observed.failed)} of them failed",
                [
                    shade,
                    Bars("succeeded", "blue", well),
                    Bars("failed", "orange", failed, below=well),
                    Bars(
                        "refused, not sent",
                        "grey",
                        counts_per_slot(observed.refused, 1, _ENDS),
                        below=reached,
                    ),
                ],
                13,
                (0, 5, 10),
                110,
            ),
            Panel("probes of the whole fleet", _probes(observed), 1, (), 34),
        ],
        ends=_ENDS,
        every=5,
    )


def _phases(observed: Observations) -> list[Mark]:
    spans: list[Mark] = []
    runs = [(phase, next(run)[0]) for phase, run in groupby(observed.phases, key=lambda one: one[1])]
    ends = [*(start for _, start in runs[1:]), _ENDS]
    for (phase, start), end in zip(runs, ends, strict=True):
        spans.append(Spans(_COLORS[phase], [(start, end, phase)], 0, 1))
    return spans


def _probes(observed: Observations) -> list[Mark]:
    points: dict[bool, list[Point]] = {True: [], False: []}
    for moment, well in observed.probes:
        points[well].append((moment, 0.5))
    notes = [
        Note(moment, 0.5, "succeeds: closes in steps" if well else "fails: opens again")
        for moment, well in observed.probes
    ]
    return [Dots("", "orange", points[False], 5), Dots("", "blue", points[True], 5), *notes]


def _run() -> Observations:
    clock, observed = SimulatedClock(), Observations()
    breaker = CircuitBreaker(
        "pncp", threshold=5, cooldown_seconds=10, ramp_steps=4, ramp_seconds=3, state=MemoryStore(clock)
    )

    async def call() -> None:
        began = clock.seconds
        is_well = not _FAILS <= began < _HEALS
        try:
            async with breaker.admit() as admission:
                (observed.well if is_well else observed.failed).append(began)
                if admission.phase == "half_open":
                    observed.probes.append((began, is_well))
                await asyncio.sleep(1.0)
                if not is_well:
                    raise OSError
        except CircuitOpenError:
            observed.refused.append(began)
        except OSError:
            pass

    async def observe() -> None:
        while clock.seconds < _ENDS:
            observed.phases.append((clock.seconds, (await breaker.get_state()).phase))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        await asyncio.gather(arrivals(evenly(0, _ENDS, _RATE), call), observe())

    run_scene(scene(), clock)
    return observed
