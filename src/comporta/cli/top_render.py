"""Renders the document of the dashboard (see docs/operations/dashboard.md) as text for a terminal size.

This module reads no state, no clock and no terminal. A narrow terminal gets fewer columns, a low one fewer
lines; without a height it renders everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.styled import Styled
from rich.text import Text

from comporta.cli.console import clock_time, new_table, printable, rough_duration, status_sentence
from comporta.fleet.summary import overridden_limits
from comporta.limits.overrides.record import rate_text

Document = dict[str, Any]

BARS = "▁▂▃▄▅▆▇█"
BARS_ASCII = "_.:-=+*#"
WORKERS_MAX = 50
EVENTS_MAX = 20
JOBS_MAX = 10
STALE_STYLE = "dim"

_PHASES = {"closed": "green", "half-open": "yellow", "open": "bold red"}
_STATUSES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_SEVERITIES = {"warning": "yellow", "error": "red", "critical": "bold red"}
_TITLE_LINES = 2
"""The lines of a list besides its rows: an empty one and the title."""

_NAME_CHARS_MAX = 24
_GAP = 2
_SPARK_CHARS, _SPARK_CHARS_MAX = 10, 60
_SPARK_RANK = 4
"""The history comes after the columns up to this rank: at least a minute of it, more if there is room."""


class TopSnapshot(NamedTuple):
    """The document of a fleet, and the history of its last hour."""

    document: Document
    history: Document


class Canvas(NamedTuple):
    """The size of the output in characters and lines (``None``: unlimited), and the signs for bars."""

    width: int
    height: int | None = None
    bars: str = BARS


class UpstreamColumn(NamedTuple):
    """A column of the upstream table, of fixed width. Columns with a low ``rank`` are shown first."""

    heading: str
    width: int
    rank: float
    cell: Callable[[Document], Text]
    right: bool = True


def render(snapshot: TopSnapshot, canvas: Canvas, where: str, error: str = "") -> RenderableType:
    """Render a snapshot; ``error`` says why it is not current, and dims it."""
    document = _printable(snapshot.document)
    snapshot = snapshot._replace(document=document)
    header = _header(document, where, live=canvas.height is not None)
    top = [header, *_demo_step(document)] if not error else [header, Text(printable(error), style="bold red")]
    database = _database_lines(document)
    upstreams = _upstreams(snapshot, canvas)
    workers, events = WORKERS_MAX, EVENTS_MAX
    if canvas.height is not None:
        lines_left = canvas.height - _line_count([*top, *database], canvas.width)
        wanted = [len(document["workers"]) + _TITLE_LINES, len(document["events"]) + _TITLE_LINES]
        share, *_ = fair_shares(lines_left, [_line_count(upstreams, canvas.width), *wanted])
        upstreams = _upstreams(snapshot, canvas, share)
        lines_left -= _line_count(upstreams, canvas.width)
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
        f"  {where}  {clock_time(document['at'])}  ",
        (summary, _STATUSES.get(status, "")),
        overflow="ellipsis",
        no_wrap=True,
    )


def _demo_step(document: Document) -> list[Text]:
    """Return the current step of a demo, if one is running."""
    story = document.get("story")
    if not story:
        return []
    return [Text(f"{story.get('title', '')}: {story.get('text', '')}", style="cyan")]


def _upstreams(snapshot: TopSnapshot, canvas: Canvas, lines: int | None = None) -> list[RenderableType]:
    """Return the table of upstreams and what is unusual about them, in about ``lines`` lines.

    If not all upstreams fit, those that are unusual come first, and a last line counts the others.
    """
    cards = snapshot.document["upstreams"]
    parts = _upstream_table(snapshot, canvas, cards)
    if not cards or lines is None or _line_count(parts, canvas.width) <= lines:
        return parts
    ranked = sorted(cards, key=lambda card: not _is_restricted(card))
    at = snapshot.document["at"]
    line_counts = [1 + _line_count(filter(None, [_explanation(card, at)]), canvas.width) for card in ranked]
    lines -= _line_count(_upstream_table(snapshot, canvas, ranked[:1]), canvas.width) - line_counts[0] + 1
    used = list(accumulate(line_counts))
    count = max(sum(each <= lines for each in used), 1)
    more = Text(f" and {len(cards) - count:,} more", style="dim")
    return [*_upstream_table(snapshot, canvas, ranked[:count]), more]


def _upstream_table(snapshot: TopSnapshot, canvas: Canvas, cards: list[Document]) -> list[RenderableType]:
    if not cards:
        return [Text("\nNo upstream was used in the last 30 s.", style="dim")]
    at = snapshot.document["at"]
    names = min(max(len(card["name"]) for card in cards), _NAME_CHARS_MAX)
    chars, columns = _fitting_columns(names, canvas.width)
    table = new_table()
    for column in columns:
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(column.heading, justify=justify, no_wrap=True, width=column.width)
    if chars:
        table.add_column(f"last {rough_duration(chars * snapshot.history['slot_seconds'])}", no_wrap=True)
    for card in cards:
        cells = [column.cell({**card, "at": at}) for column in columns]
        table.add_row(
            *cells, *([sparkline(snapshot.history, card["name"], chars, canvas.bars)] if chars else [])
        )
    return [table, *(line for card in cards if (line := _explanation(card, at)))]


def _fitting_columns(name_chars: int, width: int) -> tuple[int, list[UpstreamColumn]]:
    """Return how many slots of history fit, and which columns do, by their rank."""
    columns = (UpstreamColumn("upstream", max(name_chars, 8), 0, _name, right=False), *_COLUMNS)
    width_left = width - 1
    chosen, chars = set(), 0
    for column in sorted(columns, key=lambda each: each.rank):
        if column.rank > _SPARK_RANK and not chars and width_left >= _SPARK_CHARS + _GAP:
            chars, width_left = _SPARK_CHARS, width_left - _SPARK_CHARS - _GAP
        if column.width + _GAP <= width_left or not column.rank:
            chosen.add(column.heading)
            width_left -= column.width + _GAP
    chars = min(chars + max(width_left, 0), _SPARK_CHARS_MAX) if chars else 0
    return chars, [column for column in columns if column.heading in chosen]


def sparkline(history: Document, name: str, chars: int, bars: str) -> Text:
    """Draw the calls of the last complete slots; the colour of each shows how many failed."""
    series = history["series"].get(name)
    if series is None:
        return Text("")
    calls, bad = [0] * chars, [0] * chars
    seconds = history["slot_seconds"]
    for number, start in enumerate(series["starts"]):
        place = chars - int((history["at"] - start) // seconds)
        if 0 <= place < chars:  # an incomplete slot would look like a drop
            calls[place] = series["calls"][number]
            bad[place] = sum(series[column][number] for column in ("failed", "refused", "open", "limited"))
    most = max(*calls, 1)
    text = Text()
    for call, wrong in zip(calls, bad, strict=True):
        text.append(bars[-(-call * (len(bars) - 1) // most)], _colour(call, wrong))
    return text


def _colour(calls: int, bad: int) -> str:
    if not calls:
        return "dim"
    return "red" if 2 * bad >= calls else "yellow" if bad else "green"


def _name(card: Document) -> Text:
    return Text(card["name"], style="bold")


def _state(card: Document) -> Text:
    """Return the state of the upstream in a word or two."""
    phase, until = card.get("phase"), card.get("until")
    text = Text(phase or "no breaker", _PHASES.get(str(phase), ""))
    if card.get("forced"):
        text = Text(f"held {card['forced']}", _PHASES["open" if phase == "open" else "half-open"])
    elif phase == "open" and until:
        text.append(f" {rough_duration(until - card['at'])}")
    elif card.get("paused"):
        text = Text(f"paused {rough_duration(card['paused'])}", "yellow")
    return text


def _explanation(card: Document, now: float) -> RenderableType | None:
    """Return a line that explains an unusual state: why, and until which time of day."""
    sentence, phase = status_sentence(card, now), card.get("phase")
    is_restricted = _is_restricted(card)
    if not sentence or not (is_restricted or card.get("failures") or card.get("shadow")):
        return None
    style = _PHASES["open"] if phase == "open" else "yellow" if is_restricted else "dim"
    return Padding(Text.assemble((f"{card['name']}: ", "bold"), (sentence, style)), (0, 0, 0, 1))


def _is_restricted(card: Document) -> bool:
    """Whether the breaker, a pause, a lowered limit or an operator holds calls back."""
    return bool(
        card.get("phase") not in (None, "closed")
        or card.get("forced")
        or card.get("paused")
        or card.get("limit") != card.get("original")
        or overridden_limits(card)
    )


def _limit(card: Document) -> Text:
    now, original = card.get("limit"), card.get("original")
    if now is None:
        return Text("-")
    if original is None or now == original:
        return Text(f"{rate_text(now)}/s")
    return Text(f"{rate_text(now)} of {rate_text(original)}/s", style="yellow")


def _ratio(part: str, whole: str) -> Callable[[Document], Text]:
    def cell(card: Document) -> Text:
        some, all_ = card.get(part), card.get(whole)
        return Text("-" if some is None else f"{some:g}" if all_ is None else f"{some:g}/{all_:g}")

    return cell


def _count(name: str, style: str = "") -> Callable[[Document], Text]:
    def cell(card: Document) -> Text:
        count = card["minute"].get(name) or 0
        return Text(f"{count:,}", style=style if count else "")

    return cell


def _held_back(card: Document) -> Text:
    """Count the calls that never reached the upstream: breaker open, or no capacity in time."""
    count = sum(card["minute"].get(name) or 0 for name in ("open", "limited"))
    return Text(f"{count:,}", style="yellow" if count else "")


def _wait(name: str) -> Callable[[Document], Text]:
    return lambda card: Text(short_duration(card["minute"].get(name)))


_COLUMNS = (
    UpstreamColumn("state", 12, 0, _state, right=False),
    UpstreamColumn("limit", 11, 3, _limit),
    UpstreamColumn("tokens", 7, 7, _ratio("tokens", "capacity")),
    UpstreamColumn("in flight", 9, 8, _ratio("in_flight", "in_flight_max")),
    UpstreamColumn("calls/min", 9, 1, _count("calls")),
    UpstreamColumn("ok", 7, 9, _count("ok")),
    UpstreamColumn("failed", 6, 2, _count("failed", "red")),
    UpstreamColumn("refused", 7, 5, _count("refused", "yellow")),
    UpstreamColumn("held back", 9, 6, _held_back),
    UpstreamColumn("would refuse", 12, 12, _count("would_refuse", "yellow")),
    UpstreamColumn("retries", 7, 10, _count("retries")),
    UpstreamColumn("latency p95", 11, 3.5, _wait("latency_p95")),
    UpstreamColumn("wait p50", 8, 11, _wait("wait_p50")),
    UpstreamColumn("wait p95", 8, 4, _wait("wait_p95")),
)


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
    return f"{count} {one}" if count == 1 else f"{count} {one}{'es' if one.endswith('h') else 's'}"


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
    counts = ", ".join(f"{minute.get(name, 0):,} {name}" for name in ("hits", "stale", "misses"))
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


def _line_count(parts: Iterable[RenderableType], width: int) -> int:
    console = Console(width=width)
    return sum(len(console.render_lines(part, console.options)) for part in parts)


def short_duration(seconds: float | None) -> str:
    """Return a duration in a few characters."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else rough_duration(seconds)
