"""The grants of a fleet through a minute of faults, with real processes and a real server.

It uses the run of ``tests/soak/test_outages.py`` and checks the same promises before it draws. It is the only
picture that differs a little each time.
"""

from __future__ import annotations

from tests.outages.promises import assert_promises
from tests.outages.record import SECOND_NS, OutageRecord, Phase
from tests.outages.scenario import ALL_FAULTS, run_faults

from benchmarks.pictures.simulated import counts_per_slot
from comporta.cli.sim_charts import Bars, Level, Mark, Note, Panel, Picture, Shade, Spans

_BURST = 10


def picture() -> Picture:
    """Run all faults, check the promises, and draw the record."""
    record = run_faults(ALL_FAULTS, capacity=_BURST)
    assert_promises(record)
    return draw(record)


def draw(record: OutageRecord) -> Picture:
    """Return the picture of a record."""
    spans = [(*_span(phase, record.began_ns), phase.name) for phase in record.phases]
    faults: list[Mark] = [Spans("orange", [(start, end, "") for start, end, _ in spans], 0, 1)]
    for number, (start, end, name) in enumerate(spans):  # at two heights, because short faults are close
        faults.append(Note((start + end) / 2, 2.1 + 1.6 * (number % 2), name, "middle"))
    shades = [Shade(start, end, "", "orange") for start, end, _ in spans]
    return Picture(
        f"{len(record.results)} processes share one limit of {record.rate}/s while their server fails",
        "They call at twice the limit all the time. In an outage each uses its local share, and together "
        "they stay at the limit.",
        [
            Panel("faults of the server", faults, 5, (), 62),
            _granted("granted per second", record, 1.0, shades),
            _granted("granted per 100 ms", record, 0.1, shades),
        ],
        ends=float(_seconds(record)),
        every=5,
    )


def _granted(title: str, record: OutageRecord, slot: float, shades: list[Shade]) -> Panel:
    rate, moments = record.rate, [(after - record.began_ns) / 1e9 for _, after in record.grants]
    marks: list[Mark] = [
        *shades,
        Bars("granted", "blue", counts_per_slot(moments, slot, float(_seconds(record))), slot),
        Level("the limit", "red", rate * slot),
    ]
    return Panel(title, marks, (1.4 if slot == 1 else 2.5) * rate * slot, (0, rate * slot), 110)


def _seconds(record: OutageRecord) -> int:
    return (max(after for _, after in record.grants) - record.began_ns) // SECOND_NS


def _span(phase: Phase, began_ns: int) -> tuple[float, float]:
    """Return the start and the end of the shade; a fault without duration gets a short one."""
    ended_ns = phase.ended_ns if phase.falls_back else phase.began_ns + SECOND_NS // 4
    return (phase.began_ns - began_ns) / 1e9, (ended_ns - began_ns) / 1e9
