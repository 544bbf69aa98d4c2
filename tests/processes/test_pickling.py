"""Limiters and upstreams travel to other processes by name, as multiprocessing and task queues send them."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from tests.processes.fleet import new_state_name, remove_shared_state

from comporta import (
    BaseLimiter,
    LimitConfig,
    LimitGroup,
    RedisLimiter,
    SlidingWindowLimiter,
    TokenBucketLimiter,
    Upstream,
)
from comporta.stores.registry import close_stores, open_store
from comporta.testing import Server

MODULE_STATE = os.environ.get("COMPORTA_TEST_STATE")
UPSTREAM = None if MODULE_STATE is None else Upstream("pickled", "5/minute", state=MODULE_STATE)


@pytest.fixture(autouse=True)
def only_stores_of_this_test() -> Iterator[None]:
    """Close the stores that are opened by URL, which would register this process as a worker."""
    close_stores()
    yield
    close_stores()


def acquire_in_child(limiter: BaseLimiter, count: int) -> int:
    """Take from a limiter that arrived by pickle."""
    return sum(limiter.sync.acquire("k") for _ in range(count))


def call_in_child(upstream: Upstream) -> tuple[str, bool]:
    """Call through an upstream that arrived by pickle."""
    return upstream.sync.call(str, 42), upstream is UPSTREAM


def _in_spawned_process(function: Any, *args: Any) -> Any:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(function, args)


def test_limiter__sent_to_a_spawned_process__shares_the_limit(valkey: Server) -> None:
    name = new_state_name()
    for limiter in (
        SlidingWindowLimiter("5/minute", f"shared://{name}", "sent"),
        RedisLimiter(LimitConfig(0.001, 5), valkey.url, "sent"),
    ):
        limiter.sync.acquire("k")
        assert _in_spawned_process(acquire_in_child, limiter, 7) == 4
        assert not limiter.sync.acquire("k")
    remove_shared_state(name)


def test_upstream__sent_to_a_spawned_process__is_the_upstream_of_that_process() -> None:
    name = new_state_name()
    with mock.patch.dict(os.environ, COMPORTA_TEST_STATE=f"shared://{name}"):
        upstream = Upstream("pickled", "5/minute", state=f"shared://{name}")
        assert _in_spawned_process(call_in_child, upstream) == ("42", True)
    assert upstream.limiter.sync.peek().remaining == 4
    remove_shared_state(name)


def test_upstream__not_defined_in_the_other_process__says_what_to_do() -> None:
    name = new_state_name()
    data = pickle.dumps(Upstream("missing", "5/minute", state=f"shared://{name}"))
    gc.collect()
    with pytest.raises(LookupError, match=r"upstream 'missing' on shared://.* does not exist"):
        pickle.loads(data)  # noqa: S301 - made here
    remove_shared_state(name)


def test_limiter__pickled_in_the_same_process__is_the_same_object(valkey: Server) -> None:
    limiter = TokenBucketLimiter("5/s", valkey.url, "same")
    assert pickle.loads(pickle.dumps(limiter)) is limiter  # noqa: S301 - made here
    assert copy.copy(limiter) is limiter


def test_limiter__state_with_a_password__leaves_the_password_out(valkey: Server) -> None:
    url = valkey.url.replace("redis://", "redis://:s3cret@", 1)
    data = pickle.dumps(TokenBucketLimiter("5/s", url, "secret"))
    assert b"s3cret" not in data
    close_stores()
    with mock.patch.dict(os.environ, COMPORTA_STATE=url):
        loaded: BaseLimiter = pickle.loads(data)  # noqa: S301 - made here
        assert loaded.store is open_store(url)  # the default store of this process has the address
    close_stores()


def test_limiter__gone_in_this_process__is_made_on_its_open_store(valkey: Server) -> None:
    data = pickle.dumps(TokenBucketLimiter("5/s", valkey.url, "gone"))
    gc.collect()
    loaded: BaseLimiter = pickle.loads(data)  # noqa: S301 - made here
    assert (type(loaded), loaded.store) == (TokenBucketLimiter, open_store(valkey.url))


def acquire_group_in_child(group: LimitGroup, count: int) -> int:
    """Take from a group that arrived by pickle."""
    return sum(group.sync.acquire("k", cost={"few": 1, "many": 2}) for _ in range(count))


def test_group__sent_to_a_spawned_process__shares_its_limits() -> None:
    name = new_state_name()
    limits = {"few": LimitConfig(0.001, 5), "many": LimitConfig(0.001, 100)}
    group = LimitGroup(limit=limits, state=f"shared://{name}", name="sent")
    assert group.sync.acquire("k")
    assert _in_spawned_process(acquire_group_in_child, group, 7) == 4
    assert group.limiters["many"].sync.peek("k").remaining == 91
    assert list(pickle.loads(pickle.dumps(group)).limiters) == ["few", "many"]  # noqa: S301 - made here
    with pytest.raises(TypeError, match=r"group.sync cannot be pickled: pickle the group"):
        pickle.dumps(group.sync)
    remove_shared_state(name)


@pytest.mark.parametrize(
    "target",
    [
        BaseLimiter("5/s"),
        Upstream("u", "5/s", state="memory://"),
        LimitGroup(limit="5/s; 10/minute", state="memory://"),
    ],
)
def test_pickle__state_in_memory__says_why_not(target: Any) -> None:
    with pytest.raises(TypeError, match="cannot be pickled: its state is in the memory of this process"):
        pickle.dumps(target)


def test_pickle__sync_side_and_views__say_what_to_pickle() -> None:
    name = new_state_name()
    upstream = Upstream("viewed", "5/s", state=f"shared://{name}")
    with pytest.raises(TypeError, match=r"limiter.sync cannot be pickled: pickle the limiter"):
        pickle.dumps(upstream.limiter.sync)
    with pytest.raises(TypeError, match="a view of upstream 'viewed' cannot be pickled"):
        pickle.dumps(upstream.options(timeout=1))
    remove_shared_state(name)
