"""Going on alone when the shared state fails, and back (A8, A12)."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import contextmanager
from typing import Any
from weakref import WeakMethod

import pytest
from tests.stores.switchable import ByHand, Patient, Switchable, by_hand, moved
from tests.support import memory_store

from comporta import events
from comporta.errors import (
    StateDeniedError,
    StateError,
    StateForbiddenError,
    StateFullError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.flow import Flow, run, run_async
from comporta.limits.config import LimitConfig
from comporta.limits.operation import LimitOperation, Question
from comporta.limits.take import Asked, Take
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores import failover
from comporta.stores.base import Operation
from comporta.stores.census import Census
from comporta.stores.effects import ApplyAll
from comporta.stores.failover import FailoverStore, fallback_of
from comporta.stores.keeper import PROBE_LONGEST_SECONDS, Keeper, Life, _stop_all
from comporta.stores.known import recalled
from comporta.stores.records import Delete, Read, Write
from comporta.stores.workers import BEAT_SECONDS, RETURN, Beat, Gather, Roll, Worker
from comporta.testing import ManualClock, StoreConformance

GONE = StateUnavailableError("the server is gone")
TEN = Asked(LimitConfig.parse("10/s").rule(), "ten")


def kinds_since(count: int) -> list[str]:
    return [event.kind for event in events.latest_events()[count:]]


class TestFailoverStore(StoreConformance):
    """As long as nothing fails it is a store like any other."""

    @contextmanager
    def store(self, clock: ManualClock) -> Any:
        with memory_store(clock) as store:
            made = FailoverStore.of(store, "memory://test")
            try:
                yield made
            finally:
                made.close()


@pytest.mark.parametrize("awaiting", [False, True])
def test_apply__shared_state_fails__is_answered_from_the_share(awaiting: bool) -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)

    def ask() -> int:
        take = Take(TEN, "k", 1)
        return asyncio.run(store.apply_async(take)) if awaiting else store.apply(take)

    assert ask() == 0
    assert fallback_of(store) is None
    assert fallback_of(primary) is None
    primary.error = GONE
    assert ask() == 100_000  # empty at first: what the bucket held may be spent
    clock.advance(0.1)
    assert ask() == 0
    assert ask() == 100_000
    calls = primary.calls
    assert ask() == 100_000
    assert primary.calls == calls, "only the first caller pays"
    assert store.fallback is not None
    assert store.fallback.why == "the server is gone"
    assert abs(store.fallback.since - time.time()) < 60


def test_fall__by_many_at_once__is_one_event_one_line_and_one_figure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        store, _ = by_hand()
        count = len(events.latest_events())
        first = store.fell(GONE)
        assert store.fell(GONE) is first
        assert kinds_since(count) == ["state_fallback"]
        [record] = caplog.records
        assert "1/1 of each limit" in record.getMessage()
        assert metrics.value("state_switches", to="fallback") == 1
        store.apply(Take(TEN, "k", 1))
        assert metrics.value("state_fallback_decisions") == 1
        store.returned()
        store.returned()
        assert kinds_since(count) == ["state_fallback", "state_return"]
        assert metrics.value("state_switches", to="shared") == 1
    finally:
        use_metrics(before)


def test_alone__what_others_must_see__is_an_error_that_says_why() -> None:
    store, primary = by_hand()
    primary.error = GONE
    with pytest.raises(StateUnavailableError, match=r"not possible without .*: the server is gone"):
        store.apply(Write("s", "k", b"x", None))
    with pytest.raises(StateUnavailableError, match="not possible"):
        store.entries("s")
    with pytest.raises(StateUnavailableError, match="not possible"):
        asyncio.run(store.entries_async("s"))
    primary.error = None
    moved(store)
    assert store.apply(Write("s", "k", b"x", None))
    assert store.entries("s") == {"k": b"x"}


def test_denied__before_anything_was_ever_answered__is_raised_every_time() -> None:
    store, primary = by_hand()
    primary.error = StateDeniedError("wrong password")
    for _ in range(2):
        with pytest.raises(StateDeniedError):
            store.apply(Take(TEN, "k", 1))
    moved(store)  # its own sign of life is denied, too, and nobody hears of it
    assert store.fallback is None


def test_denied__later__is_an_outage_in_which_nothing_is_simply_let_through() -> None:
    store, primary = by_hand()
    open_limit = Asked(LimitConfig.parse("10/s").rule(), "open", "open")
    assert store.apply(Take(open_limit, "k", 1)) == 0
    primary.error = StateDeniedError("the password was changed")
    count = len(events.latest_events())
    assert store.apply(Take(open_limit, "k", 1)) > 0
    moved(store)
    moved(store)  # said again, but not each time
    assert kinds_since(count) == ["state_fallback", "state_denied"]


def test_denied__found_after_the_first_caller_gave_up__is_raised_until_the_server_lets_us_in() -> None:
    store, primary = by_hand()
    primary.error = StateUnavailableError("still connecting; nothing was sent")
    assert store.apply(Take(TEN, "k", 1)) > 0
    primary.error = StateDeniedError("wrong password")
    for _ in range(2):
        moved(store)
        with pytest.raises(StateDeniedError, match="wrong password"):
            store.apply(Take(TEN, "k", 1))
    primary.error = None
    moved(store)
    assert store.apply(Take(TEN, "k", 1)) == 0


def test_denied__found_when_looking_for_a_server_that_was_away__closes_what_was_open() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    open_limit = Asked(LimitConfig.parse("10/s").rule(), "open", "open")
    assert store.apply(Take(open_limit, "k", 1)) == 0
    primary.error = GONE
    assert [store.apply(Take(open_limit, "k", 1)) for _ in range(20)] == [0] * 20
    clock.advance(60)
    primary.error = StateDeniedError("the password was changed")
    moved(store)
    assert store.apply(Take(open_limit, "k", 1)) == 100_000, "its share, and that starts empty"
    assert store.fallback is not None
    assert store.fallback.why == "the password was changed"
    since = store.fallback.since
    moved(store)
    assert store.fallback.since == since
    primary.error = None
    moved(store)
    store.denied(StateDeniedError("too late to matter"))
    assert store.fallback is None


@pytest.mark.parametrize("error", [StateTypeError("'a' holds something else"), StateFullError("no room")])
def test_one_key__unusable__goes_alone_while_the_others_go_on(error: StateError) -> None:
    store, primary = by_hand()
    count = len(events.latest_events())
    primary.error = error
    assert store.apply(Take(TEN, "a", 1)) > 0
    assert store.apply(Take(TEN, "a", 1)) > 0
    assert store.fallback is None
    primary.error = None
    assert store.apply(Take(TEN, "b", 1)) == 0
    assert kinds_since(count) == ["state_key_unusable"], "named once"
    assert str(error) in events.latest_events()[-1].text


def test_unusable_keys__very_many__are_not_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "KEYS_NAMED_MAX", 2)
    store, primary = by_hand()
    count = len(events.latest_events())
    for number in range(4):
        primary.error = StateTypeError(f"key {number}")
        store.apply(Take(TEN, str(number), 1))
    assert len(kinds_since(count)) == 2


def test_alone__more_keys_than_there_is_room_for__are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "KEYS_ALONE_MAX", 2)
    clock = ManualClock()
    store, primary = by_hand(clock)
    primary.error = GONE
    store.apply(Take(TEN, "a", 1))
    clock.advance(1)
    assert [store.apply(Take(TEN, key, 1)) for key in "abc"] == [0, 0, 1_000_000]
    question = Question(TEN.rule, "ten", "d", 1)
    [answer] = store.apply(LimitOperation([question]))
    assert answer.remaining == 0


def test_return__after_an_outage__charges_what_was_granted_meanwhile() -> None:
    """The server came back empty, that is with a full bucket; the fleet must not get a second burst."""
    clock = ManualClock()
    store, primary = by_hand(clock)
    primary.error = GONE
    store.apply(Take(TEN, "k", 1))
    granted = 0
    for _ in range(40):
        clock.advance(0.05)
        granted += store.apply(Take(TEN, "k", 1)) == 0
    store.apply(Take(TEN, "idle", 1))
    assert granted == 20
    primary.error = None
    assert moved(store) == BEAT_SECONDS
    assert store.fallback is None
    [answer] = store.apply(LimitOperation([Question(TEN.rule, "ten", "k", 0)]))
    assert answer.remaining == 0
    [answer] = store.apply(LimitOperation([Question(TEN.rule, "ten", "idle", 0)]))
    assert answer.remaining == 9


def test_return__on_the_threshold__waits_for_two_good_signs_and_whole_reports() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    primary.error = GONE
    store.apply(Take(TEN, "k", 1))
    clock.advance(0.1)
    assert store.apply(Take(TEN, "k", 1)) == 0
    pauses = [moved(store) for _ in range(20)]
    assert all(pause is not None and 0 < pause <= 1.5 * PROBE_LONGEST_SECONDS for pause in pauses)
    assert store.alone is not None
    primary.error = None
    failing = primary.apply

    def dies_at_the_report(operation: Operation[Any]) -> Any:
        if isinstance(operation, LimitOperation):
            raise GONE
        return failing(operation)

    primary.apply = dies_at_the_report  # type: ignore[method-assign]
    moved(store)
    assert store.alone is not None
    primary.apply = failing  # type: ignore[method-assign]
    moved(store)
    assert store.fallback is None


def test_return__after_a_trouble_of_its_own__waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others use the whole limit all the time, and a share beside them is too much."""
    monkeypatch.setattr("comporta.stores.keeper.MONOTONIC", ManualClock())
    store, primary = by_hand()
    store.apply(Take(TEN, "k", 1))
    store.fell(GONE)
    moved(store)
    assert fallback_of(store) is None
    assert primary.apply(Read(RETURN, "")) is None
    store.fell(GONE)  # so soon again: the state itself may be in trouble
    moved(store)
    assert fallback_of(store) is None
    assert primary.apply(Read(RETURN, "")) is not None


