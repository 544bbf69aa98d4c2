"""Renders the document of the dashboard (see docs/operations/dashboard.md) as text for a terminal size.

This module reads no state, no clock and no terminal. A narrow terminal gets fewer columns, a low one fewer
lines; without a height it renders everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.styled import Styled
from rich.text import Text

from comporta.cli.console import clock_time, printable, rough_duration
from comporta.cli.top_upstreams import (
    Canvas,
    Document,
    TopSnapshot,
    line_count,
    short_duration,
    upstreams_section,
)

WORKERS_MAX = 50
EVENTS_MAX = 20
JOBS_MAX = 10
STALE_STYLE = "dim"

_STATUSES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_SEVERITIES = {"warning": "yellow", "error": "red", "critical": "bold red"}
_TITLE_LINES = 2
"""The lines of a list besides its rows: an empty one and the title."""


def render(snapshot: TopSnapshot, canvas: Canvas, where: str, error: str = "") -> RenderableType:
    """Render a snapshot; ``error`` says why it is not current, and dims it."""
    document = _printable(snapshot.document)
    snapshot = snapshot._replace(document=document)
    header = _header(document, where, live=canvas.height is not None)
    top = [header, *_demo_step(document)] if not error else [header, Text(printable(error), style="bold red")]
    database = _database_lines(document)
    upstreams = upstreams_section(snapshot, canvas)
    workers, events = WORKERS_MAX, EVENTS_MAX
    if canvas.height is not None:
        lines_left = canvas.height - line_count([*top, *database], canvas.width)
        wanted = [len(document["workers"]) + _TITLE_LINES, len(document["events"]) + _TITLE_LINES]
        share, *_ = fair_shares(lines_left, [line_count(upstreams, canvas.width), *wanted])
        upstreams = upstreams_section(snapshot, canvas, share)
        lines_left -= line_count(upstreams, canvas.width)
        workers, events = _visible_rows(len(document["workers"]), fair_shares(lines_left, wanted))
    parts = [*upstreams, *_workers(document, workers), *database, *_events(document, events)]
    return Group(*top, *(Styled(part, STALE_STYLE) for part in parts) if error else parts)


def _printable(value: Any) -> Any:
    """Return a value from the state with the control characters in its text replaced."""
    if isinstance(value, dict):
        return {printable(str(name)): _printable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_printable(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def fair_shares(lines: int, wanted: Sequence[int]) -> list[int]:
    """Divide lines between sections: one that wants less than an equal share leaves the rest to others."""
    shares, left = [0] * len(wanted), max(lines, 0)
    for position, number in enumerate(sorted(range(len(wanted)), key=lambda each: wanted[each])):
        shares[number] = min(wanted[number], left // (len(wanted) - position))
        left -= shares[number]
    return shares


def _visible_rows(workers: int, shares: Sequence[int]) -> tuple[int, int]:
    """Return how many workers and events fit into their shares.

    Each list has an empty line and a title; one more line counts the workers that do not fit.
    """
    room, events = (max(share - _TITLE_LINES, 0) for share in shares)
    room = min(room, WORKERS_MAX)
    return workers if workers <= room else max(room - 1, 0), min(events, EVENTS_MAX)


def _header(document: Document, where: str, *, live: bool) -> Text:
    status = document["status"]
    reasons = document["reasons"]
    summary = f"{status}: {', '.join(reasons)}" if reasons else status
    return Text.assemble(
        ("comporta top", "bold"),
        (" (? shows keys)" if live else "", "dim"),
        f"  {clock_time(document['at'])}  ",
        (summary, _STATUSES.get(status, "")),
        f"  {where}",
        overflow="ellipsis",
        no_wrap=True,
    )


def _demo_step(document: Document) -> list[Text]:
    """Return the current step of a demo, if one is running."""
    story = document.get("story")
    if not story:
        return []
    return [Text(f"{story.get('title', '')}: {story.get('text', '')}", style="cyan")]


def _workers(document: Document, count: int) -> list[Text]:
    workers = document["workers"]
    title = _title(f"Workers: {len(workers)}" if workers else "Workers: none")
    chars = max((len(each["name"]) for each in workers[:count]), default=0)
    lines = [_worker(each, chars, document["at"]) for each in workers[:count]]
    more = len(workers) - len(lines)
    return [title, *lines, *([Text(f" and {more:,} more", style="dim")] if more else [])]


def _worker(worker: Document, chars: int, now: float) -> Text:
    holds = [
        *(f"the probe of {name}" for name in worker.get("probes") or ()),
        *(f"{_quantity(count, 'call')} to {name}" for name, count in (worker.get("permits") or {}).items()),
        *(
            f"{_quantity(count, 'token')} of {name} on lease"
            for name, count in (worker.get("leases") or {}).items()
        ),
        *(_quantity(count, one) for what, one in _HELD_ITEMS if (count := worker.get(what))),
    ]
    text = Text(f" {worker['name']:{chars}}", no_wrap=True, overflow="ellipsis")
    age, silence = rough_duration(now - worker["started"]), short_duration(worker["last_heartbeat"])
    text.append(f"  up {age}, last heartbeat {silence} ago", "dim")
    return text.append(f"  holds {', '.join(holds)}") if holds else text


_HELD_ITEMS = (("fetches", "fetch"), ("jobs", "job"))


def _quantity(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count:,} {one}{'es' if one.endswith(('h', 's')) else 's'}"


def _database_lines(document: Document) -> list[RenderableType]:
    """Return the lines about the database, the cache and the jobs, if there is a database."""
    lines: list[RenderableType] = []
    database, cache, jobs = (document.get(name) for name in ("database", "cache", "jobs"))
    if database and database.get("status") not in (None, "ok"):
        lines.append(_labelled_line("Database", Text(str(database.get("reason")), style="red")))
    if cache:
        lines.append(_labelled_line("Cache", _cache(cache)))
    if jobs:
        lines.extend(_labelled_line("Job", _job(each)) for each in jobs[:JOBS_MAX])
    return [Text(""), *lines] if lines else []


def _labelled_line(name: str, value: Text) -> Text:
    return Text.assemble((f"{name}: ", "bold"), value, no_wrap=True, overflow="ellipsis")


def _cache(cache: Document) -> Text:
    minute, degraded = cache.get("minute") or {}, cache["degraded_keys_count"]
    stale = f"{minute.get('stale', 0):,} stale"
    counts = (
        f"{_quantity(minute.get('hits', 0), 'hit')}, {stale}, {_quantity(minute.get('misses', 0), 'miss')}"
    )
    backoff = f", {degraded:,} degraded" if degraded else ""
    day = f"{cache['hit_rate']:.0%} hits, {cache['stale_served_rate']:.0%} stale"
    entries = "1 entry" if cache["entries"] == 1 else f"{cache['entries']:,} entries"
    return Text(f"{entries}{backoff}; last minute: {counts}; last 24 h: {day}")


def _job(job: Document) -> Text:
    done = job["succeeded"] + job["failed"]
    failed = f", {job['failed']:,} failed" if job["failed"] else ""
    several = f", by {job['workers']:,} workers" if job.get("workers", 0) > 1 else ""
    worker = several or (f", by {job['worker']}" if job.get("worker") else "")
    backfill = f", backfill {job['backfill']['status']}" if job.get("backfill") else ""
    return Text(f"{job['id']} {job['status']}, {done:,} of {job['total']:,}{failed}{worker}{backfill}")


def _events(document: Document, count: int) -> list[Text]:
    lines = [_event(each) for each in document["events"][:count]]
    return [_title("Latest events"), *lines] if lines else []


def _event(event: Document) -> Text:
    text = Text(f" {clock_time(event['at'])}  ", no_wrap=True, overflow="ellipsis")
    text.append(f"{event['source']}: ", "bold").append(event["text"], _SEVERITIES.get(event["severity"], ""))
    others = event.get("workers", 1) - 1
    return text.append(f"  {event['worker']}{f' and {others} more' if others else ''}", "dim")


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")
