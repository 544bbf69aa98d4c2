"""Draws what a fleet was granted through a minute of faults: ``docs/outage.svg``.

The run is the one of ``tests/soak/test_outages.py``, and held to the same promises. Drawn here rather than by
a library, because it is two lines and some boxes; the greys can be read on a light page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tests.outages.promises import hold_to_promises
from tests.outages.record import SECOND_NS, Phase, Record
from tests.outages.story import ALL, play

PICTURE = Path(__file__).parent.parent / "docs" / "outage.svg"
_BURST = 10
_WIDTH, _HEIGHT = 960, 432
_LEFT, _RIGHT = 64, 944
_INK, _FAULT, _GRANTED, _LIMIT = "#7d8590", "#d9822b", "#2f81c7", "#cf4a4a"
_FONT = "font-family='system-ui, sans-serif' font-size='12'"


@dataclass(frozen=True)
class Panel:
    """One line over time, and the limit it must keep below: so much in each slot, of a scale's height."""

    title: str
    slot_ns: int
    limit: float
    most: float
    top: float
    bottom: float

    def y(self, amount: float) -> float:
        """Where an amount is."""
        return self.bottom - (self.bottom - self.top) * min(amount, self.most) / self.most


def write() -> str:
    """Play the story and draw it, if all promises were kept; return what to say about it."""
    record = play(ALL, capacity=_BURST)
    figures = hold_to_promises(record)
    PICTURE.write_text(drawn(record), "utf-8")
    return f"{PICTURE.name}: {figures}"


def drawn(record: Record) -> str:
    """Return a record as SVG."""
    rate, ends_ns = record.rate, max(after for _, after in record.grants)
    seconds = (ends_ns - record.began_ns) // SECOND_NS
    panels = (
        Panel("granted in each second", SECOND_NS, rate, 1.5 * rate, 84, 234),
        Panel("granted in each 100 ms", SECOND_NS // 10, rate / 10, 3 * rate / 10, 282, 382),
    )
    parts = [*_phases(record, seconds, panels), *_seconds(seconds)]
    for panel in panels:
        parts += _panel(panel, record, seconds)
    workers = len(record.answers)
    title = f"{workers} processes, one limit of {rate}/s, asked for twice that, while the server fails"
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' {_FONT} "
        f"fill='{_INK}'>\n<title>{escape(title)}</title>"
    )
    heading = f"<text x='{_LEFT}' y='20' font-size='15'>{escape(title)}</text>"
    return "\n".join([head, heading, *parts, "</svg>", ""])


def _panel(panel: Panel, record: Record, seconds: int) -> Iterator[str]:
    yield f"<path d='{_steps(panel, record, seconds)}' fill='none' stroke='{_GRANTED}' stroke-width='1.2'/>"
    for amount in (0, panel.limit):
        y, color = panel.y(amount), _LIMIT if amount else _INK
        dashes = " stroke-dasharray='6 4'" if amount else ""
        yield f"<path d='M{_LEFT} {y:.1f}H{_RIGHT}' stroke='{color}'{dashes}/>"
        yield f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end' fill='{color}'>{amount:g}</text>"
    yield f"<text x='{_LEFT}' y='{panel.top - 6}'>{panel.title}; dashed: the limit</text>"


def _steps(panel: Panel, record: Record, seconds: int) -> str:
    """Return the line: level in a slot, then up or down to the next."""
    slots = seconds * SECOND_NS // panel.slot_ns
    counts = [0] * slots
    for _, after_ns in record.grants:
        slot = (after_ns - record.began_ns) // panel.slot_ns
        if slot < slots:
            counts[slot] += 1
    steps = (
        f"V{panel.y(count):.1f}H{_x((number + 1) * panel.slot_ns, seconds):.1f}"
        for number, count in enumerate(counts)
    )
    return f"M{_LEFT} {panel.y(counts[0]):.1f}" + "".join(steps)


def _phases(record: Record, seconds: int, panels: Sequence[Panel]) -> Iterator[str]:
    for number, phase in enumerate(record.phases):
        left, right = (_x(moment - record.began_ns, seconds) for moment in _span(phase))
        for panel in panels:
            yield (
                f"<rect x='{left:.1f}' y='{panel.top}' width='{right - left:.1f}' "
                f"height='{panel.bottom - panel.top}' fill='{_FAULT}' fill-opacity='0.2'/>"
            )
        y = 46 + 15 * (number % 2)  # by turns, since short ones stand close to each other
        yield f"<text x='{(left + right) / 2:.1f}' y='{y}' text-anchor='middle'>{escape(phase.name)}</text>"


def _span(phase: Phase) -> tuple[int, int]:
    """Return from when to when to shade: what is done in a moment is shown as one."""
    return phase.began_ns, phase.ended_ns if phase.alone else phase.began_ns + SECOND_NS // 4


def _seconds(seconds: int) -> Iterator[str]:
    for second in range(0, seconds + 1, 5):
        x = _x(second * SECOND_NS, seconds)
        yield f"<text x='{x:.1f}' y='402' text-anchor='middle'>{second}</text>"
    yield f"<text x='{_RIGHT}' y='422' text-anchor='end'>seconds</text>"


def _x(since_ns: int, seconds: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * since_ns / (seconds * SECOND_NS)
