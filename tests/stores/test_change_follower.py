"""Following the change log: which records are read, and when subscribers learn of a change."""

from __future__ import annotations

from typing import Any
from weakref import WeakMethod

from tests.stores.change_log_store import (
    ChangeLogStore,
    Follower,
    manual_failover_with_changes,
    write,
)
from tests.stores.manual_heartbeat import ManualHeartbeat, kinds_since, run_heartbeat
from tests.support import fallback_of, memory_store

from comporta import events
from comporta.errors import StateTypeError
from comporta.stores.base import Operation
from comporta.stores.changes import CHANGES_KEY
from comporta.stores.failover import read_changes
from comporta.stores.failover.change_follower import FULL_READ_SECONDS, RECORDS_MAX, ChangeFollower
from comporta.stores.failover.heartbeat import POLL_SECONDS
from comporta.stores.failover.read_changes import ReadChanges
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import HEARTBEAT_SECONDS, ListWorkers, RecordHeartbeat, Worker
from comporta.stores.records import DeleteRecord, ReadRecord, WriteRecord
from comporta.testing import ManualClock


class Listener:
    """Records the values of the record that it follows."""

    def __init__(self, store: FailoverStore, key: str) -> None:
        self.values: list[bytes | None] = []
        store.follow("s", key, WeakMethod(self.on_override))

    def on_override(self, override: bytes | None) -> None:
        self.values.append(override)


def test_heartbeat__change_log__reads_only_what_changed() -> None:
    clock = ManualClock()
    store, primary = manual_failover_with_changes(clock)
    one, two = Listener(store, "one"), Listener(store, "two")
    assert run_heartbeat(store) == HEARTBEAT_SECONDS
    assert (one.values, two.values) == ([None], [None])
    calls = primary.calls
    clock.advance(1)
    run_heartbeat(store)
    assert primary.calls == calls + 1, "the heartbeat alone"
    write(primary, "two", b"x")
    write(primary, "other", b"x")
    clock.advance(1)
    run_heartbeat(store)
    assert (one.values, two.values) == ([None], [None, b"x"])


def test_heartbeat__record_written_by_hand__is_read_within_five_seconds() -> None:
    clock = ManualClock()
    store, primary = manual_failover_with_changes(clock)
    listener = Listener(store, "k")
    run_heartbeat(store)
    primary.apply(WriteRecord("s", "k", b"by hand", None))
    clock.advance(1)
    run_heartbeat(store)
    assert listener.values == [None]
    clock.advance(FULL_READ_SECONDS - 1)
    run_heartbeat(store)
    assert listener.values == [None, b"by hand"]


def test_heartbeat__server_lost_its_memory__reads_everything() -> None:
    clock = ManualClock()
    store, primary = manual_failover_with_changes(clock)
    listener, subscriber = Listener(store, "k"), Follower()
    store.subscribe(subscriber)
    run_heartbeat(store)
    clock.advance(1)
    primary.apply(DeleteRecord(CHANGES_KEY, ""))
    primary.apply(WriteRecord("s", "k", b"older", None))
    run_heartbeat(store)
    assert listener.values == [None, b"older"]
    assert len(subscriber.changed) == 2, "at the start and after the loss"


def test_heartbeat__change_log_with_a_worker__counts_workers() -> None:
    store, primary = manual_failover_with_changes(ManualClock())
    run_heartbeat(store)
    assert len(primary.apply(ListWorkers())) == 1
    assert store.worker_count == 1


