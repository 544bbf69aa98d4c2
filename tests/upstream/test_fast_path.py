"""The ordinary call without a flow, and the flow that goes on where the fast path stops."""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

import httpx2
import pytest
from tests.support import redis_store, wait_until
from tests.upstream.conftest import Make
from tests.upstream.drivers import Response, Scripted

from comporta import (
    BreakerConfig,
    CircuitBreaker,
    LimitConfig,
    LimitReachedError,
    LimitStrategy,
    Outcome,
    Upstream,
    last_call,
)
from comporta.limits.concurrency.operation import ListHolders
from comporta.metrics import InMemoryMetrics
from comporta.stores.base import Operation
from comporta.stores.memory import MemoryStore
from comporta.stores.redis.store import RedisStore
from comporta.stores.shared.store import SharedStore
from comporta.testing import ManualClock, Server
from comporta.upstream.flows import UpstreamCall

R = TypeVar("R")


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> list[UpstreamCall]:
    """Give the list of the calls that needed a flow."""
    calls: list[UpstreamCall] = []
    call_flow, finish_body_flow = UpstreamCall.call_flow, UpstreamCall.finish_body_flow

    def recording(call: UpstreamCall) -> Any:
        calls.append(call)
        return call_flow(call)

    def recording_body(call: UpstreamCall, error: BaseException | None) -> Any:
        calls.append(call)
        return finish_body_flow(call, error)

    monkeypatch.setattr(UpstreamCall, "call_flow", recording)
    monkeypatch.setattr(UpstreamCall, "finish_body_flow", recording_body)
    return calls


class RecordingStore(RedisStore):
    """A store on a server that records which thread applies which operation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.applied: list[tuple[int, str]] = []

    def apply(self, operation: Operation[R]) -> R:
        self.applied.append((threading.get_ident(), type(operation).__name__))
        return super().apply(operation)


def test_call__ordinary__needs_no_flow(make: Make, clock: ManualClock, flows: list[UpstreamCall]) -> None:
    driver, upstream = make(), Scripted(clock)
    driver.call(upstream)  # the first one asks the store about the circuit
    flows.clear()
    assert [driver.call(upstream) for _ in range(3)] == ["well"] * 3
    assert flows == []
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.attempts, driver.report.circuit) == ("ok", 1, "closed")
    assert driver.upstream.limiter.sync.stats().requests_last_minute == 4


@pytest.mark.parametrize(
    "options",
    [
        {"breaker": BreakerConfig(failure_ratio=0.5)},
        {"classify": lambda result, error: Outcome("ok", reason="noted")},
    ],
    ids=["a rule that counts successes", "an outcome with a reason"],
)
def test_call__success_that_must_be_reported__the_flow_reports_it(
    options: dict[str, Any], make: Make, clock: ManualClock, flows: list[UpstreamCall]
) -> None:
    driver, upstream = make(**options), Scripted(clock)
    for _ in range(3):
        assert driver.call(upstream) == "well"
    assert len(flows) == 3
    assert len(upstream.at) == 3
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.attempts) == ("ok", 1)


def test_call__with_permits__reuses_them_without_a_flow(
    make: Make, clock: ManualClock, flows: list[UpstreamCall]
) -> None:
    driver, upstream = make(max_concurrent=1), Scripted(clock)
    driver.call(upstream)
    flows.clear()
    assert [driver.call(upstream) for _ in range(3)] == ["well"] * 3
    assert driver.state().calls_in_flight == 0
    assert len(flows) <= 3  # none, unless the thread released the permit in between


def test_call__permit_held_back_and_no_token__waits_for_both(
    make: Make, clock: ManualClock, flows: list[UpstreamCall]
) -> None:
    driver, upstream = make("1/s burst 1", max_concurrent=1), Scripted(clock)
    for _ in range(3):
        assert driver.call(upstream) == "well"
    assert upstream.at == [0, 1, 2]
    assert driver.state().calls_in_flight == 0


def test_call__limit_is_lowered__the_flow_raises_it_again(make: Make, clock: ManualClock) -> None:
    driver, upstream = make("1000/s", retry=False), Scripted(clock)
    driver.call(Scripted(clock, Response(429)))
    lowered = driver.upstream.limiter.sync.stats().limit
    for _ in range(3):
        clock.advance(60)
        driver.call(upstream)
    assert driver.upstream.limiter.sync.stats().limit > lowered


def test_call__makes_another_call__last_call_is_its_own_again(store: MemoryStore) -> None:
    outer = Upstream("outer", "1000/s", state=store)
    inner = Upstream("inner", "1000/s", state=store)
    for _ in range(2):
        outer.sync.call(lambda: inner.sync.call(lambda: None))
        report = last_call()
        assert report is not None
        assert (report.source, report.outcome) == ("outer", "ok")


def test_call__metrics_are_on__counts_the_call(
    make: Make, clock: ManualClock, metrics: InMemoryMetrics, flows: list[UpstreamCall]
) -> None:
    driver, upstream = make(), Scripted(clock)
    for _ in range(3):
        driver.call(upstream)
    assert metrics.value("upstream_calls", upstream="pncp", outcome="ok") == 3
    assert len(flows) == 1


class Streamed(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body in two parts; reading it waits for nothing."""

    def __iter__(self) -> Iterator[bytes]:
        yield from (b"a", b"b")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


