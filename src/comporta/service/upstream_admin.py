"""The upstreams that operators may change: those of this service, and those that other programs publish.

An upstream of the service is changed through its policies, an upstream of another program through its records
in the store. Either way, the change applies to every worker.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.fleet.overrides import (
    Summary,
    current_summary_flow,
    find_limit,
    pause_flow,
    set_limit_flow,
    with_burst,
)
from comporta.fleet.reader import published_summary_flow
from comporta.flow import run_async
from comporta.limits.config import LimitConfig
from comporta.limits.limiter import BaseLimiter
from comporta.limits.overrides.degradation import limiter_params
from comporta.limits.overrides.record import limit_text
from comporta.service.problems import HttpProblem
from comporta.upstream.upstream import Upstream

if TYPE_CHECKING:
    from comporta.service.container import Container
    from comporta.stores.base import Store


class OperatedUpstream(Protocol):
    """Changes one upstream for all workers and returns its state afterwards."""

    @property
    def breaker(self) -> CircuitBreaker | None:
        """Its circuit."""

    def set_limit(self, text: str | None, limit_name: str | None) -> Coroutine[Any, Any, dict[str, Any]]:
        """Check a limit and return the call that sets it; ``None`` revokes the override."""

    async def set_pause(self, seconds: float) -> dict[str, Any]:
        """Pause all calls; 0 ends a pause."""


async def find_upstream(container: Container, name: str) -> OperatedUpstream:
    """Return an upstream by its name; an unknown one is a 404."""
    if name in container.upstreams:
        return OwnUpstream(container.upstreams[name])
    summary = await run_async(published_summary_flow(container.store, name))
    if summary is None:
        known = ", ".join(container.upstreams)
        detail = f"name must be one of {known}, or published by another program, got {name!r:.100}"
        raise HttpProblem(404, "Not Found", detail, "name")
    return PublishedUpstream(container.store, await run_async(current_summary_flow(container.store, summary)))


class OwnUpstream:
    """An upstream of this service."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    @property
    def breaker(self) -> CircuitBreaker | None:
        """The circuit that its calls use."""
        return self._upstream.breaker

    def set_limit(self, text: str | None, limit_name: str | None) -> Coroutine[Any, Any, dict[str, Any]]:
        """Find the limiter and parse the limit, then set it."""
        limiter = self._find_limiter(limit_name)
        return self._set_limit(limiter, None if text is None else _parse_limit(text, limiter))

    async def set_pause(self, seconds: float) -> dict[str, Any]:
        """Pause the first limit, which every call needs; resume all, because any of them may be paused."""
        upstream = self._upstream
        if seconds:
            await upstream.limiter.pause(seconds)
        else:
            for limiter in upstream.limits.limiters.values() if upstream.limits else (upstream.limiter,):
                await limiter.resume()
        return (await upstream.get_state()).as_dict()

    async def _set_limit(self, limiter: BaseLimiter, limit: LimitConfig | None) -> dict[str, Any]:
        await self._upstream.get_state()  # reads the overrides in effect
        before = limit_text(limiter_params(limiter)[1])
        await limiter.set_limit(limit)
        state = await self._upstream.get_state()
        after = limit_text(limiter_params(limiter)[1])
        return {**state.as_dict(), "limit_before": before, "limit_after": after}

    def _find_limiter(self, limit_name: str | None) -> BaseLimiter:
        limiters = {} if self._upstream.limits is None else self._upstream.limits.limiters
        if limit_name is None:
            return self._upstream.limiter
        if limit_name not in limiters:
            known = ", ".join(limiters) or "left out: the upstream has one limit"
            detail = f"must be {'one of ' if limiters else ''}{known}, got {limit_name!r:.100}"
            raise _unknown_limit(detail)
        return limiters[limit_name]


class PublishedUpstream:
    """An upstream of another program: the service knows its published summary."""

    def __init__(self, store: Store, summary: Summary) -> None:
        self._store = store
        self._summary = summary

    @property
    def breaker(self) -> CircuitBreaker | None:
        """Its circuit, for operations that do not depend on its options."""
        if self._summary["phase"] is None:
            return None
        return CircuitBreaker(self._summary["name"], config=BreakerConfig(), state=self._store)

    def set_limit(self, text: str | None, limit_name: str | None) -> Coroutine[Any, Any, dict[str, Any]]:
        """Find the limit and parse the new one, then write its record."""
        try:
            limit = find_limit(self._summary, limit_name)
        except ValueError as error:
            raise _unknown_limit(str(error)) from None
        try:
            new_text = None if text is None else with_burst(text, limit)
        except ValueError as error:
            raise _wrong_limit(error) from None
        return self._set_limit(new_text, limit_name)

    async def set_pause(self, seconds: float) -> dict[str, Any]:
        """Write the record of a pause, or end it."""
        await run_async(pause_flow(self._store, self._summary, seconds))
        return await self._current_summary()

    async def _set_limit(self, text: str | None, limit_name: str | None) -> dict[str, Any]:
        await run_async(set_limit_flow(self._store, self._summary, text, limit_name))
        after = await self._current_summary()
        texts = [find_limit(summary, limit_name)["limit_text"] for summary in (self._summary, after)]
        return {**after, "limit_before": texts[0], "limit_after": texts[1]}

    async def _current_summary(self) -> Summary:
        return await run_async(current_summary_flow(self._store, self._summary))


def _parse_limit(text: str, limiter: BaseLimiter) -> LimitConfig:
    """Parse a limit; without a burst in the text, it keeps that of the limit in force, if there is one."""
    try:
        limit = LimitConfig.parse(text, limiter.strategy)
    except ValueError as error:
        raise _wrong_limit(error) from None
    _, current = limiter_params(limiter)
    if "burst" in text.lower() or "burst" not in limit_text(current):
        return limit
    return replace(limit, capacity=current.capacity)


def _unknown_limit(detail: str) -> HttpProblem:
    return HttpProblem(404, "Not Found", f"limit_name {detail}", "limit_name")


def _wrong_limit(error: ValueError) -> HttpProblem:
    return HttpProblem(422, "Unprocessable Content", str(error), "limit")
