"""State machines that draw calls, make them on every engine, and compare each reply with a model.

All engines of a machine are on one manual clock, and each step makes the same call on all of them.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.cache.harness import CacheHarness
from tests.stateful.models import (
    SECOND_US,
    CacheKeyModel,
    CircuitModel,
    FixedWindowModel,
    LeakyBucketModel,
    LimitModel,
    PermitsModel,
    SlidingWindowModel,
    TokenBucketModel,
)

from comporta import (
    BaseLimiter,
    CacheUnavailableError,
    CircuitBreaker,
    CircuitOpenError,
    ConcurrencyLimit,
    Decision,
    LimitConfig,
    LimitStrategy,
    Permit,
)
from comporta.stores.base import Store
from comporta.testing import ManualClock

STEPS_US = st.sampled_from((1, 1000, 20_000, 99_999, 100_000, 333_333, 1_000_000, 2_500_000))
"""By how much the clock moves: around the interval of a token, the window, and beyond both."""

_NUMBERS = itertools.count(1)


@dataclass
class Engines:
    """The stores of a machine by name, their clock, and the event loop for the awaiting interface."""

    stores: dict[str, Store]
    clock: ManualClock
    runner: asyncio.Runner | None = None
    steps: int = 0

    def call(self, target: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a limiter or a permit limit, blocking or awaiting."""
        if self.runner is None:
            return getattr(target.sync, method)(*arguments)
        return self.runner.run(getattr(target, method)(*arguments))

    def now_us(self) -> int:
        return self.clock.now_ns() // 1000


class Machine(RuleBasedStateMachine):
    """A machine with engines; counts its steps."""

    def __init__(self, engines: Engines) -> None:
        super().__init__()
        self.engines = engines
        self.name = f"stateful{next(_NUMBERS)}"

    @rule(by_us=STEPS_US)
    def advance(self, by_us: int) -> None:
        self.engines.steps += 1
        self.engines.clock.advance(by_us / SECOND_US)

    def compare(self, call: Callable[[str], object], expected: object) -> None:
        """Make a call on each engine, and compare each reply with the model's."""
        self.engines.steps += 1
        replies = {engine: call(engine) for engine in self.engines.stores}
        assert replies == dict.fromkeys(self.engines.stores, expected)


CAPACITY, RATE = 7, 10
LIMITS: dict[str, tuple[LimitConfig, Callable[[], LimitModel]]] = {
    "token_bucket": (LimitConfig(RATE, CAPACITY), lambda: TokenBucketModel(CAPACITY, RATE)),
    "leaky_bucket": (
        LimitConfig(RATE, CAPACITY, strategy=LimitStrategy.LEAKY_BUCKET),
        lambda: LeakyBucketModel(CAPACITY, RATE),
    ),
    "fixed_window": (
        LimitConfig(RATE, CAPACITY, 1.0, LimitStrategy.FIXED_WINDOW),
        lambda: FixedWindowModel(CAPACITY, SECOND_US),
    ),
    "sliding_window": (
        LimitConfig(RATE, CAPACITY, 1.0, LimitStrategy.SLIDING_WINDOW),
        lambda: SlidingWindowModel(CAPACITY, SECOND_US),
    ),
}

KEYS = st.sampled_from((None, "user:1", "user:2"))
COSTS = st.integers(1, CAPACITY)


class LimiterMachine(Machine):
    """Limits of three keys by one strategy: decide, peek, acquire, take a part, give back, reset."""

    @initialize(strategy=st.sampled_from(sorted(LIMITS)))
    def begin(self, strategy: str) -> None:
        config, self.make_model = LIMITS[strategy]
        self.limiters = {
            engine: BaseLimiter(config, store, self.name) for engine, store in self.engines.stores.items()
        }
        self.models: dict[str | None, LimitModel] = {}

    @rule(key=KEYS, cost=COSTS)
    def decide(self, key: str | None, cost: int) -> None:
        model, now_us = self._model(key), self.engines.now_us()
        wait_us = model.take(now_us, cost)
        expected = (wait_us == 0, wait_us / SECOND_US, model.remaining(now_us))
        self.compare(lambda engine: _visible_part(self._call(engine, "decide", key, cost)), expected)

    @rule(key=KEYS)
    def acquire(self, key: str | None) -> None:
        granted = self._model(key).take(self.engines.now_us(), 1) == 0
        self.compare(lambda engine: self._call(engine, "acquire", key), granted)

    @rule(key=KEYS, cost=COSTS)
    def acquire_up_to(self, key: str | None, cost: int) -> None:
        model, now_us = self._model(key), self.engines.now_us()
        granted = next(part for part in range(cost, -1, -1) if not part or not model.take(now_us, part))
        self.compare(lambda engine: self._call(engine, "acquire_up_to", key, cost), granted)

    @rule(key=KEYS, cost=COSTS)
    def peek(self, key: str | None, cost: int) -> None:
        model, now_us = copy.deepcopy(self._model(key)), self.engines.now_us()
        remaining = model.remaining(now_us)
        wait_us = model.take(now_us, cost)
        expected = (wait_us == 0, wait_us / SECOND_US, remaining)
        self.compare(lambda engine: _visible_part(self._call(engine, "peek", key, cost)), expected)

    @rule(key=KEYS, cost=COSTS)
    def release(self, key: str | None, cost: int) -> None:
        self._model(key).give_back(self.engines.now_us(), cost)
        self.compare(lambda engine: self._call(engine, "release", key, cost), None)

    @rule(key=KEYS)
    def reset(self, key: str | None) -> None:
        self.models.pop(key, None)
        self.compare(lambda engine: self._call(engine, "reset", key), None)

    def _model(self, key: str | None) -> LimitModel:
        return self.models.setdefault(key, self.make_model())

    def _call(self, engine: str, method: str, *arguments: object) -> Any:
        return self.engines.call(self.limiters[engine], method, *arguments)


