"""Shadow mode: a limit that decides and records, but refuses nothing.

It takes from the limit as usual, so its numbers match those of an enforced limit, except that callers it
would have refused proceed. Callers never wait.
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

    ``upstream`` is the upstream that owns the limit, if any.
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
        """Take the cost if it is available, and grant it in any case."""
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
