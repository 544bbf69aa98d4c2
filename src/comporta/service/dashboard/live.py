"""Sends open pages the history, then a document, and then about once a second what changed in it.

A worker builds one document a second however many pages are open, and none while no page is open; all pages
get the same bytes. A slow page gets the newest document when it is ready for it and skips those in between,
so nothing piles up. Only a page that has the previous document gets just the changes. Everything runs on one
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import StreamingResponse

from comporta import events
from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.flow import is_task_cancelled
from comporta.service.dashboard.document_changes import document_changes
from comporta.service.server_sent_events import KEEPALIVE, MEDIA_TYPE, encode_event

PAGES_MAX: Final = 500
DOCUMENT_INTERVAL_SECONDS: Final = 1.0
HISTORY_CACHE_SECONDS: Final = 2.0
"""How long an encoded history is reused: after a restart all pages reconnect at once."""

RETRY_FIELD: Final = b"retry: 1000\n\n"
EMPTY_HISTORY: Final = b'{"slot_seconds":10,"at":0,"series":{}}'


class CachedBytes:
    """Bytes that are built at most once every ``seconds``, however many callers want them."""

    def __init__(self, build: Callable[[], Awaitable[bytes]], seconds: float) -> None:
        self._build = build
        self._seconds_ns = seconds * 1e9
        self._value = b""
        self._at_ns: int | None = None
        self._task: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """Return the bytes; a caller that is cancelled does not cancel the build for the others."""
        if self._at_ns is not None and MONOTONIC.now_ns() - self._at_ns < self._seconds_ns:
            return self._value
        if self._task is None:
            self._task = asyncio.create_task(self._rebuild())
        return await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Cancel a running build."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _rebuild(self) -> bytes:
        try:
            self._value = await self._build()
            self._at_ns = MONOTONIC.now_ns()
            return self._value
        finally:
            self._task = None


class Update(NamedTuple):
    """What pages get next: ``data``, or ``changes`` for those whose latest document is number ``base``."""

    data: bytes
    is_document: bool = False
    changes: bytes | None = None
    base: int = 0


class LiveUpdates:
    """The open pages of this worker; ``shutting_down`` ends all of their streams."""

    def __init__(
        self,
        document: CachedBytes,
        history: CachedBytes,
        shutting_down: asyncio.Event,
        pages_max: int = PAGES_MAX,
    ) -> None:
        self.page_count = 0
        self._pages_max = pages_max
        self._document = document
        self._history = history
        self._shutting_down = shutting_down
        self._tasks: list[asyncio.Task[None]] = []
        self._version = 0
        self._latest = Update(KEEPALIVE)
        self._document_version = 0
        self._known: dict[str, Any] | None = None
        self._failed: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another page."""
        return self.page_count >= min(self._pages_max, PAGES_MAX)

    @contextmanager
    def open_page(self) -> Iterator[None]:
        """Count as an open page; documents are published while there is one."""
        self.page_count += 1
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._publish_loop()),
                asyncio.create_task(self._publish_end()),
            ]
        try:
            yield
        finally:
            self.page_count -= 1
            if not self.page_count:
                for task in self._tasks:
                    task.cancel()
                self._tasks = []
                self._version = 0  # the next page must not get an outdated document
                self._known = None

    async def page_events(self) -> AsyncIterator[bytes]:
        """Yield the events of one page; requires an :meth:`open_page`."""
        yield RETRY_FIELD + encode_event("history", await self._history_bytes())
        sent = document = 0
        while not self._shutting_down.is_set():
            if self._version == sent:
                await self._changed.wait()
            else:
                sent, update = self._version, self._latest
                is_known = update.base == document > 0
                document = sent if update.is_document else document
                yield update.changes if is_known and update.changes else update.data
        yield encode_event("end", b"{}")

    async def _history_bytes(self) -> bytes:
        try:
            return await self._history.get()
        except StateError:
            return EMPTY_HISTORY  # the history is in the shared store only
        except Exception as error:  # a page without history still shows the current state
            self._report("history", error)
            return EMPTY_HISTORY

    async def _publish_loop(self) -> None:
        while not self._shutting_down.is_set():
            self._publish(await self._next_document())
            await MONOTONIC.wait_async(self._shutting_down, DOCUMENT_INTERVAL_SECONDS)

    async def _publish_end(self) -> None:
        """Wake all streams at shutdown, even while a document is being built."""
        await self._shutting_down.wait()
        self._publish(Update(KEEPALIVE))

    async def _next_document(self) -> Update:
        try:
            update = self._update(await self._document.get())
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            return Update(KEEPALIVE)  # the build was cancelled elsewhere; try the next one
        except Exception as error:  # pages show the age of their document; try the next one
            self._report("document", error)
            return Update(KEEPALIVE)
        self._failed.discard("document")
        return update

    def _update(self, document: bytes) -> Update:
        """Return the document with its changes, unless they are hardly shorter."""
        known, self._known = self._known, msgspec.json.decode(document)
        changes = None
        if isinstance(known, dict) and isinstance(self._known, dict):
            encoded = msgspec.json.encode(document_changes(known, self._known))
            changes = encode_event("changes", encoded) if 2 * len(encoded) < len(document) else None
        return Update(encode_event("document", document), True, changes, self._document_version)

    def _report(self, what: str, error: Exception) -> None:
        """Publish an event about a failure, once until it succeeds again."""
        if what not in self._failed:
            events.publish(
                "dashboard_failed", "dashboard", f"cannot build the {what}: {error!r:.200}", "error"
            )
        self._failed.add(what)

    def _publish(self, update: Update) -> None:
        self._version += 1
        self._latest = update
        if update.is_document:
            self._document_version = self._version
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class PageStream(StreamingResponse):
    """The stream of one page; the page counts as open while it is sent, however it ends."""

    def __init__(self, live: LiveUpdates) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(live.page_events(), 200, headers, MEDIA_TYPE)
        self._live = live

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send events until the worker shuts down or the client disconnects."""
        with self._live.open_page():
            await super().__call__(scope, receive, send)