def _visible_part(decision: Decision) -> tuple[bool, float, int]:
    return decision.allowed, decision.retry_after, decision.remaining


PERMITS, PERMIT_TTL = 3, 2.0


class PermitMachine(Machine):
    """Permits that are acquired, renewed, released and forgotten."""

    @initialize()
    def begin(self) -> None:
        self.limits = {
            engine: ConcurrencyLimit(self.name, PERMITS, permit_ttl=PERMIT_TTL, state=store)
            for engine, store in self.engines.stores.items()
        }
        self.model = PermitsModel(PERMITS, round(PERMIT_TTL * SECOND_US))
        self.permits: list[dict[str, Permit]] = []

    @rule()
    def acquire(self) -> None:
        expected = self.model.acquire(self.engines.now_us(), len(self.permits))
        granted: dict[str, Permit] = {}

        def acquire(engine: str) -> bool:
            permit = self.engines.call(self.limits[engine], "acquire")
            if permit is not None:
                granted[engine] = permit
            return permit is not None

        self.compare(acquire, expected)
        if expected:
            self.permits.append(granted)

    @precondition(lambda self: self.permits)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        number = self._draw(data)
        expected = self.model.renew(self.engines.now_us(), number)
        self.compare(lambda engine: self._call(engine, "renew", number), expected)

    @precondition(lambda self: self.permits)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = self._draw(data)
        self.model.release(number)
        self.compare(lambda engine: self._call(engine, "release", number), None)

    @rule()
    def holders(self) -> None:
        expected = self.model.seconds_left(self.engines.now_us())

        def seconds_left(engine: str) -> list[float]:
            return [holder.seconds_left for holder in self.engines.call(self.limits[engine], "holders")]

        self.compare(seconds_left, expected)

    def _draw(self, data: st.DataObject) -> int:
        """Draw a permit: one of the last few, which may have expired or been released before."""
        return data.draw(st.integers(max(0, len(self.permits) - 6), len(self.permits) - 1))

    def _call(self, engine: str, method: str, number: int) -> Any:
        return self.engines.call(self.limits[engine], method, self.permits[number][engine])


THRESHOLD, COOLDOWN, PROBE_SECONDS = 3, 4.0, 3.0


