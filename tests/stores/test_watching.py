"""What has to be known sooner than once a second: the keeper asks for it, all in one call."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.switchable import by_hand, moved
from tests.support import redis_store

from comporta.errors import StateTypeError, StateUnavailableError
from comporta.stores.base import Operation
from comporta.stores.failover import FailoverStore, fallback_of
from comporta.stores.keeper import WATCH_SECONDS
from comporta.stores.records import Read, Write
from comporta.stores.workers import BEAT_SECONDS
from comporta.testing import Server
from comporta.testing.servers import wait_until


class Watching:
    """Wants to know a record as long as it is said to be needed."""

    def __init__(self, key: str, *, needed: bool = True) -> None:
        self.key = key
        self.needed = needed
        self.told_values: list[bytes | None] = []

    def due(self) -> Operation[Any] | None:
        return Read("s", self.key) if self.needed else None

    def told(self, reply: bytes | None) -> None:
        self.told_values.append(reply)


def test_watchers__of_a_store_that_is_well__are_told_at_every_turn() -> None:
    store, primary = by_hand()
    watching, idle = Watching("k"), Watching("k", needed=False)
    for watcher in (watching, idle):
        store.keeper.watch(watcher)
    assert moved(store) == WATCH_SECONDS
    primary.apply(Write("s", "k", b"x", None))
    moved(store)
    assert (watching.told_values, idle.told_values) == ([None, b"x"], [])


def test_keeper__when_nobody_needs_to_know__rests_until_the_next_sign_of_life() -> None:
    store, _ = by_hand()
    store.keeper.watch(Watching("k", needed=False))
    assert moved(store) == BEAT_SECONDS


def test_keeper__between_two_signs_of_life__asks_watchers_only() -> None:
    store, primary = by_hand()
    watching = Watching("k")
    store.keeper.watch(watching)
    moved(store)
    before = primary.calls
    left = store.keeper.turn(store, store.keeper.life)  # type: ignore[attr-defined]  # by hand
    assert left is not None
    assert 0 < left <= WATCH_SECONDS
    assert primary.calls == before + 1
    assert len(watching.told_values) == 2


def test_watcher__of_a_key_that_cannot_be_used__is_not_told_and_others_are() -> None:
    store, primary = by_hand()
    good, bad = Watching("good"), Watching("bad")
    for watcher in (good, bad):
        store.keeper.watch(watcher)
    apply = primary.apply

    def picky(operation: Operation[Any]) -> Any:
        if isinstance(operation, Read) and operation.key == "bad":
            raise StateTypeError("no record")
        return apply(operation)

    primary.apply = picky  # type: ignore[method-assign]  # a trouble of one key
    moved(store)
    assert (good.told_values, bad.told_values) == ([None], [])
    assert fallback_of(store) is None


def test_watcher__of_a_store_that_fails__brings_on_the_fallback_and_is_told_after_the_return() -> None:
    store, primary = by_hand()
    watching = Watching("k")
    store.keeper.watch(watching)
    primary.error = StateUnavailableError("gone")
    moved(store)
    assert fallback_of(store) is not None
    assert watching.told_values == []
    primary.error = None
    moved(store)
    moved(store)
    assert fallback_of(store) is None
    assert watching.told_values == [None]


def test_watcher__that_is_gone__is_asked_no_more() -> None:
    store, _ = by_hand()
    store.keeper.watch(Watching("k"))
    assert moved(store) == BEAT_SECONDS


@pytest.mark.parametrize("count", [1, 300])
def test_watchers__on_a_server__are_all_told_by_the_thread(valkey: Server, count: int) -> None:
    """More than fit one call, too; and a stir makes it soon."""
    with redis_store(valkey) as primary:
        store = FailoverStore.of(primary, "redis://test")
        watchers = [Watching(f"k{number}") for number in range(count)]
        for watcher in watchers:
            store.keeper.watch(watcher)
        store.keeper.stir()  # nobody uses it yet: nothing to wake
        store.apply(Write("s", "k0", b"x", None))
        store.keeper.stir()
        try:
            wait_until(lambda: all(w.told_values for w in watchers), "everybody was told", 60)
            wait_until(lambda: watchers[0].told_values[-1] == b"x", "the value was told", 60)
        finally:
            store.close()
