"""The barrier at which a fleet rejoins, on every engine."""

from __future__ import annotations

from tests.support import StoreOpener

from comporta.stores.base import Store
from comporta.stores.failover.barrier import (
    GRACE_US,
    INTERRUPTED_US,
    LATE_US,
    LEAD_US,
    UNKNOWN_EPOCH,
    Barrier,
    RejoinMoment,
    RejoinRequest,
)
from comporta.stores.failover.worker_registry import Pulse, RecordHeartbeat, ScheduleRejoin, Worker
from comporta.testing import ManualClock

BARRIER_US = 1_600_000


def worker(number: int) -> Worker:
    return Worker(Worker.new().host, number, 1, number)


def rejoin(
    store: Store,
    number: int,
    lost_epoch: int,
    workers: int = 3,
    *,
    waiting: int = UNKNOWN_EPOCH,
    used: int | None = None,
) -> RejoinMoment:
    who, used_epoch = worker(number), lost_epoch if used is None else used
    request = RejoinRequest(who.member, lost_epoch, workers, BARRIER_US, used_epoch, waiting)
    return store.apply(ScheduleRejoin(who, request))


def beat(store: Store, number: int, epoch: int = UNKNOWN_EPOCH) -> Pulse:
    return store.apply(RecordHeartbeat(worker(number), epoch))


