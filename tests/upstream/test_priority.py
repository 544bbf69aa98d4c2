"""Priority classes, owners and costs of calls through an upstream (F9)."""

from __future__ import annotations

import asyncio
from threading import Thread
from typing import Any

import httpx2
import pytest
from tests.support import wait_until

from comporta import LimitConfig, LimitReachedError, Upstream, priority
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock
from comporta.upstream.renewal import RENEWER


def upstream_of(limit: LimitConfig, **options: Any) -> Upstream:
    return Upstream("pncp", limit, state=MemoryStore(ManualClock()), max_wait=0, **options)


def calls_until_refused(upstream: Upstream) -> int:
    count = 0
    try:
        while True:
            upstream.sync.call(int)
            count += 1
    except LimitReachedError:
        return count


@pytest.mark.parametrize("max_concurrent", [None, 5])
def test_view__with_a_class__leaves_the_headroom(max_concurrent: int | None) -> None:
    upstream = upstream_of(LimitConfig(0.001, 10, batch_headroom=8), max_concurrent=max_concurrent)
    assert calls_until_refused(upstream.options(priority="batch", owner="job 1")) == 2
    assert calls_until_refused(upstream.options(priority="interactive")) == 8


@pytest.mark.parametrize("max_concurrent", [None, 5])
def test_context__with_a_class__applies_to_calls(max_concurrent: int | None) -> None:
    upstream = upstream_of(LimitConfig(0.001, 10), max_concurrent=max_concurrent)
    with priority("batch"):
        assert calls_until_refused(upstream) == 5
        assert calls_until_refused(upstream.options(priority="normal")) == 5


def test_limit__with_normal_headroom__is_left_by_plain_calls() -> None:
    upstream = upstream_of(LimitConfig(0.001, 10, normal_headroom=3))
    assert calls_until_refused(upstream) == 7
    assert calls_until_refused(upstream.options(priority="interactive")) == 3


def test_view__with_a_cost__takes_it_for_each_attempt_and_gives_it_back() -> None:
    upstream = upstream_of(LimitConfig(0.001, 10))
    view = upstream.options(cost=4)

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert view.sync.call(int) == 0
    assert upstream.limiter.sync.peek().remaining == 6
    with pytest.raises(KeyboardInterrupt):
        view.sync.call(interrupt)
    assert upstream.limiter.sync.peek().remaining == 2
    with pytest.raises(ValueError, match="cost must be at most the capacity, 10, got 11"):
        upstream.options(cost=11).sync.call(int)


def test_view__guard_and_transport__have_its_class() -> None:
    upstream = upstream_of(LimitConfig(0.001, 10, batch_headroom=9), retry=False)
    view = upstream.options(priority="batch")
    guarded = view.guard(int)
    assert guarded() == 0
    with pytest.raises(LimitReachedError):
        guarded()

    async def main() -> None:
        inner = httpx2.MockTransport(lambda request: httpx2.Response(200))
        async with httpx2.AsyncClient(transport=view.transport(inner)) as client:
            with pytest.raises(LimitReachedError):
                await client.get("http://localhost/")
        async with httpx2.AsyncClient(transport=upstream.transport(inner)) as client:
            assert (await client.get("http://localhost/")).status_code == 200

    asyncio.run(main())


def test_view__of_a_view__keeps_what_is_not_changed() -> None:
    upstream = upstream_of(LimitConfig(1, 10))
    view = upstream.options(priority="batch", owner="a", cost=2, timeout=5).options(owner="b")
    options = view._options
    assert (options.priority, options.owner, options.cost, options.timeout) == ("batch", "b", 2, 5)
    plain = view.options(priority=None, owner=None)._options
    assert (plain.priority, plain.owner, plain.caller.rank) == (None, None, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": "urgent"}, "priority must be one of 'interactive', 'normal', 'batch', got 'urgent'"),
        ({"owner": ""}, "owner must be 1 to 200 characters, got 0"),
        ({"cost": 0}, "cost must be at least 1, got 0"),
        ({"max_wait": -1}, "max_wait must be 0 to 86400 seconds, got -1"),
    ],
)
def test_options__invalid__are_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        upstream_of(LimitConfig(1, 10)).options(**options)


def test_view__with_max_wait__waits_longer_than_the_upstream() -> None:
    upstream = upstream_of(LimitConfig(1, 1))
    upstream.sync.call(int)
    with pytest.raises(LimitReachedError):
        upstream.sync.call(int)
    view = upstream.options(max_wait=2)
    assert view._options.max_wait == 2
    assert view.sync.call(int) == 0
    assert view.options(owner="a")._options.max_wait == 2


def test_view__with_max_wait__renews_its_permit_while_it_waits_for_a_token() -> None:
    upstream = Upstream("pncp", "10/s", max_concurrent=1, max_wait=0, state=MemoryStore())
    upstream.limiter.sync.pause(60)
    view = upstream.options(max_wait=60)
    waiting = Thread(target=view.sync.call, args=(int,))
    waiting.start()
    renewals = RENEWER.get()._renewals
    wait_until(lambda: any(renewal.limit is upstream.permits for renewal in list(renewals.values())))
    upstream.limiter.sync.resume()
    waiting.join()
    assert not any(renewal.limit is upstream.permits for renewal in list(renewals.values()))