@pytest.mark.parametrize("newcomer", [False, True])
def test_return__after_a_first_look_that_took_long__waits_for_the_others_unless_it_is_new(
    monkeypatch: pytest.MonkeyPatch, newcomer: bool
) -> None:
    """A server that hung answers when it goes on, and others may have given up before."""
    clock = ManualClock()
    monkeypatch.setattr("comporta.stores.keeper.MONOTONIC", clock)
    store, primary = by_hand()
    if not newcomer:
        store.apply(Take(TEN, "k", 1))
    store.fell(GONE)
    clock.advance(0.05)
    moved(store)
    assert fallback_of(store) is None
    assert (primary.apply(Read(RETURN, "")) is None) == newcomer


def test_return__after_the_state_was_found_out_of_order__waits_for_the_others() -> None:
    store, primary = by_hand()
    primary.error = GONE
    store.apply(Take(TEN, "k", 1))
    moved(store)
    primary.error = None
    moved(store)
    assert fallback_of(store) is None
    assert primary.apply(Read(RETURN, "")) is not None


def test_return__of_a_server_that_falls_at_once_again__is_tried_less_and_less_often() -> None:
    store, _ = by_hand()
    first = store.keeper._pause
    for _ in range(3):
        store.fell(GONE)
        store.returned()
    assert store.keeper._pause > first


