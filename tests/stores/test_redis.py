"""What is particular to state on a server, as far as one process can show it."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import closing
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
from comporta.limits.operation import Answer, LimitOperation, Question
from comporta.limits.remote import RemoteBound
from comporta.limits.take import Asked, Take
from comporta.stores import redis as redis_store_module
from comporta.stores import redis_async
from comporta.stores.base import Busy
from comporta.stores.cluster import _Rewritten
from comporta.stores.connecting_async import Names
from comporta.stores.records import Read, Write
from comporta.stores.redis import RedisStore
from comporta.stores.routes import Several
from comporta.stores.urls import forget_stores, open_store
from comporta.testing import Server


def test_redis__package_missing__names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StateUnavailableError, match=r"pip install 'comporta\[redis\]'"):
        RedisStore("redis://127.0.0.1")


def test_redis__wrong_password__is_loud_and_shows_no_secret() -> None:
    with Server(None, "--requirepass", "right") as server:
        url = server.url.replace("redis://", "redis://:hunter2@")
        store = RedisStore(url)
        attempts: list[Callable[[], object]] = [
            lambda: store.apply(Read("s", "k")),
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
        return await store.apply_async(Read("s", "k"))
    finally:
        await store.aclose()


def test_redis__wrong_type_at_a_record__names_the_key(valkey: Server) -> None:
    with redis_store(valkey) as store:
        command(valkey, "RPUSH", "s:k", "x")
        with pytest.raises(StateTypeError, match="'s:k'"):
            store.apply(Read("s", "k"))
        assert store.apply(Write("s", "other", b"x", None)) is True


def test_redis__awaited_listing_and_closing__work(valkey: Server) -> None:
    async def story(store: RedisStore) -> None:
        assert await store.entries_async("s") == {}
        await store.apply_async(Write("s", "k", b"x", None))
        assert await store.entries_async("s") == {"k": b"x"}
        await store.aclose()

    with redis_store(valkey) as store:
        asyncio.run(store.aclose())  # nothing to close yet
        asyncio.run(story(store))


def test_redis__interrupted_in_mid_call__uses_that_connection_no_more(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_store(valkey) as store:
        store.apply(Write("s", "k", b"mine", None))
        connection = store._pool.idle[0][0]

        def interrupted() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(connection, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.apply(Read("s", "other"))
        assert store.apply(Read("s", "k")) == b"mine"


def test_redis__too_many_waiting__is_refused(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_async, "_WAITING_MAX", 3)

    async def story(store: RedisStore) -> list[Any]:
        asked = [store.apply_async(Read("s", "k")) for _ in range(5)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await store.aclose()
        return answers

    with redis_store(valkey) as store:
        answers = asyncio.run(story(store))
    assert [type(answer) for answer in answers] == [type(None)] * 3 + [StateError] * 2


def test_redis__loop_ends_while_a_batch_is_under_way__its_callers_are_cancelled(valkey: Server) -> None:
    async def story(store: RedisStore) -> list[Any]:
        asked = [asyncio.ensure_future(store.apply_async(Read("s", "k"))) for _ in range(3)]
        await asyncio.sleep(0)
        line = store.lines()._line_of(asyncio.get_running_loop())
        assert line._sending is not None
        await asyncio.sleep(0)
        asked.append(asyncio.ensure_future(store.apply_async(Read("s", "k"))))
        await asyncio.sleep(0)
        line._sending.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert await store.apply_async(Read("s", "k")) is None
        await store.aclose()
        return answers

    with redis_store(valkey) as store:
        assert all(isinstance(answer, asyncio.CancelledError) for answer in asyncio.run(story(store)))


def test_redis__loops_that_ended__are_forgotten(valkey: Server) -> None:
    async def ask(store: RedisStore) -> None:
        await store.apply_async(Read("s", "k"))
        line = store.lines()._line_of(asyncio.get_running_loop())
        assert line._connection is not None
        await line._connection.disconnect()

    with redis_store(valkey) as store:
        for _ in range(4):
            asyncio.run(ask(store))
            gc.collect()
        assert len(store.lines()._by_loop) <= 2


def test_redis__connection_spoiled_while_idle__is_replaced(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot even be looked at is of no use."""

    def broken(*_: object, **__: object) -> bool:
        raise OSError("no longer there")

    with redis_store(valkey) as store:
        store.apply(Read("s", "k"))
        connection, _ = store._pool.idle.pop()
        monkeypatch.setattr(connection, "can_read", broken)
        store._pool.idle.append((connection, 0))
        assert store.apply(Read("s", "k")) is None
        assert store._pool.idle[0][0] is not connection


