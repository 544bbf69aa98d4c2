"""Where a trouble is provoked: a server of its own, a proxy before it, and callers who know of neither.

Callers open their limiters by URL, as users do, and ask them blocking or awaiting. What the server has
counted is read past the proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from tests.support import hold_to

from comporta import BaseLimiter, Decision, LimitConfig
from comporta.events import Event, latest_events
from comporta.stores.connecting import address_of
from comporta.stores.failover import Fallback
from comporta.stores.urls import forget_stores
from comporta.testing import FaultProxy, Server
from comporta.testing.servers import wait_until

T = TypeVar("T")

ANSWER_SECONDS: Final = 0.25
"""Within this every caller is promised an answer, whatever happens to the server."""

RETURN_SECONDS: Final = 30.0
"""Two are promised; a busy machine gets more."""

PATIENT: Final = "?timeout=5"
"""For rows in which nothing fails: a machine that stalls must not look like a server that does."""

UNHURRIED: Final = "?timeout=10"
"""For rows in which the server is heard to fail, and no deadline is needed to know it."""

LASTING: Final = LimitConfig(0.001, 100_000)
"""Refilled so slowly that what is left tells how often it was taken; its share starts empty and stays so."""

LIVELY: Final = LimitConfig(1000, 10)
"""Refilled so quickly that a share of it grants something at once."""


class Caller:
    """A limiter opened by URL, and whoever asks it; where it was promised, an answer that is late fails."""

    def __init__(self, limiter: BaseLimiter, runner: asyncio.Runner | None, *, prompt: bool) -> None:
        self.limiter = limiter
        self._runner = runner
        self._prompt = prompt

    @property
    def fallback(self) -> Fallback | None:
        return self.limiter.fallback

    def acquire(self, key: Any = "k", cost: int = 1) -> bool:
        return self._ask(self.limiter.sync.acquire, self.limiter.acquire, key, cost)

    def decide(self, key: Any = "k", cost: int = 1) -> Decision:
        return self._ask(self.limiter.sync.decide, self.limiter.decide, key, cost)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(self.limiter.aclose())

    def _ask(
        self,
        blocking: Callable[[Any, int], T],
        awaiting: Callable[[Any, int], Coroutine[Any, Any, T]],
        key: Any,
        cost: int,
    ) -> T:
        began = time.monotonic()
        runner = self._runner
        answer = blocking(key, cost) if runner is None else runner.run(awaiting(key, cost))
        if self._prompt:
            hold_to(time.monotonic() - began, ANSWER_SECONDS, "an answer")
        return answer


class Stage:
    """One trouble's server and proxy, with callers of one face: ``"blocking"`` or ``"awaiting"``."""

    def __init__(self, program: str, face: str, *options: str, password: str | None = None) -> None:
        self.face = face
        self.server = Server(program, *options, password=password)
        self.proxy = FaultProxy.to(self.server)
        self.runner = asyncio.Runner() if face == "awaiting" else None
        self.address = address_of(self.proxy.url)
        self._began = time.time()
        self._callers: list[Caller] = []

    def beside(self, *options: str, password: str | None = None) -> Stage:
        """Return another stage with the same kind of server, started otherwise."""
        return Stage(self.server.program, self.face, *options, password=password)

    def caller(self, limit: LimitConfig = LASTING, name: str = "tested", options: str = "") -> Caller:
        """Open a limiter by the proxy's URL; with options it is another store, as in another process."""
        return self.caller_at(self.proxy.url + options, limit, name, prompt=options != PATIENT)

    def caller_at(self, url: str, limit: LimitConfig, name: str, *, prompt: bool = True) -> Caller:
        """Open a limiter by any URL."""
        caller = Caller(BaseLimiter(limit, url, name), self.runner, prompt=prompt)
        self._callers.append(caller)
        return caller

    def url_as(self, user: str, password: str) -> str:
        """Return the proxy's URL for somebody else."""
        return f"redis://{user}:{password}@{urlsplit(self.proxy.url).netloc.rpartition('@')[2]}/0"

    def taken(self, key: str = "k", name: str = "tested") -> int:
        """Return how much of a key of a lasting limit the server has given, by its own count."""
        tokens = self.server.command("HGET", f"rate_limiter:{name}:{key}", "tokens")
        return 0 if tokens is None else round(LASTING.capacity - float(tokens))

    def events(self, *kinds: str) -> list[Event]:
        """Return what was said about this stage's server since it began."""
        return [
            event
            for event in latest_events()
            if event.source == self.address and event.kind in kinds and event.at >= self._began
        ]

    @staticmethod
    def settle(*callers: Caller) -> None:
        """Wait until each was answered by the server: a lasting limit grants nothing anywhere else."""
        for caller in callers:
            wait_until(caller.acquire, "a caller is answered by the server", RETURN_SECONDS)

    @staticmethod
    def back(caller: Caller) -> None:
        """Wait until a caller is no longer on its own."""
        wait_until(lambda: caller.fallback is None, "a caller is back", RETURN_SECONDS)

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
        forget_stores()
        self.proxy.close()
        self.server.close()
