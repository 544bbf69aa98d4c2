"""HTTP transports: what the policies add to a request and its body, compared with interlock's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from itertools import repeat
from typing import Any

import httpx2
import interlock.integrations.httpx2 as interlock_httpx2

from benchmarks import ours
from benchmarks.breaker_peers import BARE, INTERLOCK
from benchmarks.measure import Contender, Effort, Loop, Timings, calls, check, in_turns
from benchmarks.report import Goal, Section, Table
from benchmarks.state import shared_state
from comporta import LimitConfig, Upstream

_PLENTY = 10_000_000
_RATIO_MAX = 1.5
_STREAMED_RATIO_MAX = 2.0
_REQUEST = httpx2.Request("GET", "http://upstream.test/page")
_HEADERS = {
    "date": "Tue, 17 Nov 2026 12:00:00 GMT",
    "content-type": "application/json; charset=utf-8",
    "content-length": "2",
    "connection": "keep-alive",
    "server": "nginx",
    "cache-control": "no-cache",
    "etag": '"33a64df5"',
    "vary": "Accept-Encoding",
}
_RESPONSE = httpx2.Response(200, headers=_HEADERS, content=b"{}")


class _Ready(httpx2.BaseTransport):
    """A transport whose response is ready."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return _RESPONSE


class _ReadyAsync(httpx2.AsyncBaseTransport):
    """The same for async clients."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return _RESPONSE


_PARTS = (b"[" + b" " * 4095, *(b" " * 4096,) * 6, b"]" + b" " * 4095)
"""A body of 32 KB, as a connection delivers it."""


class _Stream(httpx2.SyncByteStream):
    """A body that arrives in parts."""

    def __iter__(self) -> Iterator[bytes]:
        yield from _PARTS


class _AsyncStream(httpx2.AsyncByteStream):
    """The same for async clients."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in _PARTS:
            yield part


class _Streaming(httpx2.BaseTransport):
    """A transport whose response has a body to read."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=_HEADERS, stream=_Stream())


class _StreamingAsync(httpx2.AsyncBaseTransport):
    """The same for async clients."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=_HEADERS, stream=_AsyncStream())


def run(effort: Effort) -> Section:
    """Compare the transports, blocking and awaiting."""
    section = Section(
        "Transports",
        "A request through a transport for httpx2 around one that answers at once, with eight headers, none "
        "of which is about limits. comporta's transport has all default policies of an upstream (retry, "
        "breaker, limit, degradation, pause), interlock's has a breaker. The streamed bodies arrive in eight "
        "parts of 4 KB and are read to their end: with comporta the attempt lasts until then, with interlock "
        "until the headers. CPU time of the process, in turns.",
    )
    with shared_state() as state:
        names = {"memory://": "memory://", "shared://": state}
        _record(section, "blocking", _blocking(effort, names, _Ready()))
        _record(section, "awaiting", _awaiting(effort, names, _ReadyAsync()))
        _record(section, "streamed body, blocking", _blocking(effort, names, _Streaming()))
        _record(section, "streamed body, awaiting", _awaiting(effort, names, _StreamingAsync()))
    return section


def _blocking(effort: Effort, states: dict[str, str], inner: httpx2.BaseTransport) -> Timings:
    kind = type(inner).__name__
    contenders = [
        *(
            _contender(ours.COMPORTA, name, _upstream(f"{kind}-{number}", state).sync.transport(inner))
            for number, (name, state) in enumerate(states.items())
        ),
        _contender(INTERLOCK, "", interlock_httpx2.CircuitBreakerTransport(inner)),
        _contender(BARE, "", inner),
    ]
    for contender in contenders:
        check(contender, repeat(""), admits=True)
    runs = {contender.name: calls(contender, repeat("")) for contender in contenders}
    return in_turns(runs, effort, clock_ns=time.process_time_ns)


def _awaiting(effort: Effort, states: dict[str, str], inner: httpx2.AsyncBaseTransport) -> Timings:
    with ExitStack() as stack:
        contenders = _awaiting_contenders(states, inner)
        loops = [stack.enter_context(closing(Loop(contender))) for contender in contenders]
        runs = {loop.name: loop.awaits(repeat("")) for loop in loops}
        return in_turns(runs, effort, clock_ns=time.process_time_ns)


def _awaiting_contenders(states: dict[str, str], inner: httpx2.AsyncBaseTransport) -> Iterator[Contender]:
    for number, (name, state) in enumerate(states.items()):
        upstream = _upstream(f"{type(inner).__name__}-{number}", state)
        yield _async_contender(ours.COMPORTA, name, upstream.transport(inner), upstream.aclose)
    interlocked = interlock_httpx2.AsyncCircuitBreakerTransport(inner)
    yield _async_contender(INTERLOCK, "", interlocked)
    yield _async_contender(BARE, "", inner)


def _upstream(name: str, state: str) -> Upstream:
    return Upstream(name, LimitConfig(_PLENTY, _PLENTY), state=state)


def _contender(library: str, variant: str, transport: Any) -> Contender:
    handle = transport.handle_request

    def fetch(_: str) -> bytes:
        response: httpx2.Response = handle(_REQUEST)
        return response.read()

    return Contender(library, variant, fetch)


def _async_contender(library: str, variant: str, transport: Any, aclose: Any = None) -> Contender:
    handle = transport.handle_async_request

    async def fetch(_: str) -> bytes:
        response: httpx2.Response = await handle(_REQUEST)
        return await response.aread()

    return Contender(library, variant, fetch, aclose=aclose)


def _record(section: Section, how: str, timings: Timings) -> None:
    name = f"{ours.COMPORTA} memory://"
    section.tables.append(Table.of_costs(how.capitalize(), timings, name))
    promise = f"transport, {how}: interlock's, which has a breaker only"
    ratio_max = _STREAMED_RATIO_MAX if how.startswith("streamed") else _RATIO_MAX
    section.goals.append(Goal.at_most(ratio_max, promise, timings, name, [INTERLOCK]))
