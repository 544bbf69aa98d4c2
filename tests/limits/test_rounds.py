"""Who comes by before a lease ends: in real time, and never waiting for luck."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from comporta import BaseLimiter, LimitConfig, StateError
from comporta.clock import MONOTONIC
from comporta.limits import leased
from comporta.limits.leased import LeasedBound
from comporta.limits.rounds import Rounds
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore

PATIENCE_SECONDS = 120.0
LEASE_SECONDS = 2.0
"""Long enough that whoever comes by at three quarters of it does so before its end, on a busy machine too."""


class Watched(MemoryStore):
    """A store that tells when something was given back."""

    def __init__(self) -> None:
        super().__init__()
        self.given_back = threading.Semaphore(0)
        self.broken = False

    def apply(self, operation: Operation[Any]) -> Any:
        try:
            if self.broken:
                raise StateError("broken")
            return super().apply(operation)
        finally:
            if getattr(operation, "need", 1) == 0:
                self.given_back.release()

    def wait(self) -> None:
        assert self.given_back.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    made = Rounds()
    monkeypatch.setattr(leased, "ROUNDS", made)
    return made


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def at_work(store: MemoryStore, lease: float) -> BaseLimiter:
    limiter = BaseLimiter(LimitConfig(0.001, 100, lease=lease), store, "tested")
    assert all(limiter.sync.acquire("k") for _ in range(4))
    return limiter


def test_rounds__lease_not_used__gives_it_back_before_it_ends(rounds: Rounds) -> None:
    store = Watched()
    limiter = at_work(store, LEASE_SECONDS)
    store.wait()
    assert limiter.sync.peek("k").remaining == 96
    assert limiter.sync.acquire("k") is True


def test_rounds__lease_renewed__comes_by_again(rounds: Rounds) -> None:
    store = Watched()
    limiter = at_work(store, 10)
    assert limiter.verbs.leases is not None
    hand = limiter.verbs.leases._hands["k"]
    hand.visit_ns = 0
    limiter.verbs.leases._visit(hand)  # early: a later lease came in place of the one it was planned for
    assert hand.visit_ns == hand.due_ns
    hand.visit_ns, hand.due_ns = 0, MONOTONIC.now_ns()
    limiter.verbs.leases._watch(hand)  # ahead of the visits planned so far
    store.wait()
    assert limiter.sync.peek("k").remaining == 96


def test_rounds__lease_over_or_ended__has_nothing_to_do(rounds: Rounds) -> None:
    store = Watched()
    limiter = at_work(store, 10)
    bound = limiter.verbs.leases
    assert bound is not None
    bound.drop("k")
    hand = bound._hands["k"]
    hand.due_ns = 0
    bound._visit(hand)
    assert not store.given_back.acquire(blocking=False)


def test_rounds__store_in_trouble__goes_on(rounds: Rounds) -> None:
    broken, sound = Watched(), Watched()
    at_work(broken, LEASE_SECONDS)
    broken.broken = True
    broken.wait()
    limiter = at_work(sound, LEASE_SECONDS)
    sound.wait()
    assert limiter.sync.peek("k").remaining == 96


def test_rounds__at_the_end_of_the_program__has_everything_given_back(rounds: Rounds) -> None:
    stores = [Watched() for _ in range(3)]
    limiters = [at_work(store, 10) for store in stores]
    stores[1].broken = True
    rounds.end()
    stores[1].broken = False
    assert [limiter.sync.peek("k").remaining for limiter in limiters] == [96, 93, 96]


def test_rounds__holder_that_raises__does_not_keep_others_from_giving_back(rounds: Rounds) -> None:
    class Raising:
        def give_back(self) -> None:
            raise ValueError("closed")

    raising = Raising()
    rounds.watch(MONOTONIC.now_ns() + 10**12, print, raising)
    limiter = at_work(Watched(), 10)
    rounds.end()
    assert limiter.sync.peek("k").remaining == 96


def test_rounds__in_a_forked_child__starts_anew(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Watched()
    with monkeypatch.context() as patches:  # the thread of the parent is not in the child
        patches.setattr(threading.Thread, "start", no_thread)
        limiter = at_work(store, 10)
    rounds.after_fork()
    assert isinstance(limiter.verbs.bound, LeasedBound)
    limiter.verbs.bound.after_fork()
    rounds.end()  # the parent's lease is the parent's
    assert limiter.sync.peek("k").remaining == 93
    store.close()
    at_work(Watched(), LEASE_SECONDS).store.wait()  # type: ignore[attr-defined]


def test_rounds__no_thread_to_be_had__does_without(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    limiter = at_work(Watched(), 10)
    assert limiter.sync.acquire("k") is True


def test_rounds__during_a_fork__rest_and_go_on_in_the_parent(rounds: Rounds) -> None:
    rounds.before_fork()
    rounds.after_fork_in_parent()
    store = Watched()
    limiter = at_work(store, 10)
    first = rounds._run
    assert first is not None
    rounds.before_fork()
    assert not first.lives()
    rounds.after_fork_in_parent()
    assert rounds._run is not first
    rounds.after_fork_in_parent()  # it is at work already
    assert limiter.verbs.leases is not None
    hand = limiter.verbs.leases._hands["k"]
    hand.visit_ns, hand.due_ns = 0, MONOTONIC.now_ns()
    limiter.verbs.leases._watch(hand)
    store.wait()


def test_rounds__more_in_hand_than_can_be_given_back_in_time__leave_the_rest(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = at_work(Watched(), 10)
    monkeypatch.setattr(leased, "_GIVING_BACK_NS_MAX", -1)
    limiter.verbs.leases.give_back()  # type: ignore[union-attr]
    assert limiter.sync.peek("k").remaining < 96
