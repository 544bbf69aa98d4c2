"""What is counted until it is taken."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from comporta.metrics import InMemoryMetrics
from comporta.stores.history import COLUMNS, SERIES_MAX
from comporta.watching.series import OF_CACHE, OF_SERVICE, UPSTREAM, wait_column
from comporta.watching.tallies import Tallies


def counted(numbers: list[int]) -> dict[str, int]:
    return {name: number for name, number in zip(UPSTREAM.sums, numbers, strict=False) if number}


def call(tallies: Tallies, outcome: str, attempts: int = 1) -> None:
    tallies.counter("upstream_calls", 1, upstream="pncp", outcome=outcome)
    tallies.counter("upstream_attempts", attempts, upstream="pncp")


def test_tallies__calls_of_an_upstream__are_counted_by_outcome() -> None:
    tallies = Tallies()
    for outcome in ("ok", "ok", "failure", "refused", "open", "limited", "neither", "error", "cancelled"):
        call(tallies, outcome)
    call(tallies, "ok", attempts=4)
    call(tallies, "open", attempts=0)
    assert tallies.series() == ["upstream.pncp"]
    numbers = tallies.taken("upstream.pncp")
    assert len(numbers) == COLUMNS
    assert counted(numbers) == {
        "calls": 11,
        "ok": 3,
        "failed": 1,
        "refused": 1,
        "open": 2,
        "limited": 1,
        "other": 3,
        "retries": 3,
    }
    assert tallies.series() == []
    assert tallies.taken("upstream.pncp") == []


def test_tallies__waits__are_counted_by_length() -> None:
    tallies = Tallies()
    for seconds in (0.0, 0.0, 0.7):
        tallies.histogram("upstream_wait_seconds", seconds, upstream="pncp")
    tallies.histogram("upstream_call_seconds", 1.0, upstream="pncp")
    numbers = tallies.taken("upstream.pncp")
    assert (numbers[wait_column(0)], numbers[wait_column(0.7)], sum(numbers)) == (2, 1, 3)


def test_tallies__answers_of_the_cache_and_requests__are_counted() -> None:
    tallies = Tallies()
    for outcome, times in (("hit", 5), ("stale", 2), ("miss", 1), ("unheard of", 9)):
        tallies.counter("cache_answers", times, outcome=outcome)
    for status in ("200", "404", "429", "500", "503"):
        tallies.counter("http_requests", 1, status=status, route="/", method="GET")
    assert tallies.taken("cache")[: len(OF_CACHE.sums)] == [5, 2, 1]
    assert tallies.taken("service")[: len(OF_SERVICE.sums)] == [5, 2, 1]


def test_tallies__everything__is_passed_on_as_it_came() -> None:
    metrics = InMemoryMetrics()
    tallies = Tallies(metrics)
    call(tallies, "ok")
    tallies.counter("anything", 1.5, label="x")
    tallies.histogram("upstream_wait_seconds", 0.5, upstream="pncp")
    tallies.histogram("anything_seconds", 2.0)
    assert metrics.value("upstream_calls", upstream="pncp", outcome="ok") == 1
    assert metrics.value("anything", label="x") == 1.5
    assert set(metrics.snapshot()) >= {'upstream_wait_seconds{upstream="pncp"}', "anything_seconds"}


def test_tallies__more_names_than_there_is_room_for__leaves_the_new_ones_out() -> None:
    tallies = Tallies()
    for number in range(SERIES_MAX + 5):
        tallies.counter("upstream_calls", 1, upstream=f"u{number}", outcome="ok")
    tallies.counter("upstream_calls", 1, upstream="no name", outcome="ok")
    assert len(tallies.series()) == SERIES_MAX
    tallies.counter("cache_answers", 1, outcome="hit")
    tallies.counter("http_requests", 1, status="200")
    assert tallies.series()[SERIES_MAX:] == ["cache", "service"], "which have a place of their own"
    for series in tallies.series():
        tallies.taken(series)
    tallies.counter("upstream_calls", 1, upstream="u0", outcome="ok")
    tallies.counter("upstream_calls", 1, upstream="u104", outcome="ok")
    assert tallies.series() == ["upstream.u0"], "whoever was first stays known"


def test_tallies__something_new_to_take__is_said_once_until_it_is_taken() -> None:
    said: list[str] = []
    tallies = Tallies()
    tallies.stirred = lambda: said.append("new")
    for _ in range(3):
        call(tallies, "ok")
    assert said == ["new"]
    tallies.taken("upstream.pncp")
    call(tallies, "ok")
    assert said == ["new", "new"]


def test_tallies__counted_by_many_threads__loses_nothing() -> None:
    tallies = Tallies()
    taken: list[int] = []

    def work(_: int) -> None:
        for _ in range(200):
            call(tallies, "ok")
        taken.append(sum(tallies.taken("upstream.pncp")[:1]))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert sum(taken) + sum(tallies.taken("upstream.pncp")[:1]) == 1600


def test_tallies__in_a_child__begin_at_nothing() -> None:
    tallies = Tallies()
    call(tallies, "ok")
    tallies.after_fork()
    assert tallies.series() == []
