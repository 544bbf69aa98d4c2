"""Whatever the server, the network or the resolver does: a named error, and in time.

The bound of a call is 50 ms here unless said otherwise; half a second is left for a busy machine, far less
than anything else on the way would take. A test that is late nevertheless is tried anew.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from tests.support import command, within

from comporta import StateError, StateTimeoutError, StateUnavailableError
from comporta.stores import pool, redis_async
from comporta.stores.connecting import BoundedSocket
from comporta.stores.records import Read, Write
from comporta.stores.redis import RedisStore
from comporta.testing import FaultProxy, Server

TIMEOUT = 0.05
IN_TIME = 0.5
READ = Read("s", "k")


@pytest.fixture
def proxy(valkey: Server) -> Iterator[FaultProxy]:
    command(valkey, "FLUSHALL")
    with FaultProxy.to(valkey) as proxy:
        yield proxy


@contextmanager
def opened(url: str, timeout: float = TIMEOUT, connect_timeout: float = 5.0) -> Iterator[RedisStore]:
    store = RedisStore(url, timeout, connect_timeout=connect_timeout)
    yield store
    store.close()


def in_time() -> AbstractContextManager[None]:
    return within(IN_TIME)


def warmed(store: RedisStore) -> None:
    """Connect, taking all the time it takes."""
    store.reach()
    bound, store._pool._timeout = store._pool._timeout, 5.0
    store.apply(READ)  # and load the script
    store._pool._timeout = bound


async def warmed_async(store: RedisStore) -> None:
    bound, store.timeout = store.timeout, 5.0
    await store.apply_async(READ)
    store.timeout = bound


# a server that does not answer ------------------------------------------------------------------------------


SILENT: list[Callable[[FaultProxy], None]] = [
    lambda proxy: proxy.hang(),
    lambda proxy: proxy.blackhole(),
    lambda proxy: proxy.stall_replies(),
    lambda proxy: proxy.limit_bandwidth(20, "replies"),  # a byte at a time: none of them is late by itself
]


@pytest.mark.parametrize("silenced", SILENT)
def test_call__no_whole_answer__ends_in_time_and_may_have_been_carried_out(
    proxy: FaultProxy, silenced: Callable[[FaultProxy], None]
) -> None:
    with opened(proxy.url) as store:
        warmed(store)
        store.apply(Write("s", "k", b"x" * 100, None))
        silenced(proxy)
        with in_time(), pytest.raises(StateTimeoutError, match="may have been carried out"):
            store.apply(READ)
        assert not store._pool.idle


@pytest.mark.parametrize("silenced", SILENT)
def test_awaited_call__no_whole_answer__ends_in_time_and_may_have_been_carried_out(
    proxy: FaultProxy, silenced: Callable[[FaultProxy], None]
) -> None:
    async def story(store: RedisStore) -> None:
        await warmed_async(store)
        await store.apply_async(Write("s", "k", b"x" * 100, None))
        silenced(proxy)
        with in_time(), pytest.raises(StateTimeoutError, match="may have been carried out"):
            await store.apply_async(READ)
        await store.aclose()

    with opened(proxy.url) as store:
        asyncio.run(story(store))


def test_awaited_calls__behind_a_batch_that_fails__are_told_the_same_at_once(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_async, "_BATCH_MAX", 2)

    async def story(store: RedisStore) -> list[Any]:
        await warmed_async(store)
        proxy.hang()
        asked = [asyncio.ensure_future(store.apply_async(READ)) for _ in range(6)]
        await asyncio.sleep(0.01)
        asked += [asyncio.ensure_future(store.apply_async(READ)) for _ in range(3)]
        await asyncio.sleep(0)
        asked[-1].cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        proxy.heal()
        await store.aclose()
        return answers

    with opened(proxy.url) as store, in_time():
        answers = asyncio.run(story(store))
    assert isinstance(answers.pop(), asyncio.CancelledError)
    assert {type(answer) for answer in answers} == {StateTimeoutError}
    assert len({id(answer) for answer in answers}) == 1


def test_awaited_call__loop_blocked_after_it_was_sent__is_answered(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(store: RedisStore) -> bool:
        await warmed_async(store)
        connection = store.lines()._line_of(asyncio.get_running_loop())._connection
        send = connection.send_packed_command  # type: ignore[union-attr]

        async def sent_then_blocked(packed: bytes, check_health: bool) -> None:
            await send(packed, check_health)
            time.sleep(4 * TIMEOUT)  # noqa: ASYNC251 - that is the point

        monkeypatch.setattr(connection, "send_packed_command", sent_then_blocked)
        written = await store.apply_async(Write("s", "k", b"x", None))
        await store.aclose()
        return written

    with opened(valkey.url) as store:
        assert asyncio.run(story(store))


def test_awaited_call__loop_blocked_before_it_could_be_sent__is_answered(valkey: Server) -> None:
    async def story(store: RedisStore) -> bool:
        await warmed_async(store)
        asked = asyncio.ensure_future(store.apply_async(Write("s", "k", b"x", None)))
        await asyncio.sleep(0)
        time.sleep(4 * TIMEOUT)  # noqa: ASYNC251 - that is the point
        written = await asked
        await store.aclose()
        return written

    with opened(valkey.url) as store:
        assert asyncio.run(story(store))


# connections that take their time ---------------------------------------------------------------------------


def test_call__while_connecting__is_told_that_nothing_was_sent_and_the_next_uses_that_connection(
    proxy: FaultProxy,
) -> None:
    proxy.hang()
    with opened(proxy.url) as store:
        for _ in range(3):
            with (
                in_time(),
                pytest.raises(StateUnavailableError, match=r"still connecting.*nothing was sent"),
            ):
                store.apply(READ)
        proxy.release()
        store.reach()
        store.apply(READ)
        assert proxy.connections == 1


def test_awaited_call__while_connecting__is_told_that_nothing_was_sent_and_the_next_uses_that_connection(
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
        await warmed_async(store)
        await store.aclose()
        assert proxy.connections == 1

    proxy.hang()
    with opened(proxy.url) as store:
        asyncio.run(story(store))


def test_awaiting__closed_while_connecting__leaves_nothing_behind(proxy: FaultProxy) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="still connecting"):
            await store.apply_async(READ)
        await store.aclose()

    proxy.hang()
    with opened(proxy.url) as store:
        asyncio.run(story(store))


def test_connecting__takes_longer_than_it_may__fails(proxy: FaultProxy) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="cannot be reached, nothing was sent"):
            await store.apply_async(READ)
        await store.aclose()

    proxy.hang()
    with opened(proxy.url, timeout=5, connect_timeout=0.05) as store:
        with (
            in_time(),
            pytest.raises(StateUnavailableError, match="cannot be reached, nothing was sent"),
        ):
            store.apply(READ)
        with in_time():
            asyncio.run(story(store))


def test_connecting__a_greeting_byte_by_byte__is_bounded_as_a_whole(proxy: FaultProxy) -> None:
    proxy.limit_bandwidth(20, "replies")
    slow = pytest.raises(StateUnavailableError, match="nothing was sent")
    with opened(proxy.url, timeout=5, connect_timeout=0.1) as store, in_time(), slow:
        store.apply(READ)


def test_connecting__refused__says_so_on_both_faces(proxy: FaultProxy) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="cannot be reached, nothing was sent"):
            await store.apply_async(READ)
        await store.aclose()

    proxy.refuse()
    with opened(proxy.url, timeout=5) as store:
        attempts: list[Callable[[], object]] = [lambda: store.apply(READ), store.reach]
        for attempt in attempts:
            with pytest.raises(StateUnavailableError, match="cannot be reached, nothing was sent"):
                attempt()
        asyncio.run(story(store))


def test_connecting__many_threads_at_once__is_done_by_a_few(proxy: FaultProxy) -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    with opened(proxy.url, timeout=10) as store:
        connect = store.route.connect

        def counted(seconds: float) -> Any:
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            try:
                return connect(seconds)
            finally:
                with lock:
                    at_once -= 1

        store._pool._connects._connect = counted
        with ThreadPoolExecutor(40) as threads:
            assert list(threads.map(lambda _: store.apply(READ), range(400))) == [None] * 400
        assert 1 <= most <= pool.CONNECTS_MAX
        assert proxy.connections <= 40 + pool.CONNECTS_MAX


def test_connecting__no_more_threads__is_done_in_place(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with opened(valkey.url, timeout=5) as store:
        assert store.apply(READ) is None


def test_connecting__begun_by_somebody_who_was_interrupted__keeps_nobody_from_it(valkey: Server) -> None:
    with opened(valkey.url, timeout=5) as store:
        store._pool._connects._under_way = {object(): 0 for _ in range(pool.CONNECTS_MAX)}
        assert store.apply(READ) is None
        assert not store._pool._connects._under_way


def test_connecting__finished_after_closing__is_closed(proxy: FaultProxy) -> None:
    proxy.hang()
    with opened(proxy.url) as store:
        with pytest.raises(StateUnavailableError, match="still connecting"):
            store.apply(READ)
        [thread] = [thread for thread in threading.enumerate() if thread.name == "comporta-connect"]
        store.close()
        proxy.release()
        thread.join(60)
        assert not store._pool.idle


def test_connecting__one_hangs__a_later_caller_tries_anew(proxy: FaultProxy) -> None:
    proxy.hang()
    with opened(proxy.url, connect_timeout=0.5) as store:
        store._pool._connects._seconds = 0.02  # what is under way is written off sooner than it ends
        for _ in range(pool.CONNECTS_MAX + 2):
            with pytest.raises(StateUnavailableError):
                store.apply(READ)
        assert 1 < proxy.connections <= pool.CONNECTS_MAX + 4
        proxy.release()


def test_idle__taken_by_another_thread__is_waited_for_again(valkey: Server) -> None:
    """The deque is shared without a lock: what was seen a moment ago may be gone."""

    class Emptied(type(pool.deque())):  # type: ignore[misc]
        lies = 2

        def __bool__(self) -> bool:
            self.lies -= 1
            return self.lies >= 0 or len(self) > 0

    with opened(valkey.url, timeout=5) as store:
        store._pool.idle = store._pool._connects._idle = Emptied()
        assert store.apply(READ) is None


# names ------------------------------------------------------------------------------------------------------


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Give a resolver that hangs until it is set free."""
    free = threading.Event()
    look_up = socket.getaddrinfo

    def hanging(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "state.example":
            free.wait(60)
            host = "127.0.0.1"
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    yield free
    free.set()


def test_name__resolver_hangs__holds_no_caller_and_not_the_end_of_the_loop(
    valkey: Server, resolver: threading.Event
) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="still connecting"):
            await store.apply_async(READ)

    with opened(valkey.url.replace("127.0.0.1", "state.example")) as store:
        with in_time(), pytest.raises(StateUnavailableError, match="still connecting"):
            store.apply(READ)
        with in_time():
            asyncio.run(story(store))
        resolver.set()
        store.reach()
        assert store.apply(READ) is None


