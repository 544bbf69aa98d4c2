"""The Redis engine in one process: pipelines, connections, scripts and forks."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import redis
from tests.support import command, redis_store

from comporta import (
    BaseLimiter,
    LimitConfig,
    LimitStrategy,
    RedisLimiter,
    StateError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.bound_limits import RemoteBoundLimit
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.reply import LimitReply
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis import async_batches, pool
from comporta.stores.redis import store as redis_store_module
from comporta.stores.redis.cluster_hop import RewrittenOperation
from comporta.stores.redis.connection_async import NameResolver
from comporta.stores.redis.pool import ConnectThreads, wait_for_connects
from comporta.stores.redis.sentinel import MultiHostURL
from comporta.stores.redis.store import RedisStore
from comporta.stores.registry import close_stores, open_store
from comporta.testing import FaultProxy, Server


def test_redis__package_missing__names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StateUnavailableError, match=r"pip install 'comporta\[redis\]'"):
        RedisStore("redis://127.0.0.1")


def test_redis__wrong_password__raises_without_showing_a_secret() -> None:
    with Server(None, "--requirepass", "right") as server:
        url = server.url.replace("redis://", "redis://:hunter2@")
        store = RedisStore(url)
        attempts: list[Callable[[], object]] = [
            lambda: store.apply(ReadRecord("s", "k")),
            lambda: asyncio.run(_read_and_close(store)),
        ]
        for attempt in attempts:
            with pytest.raises(StateUnavailableError) as raised:
                attempt()
            shown = f"{raised.value!r} {raised.value.__cause__!r}"
            assert f"127.0.0.1:{server.port}" in shown
            assert "hunter2" not in shown
            assert "right" not in shown


async def _read_and_close(store: RedisStore) -> bytes | None:
    try:
        return await store.apply_async(ReadRecord("s", "k"))
    finally:
        await store.aclose()


def test_redis__wrong_type_at_a_record__names_the_key(valkey: Server) -> None:
    with redis_store(valkey) as store:
        command(valkey, "RPUSH", "s:k", "x")
        with pytest.raises(StateTypeError, match="'s:k'"):
            store.apply(ReadRecord("s", "k"))
        assert store.apply(WriteRecord("s", "other", b"x", None)) is True


def test_redis__entries_async_and_aclose__work(valkey: Server) -> None:
    async def story(store: RedisStore) -> None:
        assert await store.entries_async("s") == {}
        await store.apply_async(WriteRecord("s", "k", b"x", None))
        assert await store.entries_async("s") == {"k": b"x"}
        await store.aclose()

    with redis_store(valkey) as store:
        asyncio.run(store.aclose())  # nothing to close yet
        asyncio.run(story(store))


def test_redis__interrupted_during_a_call__drops_the_connection(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_store(valkey) as store:
        store.apply(WriteRecord("s", "k", b"value", None))
        connection = store._pool.idle[0][0]

        def interrupt() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(connection, "read_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.apply(ReadRecord("s", "other"))
        assert store.apply(ReadRecord("s", "k")) == b"value"


def test_redis__queue_full__is_refused(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_batches, "_QUEUED_MAX", 3)

    async def story(store: RedisStore) -> list[Any]:
        calls = [store.apply_async(ReadRecord("s", "k")) for _ in range(5)]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        await store.aclose()
        return replies

    with redis_store(valkey) as store:
        replies = asyncio.run(story(store))
    assert [type(reply) for reply in replies] == [type(None)] * 3 + [StateError] * 2


def test_redis__send_task_cancelled__cancels_its_callers(valkey: Server) -> None:
    async def story(store: RedisStore) -> list[Any]:
        calls = [asyncio.ensure_future(store.apply_async(ReadRecord("s", "k"))) for _ in range(3)]
        await asyncio.sleep(0)
        loop_pipeline = store.pipelines()._pipeline_for(asyncio.get_running_loop())
        assert loop_pipeline._send_task is not None
        await asyncio.sleep(0)
        calls.append(asyncio.ensure_future(store.apply_async(ReadRecord("s", "k"))))
        await asyncio.sleep(0)
        loop_pipeline._send_task.cancel()
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert await store.apply_async(ReadRecord("s", "k")) is None
        await store.aclose()
        return replies

    with redis_store(valkey) as store:
        assert all(isinstance(reply, asyncio.CancelledError) for reply in asyncio.run(story(store)))


def test_redis__event_loops_closed__are_dropped(valkey: Server) -> None:
    async def read(store: RedisStore) -> None:
        await store.apply_async(ReadRecord("s", "k"))
        loop_pipeline = store.pipelines()._pipeline_for(asyncio.get_running_loop())
        assert loop_pipeline._connection is not None
        await loop_pipeline._connection.disconnect()

    with redis_store(valkey) as store:
        for _ in range(4):
            asyncio.run(read(store))
            gc.collect()
        assert len(store.pipelines()._by_loop) <= 2


def test_redis__idle_connection_that_cannot_be_checked__is_replaced(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that cannot even be checked is not used."""

    def broken(*_: object, **__: object) -> bool:
        raise OSError("closed")

    with redis_store(valkey) as store:
        store.apply(ReadRecord("s", "k"))
        connection, _ = store._pool.idle.pop()
        monkeypatch.setattr(connection, "can_read", broken)
        store._pool.idle.append((connection, 0))
        assert store.apply(ReadRecord("s", "k")) is None
        assert store._pool.idle[0][0] is not connection


