"""Draw panels over one time axis as SVG text.

A :class:`Picture` has panels one below the other, and a panel has marks. Every mark draws itself in the
:class:`Frame` of its panel and has a name for the legend. Colors are classes of a small style sheet in the
file, for light and dark pages; the background is painted, so that a picture is readable on any page. This
module does not know what the pictures show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

Point = tuple[float, float]

WIDTH, LEFT, RIGHT = 880, 78, 860
_TOP, _GAP, _HEAD, _FOOT = 66, 18, 24, 40
_CLOSE = 0
"""The head of a panel without a title, which belongs to the panel above."""
_NARROW, _WIDE = frozenset("fijlrt.,:;'|()[]1 /"), frozenset("mwMW@%_")

# name: (on a light page, on a dark page)
COLORS = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9aa4af"),
    "line": ("#d8dee4", "#2d333b"),
    "grey": ("#b3bac3", "#59636e"),
    "blue": ("#2266cc", "#5b9dff"),
    "green": ("#1d8348", "#4cb877"),
    "orange": ("#d9730d", "#f0973f"),
    "red": ("#c9303c", "#f2706f"),
    "violet": ("#7a4fd0", "#b594ff"),
}


@dataclass(frozen=True)
class Frame:
    """The position of a panel, and the scale of its axes."""

    top: float
    bottom: float
    ends: float
    most: float

    def x(self, moment: float) -> float:
        """Return the horizontal position of a moment."""
        return LEFT + (RIGHT - LEFT) * min(max(moment, 0.0), self.ends) / self.ends

    def y(self, amount: float) -> float:
        """Return the vertical position of an amount, clipped to the scale."""
        return self.bottom - (self.bottom - self.top) * min(max(amount, 0.0), self.most) / self.most


class Mark(Protocol):
    """An element of a panel."""

    @property
    def name(self) -> str:
        """The name in the legend; empty for none."""

    @property
    def color(self) -> str:
        """One of ``COLORS``."""

    def draw(self, frame: Frame) -> Iterable[str]:
        """Return the SVG elements."""


@dataclass(frozen=True)
class Bars:
    """An amount for each slot of time, stacked on the amounts in ``below``."""

    name: str
    color: str
    amounts: Sequence[float]
    slot: float = 1.0
    below: Sequence[float] = ()

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return one path for all bars."""
        path = []
        for number, amount in enumerate(self.amounts):
            if amount:
                base = self.below[number] if self.below else 0.0
                left, right = frame.x(number * self.slot), frame.x((number + 1) * self.slot)
                inset = 1.0 if right - left > 6 else 0.0  # gaps between narrow bars would flicker
                low, high = frame.y(base), frame.y(base + amount)
                path.append(f"M{left + inset:.1f} {low:.1f}V{high:.1f}H{right - inset:.1f}V{low:.1f}Z")
        yield f"<path class='f-{self.color}' d='{''.join(path)}'/>"


@dataclass(frozen=True)
class Steps:
    """An amount that stays constant until the next point."""

    name: str
    color: str
    points: Sequence[Point]
    dashed: bool = False
    filled: bool = False

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return the line and, if ``filled``, the area below it."""
        (start, first), *_ = self.points
        path = [f"M{frame.x(start):.1f} {frame.y(first):.1f}"]
        last = first
        for moment, amount in self.points[1:]:
            if amount != last:
                path.append(f"H{frame.x(moment):.1f}V{frame.y(amount):.1f}")
                last = amount
        path.append(f"H{frame.x(frame.ends):.1f}")
        line = "".join(path)
        if self.filled:
            closed = f"{line}V{frame.bottom:.1f}H{frame.x(start):.1f}Z"
            yield f"<path class='f-{self.color}' opacity='0.25' d='{closed}'/>"
        dashes = " stroke-dasharray='6 4'" if self.dashed else ""
        yield f"<path class='s-{self.color}' fill='none' stroke-width='1.8'{dashes} d='{line}'/>"


@dataclass(frozen=True)
class Line:
    """An amount that changes linearly from point to point."""

    name: str
    color: str
    points: Sequence[Point]

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return the line."""
        path = "L".join(f"{frame.x(moment):.1f} {frame.y(amount):.1f}" for moment, amount in self.points)
        yield f"<path class='s-{self.color}' fill='none' stroke-width='1.8' d='M{path}'/>"


