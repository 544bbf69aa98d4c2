"""Channels lose and repeat no item, across waits, cancellations, closing, threads and forks."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from comporta import Channel, ChannelClosedError
from comporta.pipeline import channel as channel_module
from comporta.pipeline.waiter import PipelineWaiter

PATIENCE = 60.0
"""Longer than anything here takes; only a hang lasts that long."""


@pytest.fixture(params=["with the GIL", "without the GIL"], autouse=True)
def interpreter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the fast path of an interpreter with a global lock, and the path of one without."""
    monkeypatch.setattr(channel_module, "HAS_GIL", request.param == "with the GIL")


def run(main: Any) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main, PATIENCE)

    return asyncio.run(bounded())


def in_thread(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


async def drain(channel: Channel[int]) -> list[int]:
    return [item async for item in channel]


@pytest.mark.parametrize("capacity", [0, -1, 10_000_001])
def test_channel__capacity_out_of_range__says_what_is_allowed(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity must be 1 to 10000000, got {capacity}"):
        Channel(capacity)


@pytest.mark.parametrize("capacity", [1.5, "5", True, None])
def test_channel__capacity_of_wrong_type__is_a_type_error(capacity: Any) -> None:
    with pytest.raises(TypeError, match="capacity must be an int, got"):
        Channel(capacity)


def test_channel__default_capacity__is_500() -> None:
    assert Channel().capacity == 500


@pytest.mark.parametrize(
    ("n", "deadline", "error", "message"),
    [
        (0, None, ValueError, "n must be 1 to 10000000, got 0"),
        (1.0, None, TypeError, "n must be an int"),
        (True, None, TypeError, "n must be an int"),
        (1, -1, ValueError, "deadline must be 0 to .* seconds, got -1"),
        (1, float("nan"), ValueError, "deadline must be"),
        (1, "1", TypeError, "deadline must be a number of seconds, got '1'"),
        (1, True, TypeError, "deadline must be a number"),
    ],
)
def test_receive_many__arguments_out_of_range__are_named(
    n: Any, deadline: Any, error: type[Exception], message: str
) -> None:
    channel: Channel[int] = Channel()
    with pytest.raises(error, match=message):
        channel.sync.receive_many(n, deadline)
    with pytest.raises(error, match=message):
        run(channel.receive_many(n, deadline))


def test_send__channel_full__waits_until_there_is_room() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(2)
        await channel.send(1)
        await channel.send(2)
        third = asyncio.create_task(channel.send(3))
        await until(lambda: channel.statistics().waiting_senders)
        assert channel.statistics() == (2, 2, 1, 0, 2, 0, False)
        assert await channel.receive() == 1
        await third
        assert await channel.receive_many(5) == [2, 3]
        assert channel.statistics() == (0, 2, 0, 0, 3, 3, False)

    run(main())


def test_receive__channel_empty__waits_and_receivers_are_served_in_order() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel()
        first = asyncio.create_task(channel.receive())
        await until(lambda: channel.statistics().waiting_receivers == 1)
        second = asyncio.create_task(channel.receive_many(10))
        await until(lambda: channel.statistics().waiting_receivers == 2)
        await channel.send_many([1, 2, 3])
        assert await first == 1
        assert await second == [2, 3]

    run(main())


def test_receive_many__no_item_within_the_deadline__is_an_empty_list() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel()
        assert await channel.receive_many(5, 0) == []
        assert await channel.receive_many(5, 0.01) == []
        assert channel.sync.receive_many(5, 0.01) == []
        await channel.send(1)
        assert await channel.receive_many(5, 0) == [1]
        assert channel.statistics().waiting_receivers == 0

    run(main())


def test_receive_many__item_before_the_deadline__is_returned_at_once() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel()
        waiting = asyncio.create_task(channel.receive_many(5, PATIENCE))
        await until(lambda: channel.statistics().waiting_receivers)
        await channel.send_many([1, 2])
        assert await waiting == [1, 2]

    run(main())


def test_close__items_in_the_channel__are_received_before_the_end() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel()
        await channel.send_many([1, 2])
        channel.close()
        channel.close()
        assert channel.closed
        for send in (channel.send(3), channel.send_many([3])):
            with pytest.raises(ChannelClosedError, match="it accepts no more items"):
                await send
        with pytest.raises(ChannelClosedError, match="it accepts no more items"):
            channel.sync.send(3)
        assert await drain(channel) == [1, 2]
        assert list(channel.sync) == []
        for receive in (channel.receive(), channel.receive_many(5), channel.receive_many(5, 0)):
            with pytest.raises(ChannelClosedError, match="all its items were received"):
                await receive

    run(main())


def test_close__senders_and_receivers_wait__wakes_all_of_them() -> None:
    async def main() -> None:
        full: Channel[int] = Channel(1)
        await full.send(1)
        senders = [asyncio.create_task(full.send(2)) for _ in range(3)]
        empty: Channel[int] = Channel(1)
        receivers = [asyncio.create_task(empty.receive()) for _ in range(3)]
        await until(lambda: full.statistics().waiting_senders == empty.statistics().waiting_receivers == 3)
        full.close()
        empty.close()
        ended = await asyncio.gather(*senders, *receivers, return_exceptions=True)
        assert {type(end) for end in ended} == {ChannelClosedError}
        assert await drain(full) == [1]

    run(main())


def test_send_many__more_items_than_room__are_sent_as_room_becomes_available() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(7)
        sending = asyncio.create_task(channel.send_many(range(3000)))
        found: list[int] = []
        while len(found) < 3000:
            assert channel.statistics().size <= 7
            found += await channel.receive_many(3)
        await sending
        assert found == list(range(3000))

    run(main())


def test_send_many__cancelled__leaves_the_rest_in_the_iterator() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(10)
        rest = iter(range(25))
        sending = asyncio.create_task(channel.send_many(rest))
        await until(lambda: channel.statistics().waiting_senders)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await channel.receive_many(100) == list(range(10))
        await channel.send_many([next(rest) for _ in range(10)])
        assert await channel.receive_many(100) == list(range(10, 20))
        assert list(rest) == list(range(20, 25))

    run(main())


def test_send_many__exactly_as_many_as_fit__does_not_wait_for_more_room() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(10)
        await channel.send_many(range(10))
        assert len(await channel.receive_many(10)) == 10
        sending = asyncio.create_task(channel.send_many(n for n in range(10)))  # of unknown length
        await until(lambda: channel.statistics().waiting_senders)
        assert len(await channel.receive_many(10)) == 10
        await sending
        assert channel.statistics().size == 0

    run(main())


def test_send_many__iterator_fails__sends_the_items_before() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    async def main() -> None:
        channel: Channel[int] = Channel(10)
        with pytest.raises(OSError, match="the disk is gone"):
            await channel.send_many(failing())
        assert await channel.receive_many(10) == [1, 2]
        await channel.send_many(range(10))  # no room stays reserved
        assert len(await channel.receive_many(100)) == 10

    run(main())


def test_close__while_room_is_reserved__accepts_those_items_first() -> None:
    channel: Channel[int] = Channel(10)

    def closing() -> Iterator[int]:
        yield 1
        channel.close()
        yield 2

    async def main() -> None:
        receiving = asyncio.create_task(drain(channel))
        await until(lambda: channel.statistics().waiting_receivers)
        await channel.send_many(closing())
        assert await receiving == [1, 2]

    run(main())


def test_receive__cancelled_after_it_was_woken__wakes_the_next_receiver() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel()
        first, second = (asyncio.create_task(channel.receive()) for _ in range(2))
        await until(lambda: channel.statistics().waiting_receivers == 2)
        await channel.send(1)  # wakes the first, which has not run yet
        first.cancel()
        assert await second == 1
        assert first.cancelled() or (await asyncio.gather(first, return_exceptions=True)) is not None

    run(main())


def test_send__cancelled_after_it_was_woken__wakes_the_next_sender() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(1)
        await channel.send(0)
        first, second = (asyncio.create_task(channel.send(n)) for n in (1, 2))
        await until(lambda: channel.statistics().waiting_senders == 2)
        assert await channel.receive() == 0
        first.cancel()
        await second
        assert await channel.receive_many(10) == [2]

    run(main())


@pytest.mark.unmeasured
def test_channel__many_cancellations__lose_and_repeat_no_item() -> None:  # noqa: C901 - one scenario
    """Receivers are cancelled at random by ``wait_for`` and ``timeout`` while senders come and go."""
    count, chance = 20_000, random.Random(6)

    async def by_wait_for(channel: Channel[int]) -> list[int]:
        return [await asyncio.wait_for(channel.receive(), chance.uniform(0, 2e-4))]

    async def by_timeout(channel: Channel[int]) -> list[int]:
        found: list[int] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(chance.uniform(0, 2e-4)):
                found = await channel.receive_many(chance.randint(1, 9))
        return found

    async def main() -> None:
        channel: Channel[int] = Channel(16)
        got: list[int] = []

        async def receive() -> None:
            while True:
                try:
                    got.extend(await chance.choice((by_wait_for, by_timeout))(channel))
                except TimeoutError:
                    pass
                except ChannelClosedError:
                    return

        async def send(items: Iterator[int]) -> None:
            for item in items:
                await channel.send(item)
                if chance.random() < 0.02:
                    await asyncio.sleep(chance.uniform(0, 2e-4))  # sleeps: a random pause of the producer

        items = iter(range(count))
        receivers = [asyncio.create_task(receive()) for _ in range(8)]
        await asyncio.gather(*(send(items) for _ in range(4)))
        channel.close()
        await asyncio.gather(*receivers)
        assert Counter(got) == Counter(range(count))
        assert channel.statistics() == (0, 16, 0, 0, count, count, True)

    run(main())


def test_channel__cancelled_senders__sent_exactly_what_left_their_iterators() -> None:
    chance = random.Random(7)

    async def main() -> None:
        channel: Channel[int] = Channel(4)
        confirmed: list[int] = []

        async def send(item: int) -> None:
            await channel.send(item)
            confirmed.append(item)

        receiving = asyncio.create_task(drain(channel))
        for start in range(0, 2000, 20):
            tasks = [asyncio.create_task(send(item)) for item in range(start, start + 20)]
            await asyncio.sleep(0)
            for task in chance.sample(tasks, 5):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        channel.close()
        assert Counter(await receiving) == Counter(confirmed)

    run(main())


def test_channel__threads_send_and_a_loop_receives__items_keep_each_senders_order() -> None:
    async def main() -> None:
        channel: Channel[tuple[int, int]] = Channel(50)

        def send(thread: int) -> None:
            channel.sync.send_many((thread, n) for n in range(2000))
            for n in range(2000, 2100):
                channel.sync.send((thread, n))

        threads = [in_thread(lambda number=number: send(number)) for number in range(3)]  # type: ignore[misc]
        found: list[tuple[int, int]] = []
        while len(found) < 3 * 2100:
            found += await channel.receive_many(64)
        for thread in threads:
            thread.join(PATIENCE)
        for number in range(3):
            assert [n for thread, n in found if thread == number] == list(range(2100))

    run(main())


def test_channel__a_loop_sends_and_threads_receive__each_item_arrives_once() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(20)
        got: list[int] = []

        def receive_many() -> None:
            with suppress(ChannelClosedError):
                while True:
                    got.extend(channel.sync.receive_many(16))

        threads = [in_thread(receive_many), in_thread(lambda: got.extend(channel.sync))]
        await channel.send_many(range(1000))
        for item in range(1000, 1500):
            await channel.send(item)
        channel.sync.close()
        await until(lambda: not any(thread.is_alive() for thread in threads))
        assert Counter(got) == Counter(range(1500))

    run(main())


def test_channel__between_threads_only__needs_no_loop() -> None:
    channel: Channel[int] = Channel(3)

    def send() -> None:
        channel.sync.send_many(range(500))
        channel.close()

    sender = in_thread(send)
    assert list(channel.sync) == list(range(500))
    sender.join(PATIENCE)


def test_sync_receive__lost_wake_up__is_found_by_polling() -> None:
    """As if a signal handler had raised between the item and the wake-up."""
    channel: Channel[int] = Channel()
    got: list[int] = []
    receiver = in_thread(lambda: got.append(channel.sync.receive()))
    while not channel.statistics().waiting_receivers:
        pass
    channel._items.append(1)
    receiver.join(PATIENCE)
    assert got == [1]


def test_channel__waiter_whose_loop_was_closed__blocks_no_other() -> None:
    channel: Channel[int] = Channel()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it reports the destroyed task
    gone = loop.create_task(channel.receive())
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    async def main() -> None:
        receiving = asyncio.create_task(channel.receive())
        await until(lambda: channel.statistics().waiting_receivers == 2)
        await channel.send(1)
        assert await receiving == 1

    run(main())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del gone
        gc.collect()


def test_wake__interrupted_half_way__still_wakes_the_next_waiter() -> None:
    """A waiter that was woken but is still queued, because of an interrupt, takes no other's wake-up."""
    channel: Channel[int] = Channel()
    woken, waiting = PipelineWaiter(), PipelineWaiter()
    woken.wake()
    channel._receivers.extend([woken, waiting])
    channel.sync.send(1)
    assert waiting.woken
    assert not channel._receivers


def test_send__room_appears_between_check_and_queue__does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As another thread can make room; and the same with an item, for a receiver."""
    channel: Channel[int] = Channel(2)
    for check, method, argument in (
        ("_try_send", "send", 1),
        ("_reserve_room", "send_many", [2]),
        ("_take", "receive", None),
    ):
        real, times = getattr(channel, check), iter(range(2))

        def fails_twice(*args: Any, real: Any = real, times: Iterator[int] = times) -> Any:
            return real(*args) if next(times, None) is None else []

        monkeypatch.setattr(channel, check, fails_twice)
        getattr(channel.sync, method)(*[] if argument is None else [argument])
    assert channel.statistics()[:4] == (1, 2, 0, 0)


def test_send_many__large_channel__is_filled_in_chunks() -> None:
    channel: Channel[int] = Channel(2500)
    channel.sync.send_many(range(2500))
    assert len(channel.sync.receive_many(5000)) == 2500


def test_waiter__woken_before_it_waits__does_not_wait() -> None:
    waiter = PipelineWaiter()
    waiter.wake()
    waiter.block()
    run(waiter.wait())
    waiter.reset()
    assert not waiter.woken


def test_loop_event__set_twice__is_set_once() -> None:
    waiter = PipelineWaiter()
    waiting = in_thread(waiter.block)
    while waiter._event is None:
        pass
    assert waiter.wake()
    waiting.join(PATIENCE)
    assert waiter.wake()

    async def main() -> None:
        waiter = PipelineWaiter()
        waiting = asyncio.create_task(waiter.wait())
        await asyncio.sleep(0)
        assert waiter.wake()
        assert waiter.wake()
        await waiting

    run(main())


def test_channel__in_a_forked_child__has_its_items_and_no_waiters() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(2)
        await channel.send_many([1, 2])
        sending = asyncio.create_task(channel.send(3))
        await until(lambda: channel.statistics().waiting_senders)
        channel._lock.acquire()
        channel._after_fork()
        assert channel.statistics() == (2, 2, 0, 0, 2, 0, False)
        assert await channel.receive_many(2) == [1, 2]
        sending.cancel()

    run(main())


@pytest.mark.parametrize("step", ["_send_chunk", "_release_room"])
def test_send_many__interrupted_between_two_steps__releases_its_room(step: str) -> None:
    """As a signal handler may interrupt, which runs when a function is entered."""
    channel: Channel[int] = Channel(5)

    def interrupt(frame: Any, event: str, _: object) -> None:
        if frame.f_code.co_name == step:
            raise TimeoutError

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(TimeoutError):
            channel.sync.send_many([1, 2])
    finally:
        sys.settrace(before)
    channel.sync.send_many(range(5 - channel.statistics().size))
    channel.close()
    assert len(list(channel.sync)) == 5


def test_send_many__interrupted_before_the_room_is_used__gives_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel: Channel[int] = Channel(5)

    def interrupted(*_: object) -> bool:
        raise TimeoutError

    with monkeypatch.context() as patches:
        patches.setattr(channel, "_send_chunk", interrupted)
        with pytest.raises(TimeoutError):
            channel.sync.send_many([1, 2])
    channel.sync.send_many(range(5))
    assert channel.statistics().size == 5
