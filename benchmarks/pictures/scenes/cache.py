"""One key of a cache through two failures of its source, a short one and a long one."""

from __future__ import annotations

import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

from benchmarks.pictures.drawing import Dots, Line, Mark, Panel, Picture, Point, Shade, Spans, Ticks
from benchmarks.pictures.simulated import the_same_each_time
from comporta import CacheUnavailableError, HealthCache
from comporta.cache import chores
from comporta.testing import ManualClock

_MINUTE = 60.0
_ENDS = 400
_FRESH, _STALE = 60, 150
_DOWN = ((50, 130), (200, 350))
_COLORS = {"fresh": "green", "stale": "orange", "none": "red"}
_PATIENCE_SECONDS = 30.0


class Seen:
    """What callers got each minute, how old it was, and when the source was asked."""

    def __init__(self) -> None:
        self.got: list[tuple[int, str]] = []
        self.ages: list[list[Point]] = [[]]
        self.tries: dict[bool, list[Point]] = {True: [], False: []}


def picture() -> Picture:
    """Ask for the key once a minute."""
    seen = _played()
    down = [Shade(start, end, "the source fails") for start, end in _DOWN]
    failed = [moment for moment, _ in seen.tries[False]]
    ages: list[Mark] = [Line("", "violet", points) for points in seen.ages if points]
    return Picture(
        "One key of the cache while its source fails, asked for every minute",
        "Fresh for 1 h, usable for 2.5 h. Callers get the old answer at once; the source is left alone for "
        "1, 5, 15, then 30 minutes.",
        [
            Panel("what callers get", _strip(seen), 1, (), 26),
            Panel("age of the answer, in minutes", [*down, *ages], 180, (0, 60, 150), 90),
            Panel(
                "the source is asked",
                [
                    *(Shade(shade.start, shade.end, "") for shade in down),
                    Ticks("", "orange", failed, 0.5, 0.1),
                    Dots("in vain", "orange", [(moment, 0.5) for moment in failed], 4),
                    Dots("with success", "blue", seen.tries[True], 5),
                ],
                1,
                (),
                44,
            ),
        ],
        ends=_ENDS,
        every=50,
        unit="minutes",
    )


def _strip(seen: Seen) -> list[Mark]:
    words = {"fresh": "fresh", "stale": "stale, at once", "none": "CacheUnavailableError"}
    marks: list[Mark] = []
    start, kind = seen.got[0]
    for minute, other in [*seen.got[1:], (_ENDS, "")]:
        if other != kind:
            marks.append(Spans(_COLORS[kind], [(start, minute, words[kind])], 0, 1))
            start, kind = minute, other
    return marks


def _played() -> Seen:
    clock, seen = ManualClock(1_800_000_000), Seen()
    began_ns = clock.now_ns()

    def source() -> list[str]:
        minute = round((clock.now_ns() - began_ns) / 6e10)
        is_well = not any(start <= minute < end for start, end in _DOWN)
        seen.tries[is_well].append((minute, 0.5))
        if not is_well:
            raise OSError("the source is down")
        return ["found"]

    often, chores.TOUCH_SECONDS = chores.TOUCH_SECONDS, 1e9  # by the wall clock, which is no part of this
    try:
        with the_same_each_time(), TemporaryDirectory() as folder:
            cache = HealthCache(
                f"sqlite:///{folder}/cache.db",
                fresh=_FRESH * _MINUTE,
                stale=_STALE * _MINUTE,
                state="memory://",
                clock=clock,
            )
            for minute in range(_ENDS):
                _asked(cache, source, minute, seen)
                clock.advance(_MINUTE)
            cache.sync.close()
    finally:
        chores.TOUCH_SECONDS = often
    return seen


def _asked(cache: HealthCache, source: Callable[[], list[str]], minute: int, seen: Seen) -> None:
    try:
        answer = cache.sync.fetch("ana", {"q": "uniforms"}, source)
        seen.got.append((minute, answer.freshness))
        if seen.ages[-1] and answer.age / _MINUTE < seen.ages[-1][-1][1]:
            seen.ages.append([])
        seen.ages[-1].append((minute, answer.age / _MINUTE))
    except CacheUnavailableError:
        seen.got.append((minute, "none"))
        seen.ages.append([])
    except OSError:
        seen.got.append((minute, "none"))
    _settled(cache)


def _settled(cache: HealthCache) -> None:
    """Wait, in real time, until nothing is fetched in the background."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(cache._asking.loads.flights):  # noqa: SLF001 - nobody else has to know
        assert time.monotonic() < deadline
        time.sleep(0.001)