@dataclass(frozen=True)
class Ticks:
    """Moments: short vertical strokes from ``ground`` to ``height``."""

    name: str
    color: str
    moments: Sequence[float]
    height: float
    ground: float = 0.0
    width: float = 1.6

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return one path for all strokes."""
        low, high = frame.y(self.ground), frame.y(self.height)
        path = "".join(f"M{frame.x(moment):.1f} {low:.1f}V{high:.1f}" for moment in self.moments)
        yield f"<path class='s-{self.color}' stroke-width='{self.width}' d='{path}'/>"


@dataclass(frozen=True)
class Dots:
    """Single events, each at its moment and height."""

    name: str
    color: str
    points: Sequence[Point]
    radius: float = 4.0
    hollow: bool = False

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return the circles."""
        ground = "f-paper" if self.hollow else f"f-{self.color}"
        for moment, amount in self.points:
            yield (
                f"<circle class='{ground} s-{self.color}' stroke-width='1.8' cx='{frame.x(moment):.1f}' "
                f"cy='{frame.y(amount):.1f}' r='{self.radius:g}'/>"
            )


@dataclass(frozen=True)
class Spans:
    """Periods on a strip between two heights, each with a word."""

    color: str
    spans: Sequence[tuple[float, float, str]]
    low: float
    high: float
    opacity: float = 1.0
    name: str = ""

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return boxes, with their words where there is room."""
        top, bottom = frame.y(self.high), frame.y(self.low)
        for start, end, word in self.spans:
            left, right = frame.x(start), frame.x(end)
            yield (
                f"<rect class='f-{self.color}' opacity='{self.opacity:g}' x='{left:.1f}' y='{top:.1f}' "
                f"width='{max(right - left, 1.5):.1f}' height='{bottom - top:.1f}'/>"
            )
            if word and right - left > _width(word):
                ink = "f-paper" if self.opacity == 1 else "f-ink"
                yield _text((left + right) / 2, (top + bottom) / 2 + 4.5, word, ink, "middle")


@dataclass(frozen=True)
class Shade:
    """A period with a shaded background and a word at its top."""

    start: float
    end: float
    word: str
    color: str = "red"
    name: str = ""

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return the shaded area and its word."""
        left, right = frame.x(self.start), frame.x(self.end)
        yield (
            f"<rect class='f-{self.color}' opacity='0.13' x='{left:.1f}' y='{frame.top:.1f}' "
            f"width='{right - left:.1f}' height='{frame.bottom - frame.top:.1f}'/>"
        )
        if self.word:
            ink = "soft" if self.color == "grey" else self.color
            yield _text((left + right) / 2, frame.top + 13, self.word, f"f-{ink}", "middle")


