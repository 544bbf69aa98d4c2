"""A cache through either face, and a source that can be told what to do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from comporta import Cached, HealthCache
from comporta.cache.cache import SyncHealthCache
from comporta.cache.rows import Entry

PATIENCE_SECONDS = 120.0


class Source:
    """What a loader asks: it counts, fails, or makes one wait, as told."""

    def __init__(self, value: Any = None) -> None:
        self.calls = 0
        self.value: Any = ["a"] if value is None else value
        self.error: BaseException | None = None
        self.asked = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def __call__(self) -> Any:
        self.calls += 1
        self.asked.set()
        assert self.go.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        return self.value


class Face:
    """The verbs of a cache, through one of its faces; awaiting, all on one loop."""

    def __init__(self, cache: HealthCache, runner: asyncio.Runner | None) -> None:
        self.cache = cache
        self._runner = runner

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if self._runner is None:
            blocking: Callable[..., Any] = getattr(self.cache.sync, verb)
            return blocking
        runner = self._runner

        def awaiting(*given: Any, **named: Any) -> Any:
            async def call() -> Any:
                return await getattr(self.cache, verb)(*given, **named)

            return runner.run(call())

        return awaiting

    def fetch(self, params: Any, loader: Callable[..., Any], user: str = "ana", **named: Any) -> Cached:
        found: Cached = self.__getattr__("fetch")(user, params, loader, **named)
        return found

    def settle(self) -> None:
        """Wait until nothing is under way."""
        self.wait_for(lambda: not len(self.cache._asking.loads.flights))

    def wait_for(self, met: Callable[[], bool]) -> None:
        """Wait until something is so, letting tasks run meanwhile."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not met():
            assert time.monotonic() < deadline
            if self._runner is None:
                time.sleep(0.002)
            else:
                self._runner.run(asyncio.sleep(0.002))

    def flush(self) -> None:
        """Write down what was counted."""
        self.cache._asking._chores.flush()

    def row(self, params_hash: str, user: str = "ana") -> Entry:
        """Return what the table has."""
        entry = self.cache._asking._table.read(user, params_hash)
        assert entry is not None
        return entry

    def close(self) -> None:
        if self._runner is None:
            assert isinstance(self.cache.sync, SyncHealthCache)
            self.cache.sync.close()
        else:
            self._runner.run(self.cache.aclose())
