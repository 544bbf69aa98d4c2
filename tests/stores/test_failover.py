"""Going on alone when the shared state fails, and back (A8, A12)."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import Any

import pytest
from tests.stores.switchable import Switchable, by_hand
from tests.support import memory_store

from comporta import events
from comporta.errors import (
    StateDeniedError,
    StateError,
    StateFullError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.limits.config import LimitConfig
from comporta.limits.operation import LimitOperation, Question
from comporta.limits.take import Asked, Take
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores import failover
from comporta.stores.base import Operation
from comporta.stores.failover import FailoverStore, fallback_of
from comporta.stores.keeper import PROBE_LONGEST_SECONDS, Census, Keeper, _stop_all
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
    store.keeper.turn(store)
    assert store.apply(Write("s", "k", b"x", None))
    assert store.entries("s") == {"k": b"x"}


def test_denied__before_anything_was_ever_answered__is_raised_every_time() -> None:
    store, primary = by_hand()
    primary.error = StateDeniedError("wrong password")
    for _ in range(2):
        with pytest.raises(StateDeniedError):
            store.apply(Take(TEN, "k", 1))
    store.keeper.turn(store)  # its own sign of life is denied, too, and nobody hears of it
    assert store.fallback is None


def test_denied__later__is_an_outage_in_which_nothing_is_simply_let_through() -> None:
    store, primary = by_hand()
    open_limit = Asked(LimitConfig.parse("10/s").rule(), "open", "open")
    assert store.apply(Take(open_limit, "k", 1)) == 0
    primary.error = StateDeniedError("the password was changed")
    count = len(events.latest_events())
    assert store.apply(Take(open_limit, "k", 1)) > 0
    store.keeper.turn(store)
    store.keeper.turn(store)  # said again, but not each time
    assert kinds_since(count) == ["state_fallback", "state_denied"]


def test_denied__found_after_the_first_caller_gave_up__is_raised_until_the_server_lets_us_in() -> None:
    store, primary = by_hand()
    primary.error = StateUnavailableError("still connecting; nothing was sent")
    assert store.apply(Take(TEN, "k", 1)) > 0
    primary.error = StateDeniedError("wrong password")
    for _ in range(2):
        store.keeper.turn(store)
        with pytest.raises(StateDeniedError, match="wrong password"):
            store.apply(Take(TEN, "k", 1))
    primary.error = None
    store.keeper.turn(store)
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
    store.keeper.turn(store)
    assert store.apply(Take(open_limit, "k", 1)) == 100_000, "its share, and that starts empty"
    assert store.fallback is not None
    assert store.fallback.why == "the password was changed"
    since = store.fallback.since
    store.keeper.turn(store)
    assert store.fallback.since == since
    primary.error = None
    store.keeper.turn(store)
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
    assert store.keeper.turn(store) == BEAT_SECONDS
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
    pauses = [store.keeper.turn(store) for _ in range(20)]
    assert all(pause is not None and 0 < pause <= 1.5 * PROBE_LONGEST_SECONDS for pause in pauses)
    assert store.alone is not None
    primary.error = None
    failing = primary.apply

    def dies_at_the_report(operation: Operation[Any]) -> Any:
        if isinstance(operation, LimitOperation):
            raise GONE
        return failing(operation)

    primary.apply = dies_at_the_report  # type: ignore[method-assign]
    store.keeper.turn(store)
    assert store.alone is not None
    primary.apply = failing  # type: ignore[method-assign]
    store.keeper.turn(store)
    assert store.fallback is None


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
    store.keeper.turn(store)
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
    store.keeper = by_hand(clock)[0].keeper
    store.keeper._store = __import__("weakref").ref(store)
    assert store.apply(Take(TEN, "k", 1)) > 0
    assert store.alone is not None
    store.keeper.turn(store)
    assert store.alone is not None
    store.keeper.turn(store)
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

    from weakref import WeakMethod  # noqa: PLC0415

    follower, forgotten = Follower(), Follower()
    store.keeper.follow("s", "k", WeakMethod(follower.revise))
    store.keeper.follow("s", "other", WeakMethod(forgotten.revise))
    del forgotten
    primary.apply(Write("s", "k", b"new", None))
    primary.apply(Beat(Worker("elsewhere", 1, 1, 1)))
    store.keeper.worker = Worker.here()
    assert store.keeper.turn(store) == BEAT_SECONDS
    assert told == [b"new"]
    assert store.workers == 2
    assert len(store.keeper._followers) == 1


def test_keeper__state_fails_while_nobody_asks__notices() -> None:
    store, primary = by_hand()
    primary.error = GONE
    store.keeper.turn(store)
    assert store.alone is not None


def test_keeper__registry_key_is_somebody_elses__goes_on_and_says_so() -> None:
    store, primary = by_hand()
    count = len(events.latest_events())
    primary.error = StateTypeError("'comporta_workers' holds something else")
    store.keeper.turn(store)
    assert store.alone is None
    assert kinds_since(count) == ["state_denied"]


def test_keeper__stopped__leaves_the_registry() -> None:
    store, primary = by_hand()
    store.keeper.worker = Worker.here()
    store.keeper.turn(store)
    assert len(primary.apply(Roll())) == 1
    store.keeper.stop()
    assert store.keeper.turn(store) is None
    assert primary.apply(Roll()) == []
    primary.error = GONE
    store.fell(GONE)
    store.keeper.stop()
    assert store.keeper.turn(store) is None, "nobody to say goodbye to"


def test_keeper_thread__from_first_use_to_close__runs_and_ends() -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://thread")
        store.apply(Read("s", "k"))
        thread = store.keeper._thread
        assert thread is not None
        store.apply(Read("s", "k"))
        assert store.keeper._thread is thread
        assert store.direct
        while not primary.apply(Roll()):
            time.sleep(0.001)
        store.keeper.start()
        store.keeper.before_fork()
        assert not thread.is_alive()
        store.keeper.after_fork_in_parent()
        second = store.keeper._thread
        assert second is not None
        assert second.is_alive()
        store.keeper.after_fork_in_parent()
        asyncio.run(store.aclose())
        assert not second.is_alive()
        assert primary.apply(Roll()) == []
        store.keeper.stop()
        store.keeper.before_fork()
        store.keeper.after_fork_in_parent()
        store.keeper.after_fork()


def test_keeper_thread__when_its_store_is_forgotten__ends() -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://forgotten")
        store.apply(Read("s", "k"))
        thread, wake = store.keeper._thread, store.keeper._wake
        assert thread is not None
        del store
        __import__("gc").collect()
        wake.set()
        thread.join(10)
        assert not thread.is_alive()


def test_keeper_thread__a_mistake_in_a_turn__is_said_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_store() as primary:
        store = FailoverStore.of(primary, "memory://mistake")
        count = len(events.latest_events())

        def mistaken(self: Keeper, store: FailoverStore) -> float:
            raise ZeroDivisionError

        monkeypatch.setattr(Keeper, "turn", mistaken)
        store.apply(Read("s", "k"))
        while not kinds_since(count):
            time.sleep(0.001)
        assert kinds_since(count)[0] == "keeper_failed"
        monkeypatch.undo()
        store.close()


# how many workers ------------------------------------------------------------------------------------------


def test_census__a_count_that_falls__is_believed_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("comporta.stores.keeper.MONOTONIC", clock)
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
        store.fell(GONE)
        while fallback_of(store) is not None:
            time.sleep(0.001)
        moment_us = primary.apply(Gather())
        assert -600_000 <= moment_us <= 0
        primary.apply(Delete(RETURN, ""))
        store.fell(GONE)
        while primary.apply(Read(RETURN, "")) is None:
            time.sleep(0.001)
        store.close()  # in the middle of the wait
        assert not store.direct
        assert not store.keeper._gather(primary, store.alone or store.fell(GONE))
        assert not store.keeper._waited(0)


def test_keeper__told_to_end_between_report_and_return__does_not_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = by_hand()
    store.fell(GONE)
    answers = iter([True, False])
    monkeypatch.setattr(store.keeper, "_waited", lambda _: next(answers))
    store.keeper.turn(store)
    assert store.alone is not None