def test_name__asked_for_by_many_at_once__is_looked_up_once(
    valkey: Server, resolver: threading.Event
) -> None:
    async def story(store: RedisStore) -> None:
        names = store.lines()._connect.__self__._names  # type: ignore[attr-defined]
        asked = [asyncio.ensure_future(names.addresses("state.example", 1)) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(names._under_way) == 1
        asked[0].cancel()
        resolver.set()
        assert await asyncio.gather(*asked[1:]) == [["127.0.0.1"]] * 2
        assert not names._under_way

    with opened(valkey.url) as store:
        asyncio.run(story(store))


@pytest.mark.parametrize(
    ("found", "answered"), [(["127.0.0.2", "127.0.0.1"], True), (["127.0.0.2"], False), ([], False)]
)
def test_name__of_several_addresses__is_tried_at_each(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, found: list[str], answered: bool
) -> None:
    def look_up(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, valkey.port)) for place in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def story(store: RedisStore) -> object:
        try:
            return await store.apply_async(READ)
        except StateUnavailableError as error:
            return error
        finally:
            await store.aclose()

    with opened(valkey.url.replace("127.0.0.1", "state.example"), timeout=5) as store:
        assert (asyncio.run(story(store)) is None) is answered


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70 + ".example"])
def test_name__that_cannot_be__is_named_on_both_faces(host: str) -> None:
    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            await store.apply_async(READ)
        await store.aclose()

    with opened(f"redis://{host}:1/0", timeout=5) as store:
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            store.apply(READ)
        asyncio.run(story(store))


