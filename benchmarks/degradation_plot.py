"""Draws how rules of degradation follow a quota that falls and rises: ``docs/degradation.svg``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.degradation import PHASES, Run, all_runs

PICTURE = Path(__file__).parent.parent / "docs" / "degradation.svg"
_WIDTH, _LEFT, _RIGHT = 960, 64, 944
_PANEL, _GAP, _TOP = 96, 44, 64
_MOST = 110.0
_INK, _ACCEPTED, _REFUSED, _QUOTA = "#7d8590", "#2f81c7", "#d9822b", "#cf4a4a"
_FONT = "font-family='system-ui, sans-serif' font-size='12'"
_SECONDS = sum(seconds for seconds, _ in PHASES)


def write() -> str:
    """Play the simulation and draw it; return what to say about it."""
    runs = all_runs()
    PICTURE.write_text(drawn(runs), "utf-8")
    refused = ", ".join(f"{name}: {sum(run.refused)} refused" for name, run in runs.items())
    return f"{PICTURE.name}: {refused}"


def drawn(runs: dict[str, Run]) -> str:
    """Return all runs as SVG, one below the other."""
    height = _TOP + len(runs) * (_PANEL + _GAP) + 10
    title = "One limit of 100/s, ten workers, and an upstream whose quota falls to 30/s and rises again"
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' role='img' {_FONT} "
        f"fill='{_INK}'>\n<title>{escape(title)}</title>"
    )
    parts = [head, f"<text x='{_LEFT}' y='20' font-size='15'>{escape(title)}</text>"]
    for number, (name, run) in enumerate(runs.items()):
        parts += _panel(name, run, _TOP + number * (_PANEL + _GAP))
    bottom = _TOP + len(runs) * (_PANEL + _GAP) - _GAP
    for second in range(0, _SECONDS + 1, 30):
        parts.append(f"<text x='{_x(second):.1f}' y='{bottom + 18}' text-anchor='middle'>{second}</text>")
    parts.append(f"<text x='{_RIGHT}' y='{bottom + 34}' text-anchor='end'>seconds</text>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(name: str, run: Run, top: float) -> Iterator[str]:
    bottom = top + _PANEL
    quotas = [float(quota) for seconds, quota in PHASES for _ in range(seconds)]
    told = (
        f"{name}: {sum(run.accepted)} accepted (blue), {sum(run.refused)} refused (orange); dashed: the quota"
    )
    yield f"<text x='{_LEFT}' y='{top - 8}'>{escape(told)}</text>"
    for amount in (0, 100):
        y = _y(amount, bottom)
        yield f"<path d='M{_LEFT} {y:.1f}H{_RIGHT}' stroke='{_INK}' stroke-opacity='0.4'/>"
        yield f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'>{amount}</text>"
    yield _line(quotas, bottom, _QUOTA, " stroke-dasharray='6 4'")
    yield _line([float(n) for n in run.refused], bottom, _REFUSED)
    yield _line([float(n) for n in run.accepted], bottom, _ACCEPTED)


def _line(amounts: Sequence[float], bottom: float, color: str, dashes: str = "") -> str:
    ends = [
        second for second in range(len(amounts)) if amounts[second : second + 1] != amounts[second + 1 :][:1]
    ]
    steps = "".join(f"V{_y(amounts[end], bottom):.1f}H{_x(end + 1):.1f}" for end in ends)
    start = f"M{_LEFT} {_y(amounts[0], bottom):.1f}"
    return f"<path d='{start}{steps}' fill='none' stroke='{color}' stroke-width='1.2'{dashes}/>"


def _x(second: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * second / _SECONDS


def _y(amount: float, bottom: float) -> float:
    return bottom - _PANEL * min(amount, _MOST) / _MOST