@dataclass(frozen=True)
class Level:
    """A constant amount such as a limit: a dashed line."""

    name: str
    color: str
    amount: float

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return the line."""
        y = frame.y(self.amount)
        yield (
            f"<path class='s-{self.color}' stroke-width='1.5' stroke-dasharray='6 4' "
            f"d='M{LEFT} {y:.1f}H{RIGHT}'/>"
        )


@dataclass(frozen=True)
class Note:
    """Text beside a point."""

    moment: float
    amount: float
    words: str
    anchor: str = "start"
    color: str = "ink"
    name: str = ""

    def draw(self, frame: Frame) -> Iterator[str]:
        """Return the text."""
        aside = {"start": 9, "end": -9, "middle": 0}[self.anchor]
        x, y = frame.x(self.moment) + aside, frame.y(self.amount) + 4.5
        yield _text(x, y, self.words, f"f-{self.color}", self.anchor)


@dataclass(frozen=True)
class Key:
    """A name in the legend for a mark of another panel."""

    name: str
    color: str

    def draw(self, _: Frame) -> Iterator[str]:
        """Return nothing."""
        yield from ()


@dataclass(frozen=True)
class Panel:
    """Marks over time, on one vertical scale."""

    title: str
    marks: Sequence[Mark]
    most: float = 1.0
    ticks: Sequence[float] = (0,)
    height: float = 90.0
    labels: Sequence[tuple[float, str]] = ()
    """Words instead of numbers at the left, each at its height."""

    @property
    def head(self) -> float:
        """The height of the title."""
        return _HEAD if self.title else _CLOSE

    def draw(self, top: float, ends: float) -> Iterator[str]:
        """Return the panel, with its title at ``top``."""
        frame = Frame(top + self.head, top + self.head + self.height, ends, self.most)
        if self.title:
            yield from self._head(top)
        for amount in self.ticks:
            y = frame.y(amount)
            yield f"<path class='s-line' d='M{LEFT} {y:.1f}H{RIGHT}'/>"
            yield _text(LEFT - 8, y + 4.5, f"{amount:g}", "f-soft", "end")
        for amount, word in self.labels:
            yield _text(LEFT - 8, frame.y(amount) + 4.5, word, "f-soft", "end")
        for mark in self.marks:
            yield from mark.draw(frame)

    def _head(self, top: float) -> Iterator[str]:
        """Return the title and, to its right, the legend."""
        yield _text(LEFT, top + 14, self.title, "f-ink", weight="600")
        x = RIGHT
        for mark in reversed([mark for mark in self.marks if mark.name]):
            x -= _width(mark.name)
            yield _text(x, top + 14, mark.name, "f-soft")
            yield f"<rect class='f-{mark.color}' x='{x - 16}' y='{top + 5:g}' width='11' height='11' rx='2'/>"
            x -= 34


@dataclass(frozen=True)
class Picture:
    """Panels over one time axis, below a title and a caption that says what to see."""

    title: str
    caption: str
    panels: Sequence[Panel]
    ends: float
    every: float
    unit: str = "seconds"

    @property
    def svg(self) -> str:
        """The SVG file."""
        top, body = float(_TOP), list[str]()
        for panel in self.panels:
            body += panel.draw(top, self.ends)
            top += panel.head + panel.height + _GAP
        body += self._axis(top - _GAP)
        height = top - _GAP + _FOOT
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:g}' role='img' "
            f"aria-labelledby='title caption' font-family='system-ui, -apple-system, \"Segoe UI\", "
            f"Roboto, sans-serif' font-size='13'>\n"
            f"<title id='title'>{escape(self.title, quote=False)}</title>\n"
            f"<desc id='caption'>{escape(self.caption, quote=False)}</desc>\n"
            f"<style>{_style()}</style>\n"
            f"<rect class='f-paper s-line' x='0.5' y='0.5' width='{WIDTH - 1}' height='{height - 1:g}' "
            "rx='8'/>"
        )
        words = [
            _text(22, 29, self.title, "f-ink", size="16", weight="600"),
            _text(22, 50, self.caption, "f-soft"),
        ]
        return "\n".join([head, *words, *body, "</svg>", ""])

    def _axis(self, y: float) -> Iterator[str]:
        for number in range(int(self.ends / self.every) + 1):
            moment = number * self.every
            x = LEFT + (RIGHT - LEFT) * moment / self.ends
            yield f"<path class='s-soft' d='M{x:.1f} {y:.1f}v5'/>"
            yield _text(x, y + 19, f"{moment:g}", "f-soft", "middle")
        yield _text(LEFT - 16, y + 19, self.unit, "f-soft", "end")


def _width(words: str) -> int:
    """Return the approximate width of a text, in the widest of the usual fonts."""
    return sum(49 if one in _NARROW else 115 if one in _WIDE else 82 for one in words) // 10


def _style() -> str:
    light, dark = ("".join(_rules(page)) for page in (0, 1))
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _rules(page: int) -> Iterator[str]:
    for name, pair in COLORS.items():
        yield f".f-{name}{{fill:{pair[page]}}}.s-{name}{{stroke:{pair[page]}}}"


def _text(
    x: float, y: float, words: str, style: str, anchor: str = "", *, size: str = "", weight: str = ""
) -> str:
    given = {"text-anchor": anchor, "font-size": size, "font-weight": weight}
    more = "".join(f" {name}='{value}'" for name, value in given.items() if value)
    return f"<text class='{style}' x='{x:.1f}' y='{y:.1f}'{more}>{escape(words, quote=False)}</text>"
