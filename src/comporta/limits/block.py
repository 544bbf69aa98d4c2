"""Blocks and functions that a limit guards: ``async with limiter.limit(key):`` and the decorator.

A block takes from the limit when it begins and holds nothing afterwards, so one object serves any number of
blocks, calls, threads and tasks at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from comporta.errors import LimitReachedError
from comporta.flow import Flow, run, run_async
from comporta.signatures import is_async_callable

if TYPE_CHECKING:
    from comporta.limits.flows import Key, LimitFlows

F = TypeVar("F", bound=Callable[..., Any])


class LimitBlock:
    """A block or function that begins when the limit grants it; ``LimitReachedError`` if it does not.

    As a decorator it takes from the limit before each call. ``key`` may then be a function that receives the
    arguments of the call and returns the key.
    """

    __slots__ = ("_cost", "_flows", "_key", "_timeout")

    def __init__(
        self, flows: LimitFlows, key: Key | Callable[..., Key], cost: int, timeout: float | None
    ) -> None:
        self._flows = flows
        self._key = key
        self._cost = cost
        self._timeout = timeout

    def __enter__(self) -> None:
        run(self._require_flow(self._block_key()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def __aenter__(self) -> None:
        await run_async(self._require_flow(self._block_key()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, function: F) -> F:
        """Return the function, plain or async, wrapped to take from the limit before each call."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            run(self._require_flow(self._call_key(args, kwargs)))
            return function(*args, **kwargs)

        @wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            await run_async(self._require_flow(self._call_key(args, kwargs)))
            return await function(*args, **kwargs)

        return cast(F, call_async if is_async_callable(function) else call)

    def _call_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        return self._key(*args, **kwargs) if callable(self._key) else self._key

    def _block_key(self) -> Key:
        if callable(self._key):
            raise TypeError(
                f"key of a block must be a LimitKey, a str or None, got {self._key!r:.100}: "
                "only a decorated function has arguments to make a key from"
            )
        return self._key

    def _require_flow(self, key: Key) -> Flow[None]:
        yield from require_flow(self._flows, key, self._cost, self._timeout)


def require_flow(flows: LimitFlows, key: Key, cost: int, timeout: float | None) -> Flow[None]:
    """Take from a limit, waiting up to ``timeout`` seconds, or raise ``LimitReachedError``."""
    if not (yield from flows.acquire_flow(key, cost, timeout)):
        decision = yield from flows.peek_flow(key, cost)
        text = f"{flows.name}: the limit of {flows.config} had no capacity for {cost} in time"
        raise LimitReachedError(text, flows.name, decision.retry_after)
