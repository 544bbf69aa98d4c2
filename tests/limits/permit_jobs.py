"""The jobs of worker processes that use permits (see ``tests/processes/fleet.py``)."""

from __future__ import annotations

import asyncio
import fcntl
import time
from struct import Struct
from typing import Any, cast

from tests.processes.jobs import send_result, wait_for_start

from comporta import ConcurrencyLimit
from comporta.stores.failover.store import FailoverStore

COUNT = Struct("<ii")
"""The counter: calls in flight now, and the most there were at once."""


def calls(number: int, url: str, most: int, calls: int, counter: str) -> None:
    """Make calls, eight at once, and count those in flight among all processes."""
    limit = ConcurrencyLimit("tested", most, state=url)

    def counted(change: int) -> None:
        with open(counter, "r+b", buffering=0) as file:  # noqa: PTH123 - a lock needs a descriptor
            fcntl.flock(file, fcntl.LOCK_EX)
            inside, most_ever = COUNT.unpack(file.read())
            file.seek(0)
            file.write(COUNT.pack(inside + change, max(most_ever, inside + change)))

    async def call() -> int:
        async with limit.slot(timeout=60):
            counted(1)
            await asyncio.sleep(0.001)  # sleeps: the call under the permit takes this long
            counted(-1)
        return 1

    async def main() -> int:
        done = 0
        for _ in range(calls // 8):
            done += sum(await asyncio.gather(*(call() for _ in range(8))))
        if hasattr(limit.store, "aclose"):
            await limit.store.aclose()
        return done

    wait_for_start()
    send_result(asyncio.run(main()))


def holds(url: str, permit_ttl: float) -> None:
    """Acquire a permit, print its owner, and keep it."""
    limit = ConcurrencyLimit("killed", 1, permit_ttl=permit_ttl, state=url)
    wait_for_start()
    permit = limit.sync.acquire()
    assert permit is not None
    send_result(permit.owner)
    time.sleep(600)  # sleeps: keeps the permit until it is killed


def competes(number: int, url: str, seconds: float) -> None:
    """Make and count as many calls as it gets permits for; the first process makes eight at once."""
    limit = ConcurrencyLimit("contested", 1, state=url)
    done = 0

    async def caller(until: float) -> None:
        nonlocal done
        while time.monotonic() < until:
            async with limit.slot(timeout=60):
                await asyncio.sleep(0.005)
                done += 1

    async def main() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(caller(until) for _ in range(1 if number else 8)))
        await cast(FailoverStore, limit.store).aclose()

    wait_for_start()
    asyncio.run(main())
    send_result(done)


JOBS: dict[str, Any] = {"calls": calls, "competes": competes, "holds": holds}
