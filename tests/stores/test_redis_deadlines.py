"""Deadlines of the Redis engine: whatever the server, network or resolver does, an error comes in time.

The deadline of a call is 50 ms here unless stated otherwise. The tests allow half a second on a busy machine,
far less than any other timeout would take.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from redis.exceptions import ConnectionError as LostError
from tests.support import command, wait_until, wait_until_async, within

from comporta import StateError, StateTimeoutError, StateUnavailableError
from comporta.clock import MONOTONIC
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis import async_batches, pool
from comporta.stores.redis.connection import DeadlineSocket
from comporta.stores.redis.connection_async import AsyncEndpoint
from comporta.stores.redis.deadline import AdaptiveDeadline
from comporta.stores.redis.store import RedisStore
from comporta.testing import FaultProxy, Server

TIMEOUT = 0.05
IN_TIME_SECONDS = 0.5
READ = ReadRecord("s", "k")


@pytest.fixture(autouse=True)
def empty_server(valkey: Server) -> None:
    """Remove what other tests have written to the server of this session."""
    command(valkey, "FLUSHALL")


@pytest.fixture
def proxy(valkey: Server) -> Iterator[FaultProxy]:
    with FaultProxy.to(valkey) as proxy:
        yield proxy


@contextmanager
def open_redis(url: str, timeout: float = TIMEOUT, connect_timeout: float = 5.0) -> Iterator[RedisStore]:
    store = RedisStore(url, timeout, connect_timeout=connect_timeout)
    yield store
    store.close()


def in_time() -> AbstractContextManager[None]:
    return within(IN_TIME_SECONDS)


def warm_up(store: RedisStore) -> None:
    """Connect and load the script, without a deadline."""
    store.probe()
    store.deadline.seconds = 5.0
    store.apply(READ)
    store.deadline.seconds = store.timeout


async def warm_up_async(store: RedisStore) -> None:
    store.deadline.seconds = 5.0
    await store.apply_async(READ)
    store.deadline.seconds = store.timeout


# servers that do not answer ---------------------------------------------------------------------------------


SILENT: list[Callable[[FaultProxy], None]] = [
    lambda proxy: proxy.hang(),
    lambda proxy: proxy.blackhole(),
    lambda proxy: proxy.stall_replies(),
    lambda proxy: proxy.limit_bandwidth(20, "replies"),  # a byte at a time: no single byte is late
]


@pytest.mark.parametrize("silence", SILENT)
def test_call__reply_incomplete__times_out_in_time(
    proxy: FaultProxy, silence: Callable[[FaultProxy], None]
) -> None:
    with open_redis(proxy.url) as store:
        warm_up(store)
        store.apply(WriteRecord("s", "k", b"x" * 100, None))
        silence(proxy)
        with in_time(), pytest.raises(StateTimeoutError, match="may have been carried out"):
            store.apply(READ)
        assert not store._pool.idle


@pytest.mark.parametrize("silence", SILENT)
def test_async_call__reply_incomplete__times_out_in_time(
    proxy: FaultProxy, silence: Callable[[FaultProxy], None]
) -> None:
    async def story(store: RedisStore) -> None:
        await warm_up_async(store)
        await store.apply_async(WriteRecord("s", "k", b"x" * 100, None))
        silence(proxy)
        with in_time(), pytest.raises(StateTimeoutError, match="may have been carried out"):
            await store.apply_async(READ)
        await store.aclose()

    with open_redis(proxy.url) as store:
        asyncio.run(story(store))


def test_async_calls__queued_behind_a_failed_batch__fail_with_it(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_batches, "_BATCH_MAX", 2)

    async def story(store: RedisStore) -> list[Any]:
        await warm_up_async(store)
        proxy.hang()
        calls = [asyncio.ensure_future(store.apply_async(READ)) for _ in range(6)]
        loop_pipeline = store.pipelines()._pipeline_for(asyncio.get_running_loop())
        while loop_pipeline._queued != 4 or not loop_pipeline._sent:  # noqa: ASYNC110 - until one batch is sent
            await asyncio.sleep(0)
        calls += [asyncio.ensure_future(store.apply_async(READ)) for _ in range(3)]
        await asyncio.sleep(0)
        calls[-1].cancel()
        replies = await asyncio.gather(*calls, return_exceptions=True)
        proxy.heal()
        await store.aclose()
        return replies

    with open_redis(proxy.url) as store, in_time():
        replies = asyncio.run(story(store))
    assert isinstance(replies.pop(), asyncio.CancelledError)
    assert {type(reply) for reply in replies} == {StateTimeoutError}
    assert len({id(reply) for reply in replies}) == 1


def test_async_call__loop_blocked_after_sending__is_answered(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(store: RedisStore) -> bool:
        await warm_up_async(store)
        connection = store.pipelines()._pipeline_for(asyncio.get_running_loop())._connection
        send = connection.send_packed_command  # type: ignore[union-attr]

        async def send_then_block(packed: bytes, check_health: bool) -> None:
            await send(packed, check_health)
            time.sleep(4 * TIMEOUT)  # noqa: ASYNC251  # sleeps: blocks the event loop on purpose

        monkeypatch.setattr(connection, "send_packed_command", send_then_block)
        written = await store.apply_async(WriteRecord("s", "k", b"x", None))
        await store.aclose()
        return written

    with open_redis(valkey.url) as store:
        assert asyncio.run(story(store))


def test_async_call__loop_blocked_before_sending__is_answered(valkey: Server) -> None:
    async def story(store: RedisStore) -> bool:
        await warm_up_async(store)
        call = asyncio.ensure_future(store.apply_async(WriteRecord("s", "k", b"x", None)))
        await asyncio.sleep(0)
        time.sleep(4 * TIMEOUT)  # noqa: ASYNC251  # sleeps: blocks the event loop on purpose
        written = await call
        await store.aclose()
        return written

    with open_redis(valkey.url) as store:
        assert asyncio.run(story(store))


# slow connections -------------------------------------------------------------------------------------------


def test_call__still_connecting__fails_and_the_next_uses_the_connection(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_PROMISING_NS", 60_000_000_000)
    proxy.hang()
    with open_redis(proxy.url) as store:
        for _ in range(3):
            with (
                in_time(),
                pytest.raises(StateUnavailableError, match=r"still connecting.*nothing was sent"),
            ):
                store.apply(READ)
        proxy.release()
        store.probe()
        store.apply(READ)
        assert proxy.connections == 1


def test_async_call__still_connecting__fails_and_the_next_uses_the_connection(
    proxy: FaultProxy,
) -> None:
    async def story(store: RedisStore) -> None:
        for _ in range(3):
            with (
                in_time(),
                pytest.raises(StateUnavailableError, match=r"still connecting.*nothing was sent"),
            ):
                await store.apply_async(READ)
        proxy.release()
        await warm_up_async(store)
        await store.aclose()
        assert proxy.connections == 1

    proxy.hang()
    with open_redis(proxy.url) as store:
        asyncio.run(story(store))


def test_aclose__still_connecting__leaves_nothing_behind(proxy: FaultProxy) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="still connecting"):
            await store.apply_async(READ)
        await store.aclose()

    proxy.hang()
    with open_redis(proxy.url) as store:
        asyncio.run(story(store))


def test_connect__after_a_write_to_a_lost_connection__reuses_its_descriptor(proxy: FaultProxy) -> None:
    """In Python 3.12 and early 3.13 such a write made the loop ignore the descriptor's next connection."""

    async def reconnect() -> bytes:
        endpoint = AsyncEndpoint(proxy.url)
        lost: Any = await endpoint.connect(5)

        async def lost_connection_is_known() -> bool:
            return bool(lost._writer.is_closing())

        proxy.reset_connections()
        await wait_until_async(lost_connection_is_known)
        with pytest.raises(LostError, match="the connection was lost while it was idle"):
            await lost.send_packed_command(b"PING\r\n", check_health=False)
        connection = await endpoint.connect(5)
        await connection.send_packed_command(b"PING\r\n", check_health=False)
        reply: bytes = await connection.read_response()
        await connection.disconnect()
        return reply

    assert asyncio.run(reconnect()) == b"PONG"


