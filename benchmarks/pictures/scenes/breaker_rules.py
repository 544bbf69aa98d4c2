"""Which rule of a circuit breaker notices which fault of an upstream or a worker."""

from __future__ import annotations

import asyncio
from itertools import count

from benchmarks.pictures.simulated import SimulatedClock, arrivals, counts_per_slot, evenly, run_scene
from comporta import CircuitBreaker, CircuitOpenError
from comporta.cli.sim_charts import Bars, Mark, Panel, Picture, Shade, Spans
from comporta.stores.memory import MemoryStore

_ENDS, _RATE, _WORKERS, _COOLDOWN = 100.0, 20.0, 10, 4.0
_STEP = 0.1
_FAULTS = (
    Shade(8, 20, "all calls fail"),
    Shade(32, 44, "2 of 5 calls fail"),
    Shade(56, 68, "calls take 2 s", "violet"),
    Shade(80, 92, "1 worker fails", "orange"),
)
_DEAD, _UNRELIABLE, _SLOW, _BROKEN_WORKER = _FAULTS
_RULES = {
    "threshold=5": {"threshold": 5},
    "failure_ratio=0.3": {"threshold": None, "failure_ratio": 0.3},
    "slow_seconds=1, slow_ratio=0.5": {"threshold": None, "slow_seconds": 1.0, "slow_ratio": 0.5},
}


class Observations:
    """What calls without a breaker would meet, and when the circuit of each rule was open."""

    def __init__(self) -> None:
        self.well: list[float] = []
        self.failed: list[float] = []
        self.slow: list[float] = []
        self.open: dict[str, list[float]] = {rule: [] for rule in _RULES}
        self.open_workers: list[float] = []


def picture() -> Picture:
    """Simulate the four faults under each rule."""
    observed = _run()
    well, failed, slow = (
        counts_per_slot(moments, 1, _ENDS) for moments in (observed.well, observed.failed, observed.slow)
    )
    reached = [sum(pair) for pair in zip(well, slow, strict=True)]
    return Picture(
        "Which rule notices which fault",
        "Ten workers make 20 calls a second. Each rule is used alone; red: its circuit refuses calls.",
        [
            Panel(
                "calls per second, without a breaker",
                [
                    *_FAULTS,
                    Bars("succeeded", "blue", well),
                    Bars("slow", "violet", slow, below=well),
                    Bars("failed", "orange", failed, below=reached),
                ],
                26,
                (0, 10, 20),
                100,
            ),
            *(Panel(rule, _open_spans(observed.open[rule]), 1, (), 20) for rule in _RULES),
            Panel(
                "local_threshold=5: workers that refuse their own calls",
                [*_shades(), Bars("", "red", observed.open_workers, _STEP)],
                _WORKERS,
                (0, _WORKERS),
                50,
            ),
        ],
        ends=_ENDS,
        every=10,
    )


def _shades() -> list[Mark]:
    return [Shade(fault.start, fault.end, "", fault.color) for fault in _FAULTS]


def _open_spans(moments: list[float]) -> list[Mark]:
    spans: list[tuple[float, float, str]] = []
    for moment in moments:
        start = spans.pop()[0] if spans and moment - spans[-1][1] < _STEP / 2 else moment
        spans.append((start, moment + _STEP, ""))
    return [*_shades(), Spans("red", spans, 0, 1)]


def _run() -> Observations:
    clock, observed, numbers = SimulatedClock(), Observations(), count()
    fleet = {
        rule: CircuitBreaker(
            "pncp",
            state=MemoryStore(clock),
            cooldown_seconds=_COOLDOWN,
            window_seconds=5,
            **options,  # type: ignore[arg-type]
        )
        for rule, options in _RULES.items()
    }
    workers = [
        CircuitBreaker(
            "pncp",
            state=MemoryStore(clock),
            cooldown_seconds=_COOLDOWN,
            threshold=1_000_000,
            local_threshold=5,
        )
        for _ in range(_WORKERS)
    ]

    async def call() -> None:
        number, began = next(numbers), clock.seconds
        worker = (number + number // _WORKERS) % _WORKERS  # each worker makes different calls over time
        fails, seconds = _outcome(number, worker, began)
        (observed.failed if fails else observed.slow if seconds > 1 else observed.well).append(began)
        breakers = (*fleet.values(), workers[worker])
        await asyncio.gather(*(_attempt(breaker, seconds, fails=fails) for breaker in breakers))

    async def observe() -> None:
        while clock.seconds < _ENDS:
            for rule, breaker in fleet.items():
                if (await breaker.get_state()).phase == "open":
                    observed.open[rule].append(clock.seconds)
            phases = [(await worker.get_state()).worker_phase for worker in workers]
            observed.open_workers.append(phases.count("open"))
            await asyncio.sleep(_STEP)

    async def scene() -> None:
        await asyncio.gather(arrivals(evenly(0, _ENDS, _RATE), call), observe())

    run_scene(scene(), clock)
    return observed


def _outcome(number: int, worker: int, moment: float) -> tuple[bool, float]:
    """Return whether a call fails, and how long it takes."""
    fault = next((fault for fault in _FAULTS if fault.start <= moment < fault.end), None)
    fails = (
        fault is _DEAD
        or (fault is _UNRELIABLE and number % 5 in (0, 2))
        or (fault is _BROKEN_WORKER and worker == 0)
    )
    return fails, 2.0 if fault is _SLOW else 0.1


async def _attempt(breaker: CircuitBreaker, seconds: float, *, fails: bool) -> None:
    try:
        async with breaker.admit():
            await asyncio.sleep(seconds)
            if fails:
                raise OSError
    except (CircuitOpenError, OSError):
        pass
