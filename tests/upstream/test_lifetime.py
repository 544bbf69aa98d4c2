"""Upstreams as context managers: closed when the block ends, twice if you like, and usable again."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from comporta import CircuitBreaker, LimitConfig, TokenBucketLimiter, Upstream, Upstreams
from comporta.stores.redis.cluster import ClusterStore
from comporta.stores.registry import close_stores, open_store
from comporta.stores.shared.directory import directory_path
from comporta.testing import Server


@pytest.fixture(params=["memory", "shared", "redis"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    if request.param == "redis":
        server: Server = request.getfixturevalue("valkey")
        yield f"{server.url}?timeout=5"
    else:
        yield f"{request.param}://{name}"
    close_stores()
    shutil.rmtree(directory_path(name), ignore_errors=True)


def unique() -> str:
    return f"pncp-{uuid.uuid4().hex}"


async def fetch() -> str:
    return "made"


def test_async_with__upstream__closes_and_reopens(state: str) -> None:
    upstream = Upstream(unique(), "10/hour", state=state)

    async def main() -> None:
        for _ in range(2):
            async with upstream as entered:
                assert entered is upstream
                assert await entered.call(fetch) == "made"
        await upstream.aclose()
        await upstream.aclose()
        assert (await upstream.get_state()).limiter.tokens_available == 8
        await upstream.aclose()

    asyncio.run(main())


def test_with__sync_upstream__closes_and_reopens(state: str) -> None:
    upstream = Upstream(unique(), "10/hour", state=state)
    for _ in range(2):
        with upstream.sync as entered:
            assert entered is upstream.sync
            assert entered.call(lambda: "made") == "made"
    upstream.sync.close()
    upstream.sync.close()
    assert upstream.sync.get_state().limiter.tokens_available == 8


def test_with__block_raises__closes_and_passes_the_error(state: str) -> None:
    upstream = Upstream(unique(), "10/hour", state=state)
    with pytest.raises(KeyError, match="own error"), upstream.sync:
        raise KeyError("own error")

    async def main() -> None:
        async with upstream:
            raise KeyError("own error")

    with pytest.raises(KeyError, match="own error"):
        asyncio.run(main())


def test_close__limit_with_a_lease__returns_unused_units(state: str) -> None:
    name, config = unique(), LimitConfig.parse("1000/hour", lease=10)
    with Upstream(name, config, state=state).sync as upstream:
        upstream.call(lambda: "made")
    again = TokenBucketLimiter(config, state, name)
    assert again.sync.stats().tokens_available == 999
    again.sync.close()


def test_close__limiter_and_breaker__have_the_same_shape(state: str) -> None:
    limiter = TokenBucketLimiter("10/hour", state, unique())
    breaker = CircuitBreaker(unique(), state=state)
    for _ in range(2):
        assert limiter.sync.acquire()
        limiter.sync.close()
        breaker.sync.record_failure("down")
        breaker.sync.close()
    assert limiter.sync.stats().tokens_available == 8
    assert breaker.sync.get_state().failures == 2


def test_close__redis__closes_the_connections_of_blocking_callers(valkey: Server) -> None:
    store = open_store(f"{valkey.url}?timeout=5")
    upstream = Upstream(unique(), "10/hour", state=store)
    upstream.sync.call(lambda: "made")
    pool = store.primary._pool  # type: ignore[attr-defined]  # of a RedisStore
    assert pool.idle
    upstream.sync.close()
    assert not pool.idle
    close_stores()


def test_close_connections__cluster_never_used__does_nothing() -> None:
    store = ClusterStore("redis+cluster://127.0.0.1:1")
    store.close_connections()
    store.close_connections()


def test_async_with__coroutine_is_closed_inside__closes_all_the_same(state: str) -> None:
    upstream = Upstream(unique(), "10/hour", state=state)

    async def block() -> None:
        async with upstream:
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        waiting = block()
        waiting.send(None)
        waiting.close()
        assert await upstream.call(fetch) == "made"
        await upstream.aclose()

    asyncio.run(main())
    upstream.sync.close()


def test_upstreams__close__closes_each_and_reopens(state: str, tmp_path: Path) -> None:
    name, file = unique(), tmp_path / "comporta.toml"
    file.write_text(f'state = "{state}"\n[upstreams.{name}]\nlimit = "10/hour"')
    upstreams = Upstreams.from_file(file)
    for _ in range(2):
        assert upstreams[name].sync.call(lambda: "made") == "made"
        upstreams.close()
    assert upstreams[name].sync.get_state().limiter.tokens_available == 8


def test_pickle__upstream_of_this_process__is_the_same_object(state: str) -> None:
    upstream = Upstream(unique(), "10/hour", state=state)
    if state.startswith("memory"):
        with pytest.raises(TypeError, match="cannot be pickled: its state is in the memory of this process"):
            pickle.dumps(upstream)
    else:
        assert pickle.loads(pickle.dumps(upstream)) is upstream  # noqa: S301 - of this test
