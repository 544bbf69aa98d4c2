"""The place where a fault is provoked: a server, a proxy in front of it, and callers.

Callers open their limiters by URL, as users do, and use them blocking or awaiting. What the server has
counted is read without the proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from tests.support import assert_within

from comporta import BaseLimiter, Decision, LimitConfig
from comporta.events import Event, latest_events
from comporta.stores.outage_info import Fallback
from comporta.stores.redis.connection import display_address
from comporta.stores.registry import close_stores
from comporta.testing import FaultProxy, Server
from comporta.testing.redis_server import wait_until

T = TypeVar("T")

ANSWER_SECONDS_MAX: Final = 0.25
"""Every caller gets an answer within this time, whatever happens to the server."""

RECOVERY_SECONDS_MAX: Final = 30.0
"""The documentation promises 2 s; a busy machine gets more."""

RELIABLE: Final = "?timeout=5"
"""For faults in which the server answers: a stalled machine must not look like a failing server."""

NO_DEADLINE: Final = "?timeout=10"
"""For faults that are visible as errors, without a deadline."""

SLOW_REFILL: Final = LimitConfig(0.001, 100_000)
"""Refills so slowly that the tokens left count the grants; its local share starts and stays empty."""

FAST_REFILL: Final = LimitConfig(1000, 10)
"""Refills so fast that its local share grants something at once."""


class Caller:
    """A limiter opened by URL, blocking or awaiting; a late answer fails the test if ``is_prompt``."""

    def __init__(self, limiter: BaseLimiter, runner: asyncio.Runner | None, *, is_prompt: bool) -> None:
        self.limiter = limiter
        self._runner = runner
        self._is_prompt = is_prompt

    @property
    def fallback(self) -> Fallback | None:
        return self.limiter.fallback

    def acquire(self, key: Any = "k", cost: int = 1) -> bool:
        return self._call(self.limiter.sync.acquire, self.limiter.acquire, key, cost)

    def decide(self, key: Any = "k", cost: int = 1) -> Decision:
        return self._call(self.limiter.sync.decide, self.limiter.decide, key, cost)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(self.limiter.aclose())

    def _call(
        self,
        blocking: Callable[[Any, int], T],
        awaiting: Callable[[Any, int], Coroutine[Any, Any, T]],
        key: Any,
        cost: int,
    ) -> T:
        began = time.monotonic()
        runner = self._runner
        result = blocking(key, cost) if runner is None else runner.run(awaiting(key, cost))
        if self._is_prompt:
            assert_within(time.monotonic() - began, ANSWER_SECONDS_MAX, "the answer")
        return result


class FaultEnvironment:
    """The server and proxy of one fault, with callers of one kind: ``"blocking"`` or ``"awaiting"``."""

    def __init__(self, program: str, face: str, *options: str, password: str | None = None) -> None:
        self.face = face
        self.server = Server(program, *options, password=password)
        self.proxy = FaultProxy.to(self.server)
        self.runner = asyncio.Runner() if face == "awaiting" else None
        self.address = display_address(self.proxy.url)
        self._started_at = time.time()
        self._callers: list[Caller] = []

    def another(self, *options: str, password: str | None = None) -> FaultEnvironment:
        """Return another environment with the same server program and other options."""
        return FaultEnvironment(self.server.program, self.face, *options, password=password)

    def caller(self, limit: LimitConfig = SLOW_REFILL, name: str = "tested", options: str = "") -> Caller:
        """Open a limiter by the proxy's URL; other options make another store, as in another process."""
        return self.caller_at(self.proxy.url + options, limit, name, prompt=options != RELIABLE)

    def caller_at(self, url: str, limit: LimitConfig, name: str, *, prompt: bool = True) -> Caller:
        """Open a limiter by any URL."""
        caller = Caller(BaseLimiter(limit, url, name), self.runner, is_prompt=prompt)
        self._callers.append(caller)
        return caller

    def url_as(self, user: str, password: str) -> str:
        """Return the proxy's URL with other credentials."""
        return f"redis://{user}:{password}@{urlsplit(self.proxy.url).netloc.rpartition('@')[2]}/0"

    def charged(self, key: str = "k", name: str = "tested") -> int:
        """Return how many tokens of a ``SLOW_REFILL`` limit the server has granted."""
        tokens = self.server.command("HGET", f"rate_limiter:{name}:{key}", "tokens")
        return 0 if tokens is None else round(SLOW_REFILL.capacity - float(tokens))

    def events(self, *kinds: str) -> list[Event]:
        """Return the events about this server since the start of the test."""
        return [
            event
            for event in latest_events()
            if event.source == self.address and event.kind in kinds and event.at >= self._started_at
        ]

    @staticmethod
    def wait_until_served(*callers: Caller) -> None:
        """Wait until the server grants each caller something; a ``SLOW_REFILL`` share never would."""
        for caller in callers:
            wait_until(caller.acquire, "the server answers a caller", RECOVERY_SECONDS_MAX)

    @staticmethod
    def wait_for_recovery(caller: Caller) -> None:
        """Wait until a caller is no longer in fallback."""
        wait_until(lambda: caller.fallback is None, "a caller recovers", RECOVERY_SECONDS_MAX)

    def __enter__(self) -> Self:
        self.server.start()
        self.proxy.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for caller in self._callers:
            caller.close()
        if self.runner is not None:
            self.runner.close()
        close_stores()
        self.proxy.close()
        self.server.close()