def test_primary_with_reach_and_batches__is_asked_that_way() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    asked: list[str] = []

    class Far(Switchable):
        def reach(self) -> None:
            asked.append("reach")

        def apply_all(self, operations: list[Operation[Any]]) -> None:
            asked.append(f"{len(operations)} reports")
            for operation in operations:
                self.apply(operation)

    primary.__class__ = Far
    primary.error = GONE
    store.apply(Take(TEN, "k", 1))
    clock.advance(0.1)
    store.apply(Take(TEN, "k", 1))
    primary.error = None
    moved(store)
    assert asked == ["reach", "1 reports"]


def test_shared_state__that_cannot_be_opened_yet__is_used_once_it_can() -> None:
    clock = ManualClock()
    tries = 0

    def opens() -> Switchable:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StateUnavailableError("read-only file system")
        return Switchable(clock)

    store = FailoverStore(opens, "test://late", clock)
    store.keeper = ByHand(store)
    assert store.apply(Take(TEN, "k", 1)) > 0
    assert store.alone is not None
    moved(store)
    assert store.alone is not None
    moved(store)
    assert store.fallback is None
    assert store.apply(Take(TEN, "k", 1)) == 0


def test_fork__in_the_middle_of_an_outage__gives_the_child_a_share_of_its_own() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    primary.error = GONE
    store.apply(Take(TEN, "k", 1))
    clock.advance(1)
    assert store.apply(Take(TEN, "k", 1)) == 0
    store.after_fork()
    assert store.apply(Take(TEN, "k", 1)) > 0
    whole, _ = by_hand(clock)
    whole.after_fork()
    assert whole.alone is None


