"""Groups created from several limits: a cost for each, all or nothing, and each settled by itself."""

from __future__ import annotations

from typing import Any

import pytest
from tests.limits.faces import Bench, Face
from tests.support import command, redis_store

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitReachedError, LimitStrategy, StateTypeError
from comporta.limits.config import Limits
from comporta.limits.manager import RateLimitManager
from comporta.settings import LimitSettings, Settings
from comporta.stores.memory import MemoryStore
from comporta.testing import Server

NAMED = {"requests": "2/s", "tokens": "1000/minute"}


def group(bench: Bench, limit: Limits) -> Face:
    return Face(LimitGroup(limit=limit, state=bench.store, name="api"), bench.runner)


def units_left(face: Face, key: str = "k") -> dict[str, int]:
    limiters: dict[str, BaseLimiter] = face.target.limiters
    return {name: Face(limiter, face.runner).peek(key).remaining for name, limiter in limiters.items()}


@pytest.mark.parametrize(
    ("limit", "names"),
    [
        (["2/s", "1000/day"], ["api", "api.2"]),
        ("2/s; 1000/day", ["api", "api.2"]),
        ({"requests": "2/s", "tokens": "1000/day"}, ["api.requests", "api.tokens"]),
        ("2/s", ["api"]),
        (LimitConfig(2, 2), ["api"]),
    ],
)
def test_group__several_limits__have_the_name_of_the_group(limit: Limits, names: list[str]) -> None:
    made = LimitGroup(limit=limit, name="api")
    assert [limiter.name for limiter in made.limiters.values()] == names
    assert made.sync.acquire("k", timeout=1)
    made.sync.close()


