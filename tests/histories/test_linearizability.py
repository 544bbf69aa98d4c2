"""The checker accepts histories that some order explains, and rejects those that none does."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, cast

import pytest
from tests.histories.linearizability import Call, is_linearizable
from tests.histories.recording import LIMITS, limit_specification
from tests.histories.specifications import LimitSpecification, PermitSpecification

from comporta import LimitConfig

ONE, TWO = ("0" * 15 + "1", "host:1"), ("0" * 15 + "2", "host:2")


class Register:
    """A value that calls read and write."""

    initial = 0

    def apply(self, state: Any, now_us: int, request: Any) -> tuple[Any, Any]:
        return (state, state) if request == "read" else (request, None)

    def moments_of(self, state: Any, call: Call, moments: Sequence[int]) -> Sequence[int]:
        return moments[:1]

    def essence(self, state: Any, now_us: int) -> Hashable:
        return cast(Hashable, state)


class Watch:
    """Tells the time, which never goes back."""

    initial = 0

    def apply(self, state: Any, now_us: int, request: Any) -> tuple[Any, Any]:
        return now_us, now_us

    def moments_of(self, state: Any, call: Call, moments: Sequence[int]) -> Sequence[int]:
        return moments

    def essence(self, state: Any, now_us: int) -> Hashable:
        return cast(Hashable, state)


def is_explained(calls: list[tuple[int, int, Any, Any]], specification: Any) -> bool:
    """Return whether some order explains the calls of different processes: began, ended, request, reply."""
    return is_linearizable([Call(number, *call) for number, call in enumerate(calls)], specification)


def test_checker__no_calls__accepts() -> None:
    assert is_explained([], Register())


def test_checker__read_after_a_write__must_see_it() -> None:
    assert is_explained([(0, 1, 7, None), (2, 3, "read", 7)], Register())
    assert not is_explained([(0, 1, 7, None), (2, 3, "read", 0)], Register())


@pytest.mark.parametrize("seen", [0, 7])
def test_checker__read_during_a_write__may_see_either(seen: int) -> None:
    assert is_explained([(0, 9, 7, None), (2, 3, "read", seen)], Register())


def test_checker__two_reads_during_a_write__never_go_back() -> None:
    assert is_explained([(0, 9, 7, None), (2, 3, "read", 0), (4, 5, "read", 7)], Register())
    assert not is_explained([(0, 9, 7, None), (2, 3, "read", 7), (4, 5, "read", 0)], Register())


def test_checker__value_that_no_call_wrote__rejects() -> None:
    assert not is_explained([(0, 9, 7, None), (0, 9, "read", 8)], Register())


def test_checker__write_that_was_lost__rejects() -> None:
    assert not is_explained([(0, 1, 1, None), (2, 3, 2, None), (4, 5, "read", 1)], Register())


def test_checker__moment_outside_of_its_call__rejects() -> None:
    assert is_explained([(10, 20, "now", 15)], Watch())
    assert not is_explained([(10, 20, "now", 9)], Watch())
    assert not is_explained([(10, 20, "now", 21)], Watch())


def test_checker__overlapping_calls__take_their_moments_in_any_order() -> None:
    assert is_explained([(10, 20, "now", 18), (10, 20, "now", 12)], Watch())


def test_checker__effect_that_changes_within_a_call__finds_the_moment() -> None:
    bucket = LimitSpecification(LimitConfig(1000, 1))
    calls = [(0, 0, ("acquire", 1), True), (500, 1500, ("acquire", 1), True)]
    assert is_explained([*calls, (1500, 1500, ("decide", 1), [False, 0, 500, 500])], bucket)
    assert is_explained([*calls, (1500, 1500, ("decide", 1), [False, 0, 999, 999])], bucket)
    assert not is_explained([*calls, (1500, 1500, ("decide", 1), [False, 0, 499, 499])], bucket)


def test_checker__refusal_without_the_lock_during_a_release__may_see_the_state_before_it() -> None:
    bucket = LimitSpecification(LimitConfig(1000, 5))
    taken = Call(0, 0, 10, ("decide", 5), [True, 0, 0, 5000], (5,))
    release = Call(1, 100, 160, ("release", 2), None, (120,))
    refusal = Call(0, 130, 140, ("acquire", 1), False, (135,))
    assert is_linearizable([taken, release, refusal], bucket)
    later = refusal._replace(began_us=170, ended_us=180, moments_us=(175,))
    assert not is_linearizable([taken, release, later], bucket)


@pytest.mark.parametrize("strategy", LIMITS)
def test_limit__moments_worth_trying__are_all_that_explain_a_decision(strategy: str) -> None:
    """Compare with every moment, for states that refill, run empty and end within the call."""
    specification = limit_specification(strategy)
    state: Any = None
    for at_us, cost in ((100, 2), (700, 1), (1900, 1)):
        state, _ = specification.apply(state, at_us, ("decide", cost))
        moments = range(at_us + 1, at_us + 2500)
        for request in (("decide", 1), ("decide", 3), ("acquire", 1), ("release", 1), ("settle", 2)):
            effects = {}
            for now_us in moments:
                new, reply = specification.apply(state, now_us, request)
                effects[now_us] = (reply, specification.essence(new, now_us))
            for reply, _ in list(effects.values())[::500]:
                call = Call(0, moments[0], moments[-1], request, reply)
                tried = [effects[now_us] for now_us in specification.moments_of(state, call, moments)]
                assert essences_of(tried, reply) == essences_of(effects.values(), reply)


def essences_of(effects: Iterable[tuple[Any, Hashable]], reply: Any) -> set[Hashable]:
    """Return the effects that are possible with a reply."""
    return {essence for got, essence in effects if got == reply}


def test_checker__known_moments__are_the_only_ones() -> None:
    call = Call(0, 10, 20, "now", 15)
    assert is_linearizable([call._replace(moments_us=(12, 15))], Watch())
    assert not is_linearizable([call._replace(moments_us=(12, 16))], Watch())


def test_limit__known_moment__is_not_moved_to_explain_a_decision() -> None:
    bucket = LimitSpecification(LimitConfig(10, 1))
    calls = [
        Call(0, 0, 0, ("acquire", 1), True, (0,)),
        Call(1, 40, 50, ("decide", 1), [False, 0, 99_955, 99_955]),
    ]
    assert is_linearizable([calls[0], calls[1]._replace(moments_us=(41, 45))], bucket)
    assert not is_linearizable([calls[0], calls[1]._replace(moments_us=(41, 46))], bucket)


def test_limit__one_token_granted_twice__rejects() -> None:
    bucket = LimitSpecification(LimitConfig(10, 1))
    once = (0, 5, ("acquire", 1), True)
    assert is_explained([once, (0, 5, ("acquire", 1), False)], bucket)
    assert not is_explained([once, (0, 5, ("acquire", 1), True)], bucket)
    assert is_explained([once, (0, 100_005, ("acquire", 1), True)], bucket)


def test_limit__refused_although_a_token_was_there__rejects() -> None:
    bucket = LimitSpecification(LimitConfig(10, 1))
    assert not is_explained([(0, 5, ("acquire", 1), False)], bucket)
    assert not is_explained([(0, 5, ("acquire", 1), True), (100_006, 100_007, ("acquire", 1), False)], bucket)


def test_limit__wait_that_no_moment_explains__rejects() -> None:
    bucket = LimitSpecification(LimitConfig(10, 1))
    taken = (0, 0, ("acquire", 1), True)
    assert is_explained([taken, (40, 50, ("decide", 1), [False, 0, 99_955, 99_955])], bucket)
    assert not is_explained([taken, (40, 50, ("decide", 1), [False, 0, 99_945, 99_945])], bucket)


def test_limit__lost_release_or_settlement__rejects() -> None:
    bucket = LimitSpecification(LimitConfig(10, 2))
    taken = (0, 0, ("decide", 2), [True, 0, 0, 200_000])
    back, debit = (1, 1, ("release", 1), None), (2, 2, ("settle", 1), True)
    assert is_explained([taken, back, (3, 3, ("acquire", 1), True)], bucket)
    assert not is_explained([taken, (3, 3, ("acquire", 1), True)], bucket)
    assert is_explained([taken, back, debit, (3, 3, ("acquire", 1), False)], bucket)
    assert not is_explained([taken, back, debit, (3, 3, ("acquire", 1), True)], bucket)


def test_permits__one_permit_held_twice__rejects() -> None:
    permits = PermitSpecification(1)
    first = (0, 1, ("acquire", *ONE), True)
    assert not is_explained([first, (2, 3, ("acquire", *TWO), True)], permits)
    assert is_explained([first, (2, 3, ("acquire", *TWO), False)], permits)
    assert is_explained([first, (2, 3, ("release", *ONE), None), (2, 5, ("acquire", *TWO), True)], permits)


def test_permits__renewed_after_its_release__rejects() -> None:
    permits = PermitSpecification(1)
    held = [(0, 1, ("acquire", *ONE), True), (2, 3, ("release", *ONE), None)]
    assert is_explained([*held, (4, 5, ("renew", *ONE), False)], permits)
    assert not is_explained([*held, (4, 5, ("renew", *ONE), True)], permits)
