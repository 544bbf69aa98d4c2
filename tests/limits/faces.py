"""Calls limiters and degradations blocking or awaiting, on every kind of store, with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tests.support import memory_store, redis_store, shared_store

from comporta import BaseLimiter, Degradation, LimitConfig
from comporta.stores.base import Store
from comporta.testing import ManualClock, Server

STORES = ("memory", "shared", "redis")
BEGIN = 1_800_000_000


def made_store(kind: str, server: Server, clock: ManualClock) -> AbstractContextManager[Store]:
    makers: dict[str, Callable[[], AbstractContextManager[Store]]] = {
        "memory": lambda: memory_store(clock),
        "shared": lambda: shared_store(clock),
        "redis": lambda: redis_store(server, clock),
    }
    return makers[kind]()


class Face:
    """Calls the methods of an object: awaits them with a runner, or uses its ``sync`` without one."""

    def __init__(self, target: Any, runner: asyncio.Runner | None) -> None:
        self.target = target
        self.runner = runner

    def __getattr__(self, method: str) -> Any:
        if self.runner is None:
            return getattr(self.target.sync, method)
        runner = self.runner
        return lambda *args, **kwargs: runner.run(getattr(self.target, method)(*args, **kwargs))


class Bench:
    """A store, its clock, and a way to call limiters on it."""

    def __init__(self, store: Store, clock: ManualClock, runner: asyncio.Runner | None) -> None:
        self.store = store
        self.clock = clock
        self.runner = runner

    def limiter(self, config: LimitConfig | str, name: str = "pncp") -> Face:
        return Face(BaseLimiter(config, self.store, name), self.runner)

    def degradation(self, limiter: Face, **options: Any) -> Face:
        return Face(Degradation(limiter.target, **options), self.runner)