class BreakerMachine(Machine):
    """Calls through a circuit that overlap, succeed and fail in any order."""

    @initialize()
    def begin(self) -> None:
        options: dict[str, Any] = {
            "threshold": THRESHOLD,
            "cooldown_seconds": COOLDOWN,
            "probe_seconds": PROBE_SECONDS,
        }
        self.breakers = {
            engine: CircuitBreaker(self.name, state=store, **options)
            for engine, store in self.engines.stores.items()
        }
        self.model = CircuitModel(THRESHOLD, round(COOLDOWN * SECOND_US), round(PROBE_SECONDS * SECOND_US))
        self.calls: dict[int, tuple[int, dict[str, Any]]] = {}
        self.number = 0

    @rule()
    def enter(self) -> None:
        self.number += 1
        now_us = self.engines.now_us()
        period = self.model.admit(now_us, self.number)
        blocks: dict[str, Any] = {}

        def enter(engine: str) -> float | None:
            blocks[engine] = block = self._block(engine)
            try:
                self._run(block, "enter")
            except CircuitOpenError as error:
                return error.retry_after
            return None

        self.compare(enter, None if period is not None else self.model.retry_us(now_us) / SECOND_US)
        if period is not None:
            self.calls[self.number] = (period, blocks)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), failed=st.booleans())
    def leave(self, data: st.DataObject, failed: bool) -> None:
        call = data.draw(st.sampled_from(sorted(self.calls)))
        period, blocks = self.calls.pop(call)
        error = OSError("no route") if failed else None
        (self.model.fail if failed else self.model.succeed)(self.engines.now_us(), call, period)
        self.compare(lambda engine: self._run(blocks[engine], "exit", type(error), error, None), None)

    @rule()
    def look(self) -> None:
        expected = self.model.is_open(self.engines.now_us())
        self.compare(lambda engine: self.breakers[engine].is_degraded, expected)

    @rule(seconds=st.sampled_from((COOLDOWN, PROBE_SECONDS, 70.0)))
    def wait(self, seconds: float) -> None:
        self.engines.steps += 1
        self.engines.clock.advance(seconds)

    def teardown(self) -> None:
        """End the calls that are still open, so that they hold nothing."""
        for _, blocks in self.calls.values():
            for block in blocks.values():
                self._run(block, "exit", None, None, None)

    def _block(self, engine: str) -> Any:
        breaker = self.breakers[engine]
        return breaker.sync.admit() if self.engines.runner is None else breaker.admit()

    def _run(self, block: Any, step: str, *arguments: object) -> Any:
        """Enter or leave a block, blocking or awaiting."""
        if self.engines.runner is None:
            return getattr(block, f"__{step}__")(*arguments)
        return self.engines.runner.run(getattr(block, f"__a{step}__")(*arguments))


FRESH, STALE = 100.0, 1000.0
ACCESSES_MAX = 9
"""From the tenth access on a key is hot, and may be refreshed ahead of time."""


class CacheMachine(RuleBasedStateMachine):
    """Keys that are fetched while their source answers or fails; each key on every database."""

    def __init__(
        self, caches: dict[str, CacheHarness], clock: ManualClock, count: Callable[[], object]
    ) -> None:
        super().__init__()
        self.caches = caches
        self.clock = clock
        self.count = count
        self.name = f"stateful{next(_NUMBERS)}"
        self.models: dict[str, CacheKeyModel] = {}
        self.accesses: Counter[str] = Counter()
        self.values = itertools.count(1)

    @rule(number=st.integers(1, 3), fails=st.booleans(), forget=st.booleans())
    def fetch(self, number: int, fails: bool, forget: bool) -> None:
        """Fetch a key, from memory or, if that is forgotten, from the database; wait for a refresh."""
        self.count()
        key = self._key(number)
        model, now = self.models.setdefault(key, CacheKeyModel(FRESH, STALE)), self._now()
        value = None if fails else next(self.values)
        expected = self._expected(model, now, value)
        for engine, cache in self.caches.items():
            calls: list[int] = []
            if forget:
                cache.cache.clear_local_cache()
            seen = self._fetched(cache, key, value, calls)
            cache.settle()
            assert (engine, *seen, len(calls)) == (engine, *expected)

    @rule(seconds=st.sampled_from((1.0, 59.0, 60.0, FRESH, 299.0, 301.0, STALE)))
    def advance(self, seconds: float) -> None:
        self.count()
        self.clock.advance(seconds)

    def _expected(self, model: CacheKeyModel, now: float, value: int | None) -> tuple[object, object, int]:
        """Return what a caller sees, and how often the source is called; the model has loaded then."""
        freshness = model.freshness(now)
        if freshness == "fresh":
            return model.value, "fresh", 0
        if freshness == "stale":
            served, loads = model.value, model.may_load(now)
            if loads:
                model.load(now, value)
            return served, "stale", int(loads)
        if not model.may_load(now):
            return None, "unavailable", 0
        model.load(now, value)
        return value, "fresh" if value is not None else "failed", 1

    def _fetched(
        self, cache: CacheHarness, key: str, value: int | None, calls: list[int]
    ) -> tuple[object, object]:
        def load() -> list[int]:
            calls.append(1)
            if value is None:
                raise OSError("the source is down")
            return [value]

        try:
            cached = cache.fetch({"q": key}, load)
        except CacheUnavailableError:
            return None, "unavailable"
        except OSError:
            return None, "failed"
        return cached.value[0], cached.freshness

    def _key(self, number: int) -> str:
        """Return a key that has not been fetched often enough to be hot."""
        self.accesses[str(number)] += 1
        return f"{self.name}-{number}-{self.accesses[str(number)] // ACCESSES_MAX}"

    def _now(self) -> float:
        return self.clock.now_ns() / 1e9
