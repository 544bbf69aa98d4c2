"""Outcomes of calls through grpc, against a real server on loopback, blocking and async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from comporta import CircuitBreaker, CircuitOpenError, LimitReachedError, Upstream
from comporta.stores.memory import MemoryStore

METHOD = "/books.Library/Lend"
TIMEOUT_SECONDS = 5.0


class Library(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no annotations
    """A service that ends every call with ``status``."""

    def __init__(self) -> None:
        self.status = grpc.StatusCode.OK
        self.metadata: tuple[tuple[str, str], ...] = ()
        self.calls = 0

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._lend)

    def _lend(self, request: bytes, context: Any) -> bytes:
        self.calls += 1
        context.set_trailing_metadata(self.metadata)
        if self.status is not grpc.StatusCode.OK:
            context.abort(self.status, "text")
        return request


@pytest.fixture
def library() -> Iterator[tuple[Library, str]]:
    handler = Library()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=[handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield handler, f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture(params=["blocking", "awaiting"])
def lend(request: pytest.FixtureRequest, library: tuple[Library, str]) -> Any:
    """Return a function, or a coroutine function, that makes one call."""
    address = library[1]

    def blocking() -> bytes:
        with grpc.insecure_channel(address) as channel:
            answer: bytes = channel.unary_unary(METHOD)(b"1", timeout=TIMEOUT_SECONDS)
        return answer

    async def awaiting() -> bytes:
        async with grpc.aio.insecure_channel(address) as channel:
            answer: bytes = await channel.unary_unary(METHOD)(b"1", timeout=TIMEOUT_SECONDS)
        return answer

    return blocking if request.param == "blocking" else awaiting


def run(call: Any) -> Any:
    result = call()
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


def guard_both(lend: Any, through: str) -> tuple[CircuitBreaker, Any]:
    store = MemoryStore()
    breaker = CircuitBreaker("books", 2, state=store)
    if through == "breaker":
        return breaker, breaker(lend)
    return breaker, Upstream("books", "1000/s", breaker=breaker, retry=False, state=store).guard(lend)


@pytest.mark.parametrize("through", ["upstream", "breaker"])
@pytest.mark.parametrize("status", ["NOT_FOUND", "INVALID_ARGUMENT", "UNAUTHENTICATED", "ABORTED"])
def test_grpc__answered_with_an_error_of_the_caller__the_circuit_stays_closed(
    library: tuple[Library, str], lend: Any, through: str, status: str
) -> None:
    breaker, call = guard_both(lend, through)
    library[0].status = grpc.StatusCode[status]
    for _ in range(3):
        with pytest.raises(grpc.RpcError):
            run(call)
    assert (breaker.phase, breaker.consecutive_failures, library[0].calls) == ("closed", 0, 3)


@pytest.mark.parametrize("through", ["upstream", "breaker"])
@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"])
def test_grpc__answered_with_a_failure__opens_the_circuit(
    library: tuple[Library, str], lend: Any, through: str, status: str
) -> None:
    _, call = guard_both(lend, through)
    library[0].status = grpc.StatusCode[status]
    for _ in range(2):
        with pytest.raises(grpc.RpcError):
            run(call)
    with pytest.raises(CircuitOpenError):
        run(call)
    assert library[0].calls == 2


def test_grpc__resource_exhausted_with_pushback__pauses_and_lowers_the_limit(
    library: tuple[Library, str], lend: Any
) -> None:
    library[0].status = grpc.StatusCode.RESOURCE_EXHAUSTED
    library[0].metadata = (("grpc-retry-pushback-ms", "30000"),)
    upstream = Upstream("books", "10/s", max_wait=0, retry=False, state=MemoryStore())
    with pytest.raises(grpc.RpcError):
        run(upstream.guard(lend))
    with pytest.raises(LimitReachedError, match="paused by the upstream"):
        run(upstream.guard(lend))
    state = upstream.sync.get_state()
    assert state.breaker is not None
    assert (state.limit, state.breaker.failures, library[0].calls) == (8, 0, 1)


def test_grpc__success__returns_the_answer(library: tuple[Library, str], lend: Any) -> None:
    breaker, call = guard_both(lend, "upstream")
    assert run(call) == b"1"
    assert breaker.consecutive_failures == 0
