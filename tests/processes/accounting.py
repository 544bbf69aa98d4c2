"""Was more granted than due, or less? Counted so that neither the limiter nor the machine is wronged.

When a decision fell nobody knows to the microsecond: only that it lies between the moments noted before and
after the call. So an interval is charged with a grant only if it holds both, and never-above holds strictly.
What was due is counted only for the time in which somebody asked: while the machine ran other programs, no
limiter can be blamed for what was not taken. Less than was due counts as late (``tests/support.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from tests.support import Late

Span = Sequence[int]

CLOCK_NS = 1000
"""Decisions are made in whole microseconds."""


def granted(answers: Sequence[dict[str, Any]]) -> list[Span]:
    """Return the grants of all workers."""
    return [grant for answer in answers for grant in answer["grants"]]


def most_above_bucket(grants: Sequence[Span], rate: int, capacity: int) -> float:
    """Return by how much, in the worst of all intervals, grants exceed ``capacity + rate * length``.

    Of the calls that lie within [a, b] there are at least those ended by b less those begun before a.
    """
    befores = sorted(before for before, _ in grants)
    afters = sorted(after for _, after in grants)
    worst, best_start, begun = -(10**18), -(10**18), 0
    for ended, after in enumerate(afters, 1):
        while begun < len(befores) and befores[begun] <= after:
            best_start = max(best_start, rate * befores[begun] - begun * 10**9)
            begun += 1
        worst = max(worst, ended * 10**9 - rate * (after + CLOCK_NS) + best_start)
    return (worst - capacity * 10**9) / 1e9


def most_in_window(grants: Sequence[Span], window: float) -> int:
    """Return the most grants in any interval as long as the window."""
    befores = sorted(before for before, _ in grants)
    afters = sorted(after for _, after in grants)
    window_ns = round(window * 1e9) - CLOCK_NS
    return max(bisect_left(afters, before + window_ns) - begun for begun, before in enumerate(befores))


def asked_seconds(answers: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return for how long somebody asked, and how long it was in all."""
    began_ns = min(answer["began_ns"] for answer in answers)
    ended_ns = max(answer["ended_ns"] for answer in answers)
    silent_ns = sum(end - start for start, end in _common([answer["silences"] for answer in answers]))
    return (ended_ns - began_ns - silent_ns) / 1e9, (ended_ns - began_ns) / 1e9


def check_bucket(answers: Sequence[dict[str, Any]], rate: int, capacity: int, at_least: float) -> str:
    """Hold workers that hammered a token bucket to what was due to them; return the figures."""
    grants = granted(answers)
    asked, elapsed = asked_seconds(answers)
    due = capacity + rate * asked
    figures = f"{len(grants)} granted, {due:.1f} due in {asked:.3f} s asked of {elapsed:.3f} s"
    above = most_above_bucket(grants, rate, capacity)
    assert above <= 0, f"{above:.3f} above what was due in some interval: {figures}"
    assert len(grants) <= capacity + rate * elapsed, figures
    if len(grants) < at_least * due:
        raise Late(figures)
    return f"{figures}; {_below(len(grants), capacity + rate * elapsed)} of what the whole time makes due"


def check_window(answers: Sequence[dict[str, Any]], capacity: int, window: float, at_least: float) -> str:
    """Hold workers that hammered a sliding window to what was due to them; return the figures.

    Half a percent for each round is what entries shared by several grants may cost (sliding_window.py).
    A round is due once it has been open for half a window: it takes time to take it all.
    """
    grants = granted(answers)
    asked, elapsed = asked_seconds(answers)
    due = capacity * (1 + int(max(0, asked / (1.005 * window) - 0.5)))
    most = most_in_window(grants, window)
    figures = f"{len(grants)} granted, {due} due in {asked:.3f} s asked of {elapsed:.3f} s, {most} at most"
    assert most <= capacity, figures
    if len(grants) < at_least * due:
        raise Late(figures)
    whole = capacity * (1 + int(elapsed / window))
    return f"{figures}; {_below(len(grants), whole)} of what the whole time makes due"


def _below(count: int, due: float) -> str:
    return f"{100 * (1 - count / due):.2f} % short"


def _common(silences: Sequence[Sequence[Span]]) -> list[Span]:
    """Return when all were silent."""
    found = _joined(silences[0])
    for other in silences[1:]:
        found = [
            (max(start, start_2), min(end, end_2))
            for start, end in found
            for start_2, end_2 in _joined(other)
            if max(start, start_2) < min(end, end_2)
        ]
    return found


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans without overlap."""
    found: list[Span] = []
    for start, end in spans:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
