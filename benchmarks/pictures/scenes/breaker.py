"""A circuit through an outage of its upstream: it opens, probes, and comes back in steps."""

from __future__ import annotations

import asyncio
from itertools import groupby

from benchmarks.pictures.drawing import Bars, Dots, Key, Mark, Note, Panel, Picture, Point, Shade, Spans
from benchmarks.pictures.simulated import SimulatedClock, arrivals, counted, evenly, played
from comporta import CircuitBreaker, CircuitOpenError
from comporta.stores.memory import MemoryStore

_ENDS, _FAILS, _HEALS, _RATE = 60.0, 8.0, 27.0, 10.0
_COLORS = {"closed": "green", "open": "red", "half_open": "orange", "ramp": "violet"}


class Seen:
    """What became of the calls, and in which phase the circuit was."""

    def __init__(self) -> None:
        self.well: list[float] = []
        self.failed: list[float] = []
        self.refused: list[float] = []
        self.probes: list[tuple[float, bool]] = []
        self.phases: list[tuple[float, str]] = []


def picture() -> Picture:
    """Play the outage."""
    seen = _played()
    well, failed = (counted(moments, 1, _ENDS) for moments in (seen.well, seen.failed))
    reached = [sum(pair) for pair in zip(well, failed, strict=True)]
    shade = Shade(_FAILS, _HEALS, "the upstream is down")
    return Picture(
        "A circuit breaker through an outage",
        "Ten calls a second. Five failures in a row open it for 10 s; one probe decides; then it lets "
        "through more in four steps.",
        [
            Panel("the circuit", [*_phases(seen), Key("half-open: one probe", "orange")], 1, (), 26),
            Panel(
                f"calls in each second, {len(seen.failed)} in vain",
                [
                    shade,
                    Bars("done", "blue", well),
                    Bars("failed", "orange", failed, below=well),
                    Bars("refused at once, not sent", "grey", counted(seen.refused, 1, _ENDS), below=reached),
                ],
                13,
                (0, 5, 10),
                110,
            ),
            Panel("probes of the whole fleet", _probes(seen), 1, (), 34),
        ],
        ends=_ENDS,
        every=5,
    )


def _phases(seen: Seen) -> list[Mark]:
    spans: list[Mark] = []
    runs = [(phase, next(run)[0]) for phase, run in groupby(seen.phases, key=lambda one: one[1])]
    ends = [*(start for _, start in runs[1:]), _ENDS]
    for (phase, start), end in zip(runs, ends, strict=True):
        spans.append(Spans(_COLORS[phase], [(start, end, phase)], 0, 1))
    return spans


def _probes(seen: Seen) -> list[Mark]:
    points: dict[bool, list[Point]] = {True: [], False: []}
    for moment, well in seen.probes:
        points[well].append((moment, 0.5))
    notes = [
        Note(moment, 0.5, "succeeds: back in steps" if well else "fails: open again")
        for moment, well in seen.probes
    ]
    return [Dots("", "orange", points[False], 5), Dots("", "blue", points[True], 5), *notes]


def _played() -> Seen:
    clock, seen = SimulatedClock(), Seen()
    breaker = CircuitBreaker(
        "pncp", threshold=5, cooldown_seconds=10, ramp_steps=4, ramp_seconds=3, state=MemoryStore(clock)
    )

    async def call() -> None:
        began = clock.seconds
        is_well = not _FAILS <= began < _HEALS
        try:
            async with breaker as admission:
                (seen.well if is_well else seen.failed).append(began)
                if admission.phase == "half_open":
                    seen.probes.append((began, is_well))
                await asyncio.sleep(1.0)
                if not is_well:
                    raise OSError
        except CircuitOpenError:
            seen.refused.append(began)
        except OSError:
            pass

    async def watched() -> None:
        while clock.seconds < _ENDS:
            seen.phases.append((clock.seconds, (await breaker.get_state()).phase))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        await asyncio.gather(arrivals(evenly(0, _ENDS, _RATE), call), watched())

    played(scene(), clock)
    return seen