# the keeper -----------------------------------------------------------------------------------------------


def test_keeper__while_all_is_well__counts_workers_and_follows_changes() -> None:
    store, primary = by_hand()
    told: list[bytes | None] = []

    class Follower:
        def revise(self, change: bytes | None) -> None:
            told.append(change)

    follower, forgotten = Follower(), Follower()
    store.keeper.follow("s", "k", WeakMethod(follower.revise))
    store.keeper.follow("s", "other", WeakMethod(forgotten.revise))
    del forgotten
    primary.apply(Write("s", "k", b"new", None))
    primary.apply(Beat(Worker("elsewhere", 1, 1, 1)))
    assert moved(store) == BEAT_SECONDS
    assert told == [b"new"]
    assert store.workers == 2
    assert len(store.keeper._followers) == 1


def test_keeper__state_fails_while_nobody_asks__notices() -> None:
    store, primary = by_hand()
    primary.error = GONE
    moved(store)
    assert store.alone is not None


def test_keeper__registry_key_is_somebody_elses__goes_on_and_says_so() -> None:
    store, primary = by_hand()
    count = len(events.latest_events())
    primary.error = StateTypeError("'comporta_workers' holds something else")
    moved(store)
    assert store.alone is None
    assert kinds_since(count) == ["state_denied"]


def test_keeper__stopped__leaves_the_registry() -> None:
    store, primary = by_hand()
    moved(store)
    assert len(primary.apply(Roll())) == 1
    store.keeper.stop()
    assert moved(store) is None
    assert primary.apply(Roll()) == []
    primary.error = GONE
    store.fell(GONE)
    store.keeper.stop()
    assert moved(store) is None, "nobody to say goodbye to"


def test_keeper__stopped_while_it_waits_to_come_back__leaves_the_registry() -> None:
    store, primary = by_hand()
    assert isinstance(store.keeper, ByHand)
    primary.apply(Beat(store.keeper.life.worker))
    store.fell(GONE)
    store.keeper.stop()
    assert moved(store) is None
    assert primary.apply(Roll()) == []


def test_keeper_thread__from_first_use_to_close__runs_and_ends() -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://thread")
        keeper = store.keeper
        keeper.before_fork()
        keeper.after_fork_in_parent()
        store.apply(Read("s", "k"))
        first = life_of(store)
        store.apply(Read("s", "k"))
        assert life_of(store) is first
        while not primary.apply(Roll()):
            time.sleep(0.001)
        keeper.before_fork()
        assert not first.lives()
        keeper.after_fork_in_parent()
        second = life_of(store)
        assert second.lives()
        assert second.worker == first.worker, "the same worker"
        asyncio.run(store.aclose())
        assert not second.lives()
        assert primary.apply(Roll()) == []
        keeper.stop()
        keeper.start()
        third = life_of(store)
        assert third.worker != second.worker
        keeper.after_fork()
        assert keeper._life is None
        third.end(10)
        Life(Worker.here()).end(10)


