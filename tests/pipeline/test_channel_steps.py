"""The steps of a channel, one by one: whom they wake, and the room that they leave."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from comporta import Channel
from comporta.pipeline import channel as channel_module
from comporta.pipeline.channel import WAKE_MASK
from comporta.pipeline.waiter import PipelineWaiter
from comporta.testing import ManualClock


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that does not wait."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


def end_of(flow: Generator[Any, Any, Any]) -> Any:
    """Return the result of a flow that has nothing more to wait for."""
    with pytest.raises(StopIteration) as ended:
        next(flow)
    return ended.value.value


def record_wakes(channel: Channel[int], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    wakes: list[object] = []
    monkeypatch.setattr(channel, "_wake_first", wakes.append)
    return wakes


@pytest.mark.parametrize(
    "send",
    [lambda channel: finish(channel.send(1)), lambda channel: channel._try_send(1)],
    ids=["fast", "locked"],
)
def test_send__receivers_wait__wakes_one_if_it_was_empty_gets_full_or_now_and_then(
    send: Callable[[Channel[int]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HAS_GIL", True)
    channel = Channel[int](5)
    wakes = record_wakes(channel, monkeypatch)
    channel._receivers.append(PipelineWaiter())
    channel._sent = WAKE_MASK - 2
    numbers = []
    for _ in range(5):
        send(channel)
        numbers.append(len(wakes))
    assert numbers == [1, 1, 2, 2, 3]
    other = Channel[int](5)
    wakes = record_wakes(other, monkeypatch)
    send(other)
    assert wakes == []


@pytest.mark.parametrize("has_gil", [True, False])
def test_receive__one_of_two_items__makes_room_for_one(
    has_gil: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HAS_GIL", has_gil)
    channel = Channel[int](5)
    channel.sync.send_many([1, 2])
    assert finish(channel.receive()) == 1
    assert channel._room == 4


def test_fork_reset__in_the_child__has_room_for_all_but_its_items() -> None:
    channel = Channel[int](5)
    channel.sync.send_many([1, 2])
    channel._room = 0  # reserved by a sender of the parent
    channel._senders.append(PipelineWaiter())
    channel._fork_reset.after_fork()
    assert (channel._room, len(channel._senders)) == (3, 0)


@pytest.mark.parametrize("many", [False, True])
def test_send__woken_while_there_is_more_room__wakes_the_next_sender(many: bool) -> None:
    channel = Channel[int](2)
    channel.sync.send_many([1, 2])
    first = channel._send_many_flow([3]) if many else channel._send_flow(3)
    waiters: list[Any] = [next(first), next(channel._send_flow(4))]
    assert channel._take(2) == [1, 2]
    assert [waiter.woken for waiter in waiters] == [True, False]
    end_of(first)
    assert waiters[1].woken


def test_receive__deadline_of_zero__does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_now_us", lambda: 7)
    channel = Channel[int](2)
    assert end_of(channel._receive_flow(1, 0.0)) == []
    assert not channel._receivers
    waiter: Any = next(channel._receive_flow(1, 0.5))
    assert waiter.timeout == 0.5


def test_now_us__clock__is_in_whole_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MONOTONIC", ManualClock(1.0000015))
    now_us = channel_module._now_us()
    assert (now_us, type(now_us)) == (1_000_001, int)


def test_must_wait_for_room__room_for_one__does_not_wait() -> None:
    channel = Channel[int](1)
    assert not channel._must_wait_for_room(PipelineWaiter())
    assert not channel._senders
    channel.sync.send(1)
    assert channel._must_wait_for_room(PipelineWaiter())
    assert len(channel._senders) == 1


def test_reserve_room__none__reserves_nothing() -> None:
    channel = Channel[int](1)
    channel.sync.send(1)
    assert channel._reserve_room(PipelineWaiter()) == 0
    assert channel._reserved == {}


def test_leave__no_longer_in_the_queue__does_nothing() -> None:
    channel = Channel[int](1)
    channel._leave(channel._senders, PipelineWaiter())
    assert not channel._senders


@pytest.mark.parametrize("woken", [True, False])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("items", [0, 1, 2])
def test_pass_wake_on__woken_with_something_left__wakes_the_next_one(
    woken: bool, waits: bool, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel[int](2)
    channel.sync.send_many(range(items))
    wakes = record_wakes(channel, monkeypatch)
    waiter = PipelineWaiter()
    waiter.woken = woken
    for queue, is_left in ((channel._receivers, items > 0), (channel._senders, items < 2)):
        wakes.clear()
        if waits:
            queue.append(PipelineWaiter())
        channel._pass_wake_on(queue, waiter)
        assert bool(wakes) is (woken and waits and is_left)


def test_statistics__sent_twice__counts_all_items() -> None:
    channel = Channel[int](9)
    channel.sync.send_many([1, 2])
    channel.sync.send_many([3, 4, 5])
    assert channel.statistics().sent == 5
