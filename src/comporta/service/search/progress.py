"""Broadcasts the progress of this worker's fetches to the clients that stream a search.

A subscription holds only the latest state of each source, so a slow client costs no memory and misses only
intermediate steps. Without subscribers nothing is stored. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from comporta.service.search.query import SearchScope

SUBSCRIBERS_MAX: Final = 1000


class FetchProgress(NamedTuple):
    """The progress of one source for one search; each of its listings is that of a UF or of a day."""

    source: str
    listings_done: int
    listings_failed: int
    listings_total: int
    pages: int
    notices: int


class ProgressSubscription:
    """The progress that one subscriber has not seen yet."""

    def __init__(self) -> None:
        self._latest: dict[str, FetchProgress] = {}
        self._changed = asyncio.Event()

    def publish(self, progress: FetchProgress) -> None:
        """Store the latest progress of a source."""
        self._latest[progress.source] = progress
        self._changed.set()

    async def wait(self) -> None:
        """Wait for new progress."""
        await self._changed.wait()

    def drain(self) -> list[dict[str, Any]]:
        """Return the new progress of each source in its JSON form."""
        self._changed.clear()
        latest, self._latest = self._latest, {}
        return [progress._asdict() for progress in latest.values()]


class ProgressBroadcaster:
    """The subscribers of each search; at most ``SUBSCRIBERS_MAX`` in total."""

    def __init__(self) -> None:
        self._subscriptions: dict[SearchScope, set[ProgressSubscription]] = {}
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another subscriber."""
        return self._count >= SUBSCRIBERS_MAX

    @contextmanager
    def subscribe(self, scope: SearchScope) -> Iterator[ProgressSubscription]:
        """Subscribe to the progress of a search."""
        subscription = ProgressSubscription()
        self._count += 1
        self._subscriptions.setdefault(scope, set()).add(subscription)
        try:
            yield subscription
        finally:
            self._count -= 1
            self._subscriptions[scope].discard(subscription)
            if not self._subscriptions[scope]:
                del self._subscriptions[scope]

    def publish(self, scope: SearchScope, progress: FetchProgress) -> None:
        """Publish progress to all subscribers of a search."""
        for subscription in self._subscriptions.get(scope, ()):
            subscription.publish(progress)