def test_subscriber__follows_from_afar__learns_at_the_next_beat() -> None:
    clock = ManualClock()
    store, primary = manual_failover_with_changes(clock)
    subscriber = Follower()
    store.subscribe(subscriber)
    assert run_heartbeat(store) == HEARTBEAT_SECONDS
    subscriber.changed.clear()
    clock.advance(1)
    write(primary, "k", b"x")
    write(primary, "other", b"x")
    asked_ns = clock.now_ns()
    run_heartbeat(store)
    assert subscriber.changed == [asked_ns // 1000]
    assert subscriber.confirmed[-1] == asked_ns


def test_subscriber__follows_closely__learns_between_two_beats() -> None:
    clock = ManualClock()
    store, primary = manual_failover_with_changes(clock)
    subscriber, listener = Follower(closely=True), Listener(store, "k")
    store.subscribe(subscriber)
    assert run_heartbeat(store) == POLL_SECONDS
    subscriber.changed.clear()
    clock.advance(POLL_SECONDS)
    write(primary, "k", b"x")
    assert isinstance(store.heartbeat, ManualHeartbeat)
    store.heartbeat.run_once(store, store.heartbeat.run)
    assert len(subscriber.changed) == 1
    assert listener.values == [None, b"x"], "an override that is followed, too"


def test_heartbeat__change_log_unusable__reads_everything_and_says_so() -> None:
    clock = ManualClock()
    store, primary = manual_failover_with_changes(clock)
    listener, subscriber = Listener(store, "k"), Follower(closely=True)
    store.subscribe(subscriber)
    count, apply = len(events.latest_events()), primary.apply

    def apply_or_refuse(operation: Operation[Any]) -> Any:
        if isinstance(operation, ReadChanges):
            raise StateTypeError("'comporta_changes' holds something else")
        return apply(operation)

    primary.apply = apply_or_refuse  # type: ignore[method-assign]
    for _ in range(2):
        run_heartbeat(store)
    assert isinstance(store.heartbeat, ManualHeartbeat)
    store.heartbeat.run_once(store, store.heartbeat.run)
    assert listener.values == [None, None], "at every beat"
    assert (subscriber.changed, subscriber.confirmed) == ([], [])
    assert kinds_since(count) == ["state_denied"]
    assert fallback_of(store) is None
    assert len(apply(ListWorkers())) == 1


def test_follower__more_records_than_are_read_at_once__reads_the_rest_next() -> None:
    follower, called = ChangeFollower(), []

    class Recorder:
        def __init__(self, key: str) -> None:
            self.key = key

        def on_override(self, override: bytes | None) -> None:
            called.append(self.key)

    recorders = [Recorder(f"{number}") for number in range(RECORDS_MAX + 1)]
    for recorder in recorders:
        follower.follow("s", recorder.key, WeakMethod(recorder.on_override))
    with memory_store() as primary:
        follower.read_due(primary)
        assert len(called) == RECORDS_MAX
        follower.read_due(primary)
        assert len(set(called)) == RECORDS_MAX + 1
        follower.read_due(primary)
        assert len(called) == RECORDS_MAX + 1


def test_follower__listener_dies_during_the_read__is_not_called() -> None:
    follower, called = ChangeFollower(), []

    class Recorder:
        def on_override(self, override: bytes | None) -> None:
            called.append(override)

    recorders = [Recorder()]
    follower.follow("s", "k", WeakMethod(recorders[0].on_override))

    class ForgetfulStore(ChangeLogStore):
        def apply(self, operation: Operation[Any]) -> Any:
            recorders.clear()
            return super().apply(operation)

    follower.read_due(ForgetfulStore())
    assert called == []


def test_memory_store__without_a_change_log__notes_nothing() -> None:
    with memory_store() as store:
        store.apply(WriteRecord("s", "k", b"x", None, change_name="s:k"))
        assert store.apply(ReadRecord(CHANGES_KEY, "")) is None


def test_script__of_changes_alone_and_after_an_operation__has_a_name_and_a_text_of_its_own() -> None:
    read_changes._script.cache_clear()
    heartbeat = RecordHeartbeat(Worker.new(), 0)
    alone, after = ReadChanges(0).script, ReadChanges(0, heartbeat).script
    assert (alone.name, after.name) == ("changes", f"changes after {heartbeat.script.name}")
    assert alone.text().partition("\n")[0] == "local operation"
    assert after.text().startswith("local function operation()")
