"""Shadow mode: a limit that decides and records, and refuses nothing.

It takes from the limit as always, so that its numbers are those of a limit in force, except that callers it
would have refused go on. Waiting callers do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from comporta.limits.bound_limits import WrappedBoundLimit
from comporta.metrics import count
from comporta.stores.bound_limit import BoundLimit

LIMIT = "limit"


def count_would_refuse(policy: str, name: str, upstream: str) -> None:
    """Count a call that a limit or a breaker in shadow mode would have refused."""
    count("would_refuse", 1, policy=policy, name=name, upstream=upstream)


class ShadowBoundLimit(WrappedBoundLimit):
    """A limit tied to a store that grants everything, and counts what it would have refused.

    ``upstream`` is the upstream whose limit it is, if it is one's.
    """

    __slots__ = ("_name", "acquire", "decides_in_process", "try_acquire", "upstream")

    def __init__(self, inner: BoundLimit, name: str) -> None:
        super().__init__(inner)
        self._name = name
        self.upstream = ""
        self.decides_in_process = inner.decides_in_process
        self.try_acquire = self._grant_all(inner.try_acquire)
        self.acquire = self._grant_all(inner.acquire)

    @property
    def shadow(self) -> ShadowBoundLimit:
        """This object."""
        return self

    def acquire_async(self, key: Any, cost: int) -> Coroutine[Any, Any, int]:
        """Take if it is available, and grant in any case."""
        return self._acquire_async(key, cost)

    def count_would_refuse(self) -> None:
        """Count a call that the limit would have refused."""
        count_would_refuse(LIMIT, self._name, self.upstream)

    async def _acquire_async(self, key: Any, cost: int) -> int:
        if await self.inner.acquire_async(key, cost):
            self.count_would_refuse()
        return 0

    def _grant_all(self, acquire: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
        def grant(key: Any, cost: int) -> int:
            if acquire(key, cost):
                self.count_would_refuse()
            return 0

        return grant
