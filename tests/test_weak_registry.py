"""Registered objects are kept weakly, in order, and may be added by any thread at any time."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from comporta.weak_registry import WeakRegistry


class Item:
    """An object that can be referenced weakly."""


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_registry__objects__are_returned_in_the_order_they_were_added() -> None:
    registry: WeakRegistry[Item] = WeakRegistry()
    items = [Item() for _ in range(5)]
    for item in [*items, items[0]]:
        registry.add(item)
    assert registry.live() == items
    registry.discard(items[2])
    registry.discard(items[2])
    assert registry.live() == [*items[:2], *items[3:]]
    registry.clear()
    assert not registry.live()


def test_registry__object_no_longer_used__is_gone() -> None:
    registry: WeakRegistry[Item] = WeakRegistry()
    kept, dropped = Item(), Item()
    registry.add(dropped)
    registry.add(kept)
    del dropped
    gc.collect()
    assert registry.live() == [kept]


@pytest.mark.usefixtures("frequent_switches")
def test_registry__read_while_another_thread_adds__does_not_raise() -> None:
    registry: WeakRegistry[Item] = WeakRegistry()
    items = [Item() for _ in range(20_000)]

    def add_all() -> None:
        for item in items:
            registry.add(item)

    adding = threading.Thread(target=add_all)
    adding.start()
    while adding.is_alive():
        live = registry.live()
        assert live == items[: len(live)]
    adding.join()
    assert registry.live() == items