# what is no answer ------------------------------------------------------------------------------------------


GARBAGE = [
    b"?this is no reply\r\n",
    b"$nonsense\r\n",
    b":12\r\n",
    b"+OK\r\n",
    b"*1\r\n*1\r\n:1\r\n",
    b"%1\r\n+a\r\n+b\r\n",
    b"\0\xff\xfe\r\n",
    b"*2\r\n:1\r\n$-5\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage__on_the_wire__is_an_error_that_ends_the_connection(
    proxy: FaultProxy, garbage: bytes
) -> None:
    async def story(store: RedisStore) -> None:
        await warmed_async(store)
        line = store.lines()._line_of(asyncio.get_running_loop())
        proxy.garble_replies(garbage=garbage, to="EVALSHA")
        with pytest.raises(StateError):
            await store.apply_async(READ)
        assert line._connection is None
        await warmed_async(store)
        await store.aclose()

    with opened(proxy.url) as store:
        warmed(store)
        proxy.garble_replies(garbage=garbage, to="EVALSHA")
        with pytest.raises(StateError):
            store.apply(READ)
        assert not store._pool.idle
        asyncio.run(story(store))


def test_garbage__as_a_greeting__is_an_error_on_both_faces(proxy: FaultProxy) -> None:
    async def story(store: RedisStore) -> None:
        proxy.garble_replies(garbage=b"?HTTP\r\n")
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            await store.apply_async(READ)
        await store.aclose()

    with opened(proxy.url, timeout=5) as store:
        proxy.garble_replies(garbage=b"?HTTP\r\n")
        with pytest.raises(StateUnavailableError, match="nothing was sent"):
            store.apply(READ)
        asyncio.run(story(store))