def test_consume_error__failed_or_cancelled_future__is_not_logged(valkey: Server) -> None:
    async def story() -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(async_batches._consume_error)
        future.set_exception(StateError("no caller awaits this"))
        await asyncio.sleep(0)
        other: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        other.add_done_callback(async_batches._consume_error)
        other.cancel()
        await asyncio.sleep(0)

    asyncio.run(story())


def test_redis__caller_of_a_read_cancelled__needs_no_undo(valkey: Server) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply_async(ReadRecord("s", "k"))
        calls = asyncio.ensure_future(store.apply_async(ReadRecord("s", "k")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls.cancel()
        assert await store.apply_async(ReadRecord("s", "k")) is None
        await store.aclose()

    with redis_store(valkey) as store:
        asyncio.run(story(store))


def test_undo__caller_cancelled__gives_back_what_was_granted() -> None:
    demand = LimitDemand(LimitConfig(10, 10).build_strategy(), "n", "k", 2)
    granted, refused = LimitReply(0, 10, 8, 0, 1, 0), LimitReply(5, 10, 0, 5, 1, 0)
    undo = LimitOperation([demand]).undo([granted])
    assert undo is not None
    assert undo.demands[0].amount == -2
    assert LimitOperation([demand]).undo([refused]) is None
    assert LimitOperation([demand], max_wait_us=9).undo([granted]) is None
    assert LimitOperation([demand._replace(amount=0)]).undo([granted]) is None


def test_remote_bound_limit__try_acquire__would_block(valkey: Server) -> None:
    with redis_store(valkey) as store:
        bound = RemoteBoundLimit(store, LimitDefinition(LimitConfig(10, 10).build_strategy(), "n"))
        with pytest.raises(WouldBlock):
            bound.try_acquire("k", 1)


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_redis__scripts_flushed__are_sent_again(valkey: Server, strategy: LimitStrategy) -> None:
    async def story() -> list[bool]:
        limiter = RedisLimiter(
            LimitConfig(1, 9, 60, strategy), valkey.url + "?timeout=5", f"flush-{strategy.value}"
        )
        replies: list[bool] = []
        for _ in range(2):
            command(valkey, "SCRIPT", "FLUSH")
            replies.append(await limiter.acquire(str(len(replies))))
            command(valkey, "SCRIPT", "FLUSH")
            replies.append((await limiter.decide(str(len(replies)))).allowed)
        await limiter.aclose()
        return replies

    assert asyncio.run(story()) == [True] * 4
    close_stores()


def test_sliding_window__lowered_below_a_cost__waits_for_an_empty_log() -> None:
    limiter = BaseLimiter(LimitConfig(1, 10, 100, LimitStrategy.SLIDING_WINDOW)).sync
    limiter.acquire("k")
    limiter.set_limit(LimitConfig(1, 2, 100, LimitStrategy.SLIDING_WINDOW))
    assert 99 < limiter.decide("k", 8).retry_after <= 100


def test_redis__many_records__are_listed_page_by_page(valkey: Server) -> None:
    with redis_store(valkey) as store:
        for number in range(1_200):
            store.apply(WriteRecord("many", str(number), b"%d" % number, 60))
        assert store.entries("many") == {str(number): b"%d" % number for number in range(1_200)}


def test_redis__after_a_fork__uses_new_connections(valkey: Server) -> None:
    async def read(store: RedisStore) -> None:
        assert await store.apply_async(ReadRecord("s", "k")) is None
        loop_pipeline = store.pipelines()._pipeline_for(asyncio.get_running_loop())
        store.after_fork()
        assert store._pipelines is None
        assert await store.apply_async(ReadRecord("s", "k")) is None
        await store.aclose()
        await loop_pipeline.aclose()

    with redis_store(valkey) as store:
        store.apply(ReadRecord("s", "k"))
        connection = store._pool.idle[0][0]
        asyncio.run(read(store))
        assert not store._pool.idle
        assert store.apply(ReadRecord("s", "k")) is None
        connection.disconnect()


def test_redis__used_after_close__leaves_no_connection(valkey: Server) -> None:
    """A background thread may release a permit a few milliseconds after the store was closed."""
    with redis_store(valkey) as store:
        store.apply(ReadRecord("s", "k"))
        store.close_connections()
        store.apply(ReadRecord("s", "k"))
        assert len(store._pool.idle) == 1
        store.close()
        store.apply(ReadRecord("s", "k"))
        assert not store._pool.idle


def test_redis__more_connections_than_are_kept__are_closed(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE_MAX", 2)
    with redis_store(valkey) as store:
        connections = [store.route.connect(5) for _ in range(3)]
        for connection in connections:
            store._pool._return_connection(connection)
        assert [connection for connection, _ in store._pool.idle] == connections[:2]
        assert connections[2]._sock is None  # type: ignore[attr-defined]  # redis-py's


def test_redis__closed_twice__is_harmless(valkey: Server) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply_async(ReadRecord("s", "k"))
        await store.aclose()
        await store.aclose()

    with redis_store(valkey) as store:
        asyncio.run(story(store))


def test_redis__pipeline_connection_that_cannot_be_checked__is_replaced(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply_async(ReadRecord("s", "k"))
        loop_pipeline = store.pipelines()._pipeline_for(asyncio.get_running_loop())

        async def broken() -> bool:
            raise redis.ConnectionError("closed")

        monkeypatch.setattr(loop_pipeline._connection, "can_read", broken)
        loop_pipeline._used_ns = 0
        assert await store.apply_async(ReadRecord("s", "k")) is None
        await store.aclose()

    with redis_store(valkey) as store:
        asyncio.run(story(store))


def test_redis__error_of_a_whole_call__reaches_all_callers_but_cancelled_ones(
    valkey: Server,
) -> None:
    """A record of the wrong type fails the call; one caller is cancelled by then."""

    async def story(store: RedisStore) -> list[Any]:
        calls = [asyncio.ensure_future(store.apply_async(ReadRecord("s", "k"))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls[0].cancel()
        replies = await asyncio.gather(*calls, return_exceptions=True)
        await store.aclose()
        return replies

    with redis_store(valkey) as store:
        command(valkey, "RPUSH", "s:k", "x")
        replies = asyncio.run(story(store))
    assert [type(reply) for reply in replies] == [asyncio.CancelledError, StateTypeError, StateTypeError]


def test_rewritten_operation__other_script__does_what_the_operation_does() -> None:
    definition = LimitDefinition(LimitConfig(10, 10).build_strategy(), "asking")
    operation = AcquireOperation(definition, "k", 1)
    rewritten = RewrittenOperation(operation, asking=True, states_only=False)
    assert rewritten.script == operation.script._replace(asking=True)
    assert rewritten.state_keys == operation.state_keys
    assert rewritten.step([None, None], 0) == operation.step([None, None], 0)
    assert rewritten.script_keys() == operation.script_keys()
    assert rewritten.script_args() == operation.script_args()
    assert rewritten.undo(5) is None


def test_asking__refused_by_the_server__leaves_no_reply_for_the_next_caller(valkey: Server) -> None:
    """A server that is not a cluster refuses ASKING and still replies the call after it."""
    definition = LimitDefinition(LimitConfig(10, 10).build_strategy(), "asking")
    asking: Any = RewrittenOperation(AcquireOperation(definition, "k", 1), asking=True, states_only=False)

    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError):
            await store.apply_async(asking)
        assert await store.apply_async(ReadRecord("s", "nothing")) is None
        await store.aclose()

    with redis_store(valkey) as store:
        store.apply(AcquireOperation(definition, "k", 1))
        with pytest.raises(StateUnavailableError):
            store.apply(asking)
        assert store.apply(ReadRecord("s", "nothing")) is None
        command(valkey, "SET", "rate_limiter:asking:k", "not a hash")
        command(valkey, "SCRIPT", "FLUSH")
        with pytest.raises(StateUnavailableError):  # both replies are errors
            store.apply(asking)
        assert store.apply(ReadRecord("s", "nothing")) is None
        asyncio.run(story(store))


def test_resolver__no_thread_available__works_for_the_next_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        resolver = NameResolver()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                await resolver.addresses("localhost", 1)
        assert await resolver.addresses("localhost", 1)

    asyncio.run(story())


@pytest.mark.parametrize(
    "url", ["redis://:123/45hunter2@h:1/0", "redis://:hunter2/x@h:1", "redis+cluster://h:hunter2/0"]
)
def test_url__unquoted_password__is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match="state cannot be read") as raised:
        open_store(url)
    assert "hunter2" not in f"{raised.value!r} {raised.value.__cause__!r}"
    with pytest.raises(ValueError, match="a port must be a number"):
        MultiHostURL.parse("redis+cluster://h:x/0", 1)


def test_url__fixed_option__is_ignored(valkey: Server) -> None:
    with closing(RedisStore(f"{valkey.url}?decode_responses=true", timeout=5)) as store:
        store.apply(WriteRecord("s", "k", b"x", None))
        assert store.apply(ReadRecord("s", "k")) == b"x"


def test_fork__no_pipelines_yet__keeps_none_for_the_parent(valkey: Server) -> None:
    with redis_store(valkey) as store:
        before = len(redis_store_module._parent_pipelines)
        store.after_fork()
        assert len(redis_store_module._parent_pipelines) == before
        assert store.apply(ReadRecord("s", "k")) is None


EXITS_WHILE_CONNECTING = """
import atexit, sys, threading

def print_connecting():
    print([thread.name for thread in threading.enumerate() if thread.name == "comporta-connect"])

atexit.register(print_connecting)  # before comporta registers anything, so that it is called last
from comporta.errors import StateUnavailableError
from comporta.stores.records import ReadRecord
from comporta.stores.redis import pool
from comporta.stores.redis.store import RedisStore

pool._EXIT_SECONDS_MAX = 60
try:
    RedisStore(sys.argv[1], timeout=0.001).apply(ReadRecord("s", "k"))
except StateUnavailableError as error:
    print(error)
"""


def test_exit__while_a_thread_connects__waits_for_it(valkey: Server) -> None:
    with FaultProxy.to(valkey) as proxy:
        proxy.hang("replies")
        with subprocess.Popen(
            [sys.executable, "-c", EXITS_WHILE_CONNECTING, proxy.url], stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline().startswith("still connecting")
            proxy.release()
            assert program.stdout.readline() == "[]\n"


def test_connect_threads__in_a_forked_child__are_not_waited_for() -> None:
    threads, may_end = ConnectThreads(), threading.Event()
    assert threads.start(partial(_append_after, may_end, [], 0))
    threads.after_fork()
    threads.wait(60)
    assert not may_end.is_set()
    may_end.set()


def test_wait_for_connects__several_threads__waits_for_all() -> None:
    ended: list[int] = []
    may_end = threading.Event()
    threads = pool._connecting.get()
    for number in range(3):
        assert threads.start(partial(_append_after, may_end, ended, number))
    may_end.set()
    threads.wait(60)
    wait_for_connects()
    assert sorted(ended) == [0, 1, 2]


def _append_after(event: threading.Event, items: list[int], item: int) -> None:
    event.wait(60)
    items.append(item)