def test_connect__longer_than_its_timeout__fails(proxy: FaultProxy) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="cannot be reached, nothing was sent"):
            await store.apply_async(READ)
        await store.aclose()

    proxy.hang()
    with open_redis(proxy.url, timeout=5, connect_timeout=0.05) as store:
        with (
            in_time(),
            pytest.raises(StateUnavailableError, match="cannot be reached, nothing was sent"),
        ):
            store.apply(READ)
        with in_time():
            asyncio.run(story(store))


def test_connect__handshake_byte_by_byte__has_one_deadline(proxy: FaultProxy) -> None:
    proxy.limit_bandwidth(20, "replies")
    slow = pytest.raises(StateUnavailableError, match="nothing was sent")
    with open_redis(proxy.url, timeout=5, connect_timeout=0.1) as store, in_time(), slow:
        store.apply(READ)


def test_connect__refused__raises_for_blocking_and_awaiting_callers(proxy: FaultProxy) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="cannot be reached, nothing was sent"):
            await store.apply_async(READ)
        await store.aclose()

    proxy.refuse_connections()
    with open_redis(proxy.url, timeout=5) as store:
        attempts: list[Callable[[], object]] = [lambda: store.apply(READ), store.probe]
        for attempt in attempts:
            with pytest.raises(StateUnavailableError, match="cannot be reached, nothing was sent"):
                attempt()
        asyncio.run(story(store))


