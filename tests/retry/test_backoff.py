"""How long to wait before each new try: pure arithmetic."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from comporta.retry import IDEMPOTENT_METHODS, Backoff, Delays


def least(low: float, high: float) -> float:
    return low


def most(low: float, high: float) -> float:
    return high


def waits(delays: Delays) -> list[float]:
    return list(iter(delays.next_delay, None))


def test_defaults__three_retries__after_two_four_and_eight_seconds_and_up_to_half_a_second() -> None:
    assert waits(Backoff().delays(least)) == [2.0, 4.0, 8.0]
    assert waits(Backoff().delays(most)) == [2.5, 4.5, 8.5]


@given(st.randoms(use_true_random=False))
def test_defaults__any_luck__stays_within_the_promise(luck: Any) -> None:
    for wait, plain in zip(waits(Backoff().delays(luck.uniform)), (2, 4, 8), strict=True):
        assert plain <= wait <= plain + 0.5


def test_delays__without_a_source_of_luck__draw_from_their_own() -> None:
    assert len(waits(Backoff().delays())) == 3
    assert len(waits(Delays(Backoff()))) == 3


def test_full_jitter__any_luck__is_between_nothing_and_the_wait() -> None:
    backoff = Backoff(jitter="full")
    assert waits(backoff.delays(least)) == [0.0, 0.0, 0.0]
    assert waits(backoff.delays(most)) == [2.0, 4.0, 8.0]


def test_decorrelated_jitter__any_luck__is_between_the_base_and_three_times_the_last() -> None:
    backoff = Backoff(retries=5, jitter="decorrelated", max_delay=60)
    assert waits(backoff.delays(least)) == [2.0] * 5
    assert waits(backoff.delays(most)) == [6.0, 18.0, 54.0, 60.0, 60.0]


def test_longest_delay__reached__holds_with_its_jitter() -> None:
    assert waits(Backoff(retries=5, max_delay=7).delays(most)) == [2.5, 4.5, 7.0, 7.0, 7.0]


def test_longest_delay__reached__keeps_callers_apart() -> None:
    assert waits(Backoff(retries=5, max_delay=7).delays(least)) == [2.0, 4.0, 6.5, 6.5, 6.5]
    assert waits(Backoff(retries=2, max_delay=0.25).delays(least)) == [0.0, 0.0]
    assert waits(Backoff(retries=2, max_delay=0.25).delays(most)) == [0.25, 0.25]


@pytest.mark.parametrize(("jitter", "apart"), [((0.0, 0.5), 0.5), ("full", 2.0), ("decorrelated", 2.0)])
def test_told_to_wait__together__come_back_apart(jitter: Any, apart: float) -> None:
    assert Backoff(jitter=jitter).delays(least).next_delay(retry_after=30.0) == 30.0
    assert Backoff(jitter=jitter).delays(most).next_delay(retry_after=30.0) == 30.0 + apart
    assert Backoff(jitter=jitter).delays(most).next_delay(retry_after=60.0) == 60.0 + apart


def test_growth__a_hundred_times_a_thousandfold__stays_a_number() -> None:
    delays = waits(Backoff(retries=100, base=1, factor=1000, jitter=(0, 0), max_delay=60).delays())
    assert delays == [1.0] + [60] * 99


def test_retries__none__gives_up_at_once() -> None:
    assert Backoff(retries=0).delays().next_delay() is None


def test_told_to_wait__longer_than_the_backoff__waits_as_told() -> None:
    delays = Backoff().delays(least)
    assert delays.next_delay(retry_after=7.5) == 7.5
    assert delays.next_delay(retry_after=1.0) == 4.0
    assert delays.next_delay(retry_after=60.0) == 60.0


def test_told_to_wait__longer_than_anybody_does__gives_up() -> None:
    assert Backoff().delays().next_delay(retry_after=60.001) is None


def test_deadline__a_wait_that_would_pass_it__gives_up() -> None:
    delays = Backoff(deadline=10).delays(least)
    assert delays.next_delay(elapsed=1.0) == 2.0
    assert delays.next_delay(elapsed=6.0) == 4.0
    assert delays.next_delay(elapsed=10.5) is None
    assert Backoff(deadline=10).delays(least).next_delay(retry_after=9.5, elapsed=1.0) is None


@pytest.mark.parametrize(
    ("given", "said"),
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
def test_backoff__out_of_range__names_field_range_and_value(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        Backoff(**given)


@pytest.mark.parametrize(
    ("given", "said"),
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
def test_backoff__of_the_wrong_kind__names_field_and_value(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}$"):
        Backoff(**given)


def test_methods__that_may_be_sent_twice__are_those_of_the_standard() -> None:
    assert sorted(IDEMPOTENT_METHODS) == ["DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"]
