"""Some keys have another limit: from a table, from a function, from a settings file, on every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.limits.faces import Bench, Face
from tests.support import wait_until

from comporta import (
    BaseLimiter,
    LimitConfig,
    LimitGroup,
    LimitKey,
    LimitStrategy,
    RateLimitManager,
    Upstreams,
)
from comporta.limits import per_key
from comporta.limits.fast_decision import fast_decider
from comporta.settings import load_settings
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.memory import MemoryStore

PLANS: dict[str, str | LimitConfig] = {
    "gold": "5/minute",
    "free": LimitConfig(1, 1, 60, LimitStrategy.FIXED_WINDOW),
}


def _plan_of(key: str) -> str | LimitConfig | None:
    return PLANS.get(key.partition(":")[0])


def _limiter(bench: Bench, limit_for: Any, config: LimitConfig | str = "2/minute") -> Face:
    return Face(BaseLimiter(config, bench.store, "api", limit_for=limit_for), bench.runner)


def _count_granted(limiter: Face, key: Any) -> int:
    return sum(limiter.acquire(key) for _ in range(8))


@pytest.mark.parametrize("limit_for", [_plan_of, {f"{plan}:1": limit for plan, limit in PLANS.items()}])
def test_limit_for__table_or_function__gives_each_key_its_limit(bench: Bench, limit_for: Any) -> None:
    limiter = _limiter(bench, limit_for)
    assert [_count_granted(limiter, key) for key in ("gold:1", "free:1", "other:1", None)] == [5, 1, 2, 2]
    assert _count_granted(limiter, LimitKey("gold", "1")) == 0
    assert limiter.decide("gold:1").limit == limiter.peek("gold:1").limit == 5
    assert limiter.stats("free:1").limit == 1
    limiter.release("gold:1", 3)
    assert limiter.acquire_up_to("gold:1", 9) == 3
    limiter.reset("free:1")
    assert limiter.acquire("free:1", timeout=1)
    with pytest.raises(ValueError, match="cost must be at most the capacity, 1, got 2"):
        limiter.acquire("free:1", cost=2)


def test_limit_for__paused_and_overridden__pauses_all_and_overrides_the_default(bench: Bench) -> None:
    limiter = _limiter(bench, _plan_of)
    assert limiter.acquire("gold:1")
    limiter.pause(5)
    assert not limiter.acquire("gold:1")
    assert not limiter.acquire("other")
    limiter.resume()
    limiter.set_limit("3/minute")
    assert _count_granted(limiter, "other") == 3
    assert _count_granted(limiter, "gold:1") == 4


def test_limit_for__in_a_group__uses_the_limit_of_each_key(bench: Bench) -> None:
    total = bench.limiter("100/minute", "total").target
    group = LimitGroup(total, _limiter(bench, _plan_of).target).sync
    assert [group.acquire([None, "free:1"]) for _ in range(2)] == [True, False]
    assert sum(group.acquire([None, None]) for _ in range(4)) == 2
    with pytest.raises(ValueError, match="cost must be at most the capacity, 1, got 2"):
        group.acquire([None, "free:1"], cost=2)


def test_limit_for__with_leases__keeps_every_limit(bench: Bench) -> None:
    limiter = _limiter(bench, {"vip": "400/minute"}, LimitConfig.parse("100/minute", lease=True))
    assert sum(limiter.acquire("vip") for _ in range(450)) == 400
    assert sum(limiter.acquire("other") for _ in range(150)) == 100


def test_limit_for__callers_wait__come_first() -> None:
    async def main() -> list[Any]:
        limiter = BaseLimiter("1/s", limit_for={"k": "20/s burst 1"})
        assert await limiter.acquire("k")
        waiter = asyncio.create_task(limiter.acquire("k", timeout=5))
        await asyncio.sleep(0)  # sleeps: lets the waiter start
        return [await limiter.acquire("k"), await waiter]

    assert asyncio.run(main()) == [False, True]


def test_limit_for__threads_wait__come_first() -> None:
    limiter = BaseLimiter("1/s", limit_for={"k": "1/s burst 1"})
    assert limiter.sync.acquire("k")
    waiter = threading.Thread(target=limiter.sync.acquire, args=("k",), kwargs={"timeout": 5})
    waiter.start()
    queue = limiter._flows._table.flows_for("k").wait_queue  # type: ignore[attr-defined]
    wait_until(lambda: not queue.is_empty("k"))
    assert not limiter.sync.acquire("k")
    limiter.sync.release("k")
    waiter.join()


def test_limit_for__many_different_limits__keeps_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_key, "LIMITS_MAX", 3)
    store = MemoryStore()
    limiter = BaseLimiter("1/minute", store, "api", limit_for=lambda key: f"{key}/minute")
    for _ in range(2):
        for number in range(2, 9):
            assert limiter.sync.acquire(str(number))
    assert len(limiter._flows._table.all_flows()) == 4  # type: ignore[attr-defined]
    assert limiter.sync.peek("8").remaining == 6  # a limit that was dropped and made again goes on
    assert limiter.sync.peek("1").limit == 1


@pytest.mark.parametrize(
    ("limit_for", "error", "message"),
    [
        ({"k": "5/fortnight"}, ValueError, "limit_for has no usable limit for 'k': limit must look like"),
        ({"k": 5}, TypeError, "limit_for has no usable limit for 'k': limit must be a LimitConfig or a str"),
        ({5: "5/s"}, TypeError, "keys of limit_for must be a LimitKey or a str, got 5"),
        (5, TypeError, "limit_for must be a function, got 5"),
        ({str(key): "5/s" for key in range(100_001)}, ValueError, "at most 100000 keys, got 100001"),
    ],
)
def test_limit_for__impossible_table__is_refused(limit_for: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        BaseLimiter("1/s", limit_for=limit_for)


@pytest.mark.parametrize("limit_for", [lambda _: "5 apples", lambda _: 5])
def test_limit_for__function_returns_no_limit__raises_with_the_key(limit_for: Callable[[str], Any]) -> None:
    with pytest.raises((TypeError, ValueError), match="limit_for has no usable limit for 'k'"):
        BaseLimiter("1/s", limit_for=limit_for).sync.acquire("k")


def test_limit_for__inbound_limits__take_the_slow_path() -> None:
    limiter = BaseLimiter("1/s", limit_for={"k": "2/s"})
    assert fast_decider(limiter) is None
    assert limiter._flows.bound.cached_algorithm is limiter._flows.current_strategy()
    assert limiter._flows.bound.leases is None
    assert asyncio.run(limiter._flows.bound.algorithm_async()) is limiter._flows.current_strategy()
    with pytest.raises(WouldBlock):
        limiter._flows.bound.try_acquire("k", 1)


def test_manager__table_in_a_settings_file__gives_tenants_their_limit(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text(
        'state = "memory://"\n[limits.api]\nlimit = "2/minute"\nlimit_for = {"tenant:1" = "5/minute"}\n'
    )
    limiter = RateLimitManager.from_file(path).limiters["api"]
    assert isinstance(limiter, BaseLimiter)
    assert sum(limiter.sync.acquire("tenant:1") for _ in range(8)) == 5
    assert sum(limiter.sync.acquire("tenant:2") for _ in range(8)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"tenant:1" = "5/never"', r"comporta.toml:4: .*limit_for has no usable limit for 'tenant:1'"),
        ('"tenant:1" = 5', r"limit_for must be a table of keys and limits such as '10/s', got"),
    ],
)
def test_manager__mistake_in_the_table__names_the_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text(f'state = "memory://"\n[limits.api]\nlimit = "2/s"\n[limits.api.limit_for]\n{line}\n')
    with pytest.raises(ValueError, match=message):
        RateLimitManager.from_file(path)


def test_upstreams__limit_for_in_a_file__is_refused(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text('[upstreams.u]\nlimit = {limit = "1/s", limit_for = {"k" = "2/s"}}\n')
    with pytest.raises(ValueError, match="limit_for does not apply to an upstream, which has one limit"):
        Upstreams(load_settings(path))


def test_manager__limit_for_beside_several_limits__is_refused(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text('state = "memory://"\n[limits.api]\nlimit = "2/s; 9/day"\nlimit_for = {"k" = "2/s"}\n')
    with pytest.raises(ValueError, match="limit_for applies to one limit, got 2"):
        RateLimitManager.from_file(path)


def test_limit_for__settled__changes_the_limit_of_the_key(bench: Bench) -> None:
    limiter = _limiter(bench, _plan_of)
    assert limiter.acquire("gold:1", cost=5)
    assert limiter.settle("gold:1", 5, 2)
    assert limiter.peek("gold:1").remaining == 3
    assert limiter.peek("other").remaining == 2
