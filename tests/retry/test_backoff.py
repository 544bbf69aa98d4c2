"""The delays before retries."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from comporta.retry import IDEMPOTENT_METHODS, Backoff, Delays


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high


def all_delays(delays: Delays) -> list[float]:
    return list(iter(delays.next_delay, None))


def test_defaults__three_retries__wait_2_4_and_8_seconds_plus_up_to_half_a_second() -> None:
    assert all_delays(Backoff().delays(lowest)) == [2.0, 4.0, 8.0]
    assert all_delays(Backoff().delays(highest)) == [2.5, 4.5, 8.5]


@given(st.randoms(use_true_random=False))
def test_defaults__any_random_draw__stays_within_the_documented_range(luck: Any) -> None:
    for wait, plain in zip(all_delays(Backoff().delays(luck.uniform)), (2, 4, 8), strict=True):
        assert plain <= wait <= plain + 0.5


def test_delays__no_draw_function_given__use_the_default() -> None:
    assert len(all_delays(Backoff().delays())) == 3
    assert len(all_delays(Delays(Backoff()))) == 3


def test_full_jitter__any_random_draw__is_between_zero_and_the_delay() -> None:
    backoff = Backoff(jitter="full")
    assert all_delays(backoff.delays(lowest)) == [0.0, 0.0, 0.0]
    assert all_delays(backoff.delays(highest)) == [2.0, 4.0, 8.0]


def test_decorrelated_jitter__any_random_draw__is_between_base_and_three_times_the_last() -> None:
    backoff = Backoff(retries=5, jitter="decorrelated", max_delay=60)
    assert all_delays(backoff.delays(lowest)) == [2.0] * 5
    assert all_delays(backoff.delays(highest)) == [6.0, 18.0, 54.0, 60.0, 60.0]


def test_max_delay__reached__includes_the_jitter() -> None:
    assert all_delays(Backoff(retries=5, max_delay=7).delays(highest)) == [2.5, 4.5, 7.0, 7.0, 7.0]


def test_max_delay__reached__still_spreads_callers() -> None:
    assert all_delays(Backoff(retries=5, max_delay=7).delays(lowest)) == [2.0, 4.0, 6.5, 6.5, 6.5]
    assert all_delays(Backoff(retries=2, max_delay=0.25).delays(lowest)) == [0.0, 0.0]
    assert all_delays(Backoff(retries=2, max_delay=0.25).delays(highest)) == [0.25, 0.25]


@pytest.mark.parametrize(("jitter", "apart"), [((0.0, 0.5), 0.5), ("full", 2.0), ("decorrelated", 2.0)])
def test_retry_after__same_for_many_callers__is_spread(jitter: Any, apart: float) -> None:
    assert Backoff(jitter=jitter).delays(lowest).next_delay(retry_after=30.0) == 30.0
    assert Backoff(jitter=jitter).delays(highest).next_delay(retry_after=30.0) == 30.0 + apart
    assert Backoff(jitter=jitter).delays(highest).next_delay(retry_after=60.0) == 60.0 + apart


def test_factor__hundred_retries_times_thousand__stays_finite() -> None:
    delays = all_delays(Backoff(retries=100, base=1, factor=1000, jitter=(0, 0), max_delay=60).delays())
    assert delays == [1.0] + [60] * 99


def test_retries__zero__gives_up_at_once() -> None:
    assert Backoff(retries=0).delays().next_delay() is None


def test_retry_after__longer_than_the_backoff__is_the_delay() -> None:
    delays = Backoff().delays(lowest)
    assert delays.next_delay(retry_after=7.5) == 7.5
    assert delays.next_delay(retry_after=1.0) == 4.0
    assert delays.next_delay(retry_after=60.0) == 60.0


def test_retry_after__equal_to_a_delay_with_jitter__is_not_spread_again() -> None:
    delays = Backoff(base=2.0, jitter=(0.0, 0.5)).delays(highest)
    assert delays.next_delay(retry_after=2.5) == 2.5


def test_retry_after__above_max_delay__gives_up() -> None:
    assert Backoff().delays().next_delay(retry_after=60.001) is None


def test_deadline__delay_would_pass_it__gives_up() -> None:
    delays = Backoff(deadline=10).delays(lowest)
    assert delays.next_delay(elapsed=1.0) == 2.0
    assert delays.next_delay(elapsed=6.0) == 4.0
    assert delays.next_delay(elapsed=10.5) is None
    assert Backoff(deadline=10).delays(lowest).next_delay(retry_after=9.5, elapsed=1.0) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"retries": -1}, "retries must be 0 to 100, got -1"),
        ({"retries": 101}, "retries must be 0 to 100, got 101"),
        ({"base": -0.1}, "base must be 0 to 86400, got -0.1"),
        ({"base": float("nan")}, "base must be 0 to 86400, got nan"),
        ({"factor": 0.5}, "factor must be 1 to 1000, got 0.5"),
        ({"max_delay": 0}, "max_delay must be 0.001 to 86400, got 0"),
        ({"deadline": 0}, "deadline must be 0.001 to 86400, got 0"),
        ({"deadline": float("inf")}, "deadline must be 0.001 to 86400, got inf"),
        ({"jitter": (-1, 0)}, "jitter must be 0 to 86400, got -1"),
        ({"jitter": (0, 1e9)}, "jitter must be 0 to 86400, got 1000000000.0"),
        ({"jitter": (2, 1)}, r"jitter must be \(low, high\) with low at most high, got \(2, 1\)"),
    ],
)
def test_backoff__out_of_range__names_field_range_and_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Backoff(**given)


@pytest.mark.parametrize(
    ("field", "lowest", "highest"),
    [
        ("retries", 0, 100),
        ("base", 0, 86_400),
        ("factor", 1, 1000),
        ("max_delay", 0.001, 86_400),
        ("deadline", 0.001, 86_400),
        ("min_delay", 0, 86_400),
    ],
)
def test_backoff__bounds_of_a_field__are_allowed_and_named(field: str, lowest: float, highest: float) -> None:
    others: dict[str, Any] = {"max_delay": 86_400} if field == "min_delay" else {}
    for allowed in (lowest, highest):
        assert getattr(Backoff(**{**others, field: allowed}), field) == allowed
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ValueError, match=f"^{field} must be {lowest} to {highest}, got {value}$"):
            Backoff(**{**others, field: value})


def test_backoff__bounds_of_the_jitter__are_allowed_and_named() -> None:
    for jitter in ((0, 0), (0, 86_400), (86_400, 86_400), (1.5, 1.5)):
        assert Backoff(jitter=jitter).jitter == jitter
    for bad in ((86_401, 86_402), (0, 86_401), (-1, 0), (0, -1)):
        wrong = next(value for value in bad if not 0 <= value <= 86_400)
        with pytest.raises(ValueError, match=f"^jitter must be 0 to 86400, got {wrong}$"):
            Backoff(jitter=bad)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"retries": 2.5}, "retries must be an int, got 2.5"),
        ({"retries": True}, "retries must be an int, got True"),
        ({"base": "2"}, "base must be a number, got '2'"),
        ({"factor": None}, "factor must be a number, got None"),
        ({"max_delay": True}, "max_delay must be a number, got True"),
        ({"jitter": "none"}, r"jitter must be \(low, high\), 'full' or 'decorrelated', got 'none'"),
        ({"jitter": (1,)}, r"jitter must be \(low, high\), 'full' or 'decorrelated', got \(1,\)"),
        ({"jitter": ("a", 1)}, "jitter must be a number, got 'a'"),
    ],
)
def test_backoff__wrong_type__names_field_and_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        Backoff(**given)


def test_deadline__delay_ends_exactly_with_it__is_waited_for() -> None:
    delays = Backoff(deadline=10, jitter=(0, 0)).delays()
    assert delays.next_delay(elapsed=8.0) == 2.0
    assert delays.next_delay(elapsed=6.5) is None


def test_retry_after__as_long_as_max_delay__is_waited_for() -> None:
    delays = Backoff(max_delay=60, jitter=(0.25, 0.5)).delays(lowest)
    assert delays.next_delay(retry_after=60.0) == 60.25
    assert Backoff(max_delay=60, jitter=(0, 0), base=60).delays().next_delay(retry_after=60.0) == 60.0


@pytest.mark.parametrize("jitter", ["full", "decorrelated"])
def test_retry_after__jitter_without_bounds__is_spread_by_up_to_the_base(jitter: Any) -> None:
    backoff = Backoff(base=2.0, jitter=jitter)
    assert backoff.delays(lowest).next_delay(retry_after=30.0) == 30.0
    assert backoff.delays(highest).next_delay(retry_after=30.0) == 32.0


def test_idempotent_methods__all__are_those_of_rfc_9110() -> None:
    assert sorted(IDEMPOTENT_METHODS) == ["DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"]


@pytest.mark.parametrize(
    ("jitter", "shortest", "longest"),
    [
        ((0.0, 0.5), [3.0, 3.0, 4.0], [3.5, 3.5, 4.5]),
        ("full", [3.0, 3.0, 3.0], [3.0, 3.0, 4.0]),
        ("decorrelated", [3.0, 3.0, 3.0], [9.0, 27.0, 60.0]),
    ],
)
def test_min_delay__any_jitter__is_the_shortest_delay(
    jitter: Any, shortest: list[float], longest: list[float]
) -> None:
    backoff = Backoff(base=1.0, jitter=jitter, min_delay=3.0)
    assert all_delays(backoff.delays(lowest)) == shortest
    assert all_delays(backoff.delays(highest)) == longest


def test_min_delay__as_long_as_max_delay__is_every_delay() -> None:
    assert all_delays(Backoff(min_delay=5, max_delay=5).delays(highest)) == [5.0] * 3


def test_min_delay__shorter_retry_after__holds() -> None:
    assert Backoff(base=0.0, jitter=(0, 0), min_delay=5).delays().next_delay(retry_after=1.0) == 5.0


def test_min_delay__above_max_delay__raises() -> None:
    with pytest.raises(ValueError, match="min_delay must be at most max_delay, which is 60 s, got 61"):
        Backoff(min_delay=61)