def test_redis__answer_to_nobody_that_fails__is_not_complained_of(valkey: Server) -> None:
    async def story() -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(redis_async._unheard)
        future.set_exception(StateError("nobody hears this"))
        await asyncio.sleep(0)
        other: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        other.add_done_callback(redis_async._unheard)
        other.cancel()
        await asyncio.sleep(0)

    asyncio.run(story())


def test_redis__caller_gone_that_took_nothing__needs_nothing_given_back(valkey: Server) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply_async(Read("s", "k"))
        asked = asyncio.ensure_future(store.apply_async(Read("s", "k")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked.cancel()
        assert await store.apply_async(Read("s", "k")) is None
        await store.aclose()

    with redis_store(valkey) as store:
        asyncio.run(story(store))


def test_operation__granted_to_a_caller_that_is_gone__is_given_back_if_it_can_be() -> None:
    question = Question(LimitConfig(10, 10).rule(), "n", "k", 2)
    granted, refused = Answer(0, 10, 8, 0, 1, 0), Answer(5, 10, 0, 5, 1, 0)
    undo = LimitOperation([question]).undo([granted])
    assert undo is not None
    assert undo.questions[0].amount == -2
    assert LimitOperation([question]).undo([refused]) is None
    assert LimitOperation([question], patience_us=9).undo([granted]) is None
    assert LimitOperation([question._replace(amount=0)]).undo([granted]) is None


def test_remote__decides_nothing_here(valkey: Server) -> None:
    with redis_store(valkey) as store:
        bound = RemoteBound(store, Asked(LimitConfig(10, 10).rule(), "n"))
        with pytest.raises(Busy):
            bound.attempt("k", 1)


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_redis__answer_from_a_server_that_forgot_all_scripts__is_right(
    valkey: Server, strategy: LimitStrategy
) -> None:
    async def story() -> list[bool]:
        limiter = RedisLimiter(
            LimitConfig(1, 9, 60, strategy), valkey.url + "?timeout=5", f"flush-{strategy.value}"
        )
        answers: list[bool] = []
        for _ in range(2):
            command(valkey, "SCRIPT", "FLUSH")
            answers.append(await limiter.acquire(str(len(answers))))
            command(valkey, "SCRIPT", "FLUSH")
            answers.append((await limiter.decide(str(len(answers)))).allowed)
        await limiter.aclose()
        return answers

    assert asyncio.run(story()) == [True] * 4
    forget_stores()


def test_sliding_window__lowered_below_a_cost__waits_for_an_empty_log() -> None:
    limiter = BaseLimiter(LimitConfig(1, 10, 100, LimitStrategy.SLIDING_WINDOW)).sync
    limiter.acquire("k")
    limiter.change(LimitConfig(1, 2, 100, LimitStrategy.SLIDING_WINDOW))
    assert 99 < limiter.decide("k", 8).retry_after <= 100


def test_redis__many_records__are_listed_page_by_page(valkey: Server) -> None:
    with redis_store(valkey) as store:
        for number in range(1_200):
            store.apply(Write("many", str(number), b"%d" % number, 60))
        assert store.entries("many") == {str(number): b"%d" % number for number in range(1_200)}


def test_redis__after_a_fork__starts_with_connections_of_its_own(valkey: Server) -> None:
    async def ask(store: RedisStore) -> None:
        assert await store.apply_async(Read("s", "k")) is None
        line = store.lines()._line_of(asyncio.get_running_loop())
        store.after_fork()
        assert store._lines is None
        assert await store.apply_async(Read("s", "k")) is None
        await store.aclose()
        await line.aclose()

    with redis_store(valkey) as store:
        store.apply(Read("s", "k"))
        connection = store._pool.idle[0][0]
        asyncio.run(ask(store))
        assert not store._pool.idle
        assert store.apply(Read("s", "k")) is None
        connection.disconnect()


def test_redis__closed_twice__does_no_harm(valkey: Server) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply_async(Read("s", "k"))
        await store.aclose()
        await store.aclose()

    with redis_store(valkey) as store:
        asyncio.run(story(store))


def test_redis__line_that_cannot_be_looked_at__is_opened_again(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply_async(Read("s", "k"))
        line = store.lines()._line_of(asyncio.get_running_loop())

        async def broken() -> bool:
            raise redis.ConnectionError("no longer there")

        monkeypatch.setattr(line._connection, "can_read", broken)
        line._used_ns = 0
        assert await store.apply_async(Read("s", "k")) is None
        await store.aclose()

    with redis_store(valkey) as store:
        asyncio.run(story(store))


def test_redis__error_of_the_whole_call__reaches_all_its_callers_and_those_who_left_are_forgotten(
    valkey: Server,
) -> None:
    """A record of the wrong type fails the call; one caller is gone by then."""

    async def story(store: RedisStore) -> list[Any]:
        asked = [asyncio.ensure_future(store.apply_async(Read("s", "k"))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked[0].cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await store.aclose()
        return answers

    with redis_store(valkey) as store:
        command(valkey, "RPUSH", "s:k", "x")
        answers = asyncio.run(story(store))
    assert [type(answer) for answer in answers] == [asyncio.CancelledError, StateTypeError, StateTypeError]


def test_asking__refused_by_the_server__leaves_no_reply_behind_for_the_next_caller(valkey: Server) -> None:
    """A server that is no cluster refuses the word before the call, and answers the call all the same."""
    asked = Asked(LimitConfig(10, 10).rule(), "asking")
    asking: Any = _Rewritten(Take(asked, "k", 1), asking=True, stripped=False)

    async def story(store: RedisStore) -> None:
        with pytest.raises(StateUnavailableError):
            await store.apply_async(asking)
        assert await store.apply_async(Read("s", "nothing")) is None
        await store.aclose()

    with redis_store(valkey) as store:
        store.apply(Take(asked, "k", 1))
        with pytest.raises(StateUnavailableError):
            store.apply(asking)
        assert store.apply(Read("s", "nothing")) is None
        command(valkey, "SET", "rate_limiter:asking:k", "no hash")
        command(valkey, "SCRIPT", "FLUSH")
        with pytest.raises(StateUnavailableError):  # both replies are errors
            store.apply(asking)
        assert store.apply(Read("s", "nothing")) is None
        asyncio.run(story(store))


def test_name__no_thread_to_look_it_up__is_looked_up_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        names = Names()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", none_left)
            with pytest.raises(RuntimeError):
                await names.addresses("localhost", 1)
        assert await names.addresses("localhost", 1)

    asyncio.run(story())


@pytest.mark.parametrize(
    "url", ["redis://:123/45hunter2@h:1/0", "redis://:hunter2/x@h:1", "redis+cluster://h:hunter2/0"]
)
def test_url__password_cut_short__is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match="state cannot be read") as raised:
        open_store(url)
    assert "hunter2" not in f"{raised.value!r} {raised.value.__cause__!r}"
    with pytest.raises(ValueError, match="a port must be a number"):
        Several.read("redis+cluster://h:x/0", 1)


def test_url__options_that_are_ours__are_not_the_urls(valkey: Server) -> None:
    with closing(RedisStore(f"{valkey.url}?decode_responses=true", timeout=5)) as store:
        store.apply(Write("s", "k", b"x", None))
        assert store.apply(Read("s", "k")) == b"x"


def test_fork__of_a_store_that_no_loop_has_used__leaves_nothing_to_the_parent(valkey: Server) -> None:
    with redis_store(valkey) as store:
        before = len(redis_store_module._left_to_parents)
        store.after_fork()
        assert len(redis_store_module._left_to_parents) == before
        assert store.apply(Read("s", "k")) is None
