"""Streams a search as server-sent events: its progress, the response, and a newer response if one follows.

::

    event: progress      {"source": "pncp", "listings_done": 3, "listings_failed": 0, …}
    event: result        the response of ``GET /v1/search``
    event: revalidated   the same, with what was pending, or after stale results were refreshed
    event: problem       what would have been an error response
    event: end           the stream is over

A stream ends after ``STREAM_SECONDS`` at the latest, and immediately when the service shuts down.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec

from comporta.service.search.query import SearchQuery
from comporta.service.search.response import RenderedResponse, SourceResult
from comporta.service.server_sent_events import KEEPALIVE, encode_event

if TYPE_CHECKING:
    from comporta.service.search.progress import ProgressSubscription
    from comporta.service.search.search import Search

STREAM_SECONDS: Final = 300.0
KEEPALIVE_SECONDS: Final = 10.0
"""After this long without an event a comment is sent, because proxies close silent connections."""

POLL_SECONDS: Final = 1.0
"""How often a stream checks whether another worker has refreshed stale results."""

_ENCODER = msgspec.json.Encoder()


async def search_events(
    search: Search, query: SearchQuery, shutting_down: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield the events of one search."""
    deadline = time.monotonic() + STREAM_SECONDS
    response: RenderedResponse | None = None
    with search.progress.subscribe(query.scope) as subscription:
        while not shutting_down.is_set() and time.monotonic() < deadline:
            answering = asyncio.create_task(search.answer(query))
            try:
                while not answering.done() and not shutting_down.is_set() and time.monotonic() < deadline:
                    await _wait_for_change(subscription, shutting_down, KEEPALIVE_SECONDS, answering)
                    for event in _progress_events(subscription) or ([] if answering.done() else [KEEPALIVE]):
                        yield event
                if answering.done() and (response is None or _has_more(answering.result(), response)):
                    yield encode_event("revalidated" if response else "result", answering.result().body)
                    response = answering.result()
            finally:
                answering.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await answering
            if response is None or not response.is_pending:
                break
            await _wait_for_change(subscription, shutting_down, POLL_SECONDS)
            yield KEEPALIVE
        if response is not None and not response.is_pending:
            async for event in _revalidation_events(
                search, query, response, subscription, shutting_down=shutting_down, deadline=deadline
            ):
                yield event
    yield encode_event("end", b"{}")


def _has_more(response: RenderedResponse, previous: RenderedResponse) -> bool:
    """Whether fewer UFs and days are pending than before."""
    return _pending_count(response) < _pending_count(previous)


def _pending_count(response: RenderedResponse) -> int:
    pending = [result.pending for result in response.results if result.pending is not None]
    return sum(1 + len(each.ufs) + len(each.days) for each in pending)


async def _revalidation_events(
    search: Search,
    query: SearchQuery,
    response: RenderedResponse,
    subscription: ProgressSubscription,
    *,
    shutting_down: asyncio.Event,
    deadline: float,
) -> AsyncIterator[bytes]:
    """Wait for newer results than those served, as long as a refresh is in progress."""
    results: tuple[SourceResult, ...] = response.results
    keepalive_at = time.monotonic() + KEEPALIVE_SECONDS
    while not shutting_down.is_set() and time.monotonic() < deadline:
        is_newer = await search.has_newer_results(query, results)
        if is_newer:
            yield encode_event("revalidated", (await search.answer(query)).body)
        if is_newer is not False:
            return
        await _wait_for_change(subscription, shutting_down, POLL_SECONDS)
        for event in _progress_events(subscription):
            keepalive_at = time.monotonic() + KEEPALIVE_SECONDS
            yield event
        if time.monotonic() >= keepalive_at:
            keepalive_at = time.monotonic() + KEEPALIVE_SECONDS
            yield KEEPALIVE


async def _wait_for_change(
    subscription: ProgressSubscription,
    shutting_down: asyncio.Event,
    seconds: float,
    answering: asyncio.Task[RenderedResponse] | None = None,
) -> None:
    """Wait up to ``seconds`` for progress, the response or a shutdown."""
    waits = {asyncio.create_task(subscription.wait()), asyncio.create_task(shutting_down.wait())}
    try:
        tasks = waits if answering is None else {*waits, answering}
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _progress_events(subscription: ProgressSubscription) -> list[bytes]:
    return [encode_event("progress", _ENCODER.encode(progress)) for progress in subscription.drain()]


def problem_event(document: object) -> bytes:
    """Return the event for an error after the stream has begun."""
    return encode_event("problem", _ENCODER.encode(document))
