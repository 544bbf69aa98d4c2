"""One key of a cache through two outages of its source, a short one and a long one."""

from __future__ import annotations

import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

from benchmarks.pictures.simulated import deterministic
from comporta import CacheUnavailableError, HealthCache
from comporta.cache import maintenance
from comporta.cli.sim_charts import Dots, Line, Mark, Panel, Picture, Point, Shade, Spans, Ticks
from comporta.testing import ManualClock

_MINUTE = 60.0
_ENDS = 400
_FRESH, _STALE = 60, 150
_DOWN = ((50, 130), (200, 350))
_COLORS = {"fresh": "green", "stale": "orange", "none": "red"}
_WAIT_SECONDS_MAX = 30.0


class Observations:
    """What callers got each minute, its age, and the calls of the source."""

    def __init__(self) -> None:
        self.got: list[tuple[int, str]] = []
        self.ages: list[list[Point]] = [[]]
        self.tries: dict[bool, list[Point]] = {True: [], False: []}


def picture() -> Picture:
    """Fetch the key once a minute."""
    observed = _run()
    down = [Shade(start, end, "the source fails") for start, end in _DOWN]
    failed = [moment for moment, _ in observed.tries[False]]
    ages: list[Mark] = [Line("", "violet", points) for points in observed.ages if points]
    return Picture(
        "One key of the cache while its source fails, fetched every minute",
        "Fresh for 1 h, usable for 2.5 h. Callers get the stale value; the source gets no calls for 1, 5, "
        "15, then 30 minutes.",
        [
            Panel("what callers get", _strip(observed), 1, (), 26),
            Panel("age of the value, in minutes", [*down, *ages], 180, (0, 60, 150), 90),
            Panel(
                "calls of the source",
                [
                    *(Shade(shade.start, shade.end, "") for shade in down),
                    Ticks("", "orange", failed, 0.5, 0.1),
                    Dots("failed", "orange", [(moment, 0.5) for moment in failed], 4),
                    Dots("succeeded", "blue", observed.tries[True], 5),
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


def _strip(observed: Observations) -> list[Mark]:
    words = {"fresh": "fresh", "stale": "stale value", "none": "CacheUnavailableError"}
    marks: list[Mark] = []
    start, kind = observed.got[0]
    for minute, other in [*observed.got[1:], (_ENDS, "")]:
        if other != kind:
            marks.append(Spans(_COLORS[kind], [(start, minute, words[kind])], 0, 1))
            start, kind = minute, other
    return marks


def _run() -> Observations:
    clock, observed = ManualClock(1_800_000_000), Observations()
    began_ns = clock.now_ns()

    def source() -> list[str]:
        minute = round((clock.now_ns() - began_ns) / 6e10)
        is_well = not any(start <= minute < end for start, end in _DOWN)
        observed.tries[is_well].append((minute, 0.5))
        if not is_well:
            raise OSError("the source is down")
        return ["found"]

    # Maintenance runs on the wall clock, which is not simulated.
    flush_seconds, maintenance.FLUSH_SECONDS = maintenance.FLUSH_SECONDS, 1e9
    try:
        with deterministic(), TemporaryDirectory() as folder:
            cache = HealthCache(
                f"sqlite:///{folder}/cache.db",
                fresh=_FRESH * _MINUTE,
                stale=_STALE * _MINUTE,
                state="memory://",
                clock=clock,
            )
            for minute in range(_ENDS):
                _fetch(cache, source, minute, observed)
                clock.advance(_MINUTE)
            cache.sync.close()
    finally:
        maintenance.FLUSH_SECONDS = flush_seconds
    return observed


def _fetch(cache: HealthCache, source: Callable[[], list[str]], minute: int, observed: Observations) -> None:
    try:
        answer = cache.sync.fetch("ana", {"q": "uniforms"}, source)
        observed.got.append((minute, answer.freshness))
        if observed.ages[-1] and answer.age / _MINUTE < observed.ages[-1][-1][1]:
            observed.ages.append([])
        observed.ages[-1].append((minute, answer.age / _MINUTE))
    except CacheUnavailableError:
        observed.got.append((minute, "none"))
        observed.ages.append([])
    except OSError:
        observed.got.append((minute, "none"))
    _wait_for_fetches(cache)


def _wait_for_fetches(cache: HealthCache) -> None:
    """Wait, in real time, until no fetch runs in the background."""
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while len(cache._core.fetcher.single_flight):  # noqa: SLF001 - users have no need for this
        assert time.monotonic() < deadline
        time.sleep(0.001)