def test_keeper_thread__another_caller_was_quicker__is_left_as_it_is() -> None:
    with memory_store() as primary:
        keeper = FailoverStore.of(primary, "memory://quicker").keeper
        theirs = Life(Worker.here())

        class Overtaken(Life):
            def lives(self) -> bool:
                keeper._life = theirs
                return False

        keeper._life = Overtaken(Worker.here())
        assert keeper.start()
        assert keeper._life is theirs


def test_keeper__a_life_that_another_took_the_place_of__ends() -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://late")
        assert store.keeper.turn(store, Life(Worker.here())) is None


def life_of(store: FailoverStore) -> Life:
    life = store.keeper._life
    assert life is not None
    return life


def test_keeper_thread__when_its_store_is_forgotten__ends() -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://forgotten")
        store.apply(Read("s", "k"))
        life = life_of(store)
        del store
        gc.collect()
        life.wake.set()
        while life.lives():
            time.sleep(0.001)


def test_keeper_thread__a_mistake_in_a_turn__is_said_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://mistake")
        count = len(events.latest_events())

        def mistaken(self: Keeper, store: FailoverStore, life: Life) -> float:
            raise ZeroDivisionError

        monkeypatch.setattr(Keeper, "turn", mistaken)
        store.apply(Read("s", "k"))
        while not kinds_since(count):
            time.sleep(0.001)
        assert kinds_since(count)[0] == "keeper_failed"
        store.close()  # and then it ends all the same
        monkeypatch.undo()


# how many workers ------------------------------------------------------------------------------------------


def test_census__a_count_that_falls__is_believed_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("comporta.stores.census.MONOTONIC", clock)
    census = Census(f"test://{time.time_ns()}")
    assert census.workers == 1
    census.heard(8)
    census.turn()
    census.heard(1)  # the registry was lost, or everybody left
    assert census.workers == 8
    clock.advance(3)
    census.turn()
    assert census.workers == 8
    clock.advance(3)
    census.turn()
    assert census.workers == 1
    census.turn()


def test_census__started_during_an_outage__knows_what_this_machine_last_saw() -> None:
    address = f"test://{time.time_ns()}"
    census = Census(address)
    census.heard(5)
    census.turn()
    assert recalled(address) == 5
    late = Census(address)
    assert late.workers == 5
    late.heard(2)
    assert late.workers == 5, "not believed before it was heard for a while"


def test_census__environment_says_how_many__is_never_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_WORKERS", "12")
    assert Census(f"test://{time.time_ns()}").workers == 12
    monkeypatch.setenv("COMPORTA_WORKERS", "many")
    with pytest.raises(ValueError, match="COMPORTA_WORKERS must be a whole number, 1 to 1000000, got 'many'"):
        Census("test://x")
    monkeypatch.delenv("COMPORTA_WORKERS")
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    assert Census(f"test://{time.time_ns()}").workers == 3
    monkeypatch.setenv("WEB_CONCURRENCY", "none of your business")
    assert Census(f"test://{time.time_ns()}").workers == 1


def test_entries__right_at_the_start__are_read_like_anything_else() -> None:
    store, primary = by_hand()
    primary.apply(Write("s", "k", b"x", None))
    assert store.entries("s") == {"k": b"x"}
    assert asyncio.run(store.entries_async("s")) == {"k": b"x"}


def test_close__of_a_store_never_opened__does_nothing() -> None:
    store = FailoverStore(lambda: Switchable(ManualClock()), "test://unopened", ManualClock())
    asyncio.run(store.aclose())
    store.close()


def test_exit__of_the_process__says_goodbye_for_all() -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://exit")
        store.apply(Read("s", "k"))
        while not primary.apply(Roll()):
            time.sleep(0.001)
        _stop_all()
        assert primary.apply(Roll()) == []


def test_states_of_other_kinds__are_not_reported() -> None:
    store, _ = by_hand()
    alone = store.fell(GONE)
    alone.local.apply(Write("s", "k", b"x", None))
    assert alone.owed() == []


