"""HTTP transports: what the policies add to a request whose response is ready, compared with interlock's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import repeat
from typing import Any

import httpx2
import interlock.integrations.httpx2 as interlock_httpx2

from benchmarks import ours
from benchmarks.breaker_peers import BARE, INTERLOCK
from benchmarks.measure import Contender, Effort, Loop, Timings, calls, check, in_turns
from benchmarks.report import Goal, Section, Table
from benchmarks.shared import shared_state
from comporta import LimitConfig, Upstream

_PLENTY = 10_000_000
_RATIO_MAX = 1.5
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


def run(effort: Effort) -> Section:
    """Compare the transports, blocking and awaiting."""
    section = Section(
        "Transports",
        "A request through a transport for httpx2 around one that answers at once, with eight headers, none "
        "of which is about limits. comporta's transport has all default policies of an upstream (retry, "
        "breaker, limit, degradation, pause), interlock's has a breaker. CPU time of the process, in turns.",
    )
    with shared_state() as state:
        names = {"memory://": "memory://", "shared://": state}
        _record(section, "blocking", _blocking(effort, names))
        _record(section, "awaiting", _awaiting(effort, names))
    return section


def _blocking(effort: Effort, states: dict[str, str]) -> Timings:
    contenders = [
        *(
            _contender(ours.COMPORTA, name, _upstream(f"blocking-{number}", state).sync.transport(_Ready()))
            for number, (name, state) in enumerate(states.items())
        ),
        _contender(INTERLOCK, "", interlock_httpx2.CircuitBreakerTransport(_Ready())),
        _contender(BARE, "", _Ready()),
    ]
    for contender in contenders:
        check(contender, repeat(""), admits=True)
    runs = {contender.name: calls(contender, repeat("")) for contender in contenders}
    return in_turns(runs, effort, clock_ns=time.process_time_ns)


def _awaiting(effort: Effort, states: dict[str, str]) -> Timings:
    with ExitStack() as stack:
        loops = [stack.enter_context(closing(Loop(contender))) for contender in _awaiting_contenders(states)]
        runs = {loop.name: loop.awaits(repeat("")) for loop in loops}
        return in_turns(runs, effort, clock_ns=time.process_time_ns)


def _awaiting_contenders(states: dict[str, str]) -> Iterator[Contender]:
    for number, (name, state) in enumerate(states.items()):
        upstream = _upstream(f"awaiting-{number}", state)
        yield _async_contender(ours.COMPORTA, name, upstream.transport(_ReadyAsync()), upstream.aclose)
    interlocked = interlock_httpx2.AsyncCircuitBreakerTransport(_ReadyAsync())
    yield _async_contender(INTERLOCK, "", interlocked)
    yield _async_contender(BARE, "", _ReadyAsync())


def _upstream(name: str, state: str) -> Upstream:
    return Upstream(name, LimitConfig(_PLENTY, _PLENTY), state=state)


def _contender(library: str, variant: str, transport: Any) -> Contender:
    handle = transport.handle_request
    return Contender(library, variant, lambda _: handle(_REQUEST), lambda response: response is _RESPONSE)


def _async_contender(library: str, variant: str, transport: Any, aclose: Any = None) -> Contender:
    handle = transport.handle_async_request
    return Contender(library, variant, lambda _: handle(_REQUEST), aclose=aclose)


def _record(section: Section, how: str, timings: Timings) -> None:
    name = f"{ours.COMPORTA} memory://"
    section.tables.append(Table.of_costs(how.capitalize(), timings, name))
    promise = f"transport, {how}: interlock's, which has a breaker only"
    section.goals.append(Goal.at_most(_RATIO_MAX, promise, timings, name, [INTERLOCK]))
