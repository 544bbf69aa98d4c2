"""Parts of pipelines: channels compared with peers, threads, and a throttle at its limit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack
from typing import Any

import anyio
import culsans
import janus

from benchmarks.measure import Effort, Run, Timings, in_turns, percentile
from benchmarks.ours import COMPORTA
from benchmarks.report import Goal, Section, Table
from comporta import Channel, ChannelClosedError, HierarchicalThrottle

CAPACITY, CONSUMERS, AT_ONCE, CHUNK = 500, 8, 64, 50
RATE, WORKERS, PARTITIONS = 20_000, 64, 16
SLOT_SECONDS, LEAST = 0.05, 2_000
"""Starting threads and tasks at each turn must not dominate the measurement."""


_QUEUE, _ONE, _MANY = "asyncio.Queue", f"{COMPORTA}", f"{COMPORTA} receive_many({AT_ONCE})"
_ALL_MANY = f"{COMPORTA} send_many, receive_many({AT_ONCE})"
_BY_ITEM, _CHUNKS = "asyncio.Queue, run_coroutine_threadsafe", f"{COMPORTA} in chunks of {CHUNK}"

Item = Any
Ends = Coroutine[Any, Any, None]


def channels(effort: Effort) -> Section:
    """Compare channels between coroutines."""
    moves = {
        _ONE: _comporta,
        _MANY: _comporta_many,
        _ALL_MANY: _comporta_all_many,
        _QUEUE: _queue,
        "anyio": _anyio,
        "janus": _janus,
        "culsans": _culsans,
    }
    timings = _measure(moves, effort)
    others = [_QUEUE, "anyio", "janus", "culsans"]
    return Section(
        "Channel",
        f"One loop; one producer, {CONSUMERS} consumers, a capacity of {CAPACITY}; items do nothing.",
        [Table.of_speeds("Items", timings, _ONE)],
        [
            Goal.at_least(1.5, "channel, one by one: asyncio.Queue", timings, _ONE, others),
            Goal.at_least(2, "channel, receive_many: asyncio.Queue", timings, _MANY, others),
        ],
    )


def threads(effort: Effort) -> Section:
    """Compare ways to send from a thread to an event loop."""
    moves = {
        _CHUNKS: _thread_chunks,
        f"{COMPORTA} one by one": _thread_ones,
        _BY_ITEM: _thread_queue,
        "janus": _thread_janus,
        "culsans": _thread_culsans,
    }
    timings = _measure(moves, effort)
    goal = Goal.at_least(10, "channel, threads in chunks: item by item", timings, _CHUNKS, [_BY_ITEM])
    description = f"A thread sends, a coroutine receives; a capacity of {CAPACITY}."
    return Section(
        "Channel, from a thread", description, [Table.of_speeds("Items", timings, _CHUNKS)], [goal]
    )


def _measure(moves: Mapping[str, Callable[[int], Ends]], effort: Effort) -> Timings:
    """Time the contenders in turns, each on its own event loop."""
    with ExitStack() as ends:
        runs = {name: _run_of(move, ends.enter_context(asyncio.Runner())) for name, move in moves.items()}
        return in_turns(runs, effort, SLOT_SECONDS)


def _run_of(move: Callable[[int], Ends], runner: asyncio.Runner) -> Run:
    def run(count: int) -> int:
        count = max(count, LEAST)
        runner.run(move(count))
        return count

    return run


# between coroutines -----------------------------------------------------------------------------------


async def _send_to_consumers(
    count: int, send: Callable[[int], Awaitable[Any]], receive: Callable[[], Awaitable[Any]]
) -> None:
    """Send ``count`` items one by one, then one ``None`` for each consumer."""

    async def consume() -> None:
        while await receive() is not None:
            pass

    consumers = [asyncio.create_task(consume()) for _ in range(CONSUMERS)]
    for item in range(count):
        await send(item)
    for _ in consumers:
        await send(None)  # type: ignore[arg-type]  # ends a consumer
    await asyncio.gather(*consumers)


async def _comporta(count: int) -> None:
    channel: Channel[Item] = Channel(CAPACITY)
    await _send_to_consumers(count, channel.send, channel.receive)


async def _queue(count: int) -> None:
    queue: asyncio.Queue[Item] = asyncio.Queue(CAPACITY)
    await _send_to_consumers(count, queue.put, queue.get)


async def _anyio(count: int) -> None:
    send, receive = anyio.create_memory_object_stream[Item](CAPACITY)
    with send, receive:
        await _send_to_consumers(count, send.send, receive.receive)


async def _janus(count: int) -> None:
    queue: janus.Queue[Item] = janus.Queue(CAPACITY)
    await _send_to_consumers(count, queue.async_q.put, queue.async_q.get)
    await queue.aclose()


async def _culsans(count: int) -> None:
    queue: culsans.Queue[Item] = culsans.Queue(CAPACITY)
    await _send_to_consumers(count, queue.async_put, queue.async_get)


async def _comporta_many(count: int) -> None:
    async def produce(channel: Channel[Item]) -> None:
        for item in range(count):
            await channel.send(item)

    await _receive_many(count, produce)


async def _comporta_all_many(count: int) -> None:
    await _receive_many(count, lambda channel: channel.send_many(range(count)))


async def _receive_many(count: int, produce: Callable[[Channel[Item]], Awaitable[None]]) -> None:
    channel: Channel[Item] = Channel(CAPACITY)

    async def consume() -> int:
        got = 0
        try:
            while True:
                got += len(await channel.receive_many(AT_ONCE))
        except ChannelClosedError:
            return got

    consumers = [asyncio.create_task(consume()) for _ in range(CONSUMERS)]
    await produce(channel)
    channel.close()
    assert sum(await asyncio.gather(*consumers)) == count


# from a thread ----------------------------------------------------------------------------------------


async def _from_thread(send: Callable[[], None], receive: Callable[[], Awaitable[int]], count: int) -> None:
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    while count > 0:
        count -= await receive()
    await asyncio.to_thread(thread.join)


async def _thread_chunks(count: int) -> None:
    channel: Channel[Item] = Channel(CAPACITY)

    def send() -> None:
        for start in range(0, count, CHUNK):
            channel.sync.send_many(range(start, min(start + CHUNK, count)))

    async def receive() -> int:
        return len(await channel.receive_many(AT_ONCE))

    await _from_thread(send, receive, count)


async def _thread_ones(count: int) -> None:
    channel: Channel[Item] = Channel(CAPACITY)

    def send() -> None:
        for item in range(count):
            channel.sync.send(item)

    await _from_thread(send, _one(channel.receive), count)


async def _thread_queue(count: int) -> None:
    queue: asyncio.Queue[Item] = asyncio.Queue(CAPACITY)
    loop = asyncio.get_running_loop()

    def send() -> None:
        for item in range(count):
            asyncio.run_coroutine_threadsafe(queue.put(item), loop).result()

    await _from_thread(send, _one(queue.get), count)


async def _thread_janus(count: int) -> None:
    queue: janus.Queue[Item] = janus.Queue(CAPACITY)

    def send() -> None:
        for item in range(count):
            queue.sync_q.put(item)

    await _from_thread(send, _one(queue.async_q.get), count)
    await queue.aclose()


async def _thread_culsans(count: int) -> None:
    queue: culsans.Queue[Item] = culsans.Queue(CAPACITY)

    def send() -> None:
        for item in range(count):
            queue.sync_put(item)

    await _from_thread(send, _one(queue.async_get), count)


def _one(receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[int]]:
    async def receive_one() -> int:
        await receive()
        return 1

    return receive_one


# a throttle at its limit ------------------------------------------------------------------------------


def throttled(effort: Effort) -> Section:
    """Acquire one unit at a time at the limit, and count the grants."""
    seconds = 5.0 if effort.quick else 30.0
    rate, waits_us, used = asyncio.run(_throttled(seconds))
    off = 100 * abs(rate - RATE) / RATE
    waits = [f"{percentile(waits_us, percent) / 1000:.2f} ms" for percent in (50, 99, 99.9)]
    return Section(
        "Throttled",
        f"{RATE:,}/s for {PARTITIONS} partitions of {2 * RATE // PARTITIONS:,}/s, in this process; "
        f"{WORKERS} coroutines acquire one unit at a time for {seconds:g} s. Counted after the first second.",
        [
            Table(
                "Granted",
                ["", "a second", "wait p50", "p99", "p99.9", "CPU"],
                [[COMPORTA, f"{rate:,.0f}", *waits, f"{100 * used:.0f} %"]],
            )
        ],
        [Goal(f"throttle: within 1 % of {RATE:,}/s", f"{rate:,.0f}/s, p99 wait {waits[1]}", off <= 1)],
    )


async def _throttled(seconds: float) -> tuple[float, list[int], float]:
    throttle = HierarchicalThrottle(RATE, 2 * RATE // PARTITIONS)
    waits_us: list[int] = []
    start, cpu = time.monotonic(), time.process_time()

    async def acquire(partition: str) -> None:
        while (now := time.monotonic()) < start + seconds:
            await throttle.acquire(partition)
            if now > start + 1:
                waits_us.append(round((time.monotonic() - now) * 1e6))

    workers = [asyncio.create_task(acquire(f"partition-{n % PARTITIONS}")) for n in range(WORKERS)]
    await asyncio.sleep(start + 1 - time.monotonic())
    before, since = throttle.statistics().granted, time.monotonic()
    await asyncio.sleep(start + seconds - 0.2 - time.monotonic())
    rate = (throttle.statistics().granted - before) / (time.monotonic() - since)
    await asyncio.gather(*workers)
    used = (time.process_time() - cpu) / (time.monotonic() - start)
    return rate, sorted(waits_us), used
