"""Subscribers of the heartbeat: polled every 0.2 s, all in one call."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import fallback_of, redis_store

from comporta.errors import StateTypeError, StateUnavailableError
from comporta.stores.base import Operation
from comporta.stores.failover.heartbeat import POLL_SECONDS
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import HEARTBEAT_SECONDS
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.testing import Server
from comporta.testing.redis_server import wait_until


class RecordSubscriber(HeartbeatSubscriber):
    """Polls a record while it is active."""

    def __init__(self, key: str, *, active: bool = True) -> None:
        self.key = key
        self.active = active
        self.values: list[bytes | None] = []

    def heartbeat_operation(self) -> Operation[Any] | None:
        return ReadRecord("s", self.key) if self.active else None

    def on_heartbeat_reply(self, reply: bytes | None) -> None:
        self.values.append(reply)


def test_subscribers__store_reachable__get_a_reply_at_every_poll() -> None:
    store, primary = manual_failover()
    subscriber, idle = RecordSubscriber("k"), RecordSubscriber("k", active=False)
    for each in (subscriber, idle):
        store.heartbeat.subscribe(each)
    assert run_heartbeat(store) == POLL_SECONDS
    primary.apply(WriteRecord("s", "k", b"x", None))
    run_heartbeat(store)
    assert (subscriber.values, idle.values) == ([None, b"x"], [])


def test_heartbeat__no_subscriber_with_an_operation__waits_for_the_next_beat() -> None:
    store, _ = manual_failover()
    store.heartbeat.subscribe(RecordSubscriber("k", active=False))
    assert run_heartbeat(store) == HEARTBEAT_SECONDS


def test_heartbeat__between_two_beats__polls_subscribers_only() -> None:
    store, primary = manual_failover()
    subscriber = RecordSubscriber("k")
    store.heartbeat.subscribe(subscriber)
    run_heartbeat(store)
    calls = primary.calls
    left = store.heartbeat.run_once(store, store.heartbeat.run)  # type: ignore[attr-defined]
    assert left is not None
    assert 0 < left <= POLL_SECONDS
    assert primary.calls == calls + 1
    assert len(subscriber.values) == 2


def test_subscriber__unusable_key__gets_no_reply_and_others_do() -> None:
    store, primary = manual_failover()
    good, bad = RecordSubscriber("good"), RecordSubscriber("bad")
    for each in (good, bad):
        store.heartbeat.subscribe(each)
    apply = primary.apply

    def apply_or_refuse(operation: Operation[Any]) -> Any:
        if isinstance(operation, ReadRecord) and operation.key == "bad":
            raise StateTypeError("not a record")
        return apply(operation)

    primary.apply = apply_or_refuse  # type: ignore[method-assign]
    run_heartbeat(store)
    assert (good.values, bad.values) == ([None], [])
    assert fallback_of(store) is None


def test_subscriber__store_fails__begins_an_outage_and_gets_replies_after_it() -> None:
    store, primary = manual_failover()
    subscriber = RecordSubscriber("k")
    store.heartbeat.subscribe(subscriber)
    primary.error = StateUnavailableError("gone")
    run_heartbeat(store)
    assert fallback_of(store) is not None
    assert subscriber.values == []
    primary.error = None
    run_heartbeat(store)
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert subscriber.values == [None]


def test_subscriber__garbage_collected__is_polled_no_more() -> None:
    store, _ = manual_failover()
    store.heartbeat.subscribe(RecordSubscriber("k"))
    assert run_heartbeat(store) == HEARTBEAT_SECONDS


@pytest.mark.parametrize("count", [1, 300])
def test_subscribers__on_a_server__all_get_replies_from_the_thread(valkey: Server, count: int) -> None:
    """One call cannot serve 300 subscribers; ``poll_soon`` polls before the interval is over."""
    with redis_store(valkey) as primary:
        store = FailoverStore.wrap(primary, "redis://test")
        subscribers = [RecordSubscriber(f"k{number}") for number in range(count)]
        for each in subscribers:
            store.heartbeat.subscribe(each)
        store.heartbeat.poll_soon()  # not used yet: there is no thread to wake
        store.apply(WriteRecord("s", "k0", b"x", None))
        store.heartbeat.poll_soon()
        try:
            wait_until(lambda: all(each.values for each in subscribers), "every subscriber got a reply", 60)
            wait_until(lambda: subscribers[0].values[-1] == b"x", "the new value arrived", 60)
        finally:
            store.close()