@pytest.mark.parametrize("lost", ["lose_replies", "cut_replies", "cut_requests"])
def test_call__connection_lost_in_the_middle__is_not_sent_again(proxy: FaultProxy, lost: str) -> None:
    async def story(store: RedisStore) -> None:
        await warmed_async(store)
        getattr(proxy, lost)(to="EVALSHA")
        with pytest.raises(StateUnavailableError):
            await store.apply_async(Write("s", "n", b"2", None, b"1"))
        await store.aclose()

    with opened(proxy.url, timeout=5) as store:
        warmed(store)
        store.apply(Write("s", "n", b"0", None))
        getattr(proxy, lost)(to="EVALSHA")
        with pytest.raises(StateUnavailableError):
            store.apply(Write("s", "n", b"1", None, b"0"))
        expected = b"0" if lost == "cut_requests" else b"1"
        assert store.apply(Read("s", "n")) == expected
        asyncio.run(story(store))
        expected = b"0" if lost == "cut_requests" else b"2"
        assert store.apply(Read("s", "n")) == expected


def test_bounded_socket__used_as_redis_pys_own_parser_does__receives() -> None:
    """Without hiredis, redis-py reads with ``recv`` and looks with a timeout of 0."""
    near, far = socket.socketpair()
    near.settimeout(1.0)
    bounded = BoundedSocket(near, time.monotonic_ns(), 1.0)
    far.sendall(b"answer")
    assert bounded.recv(3) == b"ans"
    bounded.begin(time.monotonic_ns() - 10_000_000, 0.05)
    assert bounded.recv(3) == b"wer"
    assert 0.001 <= near.gettimeout() < 0.05  # type: ignore[operator]
    bounded.settimeout(0)
    bounded.begin(time.monotonic_ns() - 10_000_000, 0)
    with pytest.raises(BlockingIOError):
        bounded.recv(1)
    assert bounded.fileno() == near.fileno()
    near.close()
    far.close()


def test_bounded_socket__long_past_its_deadline__reads_nothing_more() -> None:
    """A server that sends a byte now and then would otherwise hold a caller for as long as it likes."""
    near, far = socket.socketpair()
    near.settimeout(1.0)
    bounded = BoundedSocket(near, time.monotonic_ns() - 5_000_000_000, 1.0)
    far.sendall(b"late")
    with pytest.raises(TimeoutError):
        bounded.recv(1)
    near.close()
    far.close()
