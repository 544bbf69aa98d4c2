"""A search as a stream of server-sent events: how far it is, the answer, and word of a newer one.

::

    event: progress      {"source": "pncp", "ufs_done": 3, "ufs_failed": 0, "ufs_total": 9, …}
    event: result        what ``GET /v1/search`` answers
    event: revalidated   the same, once what was stale has been fetched anew
    event: problem       what would have been an error
    event: end           nothing more will come

A stream ends by itself, after ``STREAM_SECONDS`` at the latest, and at once when the service is to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec

from comporta.service.search.answers import Part, Rendered
from comporta.service.search.query import SearchQuery

if TYPE_CHECKING:
    from comporta.service.search.board import Watch
    from comporta.service.search.searching import Search

STREAM_SECONDS: Final = 300.0
QUIET_SECONDS: Final = 10.0
"""After so long without news a comment is sent: proxies hang up on silence."""

LOOK_SECONDS: Final = 1.0
"""How often it is looked whether another worker has fetched anew what is stale."""

_ENCODER = msgspec.json.Encoder()


async def streamed(search: Search, query: SearchQuery, leaving: asyncio.Event) -> AsyncIterator[bytes]:
    """Give the events of one search."""
    until = time.monotonic() + STREAM_SECONDS
    with search.board.watching(query.question) as watch:
        asking = asyncio.create_task(search.answer(query))
        try:
            while not asking.done() and not leaving.is_set() and time.monotonic() < until:
                await _news(watch, leaving, QUIET_SECONDS, asking)
                for text in _progress(watch) or ([] if asking.done() else [b": still at it\n\n"]):
                    yield text
            if asking.done():
                made = asking.result()
                yield _event("result", made.body)
                async for text in _renewed(search, query, made, watch, leaving=leaving, until=until):
                    yield text
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asking
    yield _event("end", b"{}")


async def _renewed(
    search: Search, query: SearchQuery, made: Rendered, watch: Watch, *, leaving: asyncio.Event, until: float
) -> AsyncIterator[bytes]:
    """Wait for something newer than what was served, as long as something is to come."""
    parts: tuple[Part, ...] = made.parts
    quiet_until = time.monotonic() + QUIET_SECONDS
    while not leaving.is_set() and time.monotonic() < until:
        newer = await search.is_renewed(query, parts)
        if newer:
            yield _event("revalidated", (await search.answer(query)).body)
        if newer is not False:
            return
        await _news(watch, leaving, LOOK_SECONDS)
        for text in _progress(watch):
            quiet_until = time.monotonic() + QUIET_SECONDS
            yield text
        if time.monotonic() >= quiet_until:
            quiet_until = time.monotonic() + QUIET_SECONDS
            yield b": still at it\n\n"


async def _news(
    watch: Watch, leaving: asyncio.Event, seconds: float, asking: asyncio.Task[Rendered] | None = None
) -> None:
    """Wait until there is something to say, for so many seconds at the most."""
    waits = {asyncio.create_task(watch.changed()), asyncio.create_task(leaving.wait())}
    try:
        both = waits if asking is None else {*waits, asking}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _progress(watch: Watch) -> list[bytes]:
    return [_event("progress", _ENCODER.encode(progress)) for progress in watch.take()]


def problem_event(document: object) -> bytes:
    """Return the event for what would have been an error."""
    return _event("problem", _ENCODER.encode(document))


def _event(kind: str, data: bytes) -> bytes:
    """Return one event; JSON has no line ends of its own."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
