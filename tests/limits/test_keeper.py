"""Who comes by before a lease ends: in real time, and never waiting for luck."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from comporta import BaseLimiter, LimitConfig, StateError
from comporta.clock import MONOTONIC
from comporta.limits import leased
from comporta.limits.keeper import Keeper
from comporta.limits.leased import LeasedBound
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore

PATIENCE_SECONDS = 20


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
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    made = Keeper()
    monkeypatch.setattr(leased, "KEEPER", made)
    return made


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def at_work(store: MemoryStore, lease: float) -> BaseLimiter:
    limiter = BaseLimiter(LimitConfig(0.001, 100, lease=lease), store, "tested")
    assert all(limiter.sync.acquire("k") for _ in range(4))
    return limiter


def test_keeper__lease_not_used__gives_it_back_before_it_ends(keeper: Keeper) -> None:
    store = Watched()
    limiter = at_work(store, 0.2)
    store.wait()
    assert limiter.sync.peek("k").remaining == 96
    assert limiter.sync.acquire("k") is True


def test_keeper__lease_renewed__comes_by_again(keeper: Keeper) -> None:
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


def test_keeper__lease_over_or_ended__has_nothing_to_do(keeper: Keeper) -> None:
    store = Watched()
    limiter = at_work(store, 10)
    bound = limiter.verbs.leases
    assert bound is not None
    bound.drop("k")
    hand = bound._hands["k"]
    hand.due_ns = 0
    bound._visit(hand)
    assert not store.given_back.acquire(blocking=False)


def test_keeper__store_in_trouble__goes_on(keeper: Keeper) -> None:
    broken, sound = Watched(), Watched()
    at_work(broken, 0.2)
    broken.broken = True
    broken.wait()
    limiter = at_work(sound, 0.2)
    sound.wait()
    assert limiter.sync.peek("k").remaining == 96


def test_keeper__at_the_end_of_the_program__has_everything_given_back(keeper: Keeper) -> None:
    stores = [Watched() for _ in range(3)]
    limiters = [at_work(store, 10) for store in stores]
    stores[1].broken = True
    keeper.end()
    stores[1].broken = False
    assert [limiter.sync.peek("k").remaining for limiter in limiters] == [96, 93, 96]


def test_keeper__holder_that_raises__does_not_keep_others_from_giving_back(keeper: Keeper) -> None:
    class Raising:
        def give_back(self) -> None:
            raise ValueError("closed")

    raising = Raising()
    keeper.watch(MONOTONIC.now_ns() + 10**12, print, raising)
    limiter = at_work(Watched(), 10)
    keeper.end()
    assert limiter.sync.peek("k").remaining == 96


def test_keeper__in_a_forked_child__starts_anew(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Watched()
    with monkeypatch.context() as patches:  # the thread of the parent is not in the child
        patches.setattr(threading.Thread, "start", no_thread)
        limiter = at_work(store, 10)
    keeper.after_fork()
    assert isinstance(limiter.verbs.bound, LeasedBound)
    limiter.verbs.bound.after_fork()
    keeper.end()  # the parent's lease is the parent's
    assert limiter.sync.peek("k").remaining == 93
    store.close()
    at_work(Watched(), 0.2).store.wait()  # type: ignore[attr-defined]


def test_keeper__no_thread_to_be_had__does_without(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    limiter = at_work(Watched(), 10)
    assert limiter.sync.acquire("k") is True