def test_keeper_thread__waiting_for_the_others__comes_back_at_the_moment_or_ends_when_told() -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://gather")
        store.apply(Take(TEN, "k", 1))
        for _ in range(2):  # the first time it takes for its own trouble
            store.fell(GONE)
            while fallback_of(store) is not None:
                time.sleep(0.001)
        moment_us = primary.apply(Gather())
        assert -600_000 <= moment_us <= 0
        primary.apply(Delete(RETURN, ""))  # before the fall: who finds the old moment is back at once
        store.fell(GONE)
        while primary.apply(Read(RETURN, "")) is None:
            time.sleep(0.001)
        store.close()  # in the middle of the wait
        assert not store.direct


def test_keeper__told_to_end_between_report_and_return__does_not_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = by_hand()
    store.fell(GONE)
    moved(store)
    store.fell(GONE)
    for answers in ([False], [True, False]):
        waits = iter(answers)
        monkeypatch.setattr(Patient, "waited", lambda *_, waits=waits: next(waits))
        moved(store)
        assert store.alone is not None


# what a review found -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StateTypeError("somebody else's"), StateFullError("no room")])
def test_return__registry_and_moment_unusable__happens_all_the_same(error: StateError) -> None:
    store, primary = by_hand()
    store.fell(GONE)
    apply = primary.apply

    def picky(operation: Operation[Any]) -> Any:
        if isinstance(operation, Beat | Gather):
            raise error
        return apply(operation)

    primary.apply = picky  # type: ignore[method-assign]
    assert moved(store) == BEAT_SECONDS
    assert fallback_of(store) is None


def test_denied__in_the_middle_of_an_outage__what_was_open_starts_empty_and_stays_within_its_share() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    open_limit = Asked(LimitConfig.parse("10/s").rule(), "open", "open")
    store.apply(Take(open_limit, "k", 1))
    primary.error = GONE
    assert all(store.apply(Take(open_limit, "k", 1)) == 0 for _ in range(50))
    store.apply(Take(TEN, "k", 1))
    primary.error = StateDeniedError("the password was changed")
    moved(store)
    granted = 0
    for _ in range(600):
        clock.advance(0.01)
        granted += store.apply(Take(open_limit, "k", 1)) == 0
    assert granted <= 61
    moved(store)
    assert store.alone is not None
    assert store.alone.outage.denied
    store.returned()
    store.denied(StateDeniedError("too late to matter"))
    assert fallback_of(store) is None


def test_aside__more_workers_by_now__divides_by_them() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    primary.error = StateTypeError("'a' holds something else")
    store.apply(Take(TEN, "a", 1))
    store.keeper.census.heard(5)
    store.apply(Take(TEN, "a", 1))
    clock.advance(10)
    assert [store.apply(Take(TEN, "a", 1)) for _ in range(3)] == [0, 0, 500_000]


def test_forbidden__one_key_once_the_server_was_reached__goes_aside_and_everywhere_is_an_outage() -> None:
    store, primary = by_hand()
    forbidden = StateForbiddenError("NOPERM this key")
    primary.error = forbidden
    with pytest.raises(StateForbiddenError):
        store.apply(Take(TEN, "k", 1))
    primary.error = None
    store.apply(Take(TEN, "k", 1))
    primary.error = forbidden
    assert store.apply(Take(TEN, "k", 1)) > 0
    assert fallback_of(store) is None
    moved(store)
    assert fallback_of(store) is not None


def test_count_of_workers__nobody_can_tell__is_not_believed() -> None:
    store, _ = by_hand()
    store.keeper.census.heard(8)
    store.keeper.census.heard(0)
    assert store.keeper.census._latest == 8


def test_keeper__no_thread_to_be_had__does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://threadless")
        assert store.apply(Take(TEN, "k", 1)) == 0
        assert not store.direct
        store.fell(GONE)
        store.close()