def test_barrier__all_expected_workers_come_again__its_moment_is_soon(open_store: StoreOpener) -> None:
    clock = ManualClock()
    with open_store(clock) as store:
        assert rejoin(store, 1, 0) == (1, BARRIER_US)
        clock.advance(0.25)
        assert rejoin(store, 2, 0, waiting=1) == (1, BARRIER_US - 250_000)
        assert rejoin(store, 2, 0, waiting=1) == (1, BARRIER_US - 250_000), "it is counted once"
        assert rejoin(store, 3, 0) == (1, BARRIER_US - 250_000), "all are there"
        assert rejoin(store, 3, 0, waiting=1) == (1, BARRIER_US - 250_000)
        assert rejoin(store, 2, 0, waiting=1) == (1, BARRIER_US - 250_000)
        assert rejoin(store, 2, 0, waiting=1) == (1, BARRIER_US - 250_000), "it is counted once"
        assert rejoin(store, 1, 0, waiting=1) == (1, LEAD_US), "all have come again"
        clock.advance(0.1)
        assert rejoin(store, 1, 0, waiting=1) == (1, LEAD_US - 100_000)
        clock.advance(0.12)
        assert rejoin(store, 1, 0, waiting=1) == (1, LEAD_US + GRACE_US // 2), "it is late, and asks again"
        assert beat(store, 2, 1) == (1, 1, False), "the barrier is done"
        assert rejoin(store, 1, 0, waiting=1) == (1, 0), "it is the last"
        assert rejoin(store, 4, 0) == (1, 0), "so is one that was no member"


def test_barrier__worker_came_and_lost_the_store__is_waited_for(open_store: StoreOpener) -> None:
    """The second worker has come once. It counts as present, but the others do not rejoin without it."""
    clock = ManualClock()
    with open_store(clock) as store:
        for number in (1, 2, 3):
            rejoin(store, number, 0)
        for _ in range(3):
            clock.advance(0.1)
            left_us = rejoin(store, 1, 0, waiting=1).left_us
            rejoin(store, 3, 0, waiting=1)
            rejoin(store, 2, 0)  # a request whose reply is lost, again and again
        assert left_us == BARRIER_US - 300_000
        assert rejoin(store, 2, 1, used=0) == (2, BARRIER_US), "it comes back, and all wait at another one"


def test_barrier__replies_are_lost__do_not_keep_it_alive(open_store: StoreOpener) -> None:
    clock = ManualClock()
    with open_store(clock) as store:
        for _ in range(3):
            assert rejoin(store, 1, 0).epoch == 1
            clock.advance(0.1)
        assert rejoin(store, 2, 0) == (2, BARRIER_US)


def test_barrier__interrupted_until_shortly_before_its_moment__another_one_begins(
    open_store: StoreOpener,
) -> None:
    clock = ManualClock()
    with open_store(clock) as store:
        rejoin(store, 1, 0)
        clock.advance(1.5)
        assert rejoin(store, 1, 1, used=0) == (2, BARRIER_US)


def test_barrier__done_and_known_without_a_rejoin__rejoins_at_once_if_late(open_store: StoreOpener) -> None:
    """This worker lost the store while it waited. The others have rejoined, unless that was long ago."""
    clock = ManualClock()
    with open_store(clock) as store:
        for _ in range(2):
            for number in (1, 2):
                rejoin(store, number, 0, workers=2, waiting=1)
        clock.advance(0.25)
        beat(store, 1, 1)
        assert rejoin(store, 2, 1, workers=2, used=0) == (1, 0)
        clock.advance(0.5)
        assert rejoin(store, 2, 1, workers=2, used=0) == (2, BARRIER_US), "the other may have lost it again"


def test_barrier__single_worker__does_not_wait(open_store: StoreOpener) -> None:
    with open_store(ManualClock()) as store:
        assert rejoin(store, 1, UNKNOWN_EPOCH, workers=1) == (1, 0)


def test_barrier__store_lost_again_shortly_before_the_moment__is_accepted(open_store: StoreOpener) -> None:
    """The others count the worker as a member and ask no more, so their moment must be its moment."""
    clock = ManualClock()
    with open_store(clock) as store:
        rejoin(store, 1, 0, workers=2)
        rejoin(store, 2, 0, workers=2, waiting=1)
        assert rejoin(store, 1, 0, workers=2, waiting=1) == (1, LEAD_US)
        clock.advance(0.1)
        assert rejoin(store, 1, 1, workers=2, used=0) == (1, LEAD_US - 100_000)
        clock.advance(0.2)
        assert rejoin(store, 1, 1, workers=2) == (2, BARRIER_US), "the other may have rejoined and lost it"


def test_barrier__no_member_asked_for_a_while__another_one_begins(open_store: StoreOpener) -> None:
    """The members have lost the store again: they must not count as present, and need time to come back."""
    clock = ManualClock()
    with open_store(clock) as store:
        rejoin(store, 1, 0)
        rejoin(store, 2, 0)
        clock.advance(0.25)
        assert rejoin(store, 2, 0, waiting=1) == (1, BARRIER_US - 250_000)
        clock.advance(0.3)
        assert rejoin(store, 3, 0) == (2, BARRIER_US)
        assert rejoin(store, 1, 1) == (2, BARRIER_US)
        assert rejoin(store, 2, 1) == (2, BARRIER_US)


def test_barrier__known_before_the_loss__is_not_accepted(open_store: StoreOpener) -> None:
    """The second hang, 0.3 s after the return: the moment of the first rejoin says nothing about it."""
    clock = ManualClock()
    with open_store(clock) as store:
        for _ in range(2):
            for number in (1, 2, 3):
                rejoin(store, number, 0, waiting=1)
        clock.advance(0.3)
        beat(store, 1, 1)
        assert rejoin(store, 2, 1) == (2, BARRIER_US)
        assert rejoin(store, 3, 1) == (2, BARRIER_US)
        assert rejoin(store, 1, 0) == (2, BARRIER_US), "it did not know the first, and waits at the second"


def test_barrier__moment_passed_and_no_one_rejoined__begins_again(open_store: StoreOpener) -> None:
    """The store hung until after the moment: other workers lost it meanwhile."""
    clock = ManualClock()
    with open_store(clock) as store:
        assert rejoin(store, 1, 0) == (1, BARRIER_US)
        clock.advance(5)
        assert rejoin(store, 2, 0) == (2, BARRIER_US)
        assert rejoin(store, 1, 0, waiting=1) == (2, BARRIER_US), "the first waits at the new one"


def test_barrier__member_alone_after_the_moment__does_not_rejoin(open_store: StoreOpener) -> None:
    """The second hang ended after the moment: one member survived it at the barrier, the others did not."""
    clock = ManualClock()
    with open_store(clock) as store:
        for _ in range(2):
            for number in (1, 2):
                rejoin(store, number, 0, workers=2, waiting=1)
        clock.advance(0.35)
        assert rejoin(store, 1, 0, workers=2, waiting=1) == (2, BARRIER_US)


def test_barrier__worker_without_an_epoch__joins_only_one_that_runs(open_store: StoreOpener) -> None:
    clock = ManualClock()
    with open_store(clock) as store:
        assert rejoin(store, 1, UNKNOWN_EPOCH) == (1, BARRIER_US)
        assert rejoin(store, 2, UNKNOWN_EPOCH) == (1, BARRIER_US)
        clock.advance(1.6)
        beat(store, 1, 1)
        assert rejoin(store, 9, UNKNOWN_EPOCH) == (2, BARRIER_US), "it cannot know which came first"


def test_barrier__workers_that_use_the_store_confirm__ends_early(open_store: StoreOpener) -> None:
    with open_store(ManualClock()) as store:
        assert beat(store, 2, 0) == (1, 0, False)
        assert rejoin(store, 1, 0) == (1, BARRIER_US)
        assert beat(store, 2, 0) == (1, 1, True), "it only learns the epoch"
        assert rejoin(store, 1, 0, waiting=1) == (1, BARRIER_US)
        assert beat(store, 2, 1) == (1, 1, True)
        assert beat(store, 3, 1) == (2, 1, True)
        assert rejoin(store, 1, 0, waiting=1) == (1, LEAD_US)


def test_barrier__server_forgot_it__epochs_still_grow(open_store: StoreOpener) -> None:
    with open_store(ManualClock()) as store:
        assert rejoin(store, 1, 7) == (8, BARRIER_US)
        assert rejoin(store, 2, 6) == (8, BARRIER_US)


def test_barrier__server_clock_set_back__does_not_wait_longer(open_store: StoreOpener) -> None:
    clock = ManualClock()
    with open_store(clock) as store:
        rejoin(store, 1, 0)
        clock.advance(-3600)
        assert rejoin(store, 2, 0) == (1, BARRIER_US)


def test_barrier__more_workers_than_a_record_holds__lasts_its_whole_time() -> None:
    barrier = Barrier()
    for number in [*range(500), *range(500)]:
        barrier, moment = barrier.join(RejoinRequest(f"{number:016x}", 0, 500, BARRIER_US, 0, 1), 0)
    assert moment == (1, BARRIER_US)
    assert len(barrier.members) == 200
    assert len(barrier.to_state(0)[1]) < 4096


def test_barrier__worker_comes_at_the_moment_itself__counts_as_late() -> None:
    request, moment_us = RejoinRequest("a", 0, 2, BARRIER_US, 0), 10**9
    done = Barrier(1, moment_us, is_done=True, expected=2)
    lefts = [done.join(request, moment_us + late_us)[1] for late_us in (-1, 0, LATE_US - 1, LATE_US)]
    assert lefts == [(2, BARRIER_US), (1, 0), (1, 0), (2, BARRIER_US)]
    running = Barrier(1, moment_us, expected=2, asked_us=moment_us)
    lefts = [running.join(request, moment_us + late_us)[1] for late_us in (-1, 0, GRACE_US - 1, GRACE_US)]
    assert lefts == [(1, 1), (1, 250_000), (1, 250_000), (2, BARRIER_US)]
    assert isinstance(lefts[1].left_us, int)


def test_barrier__last_asked_long_enough_before_the_lead__is_open_until_its_moment() -> None:
    request, moment_us = RejoinRequest("a", 0, 2, BARRIER_US, 0), 10**9
    asked_us = moment_us - LEAD_US - INTERRUPTED_US
    for asked, epoch in ((asked_us, 1), (asked_us - 1, 2)):
        barrier = Barrier(1, moment_us, expected=2, asked_us=asked)
        assert barrier.join(request, moment_us - 1)[1].epoch == epoch


def test_barrier__store_lost_again_before_the_lead__is_not_accepted() -> None:
    request, moment_us = RejoinRequest("a", 1, 2, BARRIER_US, 0), 10**9
    barrier = Barrier(1, moment_us, expected=2, asked_us=moment_us)
    for left_us, epoch in ((LEAD_US, 2), (LEAD_US - 1, 1)):
        assert barrier.join(request, moment_us - left_us)[1].epoch == epoch


def test_barrier__member_that_came_again_asks_once_more__still_counts() -> None:
    barrier = Barrier(1, 10**9, expected=3, asked_us=1000, members={"a": True, "b": False})
    barrier, _ = barrier.join(RejoinRequest("a", 0, 3, BARRIER_US, 0), 1000)
    assert barrier.members == {"a": True, "b": False}


def test_barrier__as_many_members_as_a_record_holds__takes_no_other() -> None:
    members = dict.fromkeys(map(str, range(200)), False)
    full = Barrier(1, 10**9, expected=300, asked_us=1000, members=members)
    for member, count in (("new", 200), ("7", 200)):
        barrier, _ = full.join(RejoinRequest(member, 0, 300, BARRIER_US, 0), 1000)
        assert len(barrier.members) == count
