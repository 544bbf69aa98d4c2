"""Renders the upstreams of a fleet as a table of ``comporta top``, with a sentence about each unusual one.

The columns have ranks. A narrow terminal first gets headings of two lines, then shorter names, then fewer
columns. This module reads no state, no clock and no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rich.console import Console, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.text import Text

from comporta.cli.console import new_table, rough_duration, status_sentence
from comporta.fleet.summary import overridden_limits
from comporta.limits.overrides.record import rate_text

Document = dict[str, Any]

BARS = "▁▂▃▄▅▆▇█"
BARS_ASCII = "_.:-=+*#"

_PHASES = {"closed": "green", "half-open": "yellow", "open": "bold red"}
_NAME_CHARS_MAX, _NAME_CHARS_NARROW = 24, 16
_GAP = 2
_SPARK_CHARS, _SPARK_CHARS_MAX = 10, 60
_SPARK_RANK = 4
"""The history comes after the columns up to this rank: at least a minute of it, more if there is room."""


class TopSnapshot(NamedTuple):
    """The document of a fleet, and the history of its last hour."""

    document: Document
    history: Document


class Canvas(NamedTuple):
    """The size of the output in characters and lines (``None``: unlimited), and the characters for bars."""

    width: int
    height: int | None = None
    bars: str = BARS


class UpstreamColumn(NamedTuple):
    """A column of the upstream table; ``chars`` is the width of its cells. Low ranks are shown first."""

    heading: str
    chars: int
    rank: float
    cell: Callable[[Document], Text]
    right: bool = True

    def with_broken_heading(self) -> UpstreamColumn:
        """Return the column with a heading of two lines, if it can be broken."""
        return self._replace(heading=self.heading.replace(" ", "\n").replace("/", "\n/"))

    @property
    def width(self) -> int:
        """The width of the cells or of the heading, whichever is larger."""
        return max(self.chars, *map(len, self.heading.split("\n")))


def upstreams_section(
    snapshot: TopSnapshot, canvas: Canvas, lines: int | None = None
) -> list[RenderableType]:
    """Return the table of upstreams and what is unusual about them, in about ``lines`` lines.

    If not everything fits, the worst come first. The rows of unusual ones matter most, then explanations,
    then the rows of others; a last line counts those that are not shown.
    """
    cards = snapshot.document["upstreams"]
    parts = _upstream_table(snapshot, canvas, cards, cards)
    if not cards or lines is None or line_count(parts, canvas.width) <= lines:
        return parts
    ranked = sorted(cards, key=_urgency, reverse=True)
    room = lines - line_count(_upstream_table(snapshot, canvas, ranked[:1], []), canvas.width) + 1
    row_count, explained = _visible_upstreams(ranked, room, canvas.width, snapshot.document["at"])
    more = len(cards) - row_count
    count_line = [Text(f" and {more:,} more", style="dim")] if more else []
    return [*_upstream_table(snapshot, canvas, ranked[:row_count], explained), *count_line]


def _visible_upstreams(
    ranked: list[Document], room: int, width: int, at: float
) -> tuple[int, list[Document]]:
    """Return how many rows fit into ``room`` lines, and the upstreams whose explanations do."""
    unusual = [card for card in ranked if _urgency(card)]
    if len(ranked) <= room:
        row_count = len(ranked)
    else:
        room -= 1  # for the line that counts the others
        row_count = max(min(len(unusual), room), 1)
    explained, lines_left = [], room - row_count
    for card in unusual[:row_count]:
        needed = line_count(filter(None, [_explanation(card, at)]), width)
        if 0 < needed <= lines_left:
            explained.append(card)
            lines_left -= needed
    return min(row_count + max(lines_left, 0), len(ranked)), explained


def _urgency(card: Document) -> int:
    """Return how bad the state of an upstream is; 0 if it is usual."""
    is_worse = (
        card.get("phase") == "open",
        bool(card.get("forced")),
        card.get("phase") == "half-open",
        bool(card.get("paused")),
        _is_restricted(card),
    )
    return len(is_worse) - is_worse.index(True) if any(is_worse) else 0


def _upstream_table(
    snapshot: TopSnapshot, canvas: Canvas, cards: list[Document], explained: list[Document]
) -> list[RenderableType]:
    if not cards:
        return [Text("\nNo upstream was used in the last 30 s.", style="dim")]
    at = snapshot.document["at"]
    names = min(max(len(card["name"]) for card in cards), _NAME_CHARS_MAX)
    columns, slots = _best_layout(names, canvas.width)
    table = new_table()
    table.pad_edge = False
    for column in columns:
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(column.heading, justify=justify, no_wrap=True, width=column.width)
    if slots:
        table.add_column(f"last {rough_duration(slots * snapshot.history['slot_seconds'])}", no_wrap=True)
    for card in cards:
        cells = [column.cell({**card, "at": at}) for column in columns]
        table.add_row(
            *cells, *([sparkline(snapshot.history, card["name"], slots, canvas.bars)] if slots else [])
        )
    return [table, *(line for card in explained if (line := _explanation(card, at)))]


class TableLayout(NamedTuple):
    """The columns of a table and how many slots of history it shows."""

    columns: list[UpstreamColumn]
    slots: int

    @property
    def essential_columns(self) -> int:
        """The number of columns that are more important than the history."""
        return sum(column.rank <= _SPARK_RANK for column in self.columns)


def _best_layout(name_chars: int, width: int) -> TableLayout:
    """Return the layout that shows most of the essential columns; among equals, that with most room."""
    broken = [column.with_broken_heading() for column in _COLUMNS]
    layouts = (
        _fitting_layout(name_chars, _COLUMNS, width),
        _fitting_layout(name_chars, broken, width),
        _fitting_layout(min(name_chars, _NAME_CHARS_NARROW), broken, width),
    )
    return max(layouts, key=lambda layout: layout.essential_columns)


def _fitting_layout(name_chars: int, columns: Sequence[UpstreamColumn], width_left: int) -> TableLayout:
    """Return the columns that fit, by their rank, and how many slots of history do."""
    name = UpstreamColumn("upstream", name_chars, 0, lambda card: _name(card, name_chars), right=False)
    chosen, slots = set(), 0
    for column in sorted((name, *columns), key=lambda each: each.rank):
        if column.rank > _SPARK_RANK and not slots and width_left >= _SPARK_CHARS + _GAP:
            slots, width_left = _SPARK_CHARS, width_left - _SPARK_CHARS - _GAP
        if column.width + _GAP <= width_left or not column.rank:
            chosen.add(column.heading)
            width_left -= column.width + _GAP
    slots = min(slots + max(width_left, 0), _SPARK_CHARS_MAX) if slots else 0
    return TableLayout([column for column in (name, *columns) if column.heading in chosen], slots)


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


def _name(card: Document, chars: int) -> Text:
    """Return the name; from a long one the middle is left out, because the end often distinguishes names."""
    name = str(card["name"])
    if len(name) > chars:
        end = (chars - 1) // 2
        name = f"{name[: chars - 1 - end]}…{name[len(name) - end :]}"
    return Text(name, style="bold")


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


def _sent_count(card: Document) -> Text:
    """Count the calls that reached the upstream, or were at least sent to it."""
    minute = card["minute"]
    held_back = sum(minute.get(name) or 0 for name in ("open", "limited"))
    return Text(f"{(minute.get('calls') or 0) - held_back:,}")


def _held_back(card: Document) -> Text:
    """Count the calls that never reached the upstream: breaker open, or no capacity in time."""
    count = sum(card["minute"].get(name) or 0 for name in ("open", "limited"))
    return Text(f"{count:,}", style="yellow" if count else "")


def _wait(name: str) -> Callable[[Document], Text]:
    return lambda card: Text(short_duration(card["minute"].get(name)))


_COLUMNS = (
    UpstreamColumn("state", 13, 0, _state, right=False),
    UpstreamColumn("limit", 11, 3, _limit),
    UpstreamColumn("tokens", 7, 7, _ratio("tokens", "capacity")),
    UpstreamColumn("in flight", 7, 8, _ratio("in_flight", "in_flight_max")),
    UpstreamColumn("calls/min", 7, 1, _sent_count),
    UpstreamColumn("ok", 7, 9, _count("ok")),
    UpstreamColumn("failed", 6, 2, _count("failed", "red")),
    UpstreamColumn("refused", 7, 5, _count("refused", "yellow")),
    UpstreamColumn("held back", 6, 6, _held_back),
    UpstreamColumn("would refuse", 6, 12, _count("would_refuse", "yellow")),
    UpstreamColumn("retries", 7, 10, _count("retries")),
    UpstreamColumn("latency p95", 6, 3.5, _wait("latency_p95")),
    UpstreamColumn("wait p50", 6, 11, _wait("wait_p50")),
    UpstreamColumn("wait p95", 6, 4, _wait("wait_p95")),
)


def line_count(parts: Iterable[RenderableType], width: int) -> int:
    """Return how many lines of a terminal the parts take."""
    console = Console(width=width)
    return sum(len(console.render_lines(part, console.options)) for part in parts)


def short_duration(seconds: float | None) -> str:
    """Return a duration in a few characters."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else rough_duration(seconds)