def test_connect__many_threads_at_once__makes_a_few_at_a_time(proxy: FaultProxy) -> None:
    active, peak, lock = 0, 0, threading.Lock()

    with open_redis(proxy.url, timeout=10) as store:
        connect = store.route.connect

        def count_and_connect(seconds: float) -> Any:
            nonlocal active, peak
            with lock:
                active += 1
                peak = max(peak, active)
            try:
                return connect(seconds)
            finally:
                with lock:
                    active -= 1

        store._pool._pending._connect = count_and_connect
        with ThreadPoolExecutor(40) as threads:
            assert list(threads.map(lambda _: store.apply(READ), range(400))) == [None] * 400
        assert 1 <= peak <= pool.CONNECTS_MAX
        assert proxy.connections <= 40 + pool.CONNECTS_MAX


def test_connect__no_thread_available__happens_in_place(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with open_redis(valkey.url, timeout=5) as store:
        assert store.apply(READ) is None


def test_connect__attempts_of_interrupted_callers__do_not_block_new_ones(valkey: Server) -> None:
    with open_redis(valkey.url, timeout=5) as store:
        store._pool._pending._in_progress = {object(): 0 for _ in range(pool.CONNECTS_MAX)}
        assert store.apply(READ) is None
        assert not store._pool._pending._in_progress


def test_connect__finished_after_close__is_closed(proxy: FaultProxy) -> None:
    proxy.hang()
    with open_redis(proxy.url) as store:
        with pytest.raises(StateUnavailableError, match="still connecting"):
            store.apply(READ)
        [thread] = [thread for thread in threading.enumerate() if thread.name == "comporta-connect"]
        store.close()
        proxy.release()
        thread.join(60)
        assert not store._pool.idle


def test_connect__one_hangs__a_later_caller_makes_another(proxy: FaultProxy) -> None:
    proxy.hang()
    with open_redis(proxy.url, connect_timeout=0.5) as store:
        store._pool._pending._seconds = 0.02  # attempts count as hopeless before they end
        for _ in range(pool.CONNECTS_MAX + 2):
            with pytest.raises(StateUnavailableError):
                store.apply(READ)
        assert 1 < proxy.connections <= 2 * (pool.CONNECTS_MAX + 2)
        proxy.release()


def test_idle_connection__taken_by_another_thread__is_waited_for_again(valkey: Server) -> None:
    """The deque is shared without a lock: a connection that was there a moment ago may be gone."""

    class EmptiedDeque(type(pool.deque())):  # type: ignore[misc]
        lies = 2

        def __bool__(self) -> bool:
            self.lies -= 1
            return self.lies >= 0 or len(self) > 0

    with open_redis(valkey.url, timeout=5) as store:
        store._pool.idle = store._pool._pending._idle = EmptiedDeque()
        assert store.apply(READ) is None


# name lookup ------------------------------------------------------------------------------------------------


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Make name lookups hang until the event is set."""
    is_free = threading.Event()
    look_up = socket.getaddrinfo

    def hang(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "state.example":
            is_free.wait(60)
            host = "127.0.0.1"
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    yield is_free
    is_free.set()


def test_resolver__hangs__blocks_neither_callers_nor_the_end_of_the_loop(
    valkey: Server, resolver: threading.Event
) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="still connecting"):
            await store.apply_async(READ)

    with open_redis(valkey.url.replace("127.0.0.1", "state.example")) as store:
        with in_time(), pytest.raises(StateUnavailableError, match="still connecting"):
            store.apply(READ)
        with in_time():
            asyncio.run(story(store))
        resolver.set()
        store.probe()
        assert store.apply(READ) is None


def test_resolver__several_lookups_of_one_name__share_one_thread(
    valkey: Server, resolver: threading.Event
) -> None:
    async def story(store: RedisStore) -> None:
        lookups = store.pipelines()._connect.__self__._resolver  # type: ignore[attr-defined]
        calls = [asyncio.ensure_future(lookups.addresses("state.example", 1)) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(lookups._pending) == 1
        calls[0].cancel()
        resolver.set()
        assert await asyncio.gather(*calls[1:]) == [["127.0.0.1"]] * 2
        assert not lookups._pending

    with open_redis(valkey.url) as store:
        asyncio.run(story(store))


@pytest.mark.parametrize(
    ("addresses", "is_answered"), [(["127.0.0.2", "127.0.0.1"], True), (["127.0.0.2"], False), ([], False)]
)
def test_resolver__several_addresses__are_tried_in_turn(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, addresses: list[str], is_answered: bool
) -> None:
    def look_up(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, valkey.port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def story(store: RedisStore) -> object:
        try:
            return await store.apply_async(READ)
        except StateUnavailableError as error:
            return error
        finally:
            await store.aclose()

    with open_redis(valkey.url.replace("127.0.0.1", "state.example"), timeout=5) as store:
        assert (asyncio.run(story(store)) is None) is is_answered


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70 + ".example"])
def test_resolver__impossible_name__raises_for_blocking_and_awaiting_callers(host: str) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            await store.apply_async(READ)
        await store.aclose()

    with open_redis(f"redis://{host}:1/0", timeout=5) as store:
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            store.apply(READ)
        asyncio.run(story(store))


# malformed replies ------------------------------------------------------------------------------------------


GARBAGE = [
    b"?not a reply\r\n",
    b"$nonsense\r\n",
    b":12\r\n",
    b"+OK\r\n",
    b"*1\r\n*1\r\n:1\r\n",
    b"%1\r\n+a\r\n+b\r\n",
    b"\0\xff\xfe\r\n",
    b"*2\r\n:1\r\n$-5\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_reply__malformed__raises_and_closes_the_connection(proxy: FaultProxy, garbage: bytes) -> None:
    async def story(store: RedisStore) -> None:
        await warm_up_async(store)
        loop_pipeline = store.pipelines()._pipeline_for(asyncio.get_running_loop())
        proxy.garble_replies(garbage=garbage, matching="EVALSHA")
        with pytest.raises(StateError):
            await store.apply_async(READ)
        assert loop_pipeline._connection is None
        await warm_up_async(store)
        await store.aclose()

    with open_redis(proxy.url) as store:
        warm_up(store)
        proxy.garble_replies(garbage=garbage, matching="EVALSHA")
        with pytest.raises(StateError):
            store.apply(READ)
        assert not store._pool.idle
        asyncio.run(story(store))


def test_handshake__malformed__raises_for_blocking_and_awaiting_callers(proxy: FaultProxy) -> None:
    async def story(store: RedisStore) -> None:
        proxy.garble_replies(garbage=b"?HTTP\r\n")
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            await store.apply_async(READ)
        await store.aclose()

    with open_redis(proxy.url, timeout=5) as store:
        proxy.garble_replies(garbage=b"?HTTP\r\n")
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            store.apply(READ)
        asyncio.run(story(store))


@pytest.mark.parametrize("fault", ["lose_replies", "truncate_replies", "truncate_requests"])
def test_call__connection_lost_halfway__is_not_sent_again(proxy: FaultProxy, fault: str) -> None:
    async def story(store: RedisStore) -> None:
        await warm_up_async(store)
        getattr(proxy, fault)(matching="EVALSHA")
        with pytest.raises(StateUnavailableError):
            await store.apply_async(WriteRecord("s", "n", b"2", None, b"1"))
        await store.aclose()

    with open_redis(proxy.url, timeout=5) as store:
        warm_up(store)
        store.apply(WriteRecord("s", "n", b"0", None))
        getattr(proxy, fault)(matching="EVALSHA")
        with pytest.raises(StateUnavailableError):
            store.apply(WriteRecord("s", "n", b"1", None, b"0"))
        expected = b"0" if fault == "truncate_requests" else b"1"
        assert store.apply(ReadRecord("s", "n")) == expected
        asyncio.run(story(store))
        expected = b"0" if fault == "truncate_requests" else b"2"
        assert store.apply(ReadRecord("s", "n")) == expected


def test_deadline_socket__used_by_redis_pys_own_parser__receives() -> None:
    """Without hiredis, redis-py reads with ``recv`` and checks with a timeout of 0."""
    near, far = socket.socketpair()
    near.settimeout(1.0)
    bounded = DeadlineSocket(near, time.monotonic_ns(), 1.0)
    far.sendall(b"answer")
    assert bounded.recv(3) == b"ans"
    bounded.set_deadline(time.monotonic_ns() - 10_000_000, 0.05)
    assert bounded.recv(3) == b"wer"
    assert 0.001 <= near.gettimeout() < 0.05  # type: ignore[operator]
    bounded.settimeout(0)
    bounded.set_deadline(time.monotonic_ns() - 10_000_000, 0)
    with pytest.raises(BlockingIOError):
        bounded.recv(1)
    assert bounded.fileno() == near.fileno()
    near.close()
    far.close()


def _receive_into(bounded: DeadlineSocket) -> bytes:
    buffer = bytearray(4)
    return bytes(buffer[: bounded.recv_into(buffer)])


RECEIVE: list[Callable[[DeadlineSocket], bytes]] = [lambda bounded: bounded.recv(4), _receive_into]


@pytest.mark.parametrize("receive", RECEIVE)
def test_deadline_socket__thread_kept_from_running__reads_what_has_arrived(
    receive: Callable[[DeadlineSocket], bytes],
) -> None:
    near, far = socket.socketpair()
    near.settimeout(1.0)
    bounded = DeadlineSocket(near, time.monotonic_ns() - 5_000_000_000, 1.0)
    far.sendall(b"late")
    assert receive(bounded) == b"late"
    near.close()
    far.close()


@pytest.mark.parametrize("receive", RECEIVE)
def test_deadline_socket__passed_twice__reads_no_more(receive: Callable[[DeadlineSocket], bytes]) -> None:
    """A server that sends a byte now and then could otherwise hold a caller indefinitely."""
    near, far = socket.socketpair()
    near.settimeout(1.0)
    bounded = DeadlineSocket(near, time.monotonic_ns(), 1.0)
    bounded.set_deadline(time.monotonic_ns(), 0.02)
    with pytest.raises(TimeoutError):
        receive(bounded)
    bounded.set_deadline(time.monotonic_ns() - 5_000_000_000, 0.02)
    with pytest.raises(TimeoutError):
        receive(bounded)
    far.sendall(b"late")
    with pytest.raises(TimeoutError):
        receive(bounded)
    bounded.set_deadline(time.monotonic_ns(), 1.0)
    assert receive(bounded) == b"late"
    near.close()
    far.close()


def test_loop__ends_without_aclose__closes_its_connection(
    valkey: Server, recwarn: pytest.WarningsRecorder
) -> None:
    """``asyncio.run`` shuts generators down; a transport left open would be a warning under ``-X dev``."""
    with open_redis(valkey.url, timeout=5) as store:
        for _ in range(2):
            assert asyncio.run(store.apply_async(READ)) is None
        gc.collect()
        [last] = store.pipelines()._by_loop.values()
        assert last._connection is None
    assert [str(each.message) for each in recwarn if issubclass(each.category, ResourceWarning)] == []


def test_connections__attempt_hangs__a_caller_that_waits_gets_another() -> None:
    """The packets of the first attempt were lost: the second finds the network in order."""
    over, attempts = threading.Event(), []

    def connect(seconds: float) -> Any:
        attempts.append(seconds)
        if len(attempts) == 1:
            over.wait(10)
        return len(attempts)

    pending = pool.PendingConnections(connect, deque(), "redis://test", 10.0)
    try:
        connection: Any = pending.wait(MONOTONIC.now_ns(), 10.0)
        assert connection == 2
    finally:
        over.set()


def test_connections__older_attempt_fails__a_caller_makes_its_own() -> None:
    """The older attempt began during an outage. Its failure says nothing about the server of now."""
    over, attempts = threading.Event(), []

    def connect(seconds: float) -> Any:
        attempts.append(seconds)
        if len(attempts) == 1:
            over.wait(60)
            raise OSError("timed out")
        return len(attempts)

    pending = pool.PendingConnections(connect, deque(), "redis://test", 60.0)
    with ThreadPoolExecutor() as threads:
        try:
            with pytest.raises(StateUnavailableError, match="still connecting"):
                pending.wait(MONOTONIC.now_ns(), 0.01)
            caller: Any = threads.submit(pending.wait, MONOTONIC.now_ns(), 60.0)
            wait_until(lambda: len(pending.waiters) == 1)
        finally:
            over.set()
        assert caller.result(60) == 2


def test_async_call__older_attempt_to_connect_fails__makes_its_own(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[AsyncEndpoint] = []
    connect = AsyncEndpoint.connect

    async def story(store: RedisStore) -> None:
        is_lost = asyncio.Event()

        async def lose_the_first(endpoint: AsyncEndpoint, *arguments: Any) -> Any:
            attempts.append(endpoint)
            if len(attempts) == 1:
                await is_lost.wait()
                raise OSError("timed out")
            return await connect(endpoint, *arguments)

        monkeypatch.setattr(AsyncEndpoint, "connect", lose_the_first)
        with pytest.raises(StateUnavailableError, match="still connecting"):
            await store.apply_async(READ)
        store.deadline = AdaptiveDeadline(60.0, 60.0)
        call = asyncio.create_task(store.apply_async(READ))
        for _ in range(10):
            await asyncio.sleep(0)  # sleeps: until the call waits for the attempt
        is_lost.set()
        await call
        assert len(attempts) == 2
        await store.aclose()

    with open_redis(valkey.url) as store:
        asyncio.run(story(store))


def test_async_call__after_an_outage__has_time_to_connect_if_the_heartbeat_was_answered(
    valkey: Server,
) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply_async(READ)
        [pipeline] = store.pipelines()._by_loop.values()
        assert pipeline._connect_allowance() == 0, "it is connected"
        await pipeline._drop_connection()
        assert pipeline._connect_allowance() > 0, "the server answered this loop just now"
        pipeline._used_ns = store.deadline.answered_ns = 1
        assert pipeline._connect_allowance() == 0
        await asyncio.to_thread(store.probe)
        assert pipeline._connect_allowance() > 0
        await store.aclose()

    with open_redis(valkey.url, timeout=60) as store:
        asyncio.run(story(store))
