"""One fault repeated many times, and one long outage, for the short and the long tests."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.outages.promises import assert_promises, describe
from tests.outages.scenario import KILLED, STOPPED, Fault, run_faults
from tests.stores.manual_heartbeat import ManualHeartbeat, run_heartbeat

from comporta import BaseLimiter, LimitConfig
from comporta.stores.failover.store import FailoverStore
from comporta.stores.redis.store import RedisStore
from comporta.testing import FaultProxy, Server

_PLENTY = 100_000
_EXCESS_PER_WORKER = 2
_TIMEOUT_SECONDS = 5.0


def kill_repeatedly(times: int) -> str:
    """Kill the server and start it again, empty; return a summary."""
    return _repeat(KILLED, times)


def stop_repeatedly(times: int) -> str:
    """Suspend and resume the server; return a summary."""
    return _repeat(STOPPED, times)


def _repeat(fault: Fault, times: int) -> str:
    """Repeat a fault, with just enough time in between for workers to rejoin; check every promise."""
    record = run_faults([(fault, 0.2)] * times, capacity=10, workers=2, lead=0.5)
    return assert_promises(record)


def outage_of(seconds: float, workers: int) -> str:
    """Kill the server for some seconds; all workers together must grant what one bucket would have granted.

    They have used its burst by then.
    """
    record = run_faults([(KILLED, seconds)], rate=50, capacity=100, workers=workers, lead=3.0)
    assert record.errors == []
    summary = describe(record)
    assert record.excess <= _EXCESS_PER_WORKER * workers + record.lone_grants_max(), summary
    return summary


def lose_replies(times: int) -> str:
    """Lose the reply to one call after the other; return how many calls were executed.

    The test drives the heartbeat, so that rejoining takes no time and every call loses its reply.
    """
    with Server() as server, FaultProxy.to(server) as proxy, asyncio.Runner() as runner:
        primary = RedisStore(proxy.url, timeout=_TIMEOUT_SECONDS)
        store = FailoverStore(lambda: primary, primary.address, primary.clock)
        store.heartbeat = ManualHeartbeat(store)
        limiter = BaseLimiter(LimitConfig(0.001, _PLENTY), store, "lost")
        runner.run(_acquire(limiter, is_async=True))
        before = limiter.sync.peek("k").remaining
        for turn in range(times):
            proxy.lose_replies(1, matching="rate_limiter:lost")
            granted = runner.run(_acquire(limiter, is_async=bool(turn % 2)))
            assert granted is False, "a local share starts empty, so the first call is refused"
            assert limiter.fallback is not None
            run_heartbeat(store)
            assert limiter.fallback is None
        executed = before - limiter.sync.peek("k").remaining
        assert proxy.replies_lost == times
        assert executed <= times
        runner.run(limiter.aclose())
        store.close()
    return f"{times} replies lost, {executed} calls executed"


async def _acquire(limiter: BaseLimiter, *, is_async: bool) -> Any:
    return await limiter.acquire("k") if is_async else limiter.sync.acquire("k")