def stream_response(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, stream=Streamed())


def get_body(upstream: Upstream) -> bytes:
    transport = upstream.sync.transport(httpx2.MockTransport(stream_response))
    with httpx2.Client(transport=transport) as client:
        return client.get("http://upstream.test/").content


async def get_body_async(upstream: Upstream) -> bytes:
    transport = upstream.transport(httpx2.MockTransport(stream_response))
    async with httpx2.AsyncClient(transport=transport) as client:
        return (await client.get("http://upstream.test/")).content


@pytest.mark.parametrize("how", ["blocking", "awaiting"])
def test_call__open_body__needs_no_flow_before_it_nor_at_its_end(
    how: str, store: MemoryStore, metrics: InMemoryMetrics, flows: list[UpstreamCall]
) -> None:
    upstream = Upstream("streamed", "1000/s", state=store)
    upstream.sync.call(lambda: None)  # it asks the store about the circuit
    flows.clear()
    body = get_body(upstream) if how == "blocking" else asyncio.run(get_body_async(upstream))
    assert body == b"ab"
    assert flows == []
    assert metrics.value("upstream_calls", upstream="streamed", outcome="ok") == 2
    assert last_call() is not None


def test_call__open_body_without_breaker__needs_no_flow(
    store: MemoryStore, flows: list[UpstreamCall]
) -> None:
    upstream = Upstream("streamed", "1000/s", breaker=False, degradation=False, state=store)
    assert [get_body(upstream) for _ in range(2)] == [b"ab"] * 2
    assert flows == []


def test_call__open_body_and_a_rule_that_counts_successes__the_flow_reports_its_end(
    store: MemoryStore, flows: list[UpstreamCall]
) -> None:
    upstream = Upstream("streamed", "1000/s", breaker=BreakerConfig(failure_ratio=0.5), state=store)
    upstream.sync.call(lambda: None)
    flows.clear()
    assert get_body(upstream) == b"ab"
    assert len(flows) == 1


def test_call__state_of_the_circuit_is_old__takes_the_flow(flows: list[UpstreamCall]) -> None:
    clock = ManualClock()
    store = SharedStore(f"fast-{uuid.uuid4().hex[:8]}", clock=clock)
    try:
        upstream = Upstream("old", "1000/s", state=store)
        upstream.sync.call(lambda: None)
        flows.clear()
        upstream.sync.call(lambda: None)
        assert flows == []
        clock.advance(60)
        upstream.sync.call(lambda: None)
        assert len(flows) == 1
    finally:
        store.close()
        shutil.rmtree(store.path)


