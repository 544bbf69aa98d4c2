"""The same fault again and again, and one long outage: the short and the long tests share these."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.outages.promises import described, hold_to_promises, hold_where_all_ran
from tests.outages.story import KILLED, STOPPED, Fault, play
from tests.stores.switchable import ByHand, moved

from comporta import BaseLimiter, LimitConfig
from comporta.stores.failover import FailoverStore
from comporta.stores.redis import RedisStore
from comporta.testing import FaultProxy, Server

_PLENTY = 100_000
_TOO_MUCH_PER_WORKER = 2
_PATIENT_SECONDS = 5.0


def kill_repeatedly(times: int) -> str:
    """Kill the server and start it again, empty; return the figures."""
    return _repeated(KILLED, times)


def stop_repeatedly(times: int) -> str:
    """Stop the server and let it go on; return the figures."""
    return _repeated(STOPPED, times)


def _repeated(fault: Fault, times: int) -> str:
    """Leave workers just the time to come back; every round is held to all promises."""
    record = play([(fault, 0.2)] * times, capacity=10, workers=2, lead=0.5, health=1.3)
    return hold_to_promises(record)


def outage_of(seconds: float, workers: int) -> str:
    """Kill the server for some seconds; hold all workers together to what one bucket would have granted.

    They have used up its burst by then.
    """
    record = play([(KILLED, seconds)], rate=50, capacity=100, workers=workers, lead=3.0, health=2.0)
    assert record.errors == []
    figures = described(record)
    hold_where_all_ran(record, figures, kept=record.excess <= _TOO_MUCH_PER_WORKER * workers)
    return figures


def lose_replies(times: int) -> str:
    """Lose the reply to one call after the other; return how many calls were carried out.

    The keeper moves only when told, so that coming back takes no time and every call meets a lost reply.
    """
    with Server() as server, FaultProxy.to(server) as proxy, asyncio.Runner() as runner:
        primary = RedisStore(proxy.url, timeout=_PATIENT_SECONDS)
        store = FailoverStore(lambda: primary, primary.address, primary.clock)
        store.keeper = ByHand(store)
        limiter = BaseLimiter(LimitConfig(0.001, _PLENTY), store, "lost")
        runner.run(_asked(limiter, awaiting=True))
        before = limiter.sync.peek("k").remaining
        for turn in range(times):
            proxy.lose_replies(1, to="rate_limiter:lost")
            answer = runner.run(_asked(limiter, awaiting=bool(turn % 2)))
            assert answer is False, "a share starts empty, and refuses rather than guesses"
            assert limiter.fallback is not None
            moved(store)
            assert limiter.fallback is None
        carried_out = before - limiter.sync.peek("k").remaining
        assert proxy.replies_lost == times
        assert carried_out <= times
        runner.run(limiter.aclose())
        store.close()
    return f"{times} replies lost, {carried_out} calls carried out"


async def _asked(limiter: BaseLimiter, *, awaiting: bool) -> Any:
    return await limiter.acquire("k") if awaiting else limiter.sync.acquire("k")
