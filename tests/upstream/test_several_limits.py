"""An upstream with several limits: a call takes from all of them or from none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support import redis_store

from comporta import LimitReachedError, Upstream, Upstreams
from comporta.flow import run
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

NAMED = {"requests": "10/s", "tokens": "1000/minute"}


class TooManyRequestsError(Exception):
    """An error of a client with a status."""

    def __init__(self, retry_after: str) -> None:
        super().__init__("429")
        self.status_code = 429
        self.headers = {"retry-after": retry_after}


def ok() -> str:
    return "ok"


def refuse() -> str:
    raise TooManyRequestsError("5")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


def units_left(upstream: Upstream) -> dict[str, int]:
    assert upstream.limits is not None
    return {name: limiter.sync.peek().remaining for name, limiter in upstream.limits.limiters.items()}


def make(store: Any, limit: Any = NAMED, **options: Any) -> Upstream:
    return Upstream("llm", limit, state=store, retry=False, **options)


@pytest.mark.parametrize("max_concurrent", [None, 2])
def test_call__named_limits__takes_its_cost_from_each(store: MemoryStore, max_concurrent: int | None) -> None:
    llm = make(store, max_concurrent=max_concurrent)
    assert llm.sync.call(ok) == "ok"
    assert units_left(llm) == {"requests": 9, "tokens": 999}
    view = llm.options(cost={"tokens": 600})
    assert view.sync.call(ok) == "ok"
    assert view.options(cost={"tokens": 99}).guard(ok)() == "ok"
    assert units_left(llm) == {"requests": 7, "tokens": 300}


def test_call__one_limit_without_capacity__is_refused_and_takes_nothing(store: MemoryStore) -> None:
    llm = make(store, max_wait=1)
    view = llm.options(cost={"requests": 0, "tokens": 800})
    assert view.sync.call(ok) == "ok"
    refused = r"llm: the limit of 16.6667/s burst 1000 \(token_bucket\) had no capacity within 1 s"
    with pytest.raises(LimitReachedError, match=refused) as refusal:
        view.sync.call(ok)
    assert refusal.value.retry_after == pytest.approx(36, abs=1)
    assert units_left(llm) == {"requests": 10, "tokens": 200}


def test_call__limit_has_capacity_within_max_wait__waits(store: MemoryStore, clock: ManualClock) -> None:
    llm = make(store, max_wait=60).options(cost={"tokens": 800})
    began_ns = clock.now_ns()
    assert [llm.sync.call(ok), llm.sync.call(ok)] == ["ok", "ok"]
    assert (clock.now_ns() - began_ns) / 1e9 == pytest.approx(36)


def test_call__upstream_asks_for_a_pause__pauses_and_degrades_the_first_limit(store: MemoryStore) -> None:
    llm = make(store, max_wait=1)
    with pytest.raises(TooManyRequestsError):
        llm.sync.call(refuse)
    with pytest.raises(LimitReachedError, match="llm: paused by the upstream for"):
        llm.options(cost={"requests": 0, "tokens": 1}).sync.call(ok)
    with pytest.raises(LimitReachedError, match="llm: paused by the upstream for"):
        llm.sync.call(ok)
    assert llm.limits is not None
    assert llm.limits.limiters["requests"].sync.stats().limit < 10
    assert llm.limits.limiters["tokens"].sync.stats().limit == 1000


def test_call__fails_before_it_is_made__gives_the_cost_back(store: MemoryStore) -> None:
    llm = make(store)
    call = llm.options(cost={"tokens": 600})._prepare(ok, (), {})
    call.has_token = True
    assert llm.limits is not None
    assert llm.limits.sync.acquire(None, cost={"tokens": 600})
    run(call._release_all_flow())
    assert units_left(llm) == {"requests": 10, "tokens": 1000}


def test_settle__several_limits__settles_each(store: MemoryStore, clock: ManualClock) -> None:
    llm = make(store)
    granted_at = clock.now_ns() / 1e9
    llm.options(cost={"tokens": 600}).sync.call(ok)
    assert llm.sync.settle({"tokens": 600}, {"tokens": 100}, granted_at)
    assert units_left(llm) == {"requests": 9, "tokens": 900}


def test_settle__one_limit__takes_numbers(store: MemoryStore) -> None:
    llm = make(store, "100/minute")
    assert llm.limits is None

    async def call() -> str:
        return "ok"

    async def settled_call() -> None:
        assert await llm.options(cost=60).call(call) == "ok"
        assert await llm.settle(60, 20)

    asyncio.run(settled_call())
    assert llm.limiter.sync.peek().remaining == 80
    assert llm.options(cost={"llm": 30}, timeout=None).sync.call(ok) == "ok"
    assert llm.sync.settle({"llm": 30}, {"llm": 10})
    assert llm.limiter.sync.peek().remaining == 70
    with pytest.raises(LimitReachedError, match="had no capacity"):
        llm.options(cost=90).sync.call(ok)


@pytest.mark.parametrize(
    ("limit", "cost", "problem"),
    [
        (NAMED, {"words": 1}, "cost must name limits among 'requests', 'tokens', got 'words'"),
        ("10/s", 0, "cost must be at least 1, got 0"),
        ("10/s", {"tokens": 1}, "cost must name limits among 'llm', got 'tokens'"),
    ],
)
def test_options__invalid_cost__names_it(store: MemoryStore, limit: Any, cost: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make(store, limit).options(cost=cost)


def test_call__several_limits_on_a_server__decides_in_one_round_trip(valkey: Server) -> None:
    with redis_store(valkey) as store:
        llm = make(store, ["10/s", "1000/day"])
        assert llm.sync.call(ok) == "ok"
        assert [units_left(llm)["llm"], units_left(llm)["llm.2"]] == [9, 999]


def test_upstreams__text_with_several_limits__takes_from_all(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text('state = "memory://several-upstreams"\n[upstreams.llm]\nlimit = "10/s; 1000/day"\n')
    llm = Upstreams.from_file(path)["llm"]
    assert llm.limits is not None
    assert list(llm.limits.limiters) == ["llm", "llm.2"]
    assert llm.sync.call(ok) == "ok"


def test_upstreams__one_invalid_limit_of_several__names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text('[upstreams.llm]\nlimit = "10/s; 1000/century"\n')
    with pytest.raises(ValueError, match=r"comporta.toml.*limit must look like .*1000/century"):
        Upstreams.from_file(path)


def test_state__several_limits__has_the_use_of_each(store: MemoryStore) -> None:
    llm = make(store)
    llm.options(cost={"tokens": 600}).sync.call(ok)
    assert llm.limits is not None
    llm.limits.limiters["tokens"].sync.pause(5)
    state = llm.sync.get_state()
    assert [(limit.name, limit.stats.tokens_available) for limit in state.limits] == [
        ("requests", 9),
        ("tokens", 400),
    ]
    assert state.limiter.paused == 0
    assert state.paused == pytest.approx(5)
    plain = state.as_dict()
    assert [limit["stats"]["fallback"] for limit in plain["limits"]] == [None, None]


def test_state__one_limit__has_no_list_of_limits(store: MemoryStore) -> None:
    state = Upstream("single", "10/s", state=store, retry=False).sync.get_state()
    assert state.limits == ()
    assert state.paused == 0
