"""Check whether workers were granted more or less than a limit allows, apart from delays of a busy machine.

The exact moment of a decision is unknown: it lies between the two moments recorded before and after the call.
A grant is charged to an interval only if the interval contains both, so that "never above the limit" holds
strictly. What was due is counted only for the time in which some worker was calling: while the machine runs
other programs, no limiter can grant anything. Fewer grants than due count as late (``tests/support.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from tests.support import Late

Span = Sequence[int]

CLOCK_NS = 1000
"""Decisions are made in whole microseconds."""


def all_grants(answers: Sequence[dict[str, Any]]) -> list[Span]:
    """Return the grants of all workers."""
    return [grant for answer in answers for grant in answer["grants"]]


def most_above_bucket(grants: Sequence[Span], rate: int, capacity: int) -> float:
    """Return by how much grants exceed ``capacity + rate * length`` in the worst interval.

    The calls within [a, b] are at least those that ended by b, minus those that began before a.
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
    """Return the largest number of grants in any interval of the length of the window."""
    befores = sorted(before for before, _ in grants)
    afters = sorted(after for _, after in grants)
    window_ns = round(window * 1e9) - CLOCK_NS
    return max(bisect_left(afters, before + window_ns) - begun for begun, before in enumerate(befores))


def active_seconds(answers: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return for how long at least one worker was calling, and the total time."""
    began_ns = min(answer["began_ns"] for answer in answers)
    ended_ns = max(answer["ended_ns"] for answer in answers)
    silent_ns = sum(end - start for start, end in _intersection([answer["silences"] for answer in answers]))
    return (ended_ns - began_ns - silent_ns) / 1e9, (ended_ns - began_ns) / 1e9


def check_bucket(answers: Sequence[dict[str, Any]], rate: int, capacity: int, at_least: float) -> str:
    """Assert that workers that called continuously got what a token bucket owes them; return a summary."""
    grants = all_grants(answers)
    active, elapsed = active_seconds(answers)
    due = capacity + rate * active
    summary = f"{len(grants)} granted, {due:.1f} due in {active:.3f} s of calls during {elapsed:.3f} s"
    above = most_above_bucket(grants, rate, capacity)
    assert above <= 0, f"{above:.3f} above what was due in some interval: {summary}"
    assert len(grants) <= capacity + rate * elapsed, summary
    if len(grants) < at_least * due:
        raise Late(summary)
    return f"{summary}; {_shortfall(len(grants), capacity + rate * elapsed)} of what the total time allows"


def check_window(answers: Sequence[dict[str, Any]], capacity: int, window: float, at_least: float) -> str:
    """Assert that workers that called continuously got what a sliding window owes them; return a summary.

    Entries that several grants share may cost half a percent of each window (``sliding_window.py``). A
    window counts as due after half of it, because it takes time to use it up.
    """
    grants = all_grants(answers)
    active, elapsed = active_seconds(answers)
    due = capacity * (1 + int(max(0, active / (1.005 * window) - 0.5)))
    most = most_in_window(grants, window)
    summary = (
        f"{len(grants)} granted, {due} due in {active:.3f} s of calls during {elapsed:.3f} s, "
        f"at most {most} in a window"
    )
    assert most <= capacity, summary
    if len(grants) < at_least * due:
        raise Late(summary)
    whole = capacity * (1 + int(elapsed / window))
    return f"{summary}; {_shortfall(len(grants), whole)} of what the total time allows"


def _shortfall(count: int, due: float) -> str:
    return f"{100 * (1 - count / due):.2f} % short"


def _intersection(silences: Sequence[Sequence[Span]]) -> list[Span]:
    """Return the spans in which all workers were silent."""
    common = _merge(silences[0])
    for other in silences[1:]:
        common = [
            (max(start, start_2), min(end, end_2))
            for start, end in common
            for start_2, end_2 in _merge(other)
            if max(start, start_2) < min(end, end_2)
        ]
    return common


def _merge(spans: Sequence[Span]) -> list[Span]:
    """Merge spans that overlap."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