@pytest.mark.parametrize(
    ("limiters", "limit", "problem"),
    [
        ((), [], "limiters must be 1 to 16, got 0"),
        ((), {}, "limiters must be 1 to 16, got 0"),
        ((BaseLimiter("1/s"),), "2/s", "limit must not be combined with limiters"),
        ((), "2/s; nonsense", "limit must look like '10/s'"),
        ((), {"a b": "2/s"}, "name must be 1 to 100 of"),
    ],
)
def test_group__invalid_limits__says_what_is_wrong(limiters: Any, limit: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LimitGroup(*limiters, limit=limit)


def test_group__a_named_limit_of_another_type__names_it() -> None:
    with pytest.raises(TypeError, match=r"limit\['rate'\] must be a LimitConfig or a str .*, got 10"):
        LimitGroup(limit={"rate": 10})  # type: ignore[dict-item]


def test_group__cost_by_name__takes_from_all_limits_or_from_none(bench: Bench) -> None:
    api = group(bench, NAMED)
    assert api.acquire("k", cost={"tokens": 600})
    assert units_left(api) == {"requests": 1, "tokens": 400}
    assert not api.acquire("k", cost={"requests": 1, "tokens": 600})
    assert units_left(api) == {"requests": 1, "tokens": 400}
    assert api.acquire(["k", "k"], cost={"requests": 0, "tokens": 400})
    assert units_left(api) == {"requests": 1, "tokens": 0}
    decision = api.decide("k", cost={"tokens": 100})
    assert (decision.allowed, decision.limit, decision.retry_after) == (False, 1000, 6.0)
    api.release("k", cost={"requests": 1, "tokens": 400})
    assert units_left(api) == {"requests": 2, "tokens": 400}


def test_group__one_limit_paused__is_refused_even_if_it_costs_nothing(bench: Bench) -> None:
    api = group(bench, NAMED)
    Face(api.target.limiters["requests"], bench.runner).pause(10)
    assert not api.acquire("k", cost={"requests": 0, "tokens": 1})


@pytest.mark.parametrize(
    ("cost", "error", "problem"),
    [
        ({"words": 1}, ValueError, "cost must name limits among 'requests', 'tokens', got 'words'"),
        ({"tokens": -1}, ValueError, r"cost\['tokens'\] must be 0 to"),
        ({"tokens": 1.5}, TypeError, r"cost\['tokens'\] must be an int"),
        ({"tokens": 0, "requests": 0}, ValueError, "cost must be at least 1 for one of the limits"),
        (0, ValueError, "cost must be at least 1 for one of the limits, got 0"),
        ({"tokens": 1001}, ValueError, "cost must be at most the capacity, 1000, got 1001"),
    ],
)
def test_group__invalid_cost__names_it(cost: Any, error: type[Exception], problem: str) -> None:
    api = LimitGroup(limit=NAMED, state=MemoryStore(), name="api")
    with pytest.raises(error, match=problem):
        api.sync.acquire("k", cost=cost)


@pytest.mark.parametrize("keys", ["k", None, ["k"]])
def test_group__of_limiters__needs_a_key_for_each(keys: Any) -> None:
    store = MemoryStore()
    both = LimitGroup(BaseLimiter("2/s", store, "a"), BaseLimiter("2/s", store, "b"))
    with pytest.raises(ValueError, match="keys must be a list, one for each of 2 limiters"):
        both.sync.acquire(keys)
    assert both.sync.acquire([None, "k"], cost={"a": 2})
    assert list(both.limiters) == ["a", "b"]


def test_group__settled__credits_and_debits_each_limit(bench: Bench) -> None:
    api = group(bench, NAMED)
    granted_at = bench.clock.now_ns() / 1e9
    assert api.acquire("k", cost={"tokens": 600})
    assert api.settle("k", {"tokens": 600}, {"tokens": 900}, granted_at)
    assert units_left(api) == {"requests": 1, "tokens": 100}
    assert api.settle("k", {"tokens": 900}, {"tokens": 200, "requests": 0})
    assert units_left(api) == {"requests": 2, "tokens": 800}
    assert not api.settle("k", 1, 1)


def test_group__settled_on_an_unusable_key__raises(valkey: Server) -> None:
    with redis_store(valkey) as store:
        api = LimitGroup(limit=NAMED, state=store, name="api")
        command(valkey, "SET", "rate_limiter:api.tokens:k", "x")
        with pytest.raises(StateTypeError):
            api.sync.settle("k", 1, 2)


def test_group__reserved__settles_each_limit_when_the_block_ends(bench: Bench) -> None:
    api = group(bench, NAMED)

    async def reserve() -> None:
        async with api.target.reserve("k", {"tokens": 600}) as budget:
            budget.used = {"tokens": 250}
        async with api.target.reserve("k", {"tokens": 600}):
            pass
        await api.target.aclose()

    if bench.runner is not None:
        bench.runner.run(reserve())
    else:
        with api.target.sync.reserve("k", {"tokens": 600}) as budget:
            budget.used = {"tokens": 250}
        with api.target.sync.reserve("k", {"tokens": 600}):
            pass
    assert units_left(api) == {"requests": 0, "tokens": 150}


def test_group__reservation_refused__raises_with_the_time_to_retry(bench: Bench) -> None:
    api = group(bench, NAMED)
    assert api.acquire("k", cost={"tokens": 900})
    refused = r"api.requests: the limits requests, tokens had no capacity for \{'tokens': 200\} in time"
    with (
        pytest.raises(LimitReachedError, match=refused) as refusal,
        api.target.sync.reserve("k", {"tokens": 200}),
    ):
        pytest.fail("the block must not run")
    assert refusal.value.retry_after == 6.0
    bench.clock.advance(6)
    with api.target.sync.reserve("k", {"tokens": 200}, timeout=None):
        assert units_left(api)["tokens"] == 0


def test_group__capacity_comes_after_the_refusal__is_granted(bench: Bench) -> None:
    api = group(bench, NAMED)
    assert api.acquire("k", cost={"tokens": 900})
    target = api.target

    def refuse_flow(*args: Any) -> Any:
        yield from ()
        bench.clock.advance(6)
        return False

    target._flows.acquire_flow = refuse_flow
    with target.sync.reserve("k", {"tokens": 200}) as budget:
        assert budget.reserved == {"tokens": 200}


def test_manager__settings_with_several_limits__creates_a_group() -> None:
    limits = {"default": LimitSettings(limit="2/s; 3/day", strategy="fixed_window", lease=False)}
    manager = RateLimitManager.from_settings(Settings(limits=limits, state="memory://several"))
    made = manager.limiters["default"]
    assert isinstance(made, LimitGroup)
    assert [limiter.strategy for limiter in made.limiters.values()] == [LimitStrategy.FIXED_WINDOW] * 2
    assert made.sync.acquire("k")
