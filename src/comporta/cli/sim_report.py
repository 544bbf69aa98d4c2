"""The charts of ``comporta sim``: an SVG picture of every upstream, or an HTML page with the numbers too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

from comporta.cli.sim_charts import Bars, Level, Mark, Panel, Picture, Shade, Spans, Steps
from comporta.cli.sim_options import fault_name
from comporta.simulation.playback import PlaybackOptions
from comporta.simulation.playback_record import UpstreamRecord

_STACK = (
    ("ok", "answered", "green"),
    ("failed", "failed", "red"),
    ("limited", "limited", "orange"),
    ("open", "open", "violet"),
    ("busy", "busy", "grey"),
)
SUMMARY_TITLES = {
    "calls": "calls",
    "ok": "answered",
    "failed": "failed",
    "limited": "refused by the limit",
    "open": "refused by the breaker",
    "busy": "no free caller",
    "attempts": "requests sent",
    "retries": "of these, retries",
    "over_limit": "requests over the limit",
    "wait_median": "wait, median",
    "wait_p95": "wait, 95 %",
    "wait_max": "wait, longest",
    "open_seconds": "breaker open",
    "fallback_seconds": "store unreachable",
}
"""The titles of the numbers of a summary, in the order in which they are shown."""

_TICKS_MAX = 12
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400)
_PHASES = (("open", "red"), ("half_open", "orange"), ("ramp", "orange"))
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font-family: system-ui, sans-serif; }}
body {{ margin: 1.5rem auto; max-width: 60rem; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 1.5rem 0; }}
th, td {{ padding: 0.2rem 0.9rem 0.2rem 0; text-align: right; font-variant-numeric: tabular-nums; }}
th:first-child {{ text-align: left; font-weight: normal; }}
</style>
</head>
<body>
{picture}
<table>
{rows}
</table>
</body>
</html>
"""


def render_svg(records: Sequence[UpstreamRecord], options: PlaybackOptions) -> str:
    """Return one picture with the panels of all upstreams."""
    seconds = options.seconds
    panels = [panel for record in records for panel in _panels(record, options)]
    every = next((step for step in _STEPS if seconds / step <= _TICKS_MAX), _STEPS[-1])
    return Picture(_title(options), _caption(options), panels, seconds, every).svg


def render_html(records: Sequence[UpstreamRecord], options: PlaybackOptions) -> str:
    """Return a page with the picture and the numbers."""
    summaries = [record.summary() for record in records]
    rows = "\n".join(
        f"<tr><th scope='row'>{escape(title)}</th>"
        + "".join(f"<td>{escape(format_number(key, summary[key]))}</td>" for summary in summaries)
        + "</tr>"
        for key, title in {"upstream": "", **SUMMARY_TITLES}.items()
    )
    return _PAGE.format(title=escape(_title(options)), picture=render_svg(records, options), rows=rows)


def format_number(key: str, value: Any) -> str:
    """Format a number of a summary for people."""
    if isinstance(value, str):
        return value
    is_time = key.startswith("wait") or key.endswith("seconds")
    return f"{value:,.3g} s" if is_time else f"{value:,}"


def _title(options: PlaybackOptions) -> str:
    return f"{options.workers:,} workers, {options.seconds:g} s, seed {options.seed}"


def _caption(options: PlaybackOptions) -> str:
    faults = [f"{fault} at {fault.at:g} s" for fault in options.upstream_faults]
    faults += [f"{fault_name(fault)} at {fault.at:g} s" for fault in options.faults]
    return "Faults: " + ", ".join(faults) if faults else "Without faults"


def _panels(record: UpstreamRecord, options: PlaybackOptions) -> Iterator[Panel]:
    shades = _shades(record, options)
    yield _calls_panel(record, shades)
    yield _requests_panel(record, shades)
    yield _waits_panel(record, shades)
    yield Panel(
        "",
        [
            *(
                Spans(color, _spans(record, _is_mostly(record.phases, phase)), 1, 2)
                for phase, color in _PHASES
            ),
            Spans("violet", _spans(record, _is_mostly(record.fallback, True)), 0, 1),
        ],
        most=2,
        ticks=(),
        height=34,
        labels=((1.5, "breaker"), (0.5, "fallback")),
    )


def _calls_panel(record: UpstreamRecord, shades: Sequence[Mark]) -> Panel:
    below = [0.0] * len(record.demand)
    marks: list[Mark] = [*shades]
    for outcome, name, color in _STACK:
        amounts = _per_second(record, record.outcomes[outcome])
        if any(amounts):
            marks.append(Bars(name, color, amounts, record.slot, tuple(below)))
            below = [base + amount for base, amount in zip(below, amounts, strict=True)]
    demand = _per_second(record, record.demand)
    marks.append(Steps("demand", "ink", [(n * record.slot, amount) for n, amount in enumerate(demand)]))
    return _panel(f"{record.name}: calls per second", marks, max([*below, *demand]))


def _requests_panel(record: UpstreamRecord, shades: Sequence[Mark]) -> Panel:
    sent, over = _per_second(record, record.sent), _per_second(record, record.over)
    within = [every - too_many for every, too_many in zip(sent, over, strict=True)]
    marks: list[Mark] = [*shades, Bars("granted", "blue", within, record.slot)]
    if any(over):
        marks.append(Bars("over limit", "red", over, record.slot, within))
    marks.append(Level("limit", "soft", record.rate))
    return _panel("requests per second", marks, max([*sent, record.rate]))


def _waits_panel(record: UpstreamRecord, shades: Sequence[Mark]) -> Panel:
    points = [(slot * record.slot, wait) for slot, wait in enumerate(record.longest_wait)]
    marks = [*shades, Steps("longest", "orange", points, filled=True)]
    return _panel("wait in seconds", marks, max(record.longest_wait), height=50)


def _panel(title: str, marks: Sequence[Mark], most: float, height: float = 90) -> Panel:
    top = _round_up(most)
    return Panel(title, marks, top, (0, top / 2, top), height)


def _round_up(amount: float) -> float:
    """Return the next round number, for the scale of a panel."""
    scale = 0.01
    while True:
        for factor in (1, 2, 3, 4, 6, 8):
            if factor * scale >= amount:
                return round(factor * scale, 6)
        scale *= 10


def _per_second(record: UpstreamRecord, counts: Sequence[int]) -> list[float]:
    return [count / record.slot for count in counts]


def _shades(record: UpstreamRecord, options: PlaybackOptions) -> list[Mark]:
    own = [fault for fault in options.upstream_faults if fault.upstream == record.name]
    return [
        *(Shade(fault.at, fault.end, fault.kind, "orange") for fault in own),
        *(
            Shade(fault.at, max(fault.end, fault.at + 1), fault_name(fault), "red")
            for fault in options.faults
        ),
    ]


def _is_mostly(samples: Sequence[Counter[Any]], value: object) -> Callable[[int], bool]:
    return lambda slot: samples[slot][value] * 2 > samples[slot].total()


def _spans(record: UpstreamRecord, is_on: Callable[[int], bool]) -> list[tuple[float, float, str]]:
    """Return the periods in which something held for most of the sampled workers."""
    spans: list[tuple[float, float, str]] = []
    for slot in range(len(record.demand)):
        if is_on(slot):
            start, end = slot * record.slot, (slot + 1) * record.slot
            if spans and spans[-1][1] >= start - 1e-9:
                start = spans.pop()[0]
            spans.append((start, end, ""))
    return spans