def test_reports__cut_off_in_the_middle__lose_only_what_may_have_been_told() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    primary.error = GONE
    store.apply(Take(TEN, "0", 1))
    clock.advance(1)
    for number in range(20):
        store.apply(Take(TEN, str(number), 1))
    primary.error = None
    told = 0
    apply = primary.apply

    def mortal(operation: Operation[Any]) -> Any:
        nonlocal told
        if isinstance(operation, LimitOperation):
            told += 1
            if told == 3:
                raise GONE
            if told == 5:
                raise StateTypeError("something else")
        return apply(operation)

    primary.apply = mortal  # type: ignore[method-assign]
    moved(store)
    assert store.alone is not None
    assert len(store.alone.unsent) == 17
    moved(store)
    assert fallback_of(store) is None
    assert told == 20


def test_keeper__two_followers_of_a_key_and_a_key_of_another_type__tells_those_that_live() -> None:
    store, primary = by_hand()
    told: list[str] = []

    class Follower:
        def __init__(self, name: str) -> None:
            self.name = name

        def revise(self, change: bytes | None) -> None:
            told.append(self.name)

    first, second = Follower("first"), Follower("second")
    for follower in (first, second):
        store.keeper.follow("s", "k", WeakMethod(follower.revise))
    primary.apply(Write("s", "k", b"x", None))
    moved(store)
    del second, follower
    gc.collect()
    moved(store)
    assert told == ["first", "second", "first"]
    apply = primary.apply

    def picky(operation: Operation[Any]) -> Any:
        if isinstance(operation, Read):
            raise StateTypeError("no record")
        return apply(operation)

    primary.apply = picky  # type: ignore[method-assign]
    moved(store)
    assert fallback_of(store) is None


def test_owed__more_keys_than_are_visited_at_once__are_all_reported_once() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    primary.error = GONE
    store.apply(Take(TEN, "k", 1))
    clock.advance(1)
    for number in range(1200):
        assert store.apply(Take(TEN, str(number), 1)) == 0
    assert store.alone is not None
    assert len(store.alone.owed()) == 1200
    assert store.alone.owed() == []


def test_owed__a_key_gone_meanwhile__is_passed_over() -> None:
    store, _ = by_hand()
    local = store.fell(GONE).local
    for number in range(3):
        local.apply(Write("s", str(number), b"x", None))

    def visit(space: str, key: str, *_: object) -> None:
        local._spaces[space].table.pop("0", None)

    local.revisit(visit)


def test_keeper__two_forks_at_once__goes_on_once() -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://forks")
        store.apply(Read("s", "k"))
        keeper = store.keeper
        keeper.before_fork()
        keeper.before_fork()
        keeper.after_fork_in_parent()
        first = life_of(store)
        keeper.after_fork_in_parent()
        assert life_of(store) is first
        store.close()


def test_apply_all__state_there_and_gone__answers_and_falls() -> None:
    store, primary = by_hand(ManualClock())
    assert store.apply_all([Take(TEN, "k", 1), Take(TEN, "k", 11)]) == [0, 100_000]
    primary.error = StateTypeError("somebody else's")
    assert [type(reply) for reply in store.apply_all([Take(TEN, "k", 1)])] == [StateTypeError]
    primary.error = GONE
    with pytest.raises(StateUnavailableError):
        store.apply_all([Take(TEN, "k", 1)])
    primary.error = None
    with pytest.raises(StateUnavailableError, match="not possible without the shared state"):
        store.apply_all([Take(TEN, "k", 1)])


def test_apply_all__as_an_effect__has_errors_in_their_places() -> None:
    class Mistaken(Switchable):
        def apply(self, operation: Operation[Any]) -> Any:
            raise ZeroDivisionError

    def asking(store: Switchable) -> Flow[Any]:
        return (yield ApplyAll(store, [Take(TEN, "k", 1), Take(TEN, "k", 1)]))

    store = Switchable(ManualClock())
    assert run(asking(store)) == asyncio.run(run_async(asking(store))) == [0, 0]
    store.error = GONE
    assert run(asking(store)) == asyncio.run(run_async(asking(store))) == [GONE, GONE]
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_async(asking(Mistaken(ManualClock()))))
