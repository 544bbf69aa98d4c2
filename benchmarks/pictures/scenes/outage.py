"""What a fleet was granted through a minute of faults: real processes, a real server, real seconds.

The run is the one of ``tests/soak/test_outages.py``, and held to the same promises before it is drawn. It is
the one picture that comes out a little different each time.
"""

from __future__ import annotations

from tests.outages.promises import hold_to_promises
from tests.outages.record import SECOND_NS, Phase, Record
from tests.outages.story import ALL, play

from benchmarks.pictures.drawing import Bars, Level, Mark, Note, Panel, Picture, Shade, Spans
from benchmarks.pictures.simulated import counted

_BURST = 10


def picture() -> Picture:
    """Play the story, if all promises were kept."""
    record = play(ALL, capacity=_BURST)
    hold_to_promises(record)
    return drawn(record)


def drawn(record: Record) -> Picture:
    """Return a record as a picture."""
    spans = [(*_span(phase, record.began_ns), phase.name) for phase in record.phases]
    faults: list[Mark] = [Spans("orange", [(start, end, "") for start, end, _ in spans], 0, 1)]
    for number, (start, end, name) in enumerate(
        spans
    ):  # by turns, since short ones stand close to each other
        faults.append(Note((start + end) / 2, 2.1 + 1.6 * (number % 2), name, "middle"))
    shades = [Shade(start, end, "", "orange") for start, end, _ in spans]
    return Picture(
        f"{len(record.answers)} processes share one limit of {record.rate}/s while their server fails",
        "They ask for twice the limit all the time. Alone, each goes on with its share: together, what is "
        "granted stays at the limit.",
        [
            Panel("what is done to the server", faults, 5, (), 62),
            _granted("granted in each second", record, 1.0, shades),
            _granted("granted in each 100 ms", record, 0.1, shades),
        ],
        ends=float(_seconds(record)),
        every=5,
    )


def _granted(title: str, record: Record, slot: float, shades: list[Shade]) -> Panel:
    rate, moments = record.rate, [(after - record.began_ns) / 1e9 for _, after in record.grants]
    marks: list[Mark] = [
        *shades,
        Bars("granted", "blue", counted(moments, slot, float(_seconds(record))), slot),
        Level("the limit", "red", rate * slot),
    ]
    return Panel(title, marks, (1.4 if slot == 1 else 2.5) * rate * slot, (0, rate * slot), 110)


def _seconds(record: Record) -> int:
    return (max(after for _, after in record.grants) - record.began_ns) // SECOND_NS


def _span(phase: Phase, began_ns: int) -> tuple[float, float]:
    """Return from when to when to shade: what is done in a moment is shown as one."""
    ended_ns = phase.ended_ns if phase.alone else phase.began_ns + SECOND_NS // 4
    return (phase.began_ns - began_ns) / 1e9, (ended_ns - began_ns) / 1e9
