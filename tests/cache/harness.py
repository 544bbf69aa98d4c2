"""A cache through its async or its blocking methods, and a source that a test controls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tests.support import wait_until

from comporta import Cached, HealthCache
from comporta.cache.rows import CacheRow
from comporta.cache.sync_cache import SyncHealthCache

PATIENCE_SECONDS = 120.0


class FakeSource:
    """A loader that counts its calls, and fails or blocks as the test wants."""

    def __init__(self, value: Any = None) -> None:
        self.calls = 0
        self.value: Any = ["a"] if value is None else value
        self.error: BaseException | None = None
        self.called = threading.Event()
        self.may_return = threading.Event()
        self.may_return.set()

    def __call__(self) -> Any:
        self.calls += 1
        self.called.set()
        assert self.may_return.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        return self.value


class CacheHarness:
    """The methods of a cache: blocking, or async on one event loop if there is a runner."""

    def __init__(self, cache: HealthCache, runner: asyncio.Runner | None) -> None:
        self.cache = cache
        self._runner = runner

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if self._runner is None:
            blocking: Callable[..., Any] = getattr(self.cache.sync, method)
            return blocking
        runner = self._runner

        def run_async(*args: Any, **kwargs: Any) -> Any:
            async def call() -> Any:
                return await getattr(self.cache, method)(*args, **kwargs)

            return runner.run(call())

        return run_async

    def fetch(
        self, params: Any, loader: Callable[..., Any], user: str | None = "ana", **options: Any
    ) -> Cached:
        result: Cached = self.__getattr__("fetch")(user, params, loader, **options)
        return result

    def settle(self) -> None:
        """Wait until no load is running."""
        self.wait_for(lambda: not len(self.cache._core.fetcher.single_flight))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, and let tasks run meanwhile."""
        if self._runner is None:
            wait_until(condition)
        else:
            self._runner.run(asyncio.to_thread(wait_until, condition))

    def flush(self) -> None:
        """Write pending counts to the database."""
        self.cache._core._maintenance.flush()

    def row(self, params_hash: str, user: str = "ana") -> CacheRow:
        """Return the row in the database."""
        row = self.cache._core._tables.read(user, params_hash)
        assert row is not None
        return row

    def close(self) -> None:
        if self._runner is None:
            assert isinstance(self.cache.sync, SyncHealthCache)
            self.cache.sync.close()
        else:
            self._runner.run(self.cache.aclose())


def waiter_count(cache: HealthCache) -> int:
    """Return how many callers wait for a running load."""
    futures = list(cache._core.fetcher.single_flight._by_key.values())
    return sum(len(future._callbacks) for future in futures)
