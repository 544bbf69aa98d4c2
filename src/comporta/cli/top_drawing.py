"""What ``comporta top`` draws: a document (see docs/dashboard.md), laid out for a size.

Nothing here looks at a state, a clock or a terminal. A narrow terminal gets fewer columns, a low one fewer
lines; without a size everything is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.styled import Styled
from rich.text import Text

from comporta.cli.output import printable, rough, table_of

Document = dict[str, Any]

BARS = "▁▂▃▄▅▆▇█"
BARS_ASCII = "_.:-=+*#"
WORKERS_MAX = 50
EVENTS_MAX = 20
JOBS_MAX = 10
LOST = "dim"

_PHASES = {"closed": "green", "half-open": "yellow", "open": "bold red"}
_STATUSES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_SEVERITIES = {"warning": "yellow", "error": "red", "critical": "bold red"}
_EVENTS_AT_LEAST = 3
_NAME_CHARS_MAX = 24
_AS_USUAL = ("Closed: calls pass.", "No breaker: calls pass.")
_GAP = 2
_SPARK_CHARS, _SPARK_CHARS_MAX = 10, 60
_SPARK_RANK = 4
"""History is shown once the columns of this rank are: a minute of it, or as much as there is room for."""


class Picture(NamedTuple):
    """What was seen of a fleet, and of its last hour."""

    document: Document
    history: Document


class Paper(NamedTuple):
    """What is drawn on: so many characters, so many lines (``None``: as many as it takes), which signs."""

    width: int
    height: int | None = None
    bars: str = BARS


class Column(NamedTuple):
    """A column of the upstreams: always as wide, so that nothing moves. ``rank`` says which go first."""

    heading: str
    width: int
    rank: int
    cell: Callable[[Document], Text]
    right: bool = True


def drawn(picture: Picture, paper: Paper, where: str, lost: str = "") -> RenderableType:
    """Lay a picture out; ``lost`` says why it is not of this moment, and it is greyed then."""
    document = _shown(picture.document)
    picture = picture._replace(document=document)
    head = _head(document, where, live=paper.height is not None)
    top = [head, *_story(document)] if not lost else [head, Text(printable(lost), style="bold red")]
    upstreams = _upstreams(picture, paper)
    kept = _kept(document)
    left = None if paper.height is None else paper.height - _lines([*top, *upstreams, *kept], paper.width)
    workers, events = _shares(len(document["workers"]), len(document["events"]), left)
    parts = [*upstreams, *_workers(document, workers), *kept, *_events(document, events)]
    return Group(*top, *(Styled(part, LOST) for part in parts) if lost else parts)


def _shown(found: Any) -> Any:
    """Return what others wrote as a terminal may see it."""
    if isinstance(found, dict):
        return {printable(str(name)): _shown(each) for name, each in found.items()}
    if isinstance(found, list):
        return [_shown(each) for each in found]
    return printable(found) if isinstance(found, str) else found


def _shares(workers: int, events: int, left: int | None) -> tuple[int, int]:
    """Return for how many workers and events there is room: the workers come first, but leave some to both.

    Each of the two has an empty line and a title; workers that have no room are a line of their own.
    """
    if left is None:
        return WORKERS_MAX, EVENTS_MAX
    kept_back = min(events, _EVENTS_AT_LEAST) + 2 if events else 0
    room = min(max(left - 2 - kept_back, 0), WORKERS_MAX)
    shown = workers if workers <= room else max(room - 1, 0)
    taken = 2 + shown + (shown < workers)
    return shown, min(max(left - taken - 2, 0), EVENTS_MAX)


def _head(document: Document, where: str, *, live: bool) -> Text:
    status = document["status"]
    reasons = document["reasons"]
    said = f"{status}: {', '.join(reasons)}" if reasons else status
    return Text.assemble(
        ("comporta top", "bold"),
        (" (q ends)" if live else "", "dim"),
        f"  {where}  {clock(document['at'])}  ",
        (said, _STATUSES.get(status, "")),
        overflow="ellipsis",
        no_wrap=True,
    )


def _story(document: Document) -> list[Text]:
    """Return what a demo tells, if one is played."""
    story = document.get("story")
    if not story:
        return []
    return [Text(f"{story.get('title', '')}: {story.get('text', '')}", style="cyan")]


def _upstreams(picture: Picture, paper: Paper) -> list[RenderableType]:
    cards = picture.document["upstreams"]
    if not cards:
        return [Text("\nNo upstream was used in the last half minute.", style="dim")]
    at = picture.document["at"]
    names = min(max(len(card["name"]) for card in cards), _NAME_CHARS_MAX)
    chars, columns = _chosen(names, paper.width)
    table = table_of()
    for column in columns:
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(column.heading, justify=justify, no_wrap=True, width=column.width)
    if chars:
        table.add_column(f"last {rough(chars * picture.history['slot_seconds'])}", no_wrap=True)
    for card in cards:
        cells = [column.cell({**card, "at": at}) for column in columns]
        table.add_row(*cells, *([spark(picture.history, card["name"], chars, paper.bars)] if chars else []))
    return [table, *(line for card in cards if (line := _why(card, at)))]


def _chosen(name_chars: int, width: int) -> tuple[int, list[Column]]:
    """Return how many slots of history fit, and which columns: the first in rank, in their order."""
    columns = (Column("upstream", max(name_chars, 8), 0, _name, right=False), *_COLUMNS)
    left = width - 1
    chosen, chars = set(), 0
    for column in sorted(columns, key=lambda each: each.rank):
        if column.rank > _SPARK_RANK and not chars and left >= _SPARK_CHARS + _GAP:
            chars, left = _SPARK_CHARS, left - _SPARK_CHARS - _GAP
        if column.width + _GAP <= left or not column.rank:
            chosen.add(column.heading)
            left -= column.width + _GAP
    chars = min(chars + max(left, 0), _SPARK_CHARS_MAX) if chars else 0
    return chars, [column for column in columns if column.heading in chosen]


def spark(history: Document, name: str, chars: int, bars: str) -> Text:
    """Draw the calls of the last slots that are over, each in the colour of how it went."""
    series = history["series"].get(name)
    if series is None:
        return Text("")
    calls, bad = [0] * chars, [0] * chars
    seconds = history["slot_seconds"]
    for number, start in enumerate(series["starts"]):
        place = chars - int((history["at"] - start) // seconds)
        if 0 <= place < chars:  # the slot that is not over yet would look like a fall
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
    """Say how it stands in a word or two."""
    phase, until = card.get("phase"), card.get("until")
    text = Text(phase or "no breaker", _PHASES.get(str(phase), ""))
    if phase == "open" and until:
        text.append(f" {rough(until - card['at'])}")
    elif card.get("paused"):
        text = Text(f"paused {rough(card['paused'])}", "yellow")
    return text


def _why(card: Document, now: float) -> RenderableType | None:
    """Say in a line of its own what is not as usual: why, and until when by the clock on the wall."""
    said, phase, until = str(card.get("in_words") or ""), card.get("phase"), card.get("until")
    if said.startswith(_AS_USUAL):
        return None
    if phase == "open" and until and not card.get("forced"):
        why = said.partition(": ")[2]
        said = f"Open until {clock(until)} ({rough(until - now)} more){f': {why}' if why else '.'}"
    style = _PHASES["open"] if phase == "open" else "dim" if said.startswith("Closed: ") else "yellow"
    return Padding(Text.assemble((f"{card['name']}: ", "bold"), (said, style)), (0, 0, 0, 1))


def _limit(card: Document) -> Text:
    now, original = card.get("limit"), card.get("original")
    if now is None:
        return Text("-")
    if original is None or now == original:
        return Text(f"{now:g}/s")
    return Text(f"{now:g} of {original:g}/s", style="yellow")


def _of(part: str, whole: str) -> Callable[[Document], Text]:
    def cell(card: Document) -> Text:
        some, all_ = card.get(part), card.get(whole)
        return Text("-" if some is None else f"{some:g}" if all_ is None else f"{some:g}/{all_:g}")

    return cell


def _counted(name: str, style: str = "") -> Callable[[Document], Text]:
    def cell(card: Document) -> Text:
        count = card["minute"].get(name) or 0
        return Text(f"{count:,}", style=style if count else "")

    return cell


def _held_back(card: Document) -> Text:
    """Count what never reached the upstream: its circuit was open, or there was no room in time."""
    count = sum(card["minute"].get(name) or 0 for name in ("open", "limited"))
    return Text(f"{count:,}", style="yellow" if count else "")


def _waited(name: str) -> Callable[[Document], Text]:
    return lambda card: Text(span(card["minute"].get(name)))


_COLUMNS = (
    Column("state", 12, 0, _state, right=False),
    Column("limit", 11, 3, _limit),
    Column("tokens", 7, 7, _of("tokens", "capacity")),
    Column("in flight", 9, 8, _of("in_flight", "in_flight_max")),
    Column("calls", 7, 1, _counted("calls")),
    Column("ok", 7, 9, _counted("ok")),
    Column("failed", 6, 2, _counted("failed", "red")),
    Column("refused", 7, 5, _counted("refused", "yellow")),
    Column("held back", 9, 6, _held_back),
    Column("retries", 7, 10, _counted("retries")),
    Column("wait p50", 8, 11, _waited("wait_p50")),
    Column("p95", 6, 4, _waited("wait_p95")),
)


def _workers(document: Document, count: int) -> list[Text]:
    found = document["workers"]
    title = _title(f"Workers: {len(found)}" if found else "Workers: none at the moment")
    chars = max((len(each["name"]) for each in found[:count]), default=0)
    lines = [_worker(each, chars, document["at"]) for each in found[:count]]
    more = len(found) - len(lines)
    return [title, *lines, *([Text(f" and {more:,} more", style="dim")] if more else [])]


def _worker(worker: Document, chars: int, now: float) -> Text:
    holds = [
        *(f"the probe of {name}" for name in worker.get("probes") or ()),
        *(f"{_so_many(count, 'call')} to {name}" for name, count in (worker.get("permits") or {}).items()),
        *(
            f"{_so_many(count, 'token')} of {name} on lease"
            for name, count in (worker.get("leases") or {}).items()
        ),
        *(_so_many(count, one) for what, one in _HELD if (count := worker.get(what))),
    ]
    text = Text(f" {worker['name']:{chars}}", no_wrap=True, overflow="ellipsis")
    text.append(f"  up {rough(now - worker['started'])}, heard {span(worker['heard'])} ago", "dim")
    return text.append(f"  holds {', '.join(holds)}") if holds else text


_HELD = (("fetches", "fetch"), ("jobs", "job"))


def _so_many(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}{'es' if one.endswith('h') else 's'}"


def _kept(document: Document) -> list[RenderableType]:
    """Return the lines of what is in the database, where one was looked at."""
    found: list[RenderableType] = []
    database, cache, jobs = (document.get(name) for name in ("database", "cache", "jobs"))
    if database and database.get("status") not in (None, "ok"):
        found.append(_line("Database", Text(str(database.get("why")), style="red")))
    if cache:
        found.append(_line("Cache", _cache(cache)))
    if jobs:
        found.extend(_line("Job", _job(each)) for each in jobs[:JOBS_MAX])
    return [Text(""), *found] if found else []


def _line(name: str, said: Text) -> Text:
    return Text.assemble((f"{name}: ", "bold"), said, no_wrap=True, overflow="ellipsis")


def _cache(cache: Document) -> Text:
    minute, degraded = cache.get("minute") or {}, cache["degraded_keys_count"]
    figures = ", ".join(f"{minute.get(name, 0):,} {name}" for name in ("hits", "stale", "misses"))
    left_alone = f", {degraded:,} left alone" if degraded else ""
    day = f"{cache['hit_rate']:.0%} hits, {cache['stale_served_rate']:.0%} stale"
    entries = "1 entry" if cache["entries"] == 1 else f"{cache['entries']:,} entries"
    return Text(f"{entries}{left_alone}; last minute {figures}; in 24 h {day}")


def _job(job: Document) -> Text:
    done = job["succeeded"] + job["failed"]
    failed = f", {job['failed']:,} failed" if job["failed"] else ""
    worker = f", by {job['worker']}" if job.get("worker") else ""
    backfill = f", backfill {job['backfill']['status']}" if job.get("backfill") else ""
    return Text(f"{job['id']} {job['status']}, {done:,} of {job['total']:,}{failed}{worker}{backfill}")


def _events(document: Document, count: int) -> list[Text]:
    lines = [_event(each) for each in document["events"][:count]]
    return [_title("Latest events"), *lines] if lines else []


def _event(event: Document) -> Text:
    text = Text(f" {clock(event['at'])}  ", no_wrap=True, overflow="ellipsis")
    text.append(f"{event['source']}: ", "bold").append(event["text"], _SEVERITIES.get(event["severity"], ""))
    others = event.get("workers", 1) - 1
    return text.append(f"  {event['worker']}{f' and {others} more' if others else ''}", "dim")


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _lines(parts: Iterable[RenderableType], width: int) -> int:
    console = Console(width=width)
    return sum(len(console.render_lines(part, console.options)) for part in parts)


def clock(at: float) -> str:
    """Say a moment by the clock on the wall."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def span(seconds: float | None) -> str:
    """Say a length of time as short as can be."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else rough(seconds)