def test_call__breaker_with_a_clock_of_its_own__takes_the_flow(
    store: MemoryStore, flows: list[UpstreamCall]
) -> None:
    breaker = CircuitBreaker("elsewhere", state=MemoryStore(ManualClock()))
    upstream = Upstream("two-clocks", "1000/s", breaker=breaker, state=store)
    assert [upstream.sync.call(lambda: "well") for _ in range(3)] == ["well"] * 3
    assert len(flows) == 3


def test_call__function_is_interrupted__releases_permit_and_probe(store: MemoryStore) -> None:
    upstream = Upstream("interrupted", "1000/s", max_concurrent=1, state=store)

    def interrupted() -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            upstream.sync.call(interrupted)
    assert upstream.sync.get_state().calls_in_flight == 0
    report = last_call()
    assert report is not None
    assert (report.outcome, report.attempts) == ("cancelled", 1)


def test_cancelled__ordinary_awaiting_call__releases_its_permit(store: MemoryStore) -> None:
    upstream = Upstream("cancelled", "1000/s", max_concurrent=1, state=store)

    async def main() -> None:
        for _ in range(3):
            started = asyncio.Event()

            async def call(started: asyncio.Event = started) -> None:
                started.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(upstream.call(call))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert upstream.sync.get_state().calls_in_flight == 0


def test_redis__call_with_permits__makes_one_round_trip(server: Server) -> None:
    store = RecordingStore(server.url, 5.0)
    upstream = Upstream("trips", LimitConfig(1000, 1000), retry=False, max_concurrent=2, state=store)
    pool = upstream.permits._pool  # type: ignore[union-attr]
    upstream.sync.call(lambda: None)  # reads the circuit
    for _ in range(3):
        wait_until(lambda: not store.apply(ListHolders(pool)))
        store.applied.clear()
        upstream.sync.call(lambda: None)
        mine = [name for thread, name in store.applied if thread == threading.get_ident()]
        assert mine.count("AcquireForCall") == 1
        assert set(mine) <= {"AcquireForCall", "BreakerOperation"}
    store.close()


def test_redis__call_within_the_limit__makes_one_round_trip_and_joins_no_queue(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RecordingStore(server.url, 5.0)
    upstream = Upstream(uuid.uuid4().hex, LimitConfig(0.001, 3), retry=False, max_wait=0.1, state=store)
    upstream.sync.call(lambda: None)  # reads the circuit
    queue = upstream.limiter._flows.wait_queue
    with monkeypatch.context() as patched:
        patched.setattr(queue, "join", None)
        for _ in range(2):
            store.applied.clear()
            assert upstream.sync.call(lambda: "a page") == "a page"
            mine = [name for thread, name in store.applied if thread == threading.get_ident()]
            assert mine.count("ClaimOperation") == 1
            assert set(mine) <= {"ClaimOperation", "BreakerOperation"}
    with pytest.raises(LimitReachedError):
        upstream.sync.call(lambda: None)
    assert upstream.limiter._flows.is_contended
    store.close()


def test_redis__limit_with_a_queue__the_call_takes_its_turn(server: Server) -> None:
    limit = LimitConfig(1000, 5, strategy=LimitStrategy.LEAKY_BUCKET)
    with redis_store(server) as store:
        upstream = Upstream(uuid.uuid4().hex, limit, state=store)
        assert [upstream.sync.call(lambda: "a page") for _ in range(3)] == ["a page"] * 3


def test_redis__many_awaiting_calls_with_permits__never_lose_one(server: Server) -> None:
    async def main() -> None:
        with redis_store(server) as store:
            upstream = Upstream(uuid.uuid4().hex, "100000/s", max_concurrent=3, max_wait=30, state=store)
            in_flight = most = 0

            async def call() -> None:
                nonlocal in_flight, most
                in_flight += 1
                most = max(most, in_flight)
                await asyncio.sleep(0)
                in_flight -= 1

            tasks = [asyncio.create_task(upstream.call(call)) for _ in range(40)]
            await asyncio.sleep(0)
            for task in tasks[::7]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert most <= 3
            assert (await upstream.get_state()).calls_in_flight == 0
            await upstream.aclose()

    asyncio.run(main())
